"""The plan: what a policy compiles to. Data only; runners execute it, people print and diff it.
[PO-5, PO-6]

A plan lists the *terms* (each relationship once, in its positive form) with the way their
occurrences are
found, and the condition in ECNF as *clauses* over them. It names concepts and streams, never tables
or files,
so the same plan runs in the node and on Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import intern

import msgspec

from rapport.core.errors import Unsupported
from rapport.core.event import content_id
from rapport.policy.language.tree import Consumption, Operator, WhenUnsure
from rapport.policy.ontology import Constraint as Constraint
from rapport.policy.situation_plan import (
    BoundAlias,
    Condition,
    SituationPlan,
    counted_aliases,
    streams_of_conditions,
)


class Side(msgspec.Struct, frozen=True, omit_defaults=True):
    """One end of a relationship: an alias, its attribute, and the constraints of its instance.

    `stream` is `concept.attribute` when push sources give the attribute, None when tables do.
    """

    alias: str
    concept: str
    attribute: str
    constraints: tuple[Constraint, ...]
    stream: str | None


class Constant(msgspec.Struct, frozen=True, tag="constant", omit_defaults=True):
    """A number in the canonical unit, or a text."""

    value: str | float


class SideValue(msgspec.Struct, frozen=True, tag="value", omit_defaults=True):
    """An attribute of the instance at one side (0 first, 1 second); `id` is the identity itself.

    The side's own attribute comes with its event where it has a stream; all others from tables.
    """

    side: int
    attribute: str


class Measure(msgspec.Struct, frozen=True, tag="measure", omit_defaults=True):
    """A number computed from one or two values by a measuring function (`policy/measures.py`)."""

    function: str
    of: tuple[SideValue, ...]


class LookedUp(msgspec.Struct, frozen=True, tag="looked-up", omit_defaults=True):
    """A number that the site's function `function` looks up in its table by one or two texts."""

    function: str
    of: tuple[SideValue, ...]


Operand = Constant | SideValue | Measure | LookedUp


class Compared(msgspec.Struct, frozen=True, omit_defaults=True):
    """Two operands in canonical units; a missing value (None, NaN) never satisfies it, not
    even `!=`.
    """

    left: Operand
    operator: Operator
    right: Operand


class QueryTerm(msgspec.Struct, frozen=True, tag="query", omit_defaults=True):
    """One event-based side: an occurrence per event and matching instance of the other side."""

    first: Side
    second: Side
    function: str
    """Of the relationship; empty for a comparison."""
    parameter: float | None = None
    """In base units (metres)."""
    compared: Compared | None = None

    @property
    def event_side(self) -> Side:
        return self.first if self.first.stream is not None else self.second


class CorrelationTerm(msgspec.Struct, frozen=True, tag="correlation", omit_defaults=True):
    """Both sides event-based: an occurrence per pair of different events within the window.

    Both sides may be one alias with two attributes (`temperature of S > dewpoint of S`).
    """

    first: Side
    second: Side
    function: str
    parameter: float | None = None
    compared: Compared | None = None
    window_ms: int | None = None
    """None: the plan's."""


class ConstraintTerm(msgspec.Struct, frozen=True, tag="constraint", omit_defaults=True):
    """No event-based side: instances that satisfy it extend the bindings."""

    first: Side
    second: Side
    function: str
    parameter: float | None = None
    compared: Compared | None = None


class _WithoutFunction(msgspec.Struct, frozen=True):
    """A term without a relationship function; it has the same attributes as the others."""

    @property
    def function(self) -> str:
        return ""

    @property
    def parameter(self) -> None:
        return


class _OneSided(_WithoutFunction, frozen=True):
    """A term of one alias, which stands on both sides, so that joins need no special case."""

    first: Side

    @property
    def second(self) -> Side:
        return self.first


class ReadingTerm(_OneSided, frozen=True, tag="reading", omit_defaults=True):
    """One alias, one event-based attribute: an occurrence per event for which the comparison
    holds.
    """

    compared: Compared


StateTerm = QueryTerm | CorrelationTerm | ConstraintTerm | ReadingTerm
"""A term that is true, false or unknown for identities at a time, by their last values."""


class StateAtom(msgspec.Struct, frozen=True, tag="state", omit_defaults=True):
    """The term as a state of its identities."""

    term: StateTerm
    negated: bool = False


class StateAll(msgspec.Struct, frozen=True, tag="all", omit_defaults=True):
    """All parts are true."""

    parts: tuple[StateExpression, ...]


class StateAny(msgspec.Struct, frozen=True, tag="any", omit_defaults=True):
    """At least one part is true."""

    parts: tuple[StateExpression, ...]


StateExpression = StateAtom | StateAll | StateAny


class LastingTerm(_WithoutFunction, frozen=True, tag="lasting", omit_defaults=True):
    """A state that stayed true for `duration_ms`: one occurrence per stretch that long, which
    ends that long after it became true. One or two aliases (one: it stands on both sides).
    """

    first: Side
    second: Side
    state: StateExpression
    duration_ms: int


class SilentTerm(_OneSided, frozen=True, tag="silent", omit_defaults=True):
    """An instance gave no event of `streams` for `duration_ms`: one occurrence per silence."""

    streams: tuple[str, ...]
    duration_ms: int


TermStep = QueryTerm | CorrelationTerm | ConstraintTerm | ReadingTerm | LastingTerm | SilentTerm


class Positive(msgspec.Struct, frozen=True, tag="positive", omit_defaults=True):
    """The term with this index occurs."""

    term: int


class Absent(msgspec.Struct, frozen=True, tag="absent", omit_defaults=True):
    """The term with this index does not occur."""

    term: int


class Sequence(msgspec.Struct, frozen=True, tag="sequence", omit_defaults=True):
    """`first FOLLOWED-BY second`, either of them perhaps negated."""

    first: int
    second: int
    first_negated: bool = False
    second_negated: bool = False
    window_ms: int | None = None
    """None: the clause's."""


Child = Positive | Absent | Sequence


class Clause(msgspec.Struct, frozen=True, omit_defaults=True):
    """An OR of children."""

    children: tuple[Child, ...]
    window_ms: int | None = None
    """None: the plan's."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An AND of clauses over terms, with the window and the actions."""

    policy: str
    terms: tuple[TermStep, ...]
    clauses: tuple[Clause, ...]
    actions: tuple[str, ...]
    window_ms: int
    consumption: Consumption = "chronicle"
    distinct: tuple[tuple[str, str], ...] = ()
    when_unsure: WhenUnsure = "hold"
    once_per_ms: int | None = None
    """Detections with equal bindings less than this after an emitted one are suppressed."""
    deliveries: tuple[tuple[str, ...], ...] = ()
    """The delivery lines of each action; empty when none has any."""
    guard: Condition | None = None
    """`while`: a match becomes a detection only if this is true for its identities then. [SI-9]"""
    guard_aliases: tuple[BoundAlias, ...] = ()
    """The aliases that the guard names, and others of the concepts it counts; without constraints:
    a match satisfies them."""

    def version(self) -> str:
        """Content hash of the plan: changes when anything in it does."""
        # msgspec omits defaults by identity; a text from another process is a copy.
        known = msgspec.structs.replace(
            self, consumption=intern(self.consumption), when_unsure=intern(self.when_unsure)
        )
        return content_id(msgspec.json.encode(known).decode())[:12]

    def shortest_silence_ms(self) -> int | None:
        """The shortest silence of its terms; None without one."""
        durations = [one.duration_ms for one in self.terms if isinstance(one, SilentTerm)]
        return min(durations, default=None)

    def is_lasting(self) -> bool:
        """Whether it has only states with a duration (`C for D`)."""
        return all(
            isinstance(child, Positive) and isinstance(self.terms[child.term], LastingTerm)
            for child in self.children()
        )

    def children(self) -> Iterator[Child]:
        """Those of all clauses."""
        return (child for clause in self.clauses for child in clause.children)

    def streams(self) -> tuple[str, ...]:
        """The `concept.attribute` streams this plan reads, sorted."""
        return tuple(sorted(self.streams_of(range(len(self.terms))) | self.guard_streams()))

    def guard_streams(self) -> frozenset[str]:
        """The streams its guard reads, and those by which instances in it become known."""
        if self.guard is None:
            return frozenset()
        known_by = {stream for bound in self.guard_aliases for stream in bound.streams}
        return streams_of_conditions([self.guard]) | known_by

    def conditions(self) -> tuple[Condition, ...]:
        """Its guard, if it has one."""
        return () if self.guard is None else (self.guard,)

    def absent_streams(self) -> frozenset[str]:
        """The streams of all terms whose absence is required."""
        return self.streams_of(
            number
            for child in self.children()
            for number, negated in signed_terms(child)
            if negated
        )

    def always_bound(self) -> frozenset[str]:
        """The aliases that every match binds."""
        found: set[str] = set()
        for clause in self.clauses:
            children = [self._bound_by(child) for child in clause.children]
            found |= frozenset.intersection(*children) if children else set()
        return frozenset(found)

    def ever_bound(self) -> frozenset[str]:
        """The aliases that some match binds."""
        return frozenset(alias for child in self.children() for alias in self._bound_by(child))

    def _bound_by(self, child: Child) -> frozenset[str]:
        terms = [self.terms[number] for number, negated in signed_terms(child) if not negated]
        return frozenset(side.alias for term in terms for side in (term.first, term.second))

    def positive_terms(self) -> frozenset[int]:
        """The terms that occur somewhere without NOT: their occurrences can be causes."""
        signed = (each for child in self.children() for each in signed_terms(child))
        return frozenset(number for number, negated in signed if not negated)

    def streams_of(self, terms: Iterable[int]) -> frozenset[str]:
        """The streams these terms read."""
        return frozenset(stream for term in terms for stream in streams_of_term(self.terms[term]))

    def sides(self) -> list[Side]:
        """Both sides of every term."""
        return [side for term in self.terms for side in (term.first, term.second)]

    def concepts(self) -> tuple[str, ...]:
        """The concepts whose instances the plan looks up, sorted."""
        guarding = [] if self.guard is None else counted_aliases([self.guard])
        concepts = {side.concept for side in self.sides()}
        return tuple(sorted(concepts | {bound.concept for bound in guarding}))


def streams_of_term(term: TermStep) -> frozenset[str]:
    """The `concept.attribute` streams whose events a term reads."""
    match term:
        case SilentTerm():
            return frozenset(term.streams)
        case LastingTerm():
            return frozenset(
                stream for atom in state_atoms(term.state) for stream in streams_of_term(atom.term)
            )
        case _:
            sides = (term.first, term.second)
            return frozenset(side.stream for side in sides if side.stream is not None)


def state_atoms(state: StateExpression) -> Iterator[StateAtom]:
    """The terms of a state, in the order written."""
    if isinstance(state, StateAtom):
        yield state
        return
    for part in state.parts:
        yield from state_atoms(part)


def state_terms(term: TermStep) -> Iterator[StateTerm]:
    """The relationship or comparison that a term is, or those of its state; none of a silence."""
    if isinstance(term, LastingTerm):
        yield from (atom.term for atom in state_atoms(term.state))
    elif not isinstance(term, SilentTerm):
        yield term


PolicyPlan = Plan | SituationPlan
"""What a policy compiles to: with `conditions` or with a `situation`."""


class _PlanKind(msgspec.Struct):
    """A part that only plans of situations have."""

    situation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def encode_plan(plan: PolicyPlan) -> bytes:
    return msgspec.json.encode(plan)


def decode_plan(raw: bytes) -> PolicyPlan:
    """The plan of either kind."""
    if msgspec.json.decode(raw, type=_PlanKind).situation is msgspec.UNSET:
        return msgspec.json.decode(raw, type=Plan)
    return msgspec.json.decode(raw, type=SituationPlan)


def conditions_plan(plan: PolicyPlan, runner: str) -> Plan:
    """The plan for a runner of `conditions` only; raises Unsupported for a situation."""
    if isinstance(plan, SituationPlan):
        raise Unsupported(f"the situation of policy {plan.policy!r}", runner)
    return plan


def longest_duration_ms(plan: Plan) -> int:
    """The longest `for` of a state or a silence; 0 without one."""
    terms = (term for term in plan.terms if isinstance(term, LastingTerm | SilentTerm))
    return max((term.duration_ms for term in terms), default=0)


def terms_of_child(child: Child) -> tuple[int, ...]:
    return tuple(number for number, _negated in signed_terms(child))


def signed_terms(child: Child) -> tuple[tuple[int, bool], ...]:
    """The terms of a child, and whether each is negated."""
    if isinstance(child, Sequence):
        return ((child.first, child.first_negated), (child.second, child.second_negated))
    return ((child.term, isinstance(child, Absent)),)


def is_positive(child: Child) -> bool:
    """True for an occurrence; a followed-by counts as one unless both sides are negated
    (rule 5)."""
    return any(not negated for _number, negated in signed_terms(child))
