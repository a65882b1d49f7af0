"""Readings of a batch by stream, the events that may become causes, and the renumbering of event
ordinals in restored states. [PO-6, PO-7, PO-8, PO-13]"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause
from rapport.policy.operators.columns import NO_ROWS, Array, Columns, Rows
from rapport.policy.operators.identities import Codes, Identities

_MANY_CHUNKS = 512
_FEW = 16
"""Below this many rows Python is faster than a call into Arrow."""
NO_EVENT = -1
"""Marks no event in a column; smaller numbers identify sets of causes."""


class StreamRows:
    """The readings of one stream in a batch: key codes, times, ordinals, values (n, parts), and
    clock uncertainty if a source declares one."""

    __slots__ = ("blurs", "codes", "made", "ordinals", "times", "values")

    def __init__(
        self, codes: Codes, times: Codes, ordinals: Codes, values: npt.NDArray[Any]
    ) -> None:
        self.codes, self.times, self.ordinals, self.values = codes, times, ordinals, values
        self.blurs: Codes | None = None
        self.made: dict[Hashable, Any] = {}
        """Results of steps for these rows, shared by operators."""


def rows_of_stream(
    readings: pa.RecordBatch, stream: str, identities: Identities, first_ordinal: int
) -> StreamRows | None:
    """The rows of a stream; None if the batch has none. Ordinals count events in (time,
    id) order."""
    ordinals = np.arange(first_ordinal, first_ordinal + len(readings))
    mask = _is_of(stream, readings.column("stream"))
    if not mask.all():
        if not mask.any():
            return None
        ordinals = ordinals[mask]
        readings = readings.filter(pa.array(mask))
    return StreamRows(
        identities.encode(readings.column("key")),
        readings.column("time").to_numpy(),
        ordinals,
        _values(readings, stream),
    )


def blurs_of(readings: pa.RecordBatch, by_source: Mapping[str, int]) -> Codes:
    """The clock uncertainty of each reading's source."""
    encoded = readings.column("source").dictionary_encode()
    known = [by_source.get(name, 0) for name in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
    found: Codes = np.array([*known, 0], np.int64)[places]
    return found


def _is_of(stream: str, column: pa.Array) -> npt.NDArray[np.bool_]:
    if len(column) < _FEW:
        return np.array([name == stream for name in column.to_pylist()])
    mask: npt.NDArray[np.bool_] = pc.equal(column, stream).to_numpy(zero_copy_only=False)
    return mask


def _values(readings: pa.RecordBatch, stream: str) -> npt.NDArray[Any]:
    prefix = f"{stream}."
    names = [name for name in readings.schema.names if name.startswith(prefix)]
    parts = [readings.column(name) for name in names if "." not in name[len(prefix) :]]
    return np.column_stack([part.to_numpy(zero_copy_only=False) for part in parts])


class EventLog:
    """Time and id of recent events by ordinal; drops chunks that are older than the horizon.
    Ordinals are those of the runner, so batches without the plan's streams leave gaps."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._times: list[Codes] = []
        self._ids: list[pa.Array] = []
        self._ordinals: Codes | None = None
        """Ordinals of the first chunk if it was merged and has gaps; all other chunks count from
        their first."""

    def add(self, first: int, times: Codes, ids: pa.Array) -> None:
        """Adds a batch; `first`: the ordinal of its first event, larger than all before."""
        self._firsts.append(first)
        self._times.append(times)
        self._ids.append(ids)
        if len(self._firsts) > _MANY_CHUNKS:
            self._merge()

    def causes(self, ordinals: Codes) -> dict[int, Cause]:
        """Time and id of events by ordinal; reads each chunk once."""
        found: dict[int, Cause] = {}
        wanted = np.unique(ordinals)
        edges = [*np.searchsorted(wanted, self._firsts).tolist(), len(wanted)]
        for chunk, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                places = self._places(chunk, wanted[low:high])
                times = self._times[chunk][places].tolist()
                ids = self._ids[chunk].take(pa.array(places)).to_pylist()
                causes = zip(times, ids, strict=True)
                found.update(zip(wanted[low:high].tolist(), causes, strict=True))
        return found

    def trim(self, before: int, *, at_once: bool = False) -> None:
        """Drops chunks with only older events; `at_once` also the older part of a chunk."""
        stale = 0
        while stale < len(self._times) and self._times[stale][-1] < before:
            stale += 1
        if stale:
            del self._firsts[:stale], self._times[:stale], self._ids[:stale]
            self._ordinals = None
        if at_once and self._times:
            older = int(np.searchsorted(self._times[0], before))
            if self._ordinals is not None:
                self._ordinals = self._ordinals[older:]
            self._firsts[0] = self._first_left(older)
            self._times[0], self._ids[0] = self._times[0][older:], self._ids[0].slice(older)

    def state(self, next_ordinal: int) -> dict[str, Any]:
        """`next_ordinal`: the ordinal of the runner's next event."""
        self._merge()
        ids = self._ids[0].to_pylist() if self._ids else []
        times = self._times[0] if self._times else NO_ROWS
        first = self._firsts[0] if self._firsts else next_ordinal
        ordinals = first if self._ordinals is None else self._ordinals
        return {"next": next_ordinal, "times": times, "ids": ids, "ordinals": ordinals}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state; without ordinals the last event has the one before `next`."""
        self._firsts, self._times, self._ids, self._ordinals = [], [], [], None
        if state["ids"]:
            ordinals = saved_ordinals(state)
            self.add(int(ordinals[0]), state["times"], pa.array(state["ids"], pa.string()))
            self._ordinals = None if _is_whole(ordinals) else ordinals

    def _places(self, chunk: int, ordinals: Codes) -> Codes:
        if chunk or self._ordinals is None:
            return ordinals - self._firsts[chunk]
        return np.searchsorted(self._ordinals, ordinals)

    def _first_left(self, older: int) -> int:
        if self._ordinals is None or not len(self._ordinals):
            return self._firsts[0] + older
        return int(self._ordinals[0])

    def _ordinals_of(self, chunk: int) -> Codes:
        if not chunk and self._ordinals is not None:
            return self._ordinals
        first = self._firsts[chunk]
        return np.arange(first, first + len(self._times[chunk]))

    def _merge(self) -> None:
        if len(self._firsts) > 1:
            ordinals = np.concatenate([self._ordinals_of(each) for each in range(len(self._times))])
            self._firsts = self._firsts[:1]
            self._times = [np.concatenate(self._times)]
            self._ids = [pa.concat_arrays(self._ids)]
            self._ordinals = None if _is_whole(ordinals) else ordinals


def saved_ordinals(state: dict[str, Any]) -> Codes:
    """The event ordinals of a log's state: stored, or from the first one, or (in old snapshots)
    those before the next."""
    events = len(state["ids"])
    known: Codes | int = state.get("ordinals", state["next"] - events)
    return np.arange(known, known + events) if isinstance(known, int) else known


def _is_whole(ordinals: Codes) -> bool:
    """Whether the ordinals are consecutive."""
    return not len(ordinals) or int(ordinals[-1] - ordinals[0]) == len(ordinals) - 1


class CauseSets:
    """Causes of any number and age, under negative numbers in place of an event's ordinal. Grows
    with the occurrences of steps within the windows."""

    def __init__(self) -> None:
        self._next = NO_EVENT - 1
        self._sets: dict[int, tuple[int, tuple[Cause, ...]]] = {}
        """By number, with the end of the occurrence."""

    def add(self, ends: Array, causes: Iterable[tuple[Cause, ...]]) -> Rows:
        """Adds the causes of occurrences, roughly in order of ends; returns their numbers."""
        first = self._next
        for end, own in zip(ends.tolist(), causes, strict=True):
            self._sets[self._next] = (end, tuple(own))
            self._next -= 1
        return np.arange(first, self._next, -1)

    def get(self, number: int) -> tuple[Cause, ...]:
        return self._sets[number][1]

    def trim(self, before: int) -> None:
        """Drops those of occurrences that ended before a time."""
        stale = []
        for number, (end, _) in self._sets.items():
            if end >= before:
                break
            stale.append(number)
        for number in stale:
            del self._sets[number]

    def state(self) -> dict[str, Any]:
        rows = [[number, end, own] for number, (end, own) in self._sets.items()]
        return {"next": self._next, "sets": rows}

    def restore(self, state: dict[str, Any]) -> None:
        self._next = state["next"]
        self._sets = {
            number: (end, tuple((time, id) for time, id in own))
            for number, end, own in state["sets"]
        }


def causes_of_rows(log: EventLog, sets: CauseSets, numbers: Array) -> Iterable[tuple[Cause, ...]]:
    """The causes of each row of (n, columns) of events and sets, each once, by (time, id)."""
    numbers = numbers[:, (numbers != NO_EVENT).any(axis=0)]
    known = log.causes(numbers[numbers >= 0])
    if numbers.shape[1] == 1 and (numbers >= 0).all():
        return [(known[number],) for number in numbers[:, 0].tolist()]
    return _of_several(known, sets, numbers)


def _of_several(
    known: Mapping[int, Cause], sets: CauseSets, numbers: Array
) -> Iterator[tuple[Cause, ...]]:
    has_sets = bool((numbers < NO_EVENT).any())
    for row in numbers.tolist():
        own = {known[number] for number in row if number >= 0}
        if has_sets:
            own.update(cause for number in row if number < NO_EVENT for cause in sets.get(number))
        yield tuple(sorted(own))


def renumbered(state: Any, by: int) -> Any:
    """The state with ordinals increased by `by`. Negative numbers (no event, sets of causes) stay.
    Costs a copy of the columns with events."""
    if not by:
        return state
    window = state["window"]
    correlations = window["correlations"]
    return state | {
        "window": window
        | {
            "events": window["events"]
            | {
                "ordinals": saved_ordinals(window["events"]) + by,
                "next": window["events"]["next"] + by,
            },
            "occurrences": _each(window["occurrences"], by),
            "correlations": {
                "sides": _each(correlations["sides"], by),
                "used": {term: _used(own, by) for term, own in correlations["used"].items()},
            },
        },
        "open": _each(state["open"], by),
        "waiting": None if state["waiting"] is None else _columns(state["waiting"], by),
    }


def _each(tables: Mapping[str, Columns], by: int) -> dict[str, Columns]:
    return {name: _columns(columns, by) for name, columns in tables.items()}


def _columns(columns: Columns, by: int) -> Columns:
    names = [name for name in columns if name.startswith(("event", "other"))]
    return columns | {name: _grown(columns[name], by) for name in names}


def _grown(column: Array, by: int) -> Array:
    return np.where(column >= 0, column + by, column)


def _used(pairs: list[Any], by: int) -> list[Any]:
    """Consumed events by pair of identities; under a mark (below 0) the value is an event."""
    return [
        [
            first,
            second,
            {
                (event + by if event >= 0 else event): (value if event >= 0 else value + by)
                for event, value in used.items()
            },
        ]
        for first, second, used in pairs
    ]
