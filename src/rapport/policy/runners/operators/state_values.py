"""The last reading of every identity in one stream, by code, and when it will be too old to count.
[PO-3, PO-6]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rapport.policy.runners.operators.due_times import DueQueue
from rapport.policy.runners.operators.table import Array, Mask, Rows

_FIRST_SIZE = 64
_FEW = 16
"""Below this many rows Python is faster than a call into Arrow."""


class LastValues:
    """Columns with one row per code; grow by doubling, so with the number of identities only.

    A value is `known` from its reading until it is stale; `seen` says that there ever was one.
    """

    def __init__(self) -> None:
        self.seen: Mask = np.zeros(0, np.bool_)
        self.known: Mask = np.zeros(0, np.bool_)
        self.times: Rows = np.zeros(0, np.int64)
        self.stale: Rows = np.zeros(0, np.int64)
        """How long each reading counts; 0: until the next."""
        self.blurs: Rows = np.zeros(0, np.int64)
        self.ids: Array = np.zeros(0, object)
        self.values: Array | None = None
        self._marks: Rows = np.zeros(0, np.int64)
        self._last_mark = 0
        self._expiries: dict[int, DueQueue] = {}

    def grow(self, size: int, like: Array | None = None) -> None:
        """Makes room for codes below `size`, and for values like those given."""
        if like is not None:
            self._fit_values(like)
        if size <= len(self.seen):
            return
        wider = max(2 * len(self.seen), size, _FIRST_SIZE)
        for name in ("seen", "known", "times", "stale", "blurs", "ids", "_marks"):
            setattr(self, name, _widened(getattr(self, name), wider))
        if self.values is not None:
            self.values = _widened(self.values, wider)

    def note(
        self, codes: Rows, times: Rows, values: Array, ids: Array, stale: Rows, blurs: Rows
    ) -> None:
        """Takes over the newest reading of some codes, in order of time; each code once."""
        self.grow(int(codes.max()) + 1 if len(codes) else 0, values)
        assert self.values is not None
        self.seen[codes] = self.known[codes] = True
        self.times[codes], self.ids[codes], self.values[codes] = times, ids, values
        self.stale[codes], self.blurs[codes] = stale, blurs
        marks = np.arange(self._last_mark + 1, self._last_mark + 1 + len(codes))
        self._marks[codes] = marks
        self._last_mark += len(codes)
        for after in np.unique(stale[stale > 0]).tolist():
            chosen = stale == after
            queue = self._expiries.setdefault(after, DueQueue(self._is_latest))
            queue.push(times[chosen] + after, codes[chosen], marks[chosen])

    def forget_value(self, codes: Rows) -> None:
        """The last readings of these are stale now."""
        self.known[codes] = False
        self.stale[codes] = 0

    def pop_stale(self, before: int) -> tuple[Rows, Rows]:
        """Times and codes of last readings that grow stale before a time, each told once."""
        parts = [queue.pop_before(before) for queue in self._expiries.values()]
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate([one[0] for one in parts]), np.concatenate([p[1] for p in parts])

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        codes = np.flatnonzero(self.seen)
        return {
            "codes": codes,
            "known": self.known[codes],
            "times": self.times[codes],
            "stale": self.stale[codes],
            "blurs": self.blurs[codes],
            "ids": self.ids[codes],
            "values": None if self.values is None else self.values[codes],
        }

    @classmethod
    def restored(cls, state: dict[str, Any]) -> LastValues:
        """Those whose `state` this is."""
        made = cls()
        if state["values"] is None:
            return made
        order = np.argsort(state["times"], kind="stable")
        kept = {name: column[order] for name, column in state.items()}
        known = kept.pop("known")
        made.note(**kept)
        made.forget_value(kept["codes"][~known])
        return made

    def _is_latest(self, codes: Rows, marks: Rows) -> Mask:
        return np.asarray(self._marks[codes] == marks)

    def _fit_values(self, like: Array) -> None:
        if self.values is None:
            missing = None if like.dtype == object else np.zeros(1, like.dtype)[0]
            self.values = np.full((len(self.seen), like.shape[1]), missing, like.dtype)
        elif like.dtype == object and self.values.dtype != object:
            self.values = self.values.astype(object)


def _widened(column: Array, size: int) -> Array:
    wider = np.zeros((size, *column.shape[1:]), column.dtype)
    if column.dtype == object:
        wider[...] = None
    wider[: len(column)] = column
    return wider


def texts_at(ids: pa.Array, places: Rows) -> Array:
    """The texts at some places of a column, as objects."""
    if len(places) < _FEW:
        return np.fromiter((ids[place].as_py() for place in places.tolist()), object, len(places))
    found = np.empty(len(places), object)
    found[:] = ids.take(pa.array(places)).to_pylist()
    return found
