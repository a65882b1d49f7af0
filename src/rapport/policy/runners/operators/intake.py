"""A batch of readings taken apart by stream, and the events that may yet be named as causes.
[PO-6]
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause
from rapport.policy.runners.operators.identities import Codes, Identities

_MANY_CHUNKS = 512
_FEW = 16
"""Below this many rows Python is faster than a call into Arrow."""


class StreamRows:
    """The readings of one stream in a batch: codes of their keys, times, ordinals, values (n,
    parts), and how far their clocks may be wrong where a source says so.
    """

    __slots__ = ("blurs", "codes", "made", "ordinals", "times", "values")

    def __init__(
        self, codes: Codes, times: Codes, ordinals: Codes, values: npt.NDArray[Any]
    ) -> None:
        self.codes, self.times, self.ordinals, self.values = codes, times, ordinals, values
        self.blurs: Codes | None = None
        self.made: dict[Hashable, Any] = {}
        """What steps made of them, for who asks next."""


def rows_of_stream(
    readings: pa.RecordBatch, stream: str, identities: Identities, first_ordinal: int
) -> StreamRows | None:
    """The rows of a stream; None when the batch has none. An ordinal counts events in (time, id)
    order.
    """
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
    """How far the clock of each reading's source may be wrong."""
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
    """Time and id of recent events by ordinal; whole chunks are forgotten when they are older than
    the horizon.
    """

    def __init__(self) -> None:
        self.next_ordinal = 0
        self._firsts: list[int] = []
        self._times: list[Codes] = []
        self._ids: list[pa.Array] = []

    def add(self, times: Codes, ids: pa.Array) -> int:
        """Remembers a batch and returns the ordinal of its first event."""
        first = self.next_ordinal
        self._firsts.append(first)
        self._times.append(times)
        self._ids.append(ids)
        self.next_ordinal += len(times)
        if len(self._firsts) > _MANY_CHUNKS:
            self._merge()
        return first

    def causes(self, ordinals: Codes) -> dict[int, Cause]:
        """Time and id of events, by ordinal; each chunk is looked into once."""
        found: dict[int, Cause] = {}
        wanted = np.unique(ordinals)
        edges = np.searchsorted(wanted, [*self._firsts, self.next_ordinal])
        for chunk, (low, high) in enumerate(pairwise(edges.tolist())):
            if low < high:
                places = wanted[low:high] - self._firsts[chunk]
                times = self._times[chunk][places].tolist()
                ids = self._ids[chunk].take(pa.array(places)).to_pylist()
                causes = zip(times, ids, strict=True)
                found.update(zip(wanted[low:high].tolist(), causes, strict=True))
        return found

    def trim(self, before: int, *, at_once: bool = False) -> None:
        """Forgets chunks whose events are all older; `at_once` also the older part of a chunk."""
        stale = 0
        while stale < len(self._times) and self._times[stale][-1] < before:
            stale += 1
        if stale:
            del self._firsts[:stale], self._times[:stale], self._ids[:stale]
        if at_once and self._times:
            older = int(np.searchsorted(self._times[0], before))
            self._firsts[0] += older
            self._times[0], self._ids[0] = self._times[0][older:], self._ids[0].slice(older)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        self._merge()
        ids = self._ids[0].to_pylist() if self._ids else []
        times = self._times[0] if self._times else np.zeros(0, np.int64)
        return {"next": self.next_ordinal, "times": times, "ids": ids}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self.next_ordinal = state["next"] - len(state["ids"])
        self._firsts, self._times, self._ids = [], [], []
        if state["ids"]:
            self.add(state["times"], pa.array(state["ids"], pa.string()))

    def _merge(self) -> None:
        if len(self._firsts) > 1:
            self._firsts = self._firsts[:1]
            self._times = [np.concatenate(self._times)]
            self._ids = [pa.concat_arrays(self._ids)]
