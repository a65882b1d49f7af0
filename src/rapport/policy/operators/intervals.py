"""Intervals in which a state holds: the moments at which it may change for a binding, and the open
intervals with their causes and due times. [PO-3, PO-6]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rapport.core.detection import Cause
from rapport.policy.operators.columns import Array, Columns, Mask, Rows, widened
from rapport.policy.operators.timeline import DueQueue

_CODES = 31
"""Bits of a code in the key of a pair."""
NOT_ENDED = 2**62
_COLUMNS = ("own", "partner", "since", "start", "blur", "fired", "causes")
_FIRST_SIZE = 64
FAR = 2**62


def keys_of(own: Rows, partner: Rows, *, paired: bool) -> Rows:
    """The owners of moments and intervals: pairs, or the identities with readings."""
    return (own << _CODES) | partner if paired else own


def pairs_of(keys: Rows) -> tuple[Rows, Rows]:
    """Both codes of the keys of pairs."""
    return keys >> _CODES, keys & ((1 << _CODES) - 1)


class Moments:
    """Steps sorted by owner, then in order; equal keys form a group."""

    def __init__(
        self, own: Rows, partner: Rows, order: Rows, times: Rows, *, paired: bool = False
    ) -> None:
        self.own, self.partner, self.order, self.times = own, partner, order, times
        keys = keys_of(own, partner, paired=paired)
        begins = np.ones(len(keys), np.bool_)
        begins[1:] = keys[1:] != keys[:-1]
        self.starts = np.flatnonzero(begins)
        self.ends = np.append(self.starts[1:], len(keys))
        self.keys = keys[self.starts]
        self.groups = np.cumsum(begins) - 1


class Runs(NamedTuple):
    """Intervals within a portion."""

    begins: Rows
    """The number of an open interval or, after these, of a true row."""
    ended: Rows
    """When it ended; NOT_ENDED while open."""
    opened: int
    """The number of intervals that were open before."""

    def ends_of_opened(self) -> tuple[Rows, Rows]:
        """Numbers of the open intervals that ended, and when."""
        chosen = (self.begins < self.opened) & (self.ended < NOT_ENDED)
        return self.begins[chosen], self.ended[chosen]

    def begun(self) -> tuple[Rows, Rows]:
        """Numbers of the true rows that began an interval, and when it ended."""
        chosen = self.begins >= self.opened
        return self.begins[chosen] - self.opened, self.ended[chosen]


class TrueRows(NamedTuple):
    """Where a state holds: moment and partner."""

    moments: Rows
    partners: Rows


def find_runs(moments: Moments, true: TrueRows, open_groups: Rows, open_partners: Rows) -> Runs:
    """Joins consecutive true moments, and intervals that were open before the first.

    An interval ends with the first moment of its group that is not true.
    """
    groups = np.concatenate((open_groups, moments.groups[true.moments]))
    partners = np.concatenate((open_partners, true.partners))
    # Each group has a position before its moments for open intervals, and an empty one after
    # them, so that runs of different groups never touch.
    places = np.concatenate(
        (
            moments.starts[open_groups] + 2 * open_groups,
            true.moments + 2 * groups[len(open_groups) :] + 1,
        )
    )
    sorting = np.lexsort((places, partners, groups))
    places, partners, groups = places[sorting], partners[sorting], groups[sorting]
    begins = np.ones(len(places), np.bool_)
    begins[1:] = (places[1:] != places[:-1] + 1) | (partners[1:] != partners[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(places)) - 1 if len(first) else first
    following = places[last] - 2 * groups[last]
    ended = np.full(len(first), NOT_ENDED)
    over = following < moments.ends[groups[last]]
    ended[over] = moments.times[following[over]]
    return Runs(sorting[first], ended, len(open_groups))


class IntervalRows(NamedTuple):
    """Intervals that began: owner, time, causes."""

    own: Rows
    partner: Rows
    since: Rows
    start: Rows
    """The earliest time of the causes, FAR without any."""
    blur: Rows
    causes: Array


class OpenIntervals:
    """Open intervals in numbered rows, found by key; rows are reused.

    Costs what is added, ended or due, not what stays open. One dictionary entry per key with an
    open interval.
    """

    def __init__(self, duration_ms: int, *, paired: bool) -> None:
        self._duration, self._paired = duration_ms, paired
        self._open: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._born = np.zeros(0, np.int64)
        self._last_born = 0
        self._due = DueQueue(self._waits)
        self.columns: Columns = {name: np.zeros(0, _type(name)) for name in _COLUMNS}

    def of(self, keys: Rows) -> tuple[Rows, Rows]:
        """The rows of all intervals of some keys, and the number of the key of each."""
        if not self._open:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rows: list[int] = []
        groups: list[int] = []
        for group, key in enumerate(keys.tolist()):
            for row in self._open.get(key, ()):
                rows.append(row)
                groups.append(group)
        return np.array(rows, np.int64), np.array(groups, np.int64)

    def pairs(self) -> tuple[Rows, Rows]:
        """The owners of all open intervals; linear in the most that were ever open together."""
        rows = np.flatnonzero(self._born)
        return self.columns["own"][rows], self.columns["partner"][rows]

    def add(self, started: IntervalRows, *, fired: Mask | None = None) -> None:
        """Adds intervals in order of their begin; those not `fired` become due."""
        if not len(started.own):
            return
        rows = self._free_rows(len(started.own))
        for name in IntervalRows._fields:
            self.columns[name][rows] = getattr(started, name)
        self.columns["fired"][rows] = False if fired is None else fired
        self._born[rows] = np.arange(self._last_born + 1, self._last_born + 1 + len(rows))
        self._last_born += len(rows)
        keys = keys_of(started.own, started.partner, paired=self._paired)
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            self._open.setdefault(key, []).append(row)
        waiting = ~self.columns["fired"][rows]
        due = started.since[waiting] + self._duration
        self._due.push(due, rows[waiting], self._born[rows[waiting]])

    def end(self, rows: Rows, when: Rows) -> IntervalRows:
        """Ends intervals; returns those that reached the duration and were not reported."""
        late = when >= self.columns["since"][rows] + self._duration
        lasted = self._new_intervals(rows[late & ~self.columns["fired"][rows]])
        self._remove(rows)
        return lasted

    def lasted(self) -> list[tuple[Cause, ...]]:
        """The causes of open intervals that were reported; linear in the most that were ever open
        together."""
        rows = np.flatnonzero((self._born > 0) & self.columns["fired"])
        return [tuple(causes) for causes in self.columns["causes"][rows]]

    def forget(self, invalid: Callable[[Rows, Rows], Mask]) -> None:
        """Removes intervals for which `invalid` is true of owner and partner."""
        rows = np.flatnonzero(self._born)
        own, partner = self.columns["own"][rows], self.columns["partner"][rows]
        self._remove(rows[invalid(own, partner)])

    def pop_due(self, before: int) -> IntervalRows:
        """Open intervals that reached the duration, each once."""
        _, rows, _ = self._due.pop_before(before)
        self.columns["fired"][rows] = True
        return self._new_intervals(rows)

    def first_due(self) -> int | None:
        """When the first of the others reaches the duration."""
        return self._due.first()

    def state(self) -> dict[str, Any]:
        rows = np.flatnonzero(self._born)
        kept = {name: self.columns[name][rows] for name in _COLUMNS}
        order = np.lexsort((kept["partner"], kept["own"], kept["since"]))
        kept = {name: column[order] for name, column in kept.items()}
        causes: list[tuple[Cause, ...]] = kept.pop("causes").tolist()
        return {
            **kept,
            "counts": np.array([len(own) for own in causes], np.int64),
            "times": np.array([time for own in causes for time, _ in own], np.int64),
            "ids": [id for own in causes for _, id in own],
        }

    @classmethod
    def restored(cls, duration_ms: int, state: dict[str, Any], *, paired: bool) -> OpenIntervals:
        made = cls(duration_ms, paired=paired)
        shown = iter(zip(state["times"].tolist(), state["ids"], strict=True))
        causes = np.empty(len(state["own"]), object)
        for place, number in enumerate(state["counts"].tolist()):
            causes[place] = tuple(next(shown) for _ in range(number))
        columns = {name: state[name] for name in IntervalRows._fields if name != "causes"}
        made.add(IntervalRows(**columns, causes=causes), fired=state["fired"])
        return made

    def _new_intervals(self, rows: Rows) -> IntervalRows:
        return IntervalRows(*(self.columns[name][rows] for name in IntervalRows._fields))

    def _remove(self, rows: Rows) -> None:
        keys = keys_of(
            self.columns["own"][rows], self.columns["partner"][rows], paired=self._paired
        )
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            others = self._open[key]
            if len(others) == 1:
                del self._open[key]
            else:
                others.remove(row)
            self._free.append(row)
        self._born[rows] = 0
        self.columns["causes"][rows] = None

    def _free_rows(self, wanted: int) -> Rows:
        """Free rows; the columns grow by doubling."""
        if len(self._free) < wanted:
            size = len(self._born)
            wider = max(2 * size, size + wanted, _FIRST_SIZE)
            for name, column in self.columns.items():
                self.columns[name] = widened(column, wider)
            self._born = widened(self._born, wider)
            self._free += range(wider - 1, size - 1, -1)
        rows = np.array(self._free[len(self._free) - wanted :], np.int64)
        del self._free[len(self._free) - wanted :]
        return rows

    def _waits(self, rows: Rows, born: Rows) -> Mask:
        return np.asarray((self._born[rows] == born) & ~self.columns["fired"][rows])


def _type(name: str) -> Any:
    return {"fired": np.bool_, "causes": object}.get(name, np.int64)
