"""The policy logic tree of definition 10: root, or, followed-by, relationship, leaf; at most five
levels. [PO-5]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal as Choice

import msgspec

from rapport.policy.compiler.normal_form import (
    Atom,
    Ecnf,
    NormalClause,
    SequenceAtom,
    TermAtom,
    TextAtom,
)
from rapport.policy.compiler.scope import IDENTITY, AttributeRef, Scope
from rapport.policy.language.printer import constraints_text, within_text
from rapport.policy.language.tree import Atomic
from rapport.policy.plan import Constraint

Provision = Choice["event-based", "query"]


class AliasLeaf(msgspec.Struct, frozen=True):
    """An alias with its constraints; one per alias."""

    alias: str
    concept: str
    constraints: tuple[Constraint, ...]

    def text(self) -> str:
        """`person A (status='guest')`."""
        constraints = constraints_text(self.constraints)
        return f"{self.concept} {self.alias}" + (f" ({constraints})" if constraints else "")


class Edge(msgspec.Struct, frozen=True):
    """The attribute that a relationship reads of a leaf, and whether events or tables give it."""

    attribute: str
    provision: Provision
    leaf: AliasLeaf

    def text(self) -> str:
        """`position (event-based) of person A`."""
        return f"{self.attribute} ({self.provision}) of {self.leaf.text()}"


class TermBranch(msgspec.Struct, frozen=True):
    """A relationship between two leaves, possibly negated; or a comparison, duration or silence."""

    atom: TermAtom | TextAtom
    edges: tuple[Edge, ...]
    function: str = ""
    """Of a relationship."""

    def text(self) -> str:
        """`not within 5m`, with the function if the name differs."""
        atom = self.atom
        if isinstance(atom, TextAtom):
            return f"{'not ' * atom.negated}{atom.text}"
        words = ["not"] * atom.negated + [atom.function]
        words += [atom.parameter] if atom.parameter else []
        words += [f"[{self.function}]"] if self.function != atom.function else []
        return " ".join(words)


class FollowedByBranch(msgspec.Struct, frozen=True):
    """Two relationships in order, optionally with a window."""

    first: TermBranch
    second: TermBranch
    window_ms: int | None = None


AtomBranch = TermBranch | FollowedByBranch


class OrBranch(msgspec.Struct, frozen=True):
    """At least two alternatives."""

    children: tuple[AtomBranch, ...]


Branch = OrBranch | AtomBranch


class LogicTree(msgspec.Struct, frozen=True):
    """The root: an AND of all children, each with its window (None: the policy's)."""

    children: tuple[Branch, ...]
    windows: tuple[int | None, ...]

    def height(self) -> int:
        """Levels from the root to the leaves, three to five."""
        return 1 + max(_height(child) for child in self.children)

    def text(self) -> str:
        lines = ["and"]
        for child, window_ms in zip(self.children, self.windows, strict=True):
            first, *more = _lines(child, 1)
            lines += [first + within_text(window_ms), *more]
        return "\n".join(lines)


def build_logic_tree(
    ecnf: Ecnf,
    text_atoms: Mapping[str, Atomic],
    constraints: Mapping[str, tuple[Constraint, ...]],
    scope: Scope,
) -> LogicTree:
    """Builds leaves, then relationships, then connectives, as the paper does."""
    leaves = {
        alias: AliasLeaf(alias, concept, constraints.get(alias, ()))
        for alias, concept in scope.concepts.items()
    }

    def edges(ends: tuple[AttributeRef, ...]) -> tuple[Edge, ...]:
        return tuple(
            Edge(end.attribute, "event-based" if end.from_events else "query", leaves[end.alias])
            for end in ends
            # The leaf identifies the instance already.
            if end.attribute != IDENTITY or not _reads_more(end, ends)
        )

    def term(found: TermAtom | TextAtom) -> TermBranch:
        if isinstance(found, TextAtom):
            return TermBranch(found, edges(scope.ends(text_atoms[found.text])))
        ends = edges(scope.ends_of_term(found))
        return TermBranch(found, ends, scope.relationship(found).function)

    def atom(found: Atom) -> AtomBranch:
        if isinstance(found, SequenceAtom):
            return FollowedByBranch(term(found.first), term(found.second), found.window_ms)
        return term(found)

    def clause(found: NormalClause) -> Branch:
        branches = tuple(atom(each) for each in found.atoms)
        return branches[0] if len(branches) == 1 else OrBranch(branches)

    windows = tuple(each.window_ms for each in ecnf)
    return LogicTree(tuple(clause(each) for each in ecnf), windows)


def _reads_more(end: AttributeRef, ends: tuple[AttributeRef, ...]) -> bool:
    return any(other.alias == end.alias and other != end for other in ends)


def _height(branch: Branch) -> int:
    match branch:
        case OrBranch(children):
            return 1 + max(_height(child) for child in children)
        case FollowedByBranch():
            return 3
        case _:
            return 2


def _lines(branch: Branch, depth: int) -> Iterator[str]:
    indent = "  " * depth
    match branch:
        case OrBranch(children):
            yield f"{indent}or"
            for child in children:
                yield from _lines(child, depth + 1)
        case FollowedByBranch(first, second, window_ms):
            yield f"{indent}followed-by{within_text(window_ms)}"
            yield from _lines(first, depth + 1)
            yield from _lines(second, depth + 1)
        case _:
            yield indent + branch.text()
            for edge in branch.edges:
                yield f"{indent}  {edge.text()}"
