"""Which readings can have a part in what plans find: all others are left out before the shuffle.
[PI-5]

Decided reading by reading, by the tables alone: by the identities that an alias can stand for, and
by the values that can make a term hold (numbers in intervals, listed texts, points in boxes). The
filter may keep more than matters, never less. Lateness must have been judged before, by all
readings. Silence counts from the first reading of all: where plans need it, its time (`began`) is
given, and the readings of that moment are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.schema import PARTS
from rapport.pipeline.history.keys import guard_aliases
from rapport.policy import measures, relations
from rapport.policy.language.tree import Operator
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.identities import Identities, satisfies
from rapport.policy.operators.occurrences import Predicate, constraint_pairs
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import (
    Compared,
    Constant,
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    LookedUp,
    Measure,
    Operand,
    Plan,
    PolicyPlan,
    Positive,
    QueryTerm,
    ReadingTerm,
    Side,
    SideValue,
    SilentTerm,
    TermStep,
    state_atoms,
)
from rapport.policy.situation_plan import BoundAlias, SituationPlan, counted_aliases
from rapport.units import sphere

_MOST_PAIRS = 10_000_000
"""More pairs of instances are not tried here: the operators will, where it is needed."""

Possible = Mapping[str, frozenset[str]]
"""By alias; one that is not there can be anybody who satisfies its constraints."""


def possible_identities(plan: Plan, pull: PullData) -> Possible:
    """The identities that satisfy every fact which each match of the plan needs.

    Such a fact is a term of tables that makes up a clause alone: it binds its aliases in every
    match, and what absence is looked for with those identities too. So readings of others can be
    left out, whatever else the plan asks.
    """
    found: dict[str, frozenset[str]] = {}
    facts = [fact for term in _needed_facts(plan) if (fact := _pairs(term, pull)) is not None]
    changed = True
    while changed:
        changed = False
        for (first, second), pairs in facts:
            left = [
                pair
                for pair in pairs
                if _is_among(found, first, pair[0]) and _is_among(found, second, pair[1])
            ]
            for alias, place in ((first, 0), (second, 1)):
                ids = frozenset(pair[place] for pair in left)
                if alias not in found or found[alias] != ids & found[alias]:
                    found[alias] = ids & found.get(alias, ids)
                    changed = True
    return found


def satisfying(side: Side, pull: PullData, possible: Possible) -> frozenset[str] | None:
    """The identities that can stand at a side; None: anybody, also who is in no table."""
    among = possible.get(side.alias)
    if not side.constraints:
        return among
    instances = pull.instances(side.concept)
    rows = np.flatnonzero(satisfies(instances, side.constraints))
    ids = frozenset(instances.ids[row] for row in rows)
    return ids if among is None else ids & among


def _needed_facts(plan: Plan) -> list[ConstraintTerm]:
    alone = [clause.children[0] for clause in plan.clauses if len(clause.children) == 1]
    terms = [plan.terms[child.term] for child in alone if isinstance(child, Positive)]
    return [term for term in terms if isinstance(term, ConstraintTerm)]


def _pairs(
    term: ConstraintTerm, pull: PullData
) -> tuple[tuple[str, str], list[tuple[str, str]]] | None:
    """Both aliases of a fact and the identities of which it holds; None where there are too many
    to try.
    """
    sides = (term.first, term.second)
    sizes = [len(pull.instances(side.concept)) for side in sides]
    if sizes[0] * sizes[1] > _MOST_PAIRS:
        return None
    identities = {side.concept: Identities(pull.instances(side.concept)) for side in sides}
    first, second = (identities[side.concept] for side in sides)
    predicate = Predicate(term, identities, pull)
    ours, theirs = constraint_pairs(term, first, second, predicate)
    named = zip(first.texts(ours).tolist(), second.texts(theirs).tolist(), strict=True)
    return (term.first.alias, term.second.alias), list(named)


def _is_among(found: Possible, alias: str, identity: str) -> bool:
    known = found.get(alias)
    return known is None or identity in known


Floats = npt.NDArray[np.float64]

MOST_INTERVALS = 16
MOST_TEXTS = 1_000
BOOLEANS = frozenset(("true", "false"))
"""How booleans are written among texts."""


class Interval(msgspec.Struct, frozen=True, order=True):
    """Numbers from `low` to `high`, both included or not."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False


class Numbers(msgspec.Struct, frozen=True):
    """Numbers in one of the intervals, which are sorted and do not touch."""

    intervals: tuple[Interval, ...]


class ListedTexts(msgspec.Struct, frozen=True):
    """One of these texts; booleans are written `true` and `false`."""

    texts: frozenset[str]


PLANE, SPHERE = ("x", "y"), ("lon", "lat")


class Boxes(msgspec.Struct, frozen=True):
    """Points in one of many closed rectangles, kept as the bytes of (n, 4) numbers."""

    raw: bytes
    axes: tuple[str, str] = PLANE
    """The parts of a point."""

    @staticmethod
    def of(boxes: npt.NDArray[Any], axes: tuple[str, str] = PLANE) -> Boxes:
        """Of rectangles (x1, y1, x2, y2), each once, without those in which no point lies."""
        holding = (boxes[:, 0] <= boxes[:, 2]) & (boxes[:, 1] <= boxes[:, 3])
        distinct = np.unique(np.asarray(boxes[holding], np.float64), axis=0)
        return Boxes(np.ascontiguousarray(distinct).tobytes(), axes)

    def array(self) -> Floats:
        """The rectangles, (n, 4)."""
        return np.frombuffer(self.raw, np.float64).reshape(-1, 4)


Values = Numbers | ListedTexts | Boxes


def is_nothing(values: Values | None) -> bool:
    """Whether no value is among them; None stands for any value at all."""
    match values:
        case Numbers():
            return not values.intervals
        case ListedTexts():
            return not values.texts
        case Boxes():
            return not values.raw
    return False


def union(parts: Iterable[Values]) -> Values | None:
    """Values in any of the parts; None (any value) where parts of different kinds meet."""
    every = list(parts)
    numbers = [part for part in every if isinstance(part, Numbers)]
    texts = [part for part in every if isinstance(part, ListedTexts)]
    boxes = [part for part in every if isinstance(part, Boxes)]
    if len(numbers) == len(every):
        return joined_intervals([one for part in numbers for one in part.intervals])
    if len(texts) == len(every):
        return texts_of(text for part in texts for text in part.texts)
    if len(boxes) == len(every):
        return Boxes.of(np.concatenate([part.array() for part in boxes]), boxes[0].axes)
    return None


def texts_of(texts: Iterable[str]) -> ListedTexts | None:
    """One of the texts; any where there are too many to be worth naming."""
    known = frozenset(texts)
    return ListedTexts(known) if len(known) <= MOST_TEXTS else None


def joined_intervals(intervals: Sequence[Interval]) -> Numbers:
    """The intervals, those that meet or overlap as one; all as one where there are too many."""
    found: list[Interval] = []
    for one in sorted(intervals, key=lambda item: (item.low, item.open_low)):
        if found and _touches(found[-1], one):
            found[-1] = _hull(found[-1], one)
        else:
            found.append(one)
    if len(found) > MOST_INTERVALS:
        found = [_hull(found[0], found[-1])]
    return Numbers(tuple(found))


def compared_with(operator: Operator, bounds: Iterable[float]) -> Numbers:
    """The numbers that stand in the comparison with at least one of the bounds, which may be
    missing.
    """
    known = sorted({bound for bound in bounds if not math.isnan(bound)})
    if not known:
        return Numbers(())
    lowest, highest = known[0], known[-1]
    match operator:
        case "<" | "<=":
            return Numbers((Interval(-math.inf, highest, open_high=operator == "<"),))
        case ">" | ">=":
            return Numbers((Interval(lowest, math.inf, open_low=operator == ">"),))
        case "=":
            return joined_intervals([Interval(bound, bound) for bound in known])
    if lowest < highest:
        return Numbers((Interval(-math.inf, math.inf),))
    below, above = Interval(-math.inf, lowest, open_high=True), Interval(lowest, math.inf, True)
    return Numbers((below, above))


def boxes_around(points: npt.NDArray[Any], reach: float) -> Floats | None:
    """Of each point where another can lie whose distance to it is computed to be at most `reach`;
    None where that may be anywhere.

    A little wider than the reach: squares and roots are rounded, and squares of the smallest
    numbers vanish.
    """
    wide = abs(reach) * 1.001 + 1e-150
    if not math.isfinite(wide * wide):
        return None
    low, high = np.nextafter(points - wide, -np.inf), np.nextafter(points + wide, np.inf)
    return np.column_stack((low, high))


def _touches(left: Interval, right: Interval) -> bool:
    """Whether nothing lies between two intervals of which the left one begins first."""
    if left.high == right.low:
        return not (left.open_high and right.open_low)
    return left.high > right.low


def _hull(left: Interval, right: Interval) -> Interval:
    """From the begin of the left one, which begins first, to the further end."""
    if left.high == right.high:
        return Interval(left.low, left.high, left.open_low, left.open_high and right.open_high)
    further = left if left.high > right.high else right
    return Interval(left.low, further.high, left.open_low, further.open_high)


FLIPPED: dict[Operator, Operator] = {
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
    "=": "=",
    "!=": "!=",
}
Column = npt.NDArray[Any]


class DecidingTerm:
    """One term of which one event at a time decides, beside the tables."""

    def __init__(self, term: QueryTerm | ReadingTerm, pull: PullData, possible: Possible) -> None:
        self._term, self._pull, self._possible = term, pull, possible
        self._sides = (term.first, term.second)
        self._place = 0 if term.first.stream is not None else 1

    def values(self) -> Values | None:
        """The values among which are all that can make it hold; None: any."""
        if self._term.compared is not None:
            return self._by_comparison(self._term.compared)
        relation = relations.get(self._term.function)
        other = self._sides[1 - self._place]
        if relation.shape == "contains":
            return self._inside(relation, other) if self._place == 0 else None
        if relation.shape == "distance":
            reach = float(self._term.parameter or 0.0)
            points = _wide(self._column(other), 2)
            return _around(points, reach, on_sphere=relation.space is not None)
        if relation is relations.SAME:
            return texts_of(text for text in self._column(other).tolist() if text is not None)
        return None

    def _inside(self, relation: relations.Relation, other: Side) -> Boxes:
        column = self._column(other)
        if relation.bounds is None:
            return Boxes.of(_wide(column, 4))
        axes = PARTS[relation.first_type]
        return Boxes.of(relation.bounds(column.reshape(-1, 1)), (axes[0], axes[1]))

    def _by_comparison(self, compared: Compared) -> Values | None:
        """Where one operand is what the event brings, by what the other can be."""
        left, operator, right = compared.left, compared.operator, compared.right
        for own, how, other in ((left, operator, right), (right, FLIPPED[operator], left)):
            if isinstance(own, Measure):
                near = self._near(own, how, other)
                if near is not None:
                    return near
            elif self._is_own(own) and not self._reads_own(other):
                return self._against(how, self._offered(other))
        return None

    def _near(self, measure: Measure, operator: Operator, bound: Operand) -> Boxes | None:
        """`distance(A, S) < c` of the event's point and one of the tables."""
        if operator not in ("<", "<=") or measures.get(measure.function).shape != "distance":
            return None
        reaches = self._offered(bound) if isinstance(bound, Constant | LookedUp) else None
        others = [value for value in measure.of if not self._is_own(value)]
        if reaches is None or len(others) != 1:
            return None
        known = [float(reach) for reach in reaches if not math.isnan(reach)]
        side = self._sides[others[0].side]
        points = _wide(self._column(side, others[0].attribute), 2)
        on_sphere = measures.get(measure.function).space is not None
        return _around(points, max(max(known, default=0.0), 0.0), on_sphere=on_sphere)

    def _is_own(self, operand: Operand) -> bool:
        """Whether it is the value that the event brings."""
        own = self._sides[self._place]
        return (
            isinstance(operand, SideValue)
            and operand.attribute == own.attribute
            and self._sides[operand.side].stream is not None
        )

    def _reads_own(self, operand: Operand) -> bool:
        if isinstance(operand, Measure | LookedUp):
            return any(self._is_own(value) for value in operand.of)
        return self._is_own(operand)

    def _offered(self, operand: Operand) -> Sequence[Any] | None:
        """All that an operand of the tables can be; None where it is not known."""
        if isinstance(operand, Constant):
            return [operand.value]
        if isinstance(operand, LookedUp):
            return list(self._pull.pairs(operand.function).values())
        if isinstance(operand, Measure):
            return None
        if operand.attribute == "id":
            return None
        column = self._column(self._sides[operand.side], operand.attribute)
        return None if column.ndim > 1 else list(column.tolist())

    def _against(self, operator: Operator, offered: Sequence[Any] | None) -> Values | None:
        if offered is None:
            return None
        known = [value for value in offered if value is not None]
        if not known:
            return ListedTexts(frozenset())
        if all(isinstance(value, float | int) and not isinstance(value, bool) for value in known):
            return compared_with(operator, known)
        if operator != "=":
            return None
        return texts_of(text for value in known for text in _as_written(value))

    def _column(self, side: Side, attribute: str = "") -> Column:
        """What the tables give of an attribute for those who can stand at a side."""
        instances = self._pull.instances(side.concept)
        column = instances.columns.get(attribute or side.attribute)
        if column is None:
            return np.empty(0, object)
        allowed = satisfying(side, self._pull, self._possible)
        if allowed is None:
            return column
        rows = instances.rows([identity for identity in instances.ids if identity in allowed])
        return np.asarray(column[rows])


def _around(points: Column, reach: float, *, on_sphere: bool) -> Boxes | None:
    if on_sphere:
        known = points[~np.isnan(points).any(axis=1)]
        return Boxes.of(sphere.bounds_many(known, reach), SPHERE)
    boxes = boxes_around(points, reach)
    return None if boxes is None else Boxes.of(boxes)


def _as_written(value: Any) -> tuple[str, ...]:
    """The texts of readings that equal a value; one of a boolean may be spelt otherwise."""
    text, spelt = str(value), str(value).lower()
    return (text, spelt) if spelt in BOOLEANS else (text,)


def _wide(column: Column, parts: int) -> Column:
    """A column of points or rectangles; empty where the tables do not give it."""
    return column if column.ndim == 2 else np.empty((0, parts), np.float64)


_MOST_PARTS = 24
"""More different wishes of one stream are taken together: asking costs too."""

Keys = frozenset[str]


class ReadingSelection(msgspec.Struct, frozen=True):
    """Readings of a stream: whose, and with which values; None: anybody's, any."""

    stream: str
    keys: Keys | None = None
    values: Values | None = None


class WantedReadings(msgspec.Struct, frozen=True):
    """The readings that matter: those that some part wants, and all of the watched sources."""

    wanted: tuple[ReadingSelection, ...]
    sources: frozenset[str] = frozenset()
    """Their readings of any stream matter: how long they were silent makes absence doubtful."""

    def of_stream(self, stream: str) -> tuple[ReadingSelection, ...]:
        """What is wanted of one stream."""
        return tuple(part for part in self.wanted if part.stream == stream)

    def takes_all_of(self, stream: str) -> bool:
        """Whether no reading of the stream can be left out."""
        return ReadingSelection(stream) in self.wanted


def interest_of(
    plans: Sequence[PolicyPlan],
    pull: PullData,
    sources: Mapping[str, PushSource] | None = None,
) -> WantedReadings:
    """What all plans together want. Costs what looking through the tables costs, once per term.

    Args:
        sources: those of the site; one with a period is watched where absence depends on it.
    """
    wanted = [part for plan in plans for part in _wanted_by(plan, pull)]
    judged = (plan for plan in plans if isinstance(plan, Plan))
    watched = {name for plan in judged for name in watched_sources(plan, sources or {})}
    return WantedReadings(simplified(wanted), frozenset(watched))


def counts_silence(plan: PolicyPlan, sources: Mapping[str, PushSource]) -> bool:
    """Whether it matters to the plan when the history began."""
    if isinstance(plan, SituationPlan) or plan.guard is not None:
        return True
    silent = any(isinstance(term, SilentTerm) for term in plan.terms)
    return silent or bool(watched_sources(plan, sources))


def simplified(wanted: Iterable[ReadingSelection]) -> tuple[ReadingSelection, ...]:
    """The same readings in fewer parts, sorted by stream."""
    by_stream: dict[str, list[ReadingSelection]] = {}
    for part in wanted:
        if part.keys != frozenset() and not is_nothing(part.values):
            by_stream.setdefault(part.stream, []).append(part)
    return tuple(one for stream in sorted(by_stream) for one in _of_one(stream, by_stream[stream]))


def _wanted_by(plan: PolicyPlan, pull: PullData) -> Iterator[ReadingSelection]:
    """Of a situation or guard, every reading of every stream of those who can stand for one of its
    aliases: what makes it false matters as well, and any reading makes an instance known.
    """
    possible = possible_identities(plan, pull) if isinstance(plan, Plan) else {}
    aliases = guard_aliases(plan) if isinstance(plan, Plan) else plan.aliases
    for bound in aliases:
        yield from _wanted_of(bound, pull, possible)
    for bound in counted_aliases(plan.conditions()):
        yield from _wanted_of(bound, pull, {})
    if isinstance(plan, Plan):
        for term in plan.terms:
            yield from _wanted_for(term, pull, possible)


def _wanted_of(bound: BoundAlias, pull: PullData, possible: Possible) -> Iterator[ReadingSelection]:
    whose = satisfying(
        Side(bound.alias, bound.concept, "", bound.constraints, None), pull, possible
    )
    yield from (ReadingSelection(stream, whose) for stream in bound.streams)


def _wanted_for(term: TermStep, pull: PullData, possible: Possible) -> Iterator[ReadingSelection]:
    """Of a term that one event decides, the events that can make it hold: others are no
    occurrences, and only occurrences count, under a NOT as well. Of all other terms, every event
    of those who can take part: one of a pair may meet any other, a state ends by what makes it
    false, and a silence by anything.
    """
    match term:
        case QueryTerm() | ReadingTerm():
            side = term.first if term.first.stream is not None else term.second
            values = DecidingTerm(term, pull, possible).values()
            yield _by_side(side, pull, possible, values)
        case CorrelationTerm():
            yield _by_side(term.first, pull, possible)
            yield _by_side(term.second, pull, possible)
        case SilentTerm():
            for stream in term.streams:
                yield ReadingSelection(stream, satisfying(term.first, pull, possible))
        case LastingTerm():
            by_alias = {side.alias: side for side in (term.second, term.first)}
            for atom in state_atoms(term.state):
                for side in (atom.term.first, atom.term.second):
                    if side.stream is not None:
                        whose = satisfying(by_alias[side.alias], pull, possible)
                        yield ReadingSelection(side.stream, whose)


def _by_side(
    side: Side, pull: PullData, possible: Possible, values: Values | None = None
) -> ReadingSelection:
    assert side.stream is not None
    return ReadingSelection(side.stream, satisfying(side, pull, possible), values)


def _of_one(stream: str, parts: list[ReadingSelection]) -> list[ReadingSelection]:
    """Parts of one stream, taken together where that adds nothing or there are too many."""
    if any(part.keys is None and part.values is None for part in parts):
        return [ReadingSelection(stream)]
    by_values: dict[Values | None, Keys | None] = {}
    for part in parts:
        known = by_values.get(part.values, frozenset())
        by_values[part.values] = None if part.keys is None or known is None else known | part.keys
    by_keys: dict[Keys | None, list[Values | None]] = {}
    for values, keys in by_values.items():
        by_keys.setdefault(keys, []).append(values)
    merged = [ReadingSelection(stream, keys, _union_of(values)) for keys, values in by_keys.items()]
    kept = [one for one in merged if not any(_adds_nothing(one, other) for other in merged)]
    return kept if len(kept) <= _MOST_PARTS else [_together(stream, kept)]


def _union_of(values: list[Values | None]) -> Values | None:
    known = [value for value in values if value is not None]
    return union(known) if len(known) == len(values) else None


def _adds_nothing(one: ReadingSelection, other: ReadingSelection) -> bool:
    """Whether another part wants the same and more."""
    if one == other or (other.values is not None and one.values != other.values):
        return False
    return other.keys is None or (one.keys is not None and one.keys <= other.keys)


def _together(stream: str, parts: list[ReadingSelection]) -> ReadingSelection:
    keys = [part.keys for part in parts if part.keys is not None]
    whose = frozenset().union(*keys) if len(keys) == len(parts) else None
    return ReadingSelection(stream, whose, _union_of([part.values for part in parts]))


Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[Any]
Part = Callable[[str], npt.NDArray[Any]]
"""The column of a part (`value`, `x`, `y`) of the rows asked about; nothing is asked for twice."""


class RowFilter:
    """Asks each identity once, each value by a few comparisons: some 5 to 20 ns a row.

    Of rows of one stream at a time. Watched sources and the moment of the begin are the caller's.
    """

    def __init__(self, interest: WantedReadings) -> None:
        self.interest = interest
        self._members: dict[Keys, Mask] = {}
        self._squares: dict[Boxes, _Squares] = {}

    def wanted(self, stream: str, known: Sequence[str], codes: Codes, part: Part) -> Mask:
        """Which rows of a stream matter: `codes` are the places of their keys in `known`, which
        may grow from call to call but not change.
        """
        found = np.zeros(len(codes), np.bool_)
        columns: dict[str, npt.NDArray[Any]] = {}

        def once(name: str) -> npt.NDArray[Any]:
            if name not in columns:
                columns[name] = part(name)
            return columns[name]

        for one in self.interest.of_stream(stream):
            mask = None if one.keys is None else self._member(one.keys, known)[codes]
            if one.values is not None:
                fits = self._fits(one.values, once)
                mask = fits if mask is None else mask & fits
            if mask is None:
                return np.ones(len(codes), np.bool_)
            found |= mask
        return found

    def _member(self, keys: Keys, known: Sequence[str]) -> Mask:
        """One answer per identity known so far."""
        answers = self._members.get(keys, np.zeros(0, np.bool_))
        if len(answers) < len(known):
            new = [key in keys for key in known[len(answers) :]]
            answers = self._members[keys] = np.concatenate((answers, np.array(new, np.bool_)))
        return answers

    def _fits(self, values: Values, part: Part) -> Mask:
        if isinstance(values, Numbers):
            numbers = part("value")
            if numbers.dtype == object:  # booleans of which some are missing
                numbers = np.array([np.nan if one is None else one for one in numbers.tolist()])
            return _any_of([_within(numbers, one) for one in values.intervals], len(numbers))
        if isinstance(values, ListedTexts):
            return _listed(part("value"), values.texts)
        if values not in self._squares:
            self._squares[values] = _Squares(values.array())
        return self._squares[values].hold(part(values.axes[0]), part(values.axes[1]))


_FEW_BOXES = 8
"""So many are asked one by one."""
_SIDE = 256
_FAR, _HUGE = 16.0, 1e300
"""Corners are far away when all together reach so many times further than nearly all of them."""


class _Squares:
    """Squares of the plane that some box touches. A square at the rim goes on without end, so a
    few boxes far away do not make the others too wide. There must be a box.
    """

    def __init__(self, boxes: Floats) -> None:
        self._hull = (*boxes[:, :2].min(axis=0).tolist(), *boxes[:, 2:].max(axis=0).tolist())
        self._boxes = boxes.tolist()
        extents = [_extent(boxes[:, axis::2]) for axis in (0, 1)]
        self._low = [low for low, _ in extents]
        self._width = [(high - low) / _SIDE or 1.0 for low, high in extents]
        (left, right), (low, high) = (
            (self._square(boxes[:, axis], axis), self._square(boxes[:, axis + 2], axis) + 1)
            for axis in (0, 1)
        )
        changes = np.zeros((_SIDE + 3, _SIDE + 3), np.int64)
        for x, y, change in ((left, low, 1), (left, high, -1), (right, low, -1), (right, high, 1)):
            np.add.at(changes, (x, y), change)
        self._covered = changes.cumsum(axis=0).cumsum(axis=1) > 0

    def hold(self, x: Floats, y: Floats) -> Mask:
        """Which points lie in what is covered."""
        found = _in_box(x, y, self._hull)
        rows = np.flatnonzero(found)
        x, y = x[rows], y[rows]
        if len(self._boxes) <= _FEW_BOXES:
            found[rows] = _any_of([_in_box(x, y, box) for box in self._boxes], len(rows))
        else:
            found[rows] = self._covered[self._square(x, 0), self._square(y, 1)]
        return found

    def _square(self, values: Floats, axis: int) -> npt.NDArray[np.int64]:
        """The number of the square, 0 and the last at the rim; it never falls as values rise."""
        with np.errstate(over="ignore"):
            exact = np.floor((values - self._low[axis]) / self._width[axis]) + 1
        return np.asarray(np.clip(exact, 0, _SIDE + 1), np.int64)


def _extent(corners: Floats) -> tuple[float, float]:
    """From where to where nearly all corners lie, on one axis; all of them, if none is far away."""
    finite = corners[np.isfinite(corners) & (np.abs(corners) < _HUGE)]
    if not len(finite):
        return 0.0, 0.0
    usual = np.percentile(finite, (5, 95), method="nearest")
    whole = np.array((finite.min(), finite.max()))
    low, high = (whole if np.ptp(whole) <= _FAR * np.ptp(usual) else usual).tolist()
    return low, high


def _in_box(x: Floats, y: Floats, box: tuple[float, float, float, float]) -> Mask:
    return np.asarray((box[0] <= x) & (x <= box[2]) & (box[1] <= y) & (y <= box[3]), np.bool_)


def _within(numbers: npt.NDArray[Any], one: Interval) -> Mask:
    above = numbers > one.low if one.open_low else numbers >= one.low
    below = numbers < one.high if one.open_high else numbers <= one.high
    return np.asarray(above & below, np.bool_)


def _listed(values: npt.NDArray[Any], texts: frozenset[str]) -> Mask:
    if values.dtype == np.bool_:
        values = np.where(values, "true", "false")
    answers = {True: "true" in texts, False: "false" in texts}
    found = (
        answers[value] if isinstance(value, bool) else value in texts for value in values.tolist()
    )
    return np.fromiter(found, np.bool_, len(values))


def _any_of(masks: list[Mask], rows: int) -> Mask:
    return np.asarray(np.logical_or.reduce(masks), np.bool_) if masks else np.zeros(rows, np.bool_)


_MOST_PARTS_SHOWN = 4
_FEW = 3


def describe_wanted(interest: WantedReadings, pull: PullData) -> str:
    """`person.position of 40 of 200 person, inside 30 rectangles; all of source gate`."""
    parts = [_wanted(part, pull) for part in interest.wanted]
    parts = parts[:_MOST_PARTS_SHOWN] + (
        [f"{len(parts) - _MOST_PARTS_SHOWN} more"] * (len(parts) > _MOST_PARTS_SHOWN)
    )
    parts += [f"all of source {name}" for name in sorted(interest.sources)]
    return "; ".join(parts) or "nothing at all"


def _wanted(part: ReadingSelection, pull: PullData) -> str:
    found = part.stream
    if part.keys is not None:
        concept = part.stream.partition(".")[0]
        known = len(pull.instances(concept))
        whose = ", ".join(sorted(part.keys)) if len(part.keys) <= _FEW else f"{len(part.keys)}"
        found += f" of {whose} of {known} {concept}"
    if part.values is not None:
        found += f" {_values_text(part.values)}"
    return found


def _values_text(values: Values) -> str:
    if isinstance(values, Numbers):
        return " or ".join(_interval(one) for one in values.intervals)
    if isinstance(values, Boxes):
        count = len(values.array())
        return "inside one rectangle" if count == 1 else f"inside {count} rectangles"
    named = sorted(repr(text) for text in values.texts)
    return f"among {', '.join(named[:_FEW])}{' and others' if len(named) > _FEW else ''}"


def _interval(one: Interval) -> str:
    if one.low == one.high:
        return f"= {one.low:g}"
    ends = []
    if one.low > -math.inf:
        ends.append(f"{'>' if one.open_low else '>='} {one.low:g}")
    if one.high < math.inf:
        ends.append(f"{'<' if one.open_high else '<='} {one.high:g}")
    return " and ".join(ends) or "any number"


def row_filter(
    plans: Sequence[PolicyPlan], pull: PullData, sources: Mapping[str, PushSource] | None = None
) -> RowFilter | None:
    """The filter for some plans; None if every reading of their streams matters. Readings of
    watched sources, and of the moment from which silence counts, are to be kept besides.
    """
    interest = interest_of(plans, pull, sources)
    streams = {stream for plan in plans for stream in plan.streams()}
    return None if all(map(interest.takes_all_of, streams)) else RowFilter(interest)


def leaves_out(interest: WantedReadings, plan: PolicyPlan, pull: PullData) -> float:
    """An estimate without readings: the share of known identities of which no reading at all is
    needed, in the stream with the largest one; 1 if values decide too.
    """
    watched = 0.0 if interest.sources else 1.0
    return watched * max((_left_out_of(interest, one, pull) for one in plan.streams()), default=0.0)


def _left_out_of(interest: WantedReadings, stream: str, pull: PullData) -> float:
    whole: set[str] = set()
    for part in interest.of_stream(stream):
        if part.values is None:
            if part.keys is None:
                return 0.0
            whole |= part.keys
    known = len(pull.instances(stream.partition(".")[0]))
    return 1.0 - len(whole) / known if known else 1.0
