"""The plan: what a policy compiles to. Data only; runners execute it, people print and diff it.
[PO-5, PO-6]

A plan lists the *terms* (each relationship once, in its positive form) with the way their
occurrences are
found, and the condition in ECNF as *clauses* over them. It names concepts and streams, never tables
or files,
so the same plan runs in the node and on Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.core.ids import content_id
from rapport.policy.language.tree import Consumption, Operator, WhenUnsure


class Constraint(msgspec.Struct, frozen=True):
    """An attribute of an instance compared with a constant."""

    attribute: str
    operator: Operator
    value: str | float


class Side(msgspec.Struct, frozen=True):
    """One end of a relationship: an alias, the attribute it brings, and what its instance must
    satisfy.

    `stream` is `concept.attribute` when push sources give the attribute, None when tables do.
    """

    alias: str
    concept: str
    attribute: str
    constraints: tuple[Constraint, ...]
    stream: str | None


class QueryTerm(msgspec.Struct, frozen=True, tag="query"):
    """One event-based side: an occurrence per event and matching instance of the other side."""

    first: Side
    second: Side
    function: str
    parameter: float | None = None
    """In base units (metres)."""


class CorrelationTerm(msgspec.Struct, frozen=True, tag="correlation"):
    """Both sides event-based: an occurrence per pair of different events within the window."""

    first: Side
    second: Side
    function: str
    parameter: float | None = None


class ConstraintTerm(msgspec.Struct, frozen=True, tag="constraint"):
    """No event-based side: instances that satisfy it extend the bindings."""

    first: Side
    second: Side
    function: str
    parameter: float | None = None


TermStep = QueryTerm | CorrelationTerm | ConstraintTerm


class Positive(msgspec.Struct, frozen=True, tag="positive"):
    """The term with this index occurs."""

    term: int


class Absent(msgspec.Struct, frozen=True, tag="absent"):
    """The term with this index does not occur."""

    term: int


class Sequence(msgspec.Struct, frozen=True, tag="sequence"):
    """`first FOLLOWED-BY second`, either of them perhaps negated."""

    first: int
    second: int
    first_negated: bool = False
    second_negated: bool = False


Child = Positive | Absent | Sequence


class Clause(msgspec.Struct, frozen=True):
    """An OR of children."""

    children: tuple[Child, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An AND of clauses over terms, with the window and what to do about it."""

    policy: str
    terms: tuple[TermStep, ...]
    clauses: tuple[Clause, ...]
    actions: tuple[str, ...]
    window_ms: int
    consumption: Consumption = "chronicle"
    distinct: tuple[tuple[str, str], ...] = ()
    when_unsure: WhenUnsure = "hold"

    def version(self) -> str:
        """A name for exactly this plan: changes when anything in it does."""
        return content_id(msgspec.json.encode(self).decode())[:12]

    def streams(self) -> tuple[str, ...]:
        """The `concept.attribute` streams this plan reads, sorted."""
        sides = [side for term in self.terms for side in (term.first, term.second)]
        return tuple(sorted({side.stream for side in sides if side.stream is not None}))

    def absent_streams(self) -> frozenset[str]:
        """The streams of all terms whose absence is asked for, alone or beside other things."""
        terms: set[int] = set()
        for child in (child for clause in self.clauses for child in clause.children):
            if isinstance(child, Absent):
                terms.add(child.term)
            elif isinstance(child, Sequence):
                terms |= {child.first} if child.first_negated else set()
                terms |= {child.second} if child.second_negated else set()
        return self.streams_of(terms)

    def streams_of(self, terms: Iterable[int]) -> frozenset[str]:
        """The streams these terms read."""
        chosen = [self.terms[term] for term in terms]
        sides = [side for term in chosen for side in (term.first, term.second)]
        return frozenset(side.stream for side in sides if side.stream is not None)

    def concepts(self) -> tuple[str, ...]:
        """The concepts whose instances this plan looks up, sorted."""
        sides = [side for term in self.terms for side in (term.first, term.second)]
        return tuple(sorted({side.concept for side in sides}))


def encode_plan(plan: Plan) -> bytes:
    """The plan as JSON."""
    return msgspec.json.encode(plan)


def decode_plan(raw: bytes) -> Plan:
    """The plan that `encode_plan` wrote."""
    return msgspec.json.decode(raw, type=Plan)
