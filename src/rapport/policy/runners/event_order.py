"""Readings in event order, and those that wait for their turn. [PO-7]"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause
from rapport.policy.runners.base import END_OF_TIME

_MANY_TIES = 4
_ORDERING = ["time", "id", "stream", "key"]
_EVENT_ORDER = [(name, "ascending") for name in _ORDERING]


class ReorderBuffer:
    """Readings that may yet be overtaken by older ones; `oldest` is the smallest of their times."""

    def __init__(self, batches: list[pa.RecordBatch] | None = None) -> None:
        self.batches = batches or []
        self.oldest = END_OF_TIME
        self._note_oldest()

    def __bool__(self) -> bool:
        return bool(self.batches)

    def add(self, readings: pa.RecordBatch, earliest: int) -> None:
        """Takes readings; the smallest of their times is known."""
        self.batches.append(readings)
        self.oldest = min(self.oldest, earliest)

    def take_ready(self, watermark: int) -> pa.RecordBatch:
        """What lies below the watermark, in event order."""
        whole = self.batches[0] if len(self.batches) == 1 else pa.concat_batches(self.batches)
        times = whole.column("time").to_numpy()
        ready = times < watermark
        count = int(np.count_nonzero(ready))
        if count == len(times):
            self.batches, self.oldest = [], END_OF_TIME
            return in_event_order(whole)
        self.oldest = int(times[~ready].min())
        if ready[:count].all():  # in order, as most often: no copying
            self.batches = [whole.slice(count)]
            return in_event_order(whole.slice(0, count))
        self.batches = [whole.filter(pa.array(~ready))]
        return in_event_order(whole.filter(pa.array(ready)))

    def take_later(self, newest_ms: int) -> list[Cause]:
        """Gives up the readings later than a time; returns what they were."""
        dropped: list[Cause] = []
        rest: list[pa.RecordBatch] = []
        for batch in self.batches:
            is_later = pc.greater(batch.column("time"), newest_ms)
            later = batch.filter(is_later)
            times, ids = later.column("time").to_pylist(), later.column("id").to_pylist()
            dropped += zip(times, ids, strict=True)
            rest.append(batch.filter(pc.invert(is_later)))
        self.batches = [batch for batch in rest if len(batch)]
        self._note_oldest()
        return dropped

    def drop(self, ids: Collection[str]) -> None:
        """Forgets readings by id."""
        if ids and self.batches:
            rest = [_without(batch, ids) for batch in self.batches]
            self.batches = [batch for batch in rest if len(batch)]
            self._note_oldest()

    def _note_oldest(self) -> None:
        times = [int(pc.min(batch.column("time")).as_py()) for batch in self.batches]
        self.oldest = min(times, default=END_OF_TIME)


def in_event_order(readings: pa.RecordBatch) -> pa.RecordBatch:
    """Readings sorted by time, equal times by id (code points), then stream and key.

    Almost sorted times cost almost nothing; ids are only looked at where times are equal, and what
    is in order already is not copied.
    """
    times = readings.column("time").to_numpy()
    order = None
    if (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times = times[order]
    ties = times[1:] == times[:-1]
    count = np.count_nonzero(ties)
    if count * _MANY_TIES > len(times):
        return readings.take(pc.sort_indices(readings, sort_keys=_EVENT_ORDER))
    if count:
        order = _with_sorted_ties(readings, order, ties)
    return readings if order is None else readings.take(pa.array(order))


def _with_sorted_ties(
    readings: pa.RecordBatch, order: npt.NDArray[Any] | None, ties: npt.NDArray[np.bool_]
) -> npt.NDArray[Any] | None:
    """The order with the runs of equal times sorted, None for that in which the readings are; where
    `ties` is true, the next has the same time. Runs stay where they are, so all of them are sorted
    in one go.
    """
    tied = np.zeros(len(ties) + 1, np.bool_)
    tied[:-1] = ties
    tied[1:] |= ties
    places = np.flatnonzero(tied)
    rows = places if order is None else order[places]
    keys = readings.select(_ORDERING).take(pa.array(rows))
    by_key = pc.sort_indices(keys, sort_keys=_EVENT_ORDER).to_numpy()
    if order is None:
        if (by_key[1:] > by_key[:-1]).all():
            return None
        order = np.arange(len(tied))
    order[places] = rows[by_key]
    return order


def _without(readings: pa.RecordBatch, ids: Collection[str]) -> pa.RecordBatch:
    known = pc.is_in(readings.column("id"), value_set=pa.array(sorted(ids), pa.string()))
    return readings.filter(pc.invert(known))
