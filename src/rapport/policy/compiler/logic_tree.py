"""The policy logic tree of definition 10: root, or, followed-by, relationship, leaf; never higher
than five. [PO-5]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal as Choice

import msgspec

from rapport.policy.compiler.normalize import Atom, Ecnf, Literal, Pair
from rapport.policy.language.printer import print_value
from rapport.policy.language.tree import ConceptDef
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Constraint

Provision = Choice["event-based", "query"]


class Leaf(msgspec.Struct, frozen=True):
    """An alias with its constraints; one per alias."""

    alias: str
    concept: str
    constraints: tuple[Constraint, ...]

    def text(self) -> str:
        """`person A (status='guest')`."""
        shown = (f"{c.attribute}{c.operator}{print_value(c.value)}" for c in self.constraints)
        constraints = " ".join(shown)
        return f"{self.concept} {self.alias}" + (f" ({constraints})" if constraints else "")


class Edge(msgspec.Struct, frozen=True):
    """From a relationship to a leaf: the attribute it reads, and whether events or tables give
    it."""

    attribute: str
    provision: Provision
    leaf: Leaf


class RelationshipBranch(msgspec.Struct, frozen=True):
    """A relationship between two leaves, perhaps negated."""

    relationship: str
    function: str
    parameter: str
    negated: bool
    first: Edge
    second: Edge


class FollowedByBranch(msgspec.Struct, frozen=True):
    """Two relationships in this order."""

    first: RelationshipBranch
    second: RelationshipBranch


AtomBranch = RelationshipBranch | FollowedByBranch


class OrBranch(msgspec.Struct, frozen=True):
    """At least two alternatives."""

    children: tuple[AtomBranch, ...]


class LogicTree(msgspec.Struct, frozen=True):
    """The root: an AND of all children."""

    children: tuple[OrBranch | AtomBranch, ...]

    def height(self) -> int:
        """Levels from the root to the leaves; three to five."""
        return 1 + max(_height(child) for child in self.children)

    def text(self) -> str:
        """The tree as indented lines."""
        return "\n".join(["and", *(line for child in self.children for line in _lines(child, 1))])


def build_logic_tree(
    ecnf: Ecnf,
    definitions: Mapping[str, ConceptDef],
    constraints: Mapping[str, tuple[Constraint, ...]],
    ontology: Ontology,
) -> LogicTree:
    """Leaves first, then relationships, then what joins them, as the paper does."""
    leaves = {
        alias: Leaf(alias, concept.concept, constraints.get(alias, ()))
        for alias, concept in definitions.items()
    }
    streams = ontology.streams()

    def edge(alias: str, end: tuple[str, str]) -> Edge:
        provision: Provision = "event-based" if ".".join(end) in streams else "query"
        return Edge(end[1], provision, leaves[alias])

    def relationship(literal: Literal) -> RelationshipBranch:
        declared = ontology.relationships[literal.function]
        return RelationshipBranch(
            relationship=literal.function,
            function=declared.function,
            parameter=literal.parameter,
            negated=literal.negated,
            first=edge(literal.first, declared.first),
            second=edge(literal.second, declared.second),
        )

    def atom(found: Atom) -> AtomBranch:
        if isinstance(found, Pair):
            return FollowedByBranch(relationship(found.first), relationship(found.second))
        return relationship(found)

    def clause(atoms: tuple[Atom, ...]) -> OrBranch | AtomBranch:
        branches = tuple(atom(found) for found in atoms)
        return branches[0] if len(branches) == 1 else OrBranch(branches)

    return LogicTree(tuple(clause(atoms) for atoms in ecnf))


def _height(branch: OrBranch | AtomBranch) -> int:
    match branch:
        case OrBranch(children):
            return 1 + max(_height(child) for child in children)
        case FollowedByBranch():
            return 3
        case RelationshipBranch():
            return 2


def _lines(branch: OrBranch | AtomBranch, depth: int) -> Iterator[str]:
    indent = "  " * depth
    match branch:
        case OrBranch(children):
            yield f"{indent}or"
            for child in children:
                yield from _lines(child, depth + 1)
        case FollowedByBranch(first, second):
            yield f"{indent}followed-by"
            yield from _lines(first, depth + 1)
            yield from _lines(second, depth + 1)
        case RelationshipBranch():
            words = ["not"] * branch.negated + [branch.relationship]
            words += [branch.parameter] if branch.parameter else []
            words += [f"[{branch.function}]"] if branch.function != branch.relationship else []
            yield indent + " ".join(words)
            for edge in (branch.first, branch.second):
                yield f"{indent}  {edge.attribute} ({edge.provision}) of {edge.leaf.text()}"
