"""The situations of a policy as they are at the watermark: what is open, what is pending, what is
unknown and which values are missing. [SI-4, SI-12, SI-14]

Reads the traces of the operator; nothing is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Literal

import msgspec
import numpy as np

from rapport.core.detection import NamedValue, identity_order
from rapport.core.times import format_duration
from rapport.policy.compiler.situation_text import atom_text, value_text
from rapport.policy.ontology import Ontology
from rapport.policy.operators.columns import Mask, Rows
from rapport.policy.situation_plan import (
    AggregateValue,
    AllOf,
    AnyPart,
    ComparedValues,
    Condition,
    CountedInstances,
    CountedTerm,
    FixedValue,
    Negation,
    PresentValue,
    RelatedInstances,
    SilentStream,
    Sustained,
    TimeWindow,
    Value,
    inner_nodes,
)
from rapport.policy.situations.binding_rows import JoinedRows, PassingRows
from rapport.policy.situations.graph import Frame, PlacedCondition
from rapport.policy.situations.lives import PolicySituations
from rapport.policy.situations.traces import FALSE, TRUE, UNKNOWN, Trace
from rapport.units.quantities import converter

Truth = Literal["true", "false", "unknown"]
_TRUTHS: dict[int, Truth] = {FALSE: "false", UNKNOWN: "unknown", TRUE: "true"}
MOST_STATES = 1_000
"""States that are listed; all are counted."""
_MOST_INSTANCES = 5
_TEMPERATURES = ("degC", "degF")


class AtomState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One atom of the expression: its truth, and the values that it compares."""

    text: str
    truth: Truth
    values: dict[str, NamedValue] = {}
    distance: float | None = None
    """How far a compared number is above its limit; negative below. None without a number."""
    unit: str = ""
    """Of the distance."""
    missing: tuple[str, ...] = ()
    """The values that are unknown."""
    count: int | None = None
    """Of a quantifier: how many instances count."""
    instances: tuple[CountedInstance, ...] = ()
    """Some of those that count: the first 5 in the order of their identities."""


class CountedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that a quantifier counts, with the atoms of the quantifier's expression."""

    id: str
    atoms: tuple[AtomState, ...]


class SituationState(msgspec.Struct, frozen=True, kw_only=True):
    """One binding that is open, pending or unknown."""

    bindings: dict[str, str]
    state: Literal["open", "pending", "unknown"]
    """`pending`: open, and told later because of `at most once per`."""
    truth: Truth
    """Of the expression now; an open situation may be unknown."""
    began: int | None = None
    atoms: tuple[AtomState, ...] = ()


class SituationStates(msgspec.Struct, frozen=True, kw_only=True):
    """The states of a policy at a time; at most 1,000 are listed, open ones first."""

    policy: str
    time: int
    """The watermark: everything before is decided."""
    open: int
    pending: int
    unknown: int
    states: tuple[SituationState, ...] = ()


def current_states(
    situations: PolicySituations, ontology: Ontology, watermark: int
) -> SituationStates:
    """The states of one policy; costs a pass over its bindings."""
    rows = np.arange(situations.row_count())
    truth = _now(situations.condition, situations.frame, rows)
    is_open, is_pending = situations.open_rows(), situations.pending_rows()
    allowed = _allowed(situations, rows)
    is_unknown = allowed & (truth == UNKNOWN) & ~is_open & ~is_pending
    chosen = [*_first(situations, is_open), *_first(situations, is_pending)]
    chosen += _first(situations, is_unknown)
    reader = AtomReader(situations, ontology)
    found = [
        SituationState(
            bindings=bindings,
            state="open" if is_open[row] else "pending" if is_pending[row] else "unknown",
            truth=_TRUTHS[int(truth[row])],
            began=situations.began_at(row) if is_open[row] or is_pending[row] else None,
            atoms=tuple(reader.atoms(row)),
        )
        for row, bindings in chosen[:MOST_STATES]
    ]
    return SituationStates(
        policy=situations.plan.policy,
        time=watermark,
        open=int(is_open.sum()),
        pending=int(is_pending.sum()),
        unknown=int(is_unknown.sum()),
        states=tuple(found),
    )


def _first(situations: PolicySituations, chosen: Mask) -> list[tuple[int, dict[str, str]]]:
    """Rows with their bindings, in the order of identities."""
    found = [
        (row, situations.bindings(row)) for row in np.flatnonzero(chosen)[:MOST_STATES].tolist()
    ]
    return sorted(
        found, key=lambda one: [(name, identity_order(id)) for name, id in sorted(one[1].items())]
    )


def _allowed(situations: PolicySituations, rows: Rows) -> Mask:
    """Which bindings are of known instances that satisfy their constraints."""
    found: Mask = np.ones(len(rows), np.bool_)
    for frame, trace in situations.allowed_traces():
        found &= trace_now(trace, situations.frame, frame, rows) == TRUE
    return found


def _now(placed: PlacedCondition, frame: Frame, rows: Rows) -> Any:
    return trace_now(placed.trace, frame, placed.frame, rows)


def trace_now(trace: Trace, outer: Frame, inner: Frame, rows: Rows) -> Any:
    """The values of a trace at the watermark, for the rows of a frame that contains its own; the
    trace's value before anything is known for rows that it has not seen.
    """
    index = outer.index(inner)
    targets = rows if index is None else index.targets(rows)
    now = trace.now
    if not len(targets) or int(targets.max()) < len(now):
        return now[targets]
    found = np.full((len(targets), *now.shape[1:]), trace.fill, now.dtype)
    known = targets < len(now)
    found[known] = now[targets[known]]
    return found


def shown_truth(situations: PolicySituations, row: int) -> Truth:
    """The truth of the expression at the watermark."""
    return _TRUTHS[int(_now(situations.condition, situations.frame, np.array([row]))[0])]


class AtomReader:
    """The atoms of a policy's expression for single bindings."""

    def __init__(self, situations: PolicySituations, ontology: Ontology) -> None:
        self._situations, self._ontology = situations, ontology

    def atoms(self, row: int) -> Iterator[AtomState]:
        """The atoms outside quantifiers, in the order of the text."""
        situations = self._situations
        yield from self._atoms(situations.condition, situations.frame, np.array([row]), "")

    def placed_atoms(self) -> Iterator[tuple[str, PlacedCondition, Frame]]:
        """The atoms as `atoms` names them, with the traces of their truth and their rows."""
        yield from _placed(self._situations.condition)

    def _atoms(
        self, placed: PlacedCondition, frame: Frame, rows: Rows, note: str
    ) -> Iterator[AtomState]:
        condition, own = placed.condition, placed.frame
        index = frame.index(own)
        rows = rows if index is None else index.targets(rows)
        match condition:
            case AllOf() | AnyPart() if placed.parts:
                for part in placed.parts:
                    yield from self._atoms(part, own, rows, note)
            case Negation():
                yield from self._atoms(placed.parts[0], own, rows, note)
            case Sustained(duration_ms=duration):
                note = f" for {format_duration(duration)}"
                truth = _TRUTHS[int(trace_now(placed.trace, own, own, rows)[0])]
                for atom in self._atoms(placed.parts[0], own, rows, note):
                    yield msgspec.structs.replace(atom, text=f"{atom.text}{note}", truth=truth)
            case _:
                yield self._atom(placed, own, rows)

    def _atom(self, placed: PlacedCondition, own: Frame, rows: Rows) -> AtomState:
        condition = placed.condition
        values = {
            value_text(value): self._value(value, own, rows)
            for value in _values_in(condition, own.aliases.keys())
        }
        distance, unit = self._distance(condition, own, rows)
        count, instances = self._counted(placed, own, rows)
        return AtomState(
            text=condition_text(condition),
            truth=_TRUTHS[int(trace_now(placed.trace, own, own, rows)[0])],
            values=values,
            distance=distance,
            unit=unit,
            missing=tuple(name for name, value in values.items() if value.value is None),
            count=count,
            instances=instances,
        )

    def _counted(
        self, placed: PlacedCondition, own: Frame, rows: Rows
    ) -> tuple[int | None, tuple[CountedInstance, ...]]:
        """How many instances a quantifier counts for one row, and some of them."""
        condition, inner, counted = placed.condition, placed.inner, placed.counted
        if not isinstance(condition, CountedInstances) or inner is None or counted is None:
            return None, ()
        assert placed.counting is not None
        assert isinstance(inner.rows, JoinedRows | PassingRows)
        count = int(trace_now(placed.counting, own, own, rows)[0])
        _places, found = inner.rows.parents.find(rows)
        found = found[trace_now(counted, inner, inner, found) == TRUE]
        alias = condition.bound.alias
        ids = [
            inner.identities[alias].ids[code]
            for code in inner.rows.columns[alias].targets(found).tolist()
        ]
        order = sorted(range(len(ids)), key=lambda one: identity_order(ids[one]))
        instances = tuple(
            CountedInstance(
                id=ids[one],
                atoms=tuple(self._atoms(placed.parts[0], inner, found[one : one + 1], "")),
            )
            for one in order[:_MOST_INSTANCES]
        )
        return count, instances

    def _value(self, value: Value, frame: Frame, rows: Rows) -> NamedValue:
        placed = self._situations.graph.value(value, frame)
        found = trace_now(placed.trace, frame, placed.frame, rows)[0]
        return NamedValue(_plain(found), unit_of(value, self._ontology))

    def _distance(self, condition: Condition, frame: Frame, rows: Rows) -> tuple[float | None, str]:
        if not isinstance(condition, ComparedValues):
            return None, ""
        sides = [
            side.value if isinstance(side, FixedValue) else self._value(side, frame, rows).value
            for side in (condition.left, condition.right)
        ]
        left, right = sides
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return None, ""
        measured = condition.left
        if isinstance(measured, FixedValue):
            left, right, measured = right, left, condition.right
        unit = unit_of(measured, self._ontology)
        return _difference(float(left) - float(right), unit)


def _placed(placed: PlacedCondition) -> Iterator[tuple[str, PlacedCondition, Frame]]:
    match placed.condition:
        case AllOf() | AnyPart() if placed.parts:
            for part in placed.parts:
                yield from _placed(part)
        case Negation():
            yield from _placed(placed.parts[0])
        case Sustained(duration_ms=duration):
            for text, _inner, _frame in _placed(placed.parts[0]):
                yield f"{text} for {format_duration(duration)}", placed, placed.frame
        case condition:
            yield condition_text(condition), placed, placed.frame


def condition_text(condition: Condition) -> str:
    """A condition in one line, in canonical units."""
    match condition:
        case ComparedValues() | RelatedInstances() | SilentStream() | TimeWindow():
            return atom_text(condition)
        case CountedInstances(bound, quantifier, number, inner):
            return f"{quantifier} {number} {bound.concept} {bound.alias} with {_inside(inner)}"
        case AllOf(parts):
            return " and ".join(map(_inside, parts))
        case AnyPart(parts):
            return " or ".join(map(_inside, parts))
        case Negation(part):
            return f"not {_inside(part)}"
        case Sustained(part, duration):
            return f"{_inside(part)} for {format_duration(duration)}"


def _inside(condition: Condition) -> str:
    """A condition within another one."""
    text = condition_text(condition)
    return f"({text})" if isinstance(condition, AllOf | AnyPart) else text


def _values_in(condition: Condition, aliases: Collection[str]) -> list[Value]:
    """The present values and aggregates of some aliases that an atom reads."""
    found: dict[str, Value] = {}
    waiting: list[Condition | Value] = list(inner_nodes(condition))
    while waiting:
        node = waiting.pop(0)
        match node:
            case PresentValue(alias=alias) | AggregateValue(of=PresentValue(alias=alias)):
                if alias in aliases:
                    found.setdefault(value_text(node), node)
            case CountedTerm(alias=alias):
                if alias in aliases:
                    found.setdefault(value_text(node), node)
            case _:
                waiting += inner_nodes(node)
    return list(found.values())


def unit_of(value: Value, ontology: Ontology) -> str:
    """The canonical unit of an attribute or an aggregate over one; empty for calculations."""
    of = value.of if isinstance(value, AggregateValue) else value
    if not isinstance(of, PresentValue):
        return ""
    unit = ontology.units.get(of.concept, {}).get(of.attribute, "")
    match value:
        case AggregateValue(function="count"):
            return ""
        case AggregateValue(function="change"):
            return "K" if unit == "degC" else unit
        case AggregateValue(function="rate"):
            return f"{'K' if unit == 'degC' else unit}/ms"
        case _:
            return unit


def _difference(number: float, unit: str) -> tuple[float, str]:
    """The difference of two values of a unit: of temperatures in kelvin."""
    if unit not in _TEMPERATURES:
        return number, unit
    return number * converter(unit, "degC").scale, "K"


def _plain(value: Any) -> float | str | bool | None:
    if isinstance(value, np.ndarray):
        known = value.astype(float)
        return None if np.isnan(known).any() else ", ".join(f"{part:g}" for part in known)
    if value is None or isinstance(value, str | bool):
        return value
    number = float(value)
    return number if np.isfinite(number) else None
