"""Evaluates terms in bulk and finds the occurrences that a single reading or the tables alone give:
look-ups of query terms, facts of tables, comparisons of readings. [PO-1, PO-3, PO-6, PO-13]

Plans share results, so these are read-only; events are numbered from the start of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from rapport.policy import measures, relations
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import (
    NO_EVENT,
    NO_ROWS,
    Array,
    Columns,
    Mask,
    Rows,
    Table,
    compare,
    complete_rows,
    present,
)
from rapport.policy.operators.identities import (
    Codes,
    Identities,
    IdentityFilter,
    StreamRows,
    blurs_of,
    rows_of_stream,
    satisfies,
)
from rapport.policy.operators.plan_shape import is_of_tables_alone
from rapport.policy.operators.shared_cache import SharedCache
from rapport.policy.operators.spatial import Grid, Reach
from rapport.policy.plan import (
    Compared,
    Constant,
    ConstraintTerm,
    LookedUp,
    Measure,
    Operand,
    QueryTerm,
    Side,
    SideValue,
    StateTerm,
)

_SMALLER = ("<", "<=")
_LARGER = (">", ">=")
_NEVER = Compared(Constant(math.nan), "=", Constant(math.nan))


class RowOperands(NamedTuple):
    """For both sides the values (n, parts) from events, and the codes.

    Values of a side without a stream may be None: tables give them by code.
    """

    values: tuple[Array | None, Array | None]
    codes: tuple[Codes, Codes]


class Predicate:
    """One term, evaluated for many rows at once; missing values never satisfy it.

    Costs the function; table attributes are gathered by code, looked-up numbers cost a dictionary
    access per row.
    """

    def __init__(
        self, term: StateTerm, identities: Mapping[str, Identities], pull: PullData
    ) -> None:
        self._sides = (term.first, term.second)
        self._identities = tuple(identities[side.concept] for side in self._sides)
        self._pull, self._compared, self._parameter = pull, term.compared, term.parameter
        self._relation = None if term.compared is not None else relations.get(term.function)
        self.contains = self._relation is not None and self._relation.shape == "contains"
        """Whether the term is: the first value, a point, lies in the second, a closed area."""
        compared = term.compared or _NEVER
        self._left, self._right = self._operand(compared.left), self._operand(compared.right)
        self.reach = self._reach()
        """The largest distance of two event points for which it can hold; None: unlimited."""

    def holds(
        self, first: Array | None, second: Array | None, first_codes: Codes, second_codes: Codes
    ) -> Mask:
        """For each row whether it holds."""
        operands = RowOperands((first, second), (first_codes, second_codes))
        if self._relation is not None:
            ends = self._own_value(operands, 0), self._own_value(operands, 1)
            return self._relation.holds_many(*ends, self._parameter)
        assert self._compared is not None
        return compare(self._left(operands), self._compared.operator, self._right(operands))

    def bounds(self, areas: Array) -> Array:
        """The rectangles around the second values of a term that `contains`; NaN if missing."""
        assert self._relation is not None
        return areas if self._relation.bounds is None else self._relation.bounds(areas)

    def holds_of(self, first: Columns, here: Rows, second: Columns, there: Rows) -> Mask:
        """The same for rows of two tables of events."""
        values = first["value"][here], second["value"][there]
        if self._relation is not None:
            return self._relation.holds_many(*values, self._parameter)
        return self.holds(*values, first["code"][here], second["code"][there])

    def measured(
        self, first: Array | None, second: Array | None, first_codes: Codes, second_codes: Codes
    ) -> Array:
        """The number that is compared with the term's constant: for a distance its square (with the
        rounding of `relations.WITHIN`), else the other operand."""
        operands = RowOperands((first, second), (first_codes, second_codes))
        if self._compared is None:
            here, there = self._own_value(operands, 0), self._own_value(operands, 1)
            dx, dy = here[:, 0] - there[:, 0], here[:, 1] - there[:, 1]
            return np.asarray(dx * dx + dy * dy, np.float64)
        is_left = isinstance(self._compared.right, Constant)
        return np.asarray((self._left if is_left else self._right)(operands), np.float64)

    def known(
        self, first: Array | None, second: Array | None, first_codes: Codes, second_codes: Codes
    ) -> Mask:
        """For each row whether all values are present: only then not holding means false."""
        operands = RowOperands((first, second), (first_codes, second_codes))
        if self._relation is not None:
            return complete_rows(self._own_value(operands, 0)) & complete_rows(
                self._own_value(operands, 1)
            )
        rows = len(first_codes)
        return present(self._left(operands), rows) & present(self._right(operands), rows)

    def _own_value(self, operands: RowOperands, place: int) -> Array:
        given = operands.values[place]
        if given is not None:
            return given
        return self._from_tables(operands, place, self._sides[place].attribute)

    def _value(self, value: SideValue) -> Callable[[RowOperands], Array]:
        """Values (n, parts) of an attribute of one side."""
        place, side = value.side, self._sides[value.side]
        if side.stream is not None and value.attribute == side.attribute:
            return lambda operands: self._own_value(operands, place)
        return lambda operands: self._from_tables(operands, place, value.attribute)

    def _from_tables(self, operands: RowOperands, place: int, attribute: str) -> Array:
        return self._identities[place].values(attribute, operands.codes[place])

    def _operand(self, operand: Operand) -> Callable[[RowOperands], Any]:
        """One value per row, or a scalar."""
        if isinstance(operand, Constant):
            return lambda _: operand.value
        if isinstance(operand, SideValue):
            value = self._value(operand)
            return lambda operands: value(operands)[:, 0]
        values = [self._value(value) for value in operand.of]
        if isinstance(operand, Measure):
            measuring = measures.get(operand.function)
            return lambda operands: _measured(measuring, [value(operands) for value in values])
        pairs = self._pull.pairs(operand.function)
        return lambda operands: _looked_up(pairs, [value(operands)[:, 0] for value in values])

    def _reach(self) -> Reach | None:
        if self._compared is not None:
            return self._compared_reach(self._compared)
        assert self._relation is not None
        if self._relation.shape != "distance":
            return None
        return Reach(float(self._parameter or 0.0), self._relation.space)

    def _compared_reach(self, compared: Compared) -> Reach | None:
        """The reach of `distance(A, B) < c` and similar comparisons."""
        near, bound = compared.left, compared.right
        if compared.operator in _LARGER:
            near, bound = bound, near
        elif compared.operator not in _SMALLER:
            return None
        if not isinstance(near, Measure) or not _is_distance(near, self._sides):
            return None
        if isinstance(bound, Constant):
            reach = float(bound.value)
        elif isinstance(bound, LookedUp):
            known = self._pull.pairs(bound.function).values()
            reach = max((number for number in known if not math.isnan(number)), default=0.0)
        else:
            return None
        if not math.isfinite(reach):
            return None
        return Reach(max(reach, 0.0), measures.get(near.function).space)


def _is_distance(measure: Measure, sides: tuple[Side, Side]) -> bool:
    """Whether it is the distance of the two points that events bring."""
    own = {place for place, side in enumerate(sides) if side.stream is not None}
    ends = {value.side for value in measure.of if value.attribute == sides[value.side].attribute}
    return own == ends == {0, 1} and measures.get(measure.function).shape == "distance"


def _measured(measuring: measures.MeasuringFunction, values: list[Array]) -> Array:
    """Evaluates a measure; NaN where a part is missing."""
    complete = np.logical_and.reduce([complete_rows(value) for value in values])
    if complete.all():
        return measuring.many(*values)
    found = np.full(len(complete), math.nan)
    if complete.any():
        found[complete] = measuring.many(*(value[complete] for value in values))
    return found


def _looked_up(pairs: Mapping[tuple[str, ...], float], texts: list[Array]) -> Array:
    keys = zip(*(column.tolist() for column in texts), strict=True)
    return np.fromiter((pairs.get(key, math.nan) for key in keys), np.float64, len(texts[0]))


_MOST_PAIRS = 1 << 21


class Lookup:
    """The instances of one side that satisfy its constraints, queried with many event values at
    once.

    Points in rectangles use a grid; other functions are evaluated for every instance.
    """

    def __init__(self, term: QueryTerm, identities: Identities, predicate: Predicate) -> None:
        self._event_is_first = term.first.stream is not None
        side = term.second if self._event_is_first else term.first
        self._predicate = predicate
        self._codes = instance_codes(side, identities, term.compared is None)
        self._values = None
        if term.compared is None:
            values = identities.values(side.attribute, self._codes)
            # A missing value satisfies no relationship, and the grid cannot hold it.
            complete = complete_rows(values)
            self._codes, self._values = self._codes[complete], values[complete]
        self._grid = None
        if predicate.contains and self._event_is_first and self._values is not None:
            bounds = predicate.bounds(self._values)
            self._grid = Grid(bounds) if Grid.can_hold(bounds) else None

    def find(self, values: npt.NDArray[Any], codes: Codes) -> tuple[Rows, Codes]:
        """Pairs (row of `values`, instance code) for which the relationship holds, by row; `codes`
        are the identities of the values."""
        if not len(self._codes) or not len(values):
            return NO_ROWS, NO_ROWS
        if self._grid is not None:
            rows, found = self._grid.candidates(values)
            return self._holding(values, codes, rows, found)
        step = max(_MOST_PAIRS // len(self._codes), 1)
        parts = [
            self._every(values, codes, first, min(first + step, len(values)))
            for first in range(0, len(values), step)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate([p[1] for p in parts])

    def _every(
        self, values: npt.NDArray[Any], codes: Codes, first: int, last: int
    ) -> tuple[Rows, Codes]:
        rows = np.repeat(np.arange(first, last), len(self._codes))
        found = np.tile(np.arange(len(self._codes)), last - first)
        return self._holding(values, codes, rows, found)

    def _holding(
        self, values: npt.NDArray[Any], codes: Codes, rows: Rows, found: Rows
    ) -> tuple[Rows, Codes]:
        event, event_codes, instance_codes_found = values[rows], NO_ROWS, NO_ROWS
        instance: npt.NDArray[Any] | None = None
        if self._values is not None:  # a relationship needs values only
            instance = self._values[found]
        else:
            event_codes, instance_codes_found = codes[rows], self._codes[found]
        if self._event_is_first:
            mask = self._predicate.holds(event, instance, event_codes, instance_codes_found)
        else:
            mask = self._predicate.holds(instance, event, instance_codes_found, event_codes)
        return rows[mask], self._codes[found[mask]]


def instance_codes(side: Side, identities: Identities, with_value: bool) -> Codes:
    """Codes of the instances that satisfy the side's constraints, in table order; with `with_value`
    empty if no table gives the attribute."""
    instances = identities.instances
    if with_value and not identities.has(side.attribute):
        return NO_ROWS
    rows = np.flatnonzero(satisfies(instances, side.constraints))
    return identities.encode_list([instances.ids[row] for row in rows])


def constraint_pairs(
    term: ConstraintTerm, first: Identities, second: Identities, predicate: Predicate
) -> tuple[Codes, Codes]:
    """All pairs of instances for which a term without events holds; if both sides are one alias,
    each instance with itself."""
    found = [(NO_ROWS, NO_ROWS)]
    with_value = term.compared is None
    ours = instance_codes(term.first, first, with_value)
    theirs = instance_codes(term.second, second, with_value)
    one_alias = term.first.alias == term.second.alias and len(ours) == len(theirs)
    for left, right in [(ours, theirs)] if one_alias else _every_pair(ours, theirs):
        mask = predicate.holds(None, None, left, right)
        found.append((left[mask], right[mask]))
    return np.concatenate([pair[0] for pair in found]), np.concatenate([p[1] for p in found])


def _every_pair(ours: Codes, theirs: Codes) -> Iterator[tuple[Codes, Codes]]:
    step = max(_MOST_PAIRS // max(len(theirs), 1), 1)
    for start in range(0, len(ours), step):
        some = ours[start : start + step]
        yield np.repeat(some, len(theirs)), np.tile(theirs, len(some))


def facts_of_tables(
    term: ConstraintTerm, first: Identities, second: Identities, predicate: Predicate
) -> Table:
    """All pairs of instances for which the term holds, without events and times."""
    ours, theirs = constraint_pairs(term, first, second, predicate)
    zeros, none = np.zeros(len(ours), np.int64), np.full(len(ours), NO_EVENT)
    return Table(
        {
            "first": ours,
            "second": theirs,
            "end": zeros,
            "start": zeros,
            "event": none,
            "other": none,
        }
    )


def unnamed_facts(term: ConstraintTerm) -> tuple[ConstraintTerm, bool]:
    """Everything the facts depend on: the term without alias names, and whether both aliases are
    one."""
    first, second = (replace(side, alias="") for side in (term.first, term.second))
    blank = replace(term, first=first, second=second)
    return blank, term.first.alias == term.second.alias


Pairs = tuple[Rows, Codes]
"""Rows of a stream and the instances they match."""


class SharedLookup:
    """A look-up and the filters of the identities whose events are looked up."""

    def __init__(
        self, term: QueryTerm, identities: Mapping[str, Identities], pull: PullData
    ) -> None:
        self._make = partial(_lookup, term, identities, pull)
        self._lookup = self._make()
        self._id_filters: list[ReferenceType[IdentityFilter]] = []
        """The filters of terms that query every batch."""

    def add_filter(self, id_filter: IdentityFilter) -> None:
        """Queries the events of these identities too, while the filter is referenced."""
        living = [one for one in self._id_filters if one() is not None]
        self._id_filters = living if ref(id_filter) in living else [*living, ref(id_filter)]

    def renew(self) -> None:
        """Looks everything up again, because codes or tables changed."""
        self._lookup = self._make()

    def find(self, rows: StreamRows) -> Pairs:
        """The matches of all events that some term queries."""
        return self._find(rows, _any_allows(self._id_filters, rows.codes))

    def find_filtered(self, rows: StreamRows, id_filter: IdentityFilter) -> Pairs:
        """The matches of the events of one filter."""
        return self._find(rows, id_filter.allowed()[rows.codes])

    def _find(self, rows: StreamRows, chosen_mask: Mask) -> Pairs:
        chosen = np.flatnonzero(chosen_mask)
        places, instances = self._lookup.find(rows.values[chosen], rows.codes[chosen])
        return chosen[places], instances


class TermQuery(NamedTuple):
    """A query of one term: distinguishes occurrences of terms with the same look-up."""

    lookup: SharedLookup
    id_filter: IdentityFilter
    event_is_first: bool
    is_one_alias: bool


class QueryTerms:
    """The query terms of one plan; plans with equal terms share look-ups."""

    def __init__(
        self, identities: Mapping[str, Identities], pull: PullData, shared: SharedCache
    ) -> None:
        self._identities, self._pull, self._shared = identities, pull, shared
        self._own: dict[QueryTerm, SharedLookup] = {}
        self._by_stream: dict[str, list[tuple[int, TermQuery]]] = {}

    def add(self, number: int, term: QueryTerm, id_filter: IdentityFilter) -> None:
        """Queries a term with every batch; `id_filter` filters its events."""
        query = self.query(term, id_filter)
        query.lookup.add_filter(id_filter)
        self._by_stream.setdefault(term.event_side.stream or "", []).append((number, query))

    def query(self, term: QueryTerm, id_filter: IdentityFilter) -> TermQuery:
        """The query of a term."""
        blank = _without_filters(term)
        if blank not in self._own:
            self._own[blank] = self._question(blank)
        question = self._own[blank]
        is_first = term.first.stream is not None
        return TermQuery(question, id_filter, is_first, term.first.alias == term.second.alias)

    def renew(self) -> None:
        """Looks everything up again, because codes or tables changed."""
        for question in self._own.values():
            question.renew()

    def find(self, stream: str, rows: StreamRows) -> Iterator[tuple[int, TermQuery, Pairs]]:
        """The terms of a stream with the pairs (row, instance) that some term queries."""
        for number, query in self._by_stream.get(stream, ()):
            question = query.lookup
            yield number, query, self._shared.compute_for_rows(rows, question, question.find, rows)

    def _question(self, blank: QueryTerm) -> SharedLookup:
        if not is_of_tables_alone(blank):  # functions of the site are not shared
            return SharedLookup(blank, self._identities, self._pull)
        known = tuple(self._identities[side.concept] for side in (blank.first, blank.second))
        return self._shared.get_or_make(
            (blank, known), SharedLookup, blank, self._identities, self._pull
        )


def _lookup(term: QueryTerm, identities: Mapping[str, Identities], pull: PullData) -> Lookup:
    side = term.second if term.first.stream is not None else term.first
    return Lookup(term, identities[side.concept], Predicate(term, identities, pull))


def _any_allows(id_filters: Iterable[ReferenceType[IdentityFilter]], codes: Codes) -> Mask:
    """Whether any filter allows each code; evaluated per code if there are fewer codes
    than rows."""
    allowed = [id_filter.allowed() for one in id_filters if (id_filter := one()) is not None]
    if len(allowed[0]) > len(codes):
        return np.asarray(np.logical_or.reduce([one[codes] for one in allowed]))
    return np.asarray(np.logical_or.reduce(allowed)[codes])


def _without_filters(term: QueryTerm) -> QueryTerm:
    """The term without names and without the filters of its events."""
    first, second = (
        replace(side, alias="", constraints=() if side.stream else side.constraints)
        for side in (term.first, term.second)
    )
    return replace(term, first=first, second=second)


class StreamOccurrences(NamedTuple):
    """Occurrences of a term, and their rows of the stream."""

    places: Rows
    columns: Columns

    def with_ordinals(self, first: int) -> Columns:
        """The columns with the ordinals of the runner."""
        return self.columns | {"event": self.columns["event"] + first}


_NOTHING = StreamOccurrences(NO_ROWS, {})


def stream_rows(
    readings: pa.RecordBatch, stream: str, identities: Identities, blurs: Mapping[str, int]
) -> StreamRows | None:
    """The readings of one stream; `blurs`: clock uncertainty by source."""
    rows = rows_of_stream(readings, stream, identities, 0)
    if rows is not None and blurs:
        rows.blurs = blurs_of(readings, blurs)[rows.ordinals]
    return rows


def query_occurrences(
    rows: StreamRows, query: TermQuery, places: Rows, instances: Codes
) -> StreamOccurrences:
    """The occurrences of this query among pairs of rows and instances."""
    if not len(places):
        return _NOTHING
    fits = query.id_filter.allowed()[rows.codes[places]]
    places, instances = places[fits], instances[fits]
    keys = rows.codes[places]
    if query.is_one_alias:
        same = keys == instances
        places, instances, keys = places[same], instances[same], keys[same]
    first, second = (keys, instances) if query.event_is_first else (instances, keys)
    return _occurred(rows, places, first, second)


def reading_occurrences(
    rows: StreamRows, id_filter: IdentityFilter, predicate: Predicate
) -> StreamOccurrences:
    """The rows for which a comparison with their instance holds."""
    chosen = np.flatnonzero(id_filter.allowed()[rows.codes])
    values, codes = rows.values[chosen], rows.codes[chosen]
    places = chosen[predicate.holds(values, values, codes, codes)]
    return _occurred(rows, places, rows.codes[places], rows.codes[places])


def side_rows(rows: StreamRows, id_filter: IdentityFilter, reach: Reach | None) -> Columns | None:
    """The rows of one side of a correlation, with grid cells if only near events matter; None if
    there are none."""
    chosen = np.flatnonzero(id_filter.allowed()[rows.codes])
    if not len(chosen):
        return None
    values = rows.values[chosen]
    columns: Columns = {
        "code": rows.codes[chosen],
        "end": rows.times[chosen],
        "event": rows.ordinals[chosen],
        "value": values,
    }
    if reach is not None:
        columns["cell"] = reach.cells(values)
    if rows.blurs is not None:
        columns["blur"] = rows.blurs[chosen]
    return _for_reading(columns)


def _occurred(rows: StreamRows, places: Rows, first: Codes, second: Codes) -> StreamOccurrences:
    if not len(places):
        return _NOTHING
    times = rows.times[places]
    columns = {
        "first": first,
        "second": second,
        "end": times,
        "start": times,
        "event": rows.ordinals[places],
        "other": np.full(len(places), NO_EVENT),
    }
    if rows.blurs is not None:
        columns["blur"] = rows.blurs[places]
    return StreamOccurrences(places, _for_reading(columns))


def _for_reading(columns: Columns) -> Columns:
    for column in columns.values():
        column.flags.writeable = False
    return columns
