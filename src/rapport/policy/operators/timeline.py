"""Last readings and states over time, for durations and silences: queues of due times, the last
value of every identity, the changes within a portion of readings, and the intervals in which a
state holds. [PO-3, PO-6]"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.operators.columns import (
    NO_ROWS,
    Array,
    Columns,
    Mask,
    Rows,
    widened,
)
from rapport.policy.operators.identities import (
    Identities,
    IdentityFilter,
    StreamRows,
    blurs_of,
    rows_of_stream,
)

_TO_SPARE = 10_000
_LOOK_AT = 64

Entries = tuple[Rows, Rows, Rows]
"""Times, numbers and marks."""
_FIRST_SIZE = 64
_FEW = 16
"""Below this many rows Python is faster than a call into Arrow."""
EXPIRED = -1


class DueQueue:
    """A queue of (time, number, mark), filled in order of time.

    Entries are cancelled for free: `still(numbers, marks)` returns which are valid. Holds at most
    about twice as many entries as are valid; adding and removing have amortized linear cost.
    """

    def __init__(self, still: Callable[[Rows, Rows], Mask]) -> None:
        self._still = still
        self._entries: deque[Entries] = deque()
        self._size = self._counted = 0

    def push(self, times: Rows, numbers: Rows, marks: Rows) -> None:
        """Adds entries in order of time, none before existing ones."""
        if len(times):
            self._entries.append((times, numbers, marks))
            self._size += len(times)
            if self._size > 2 * self._counted + _TO_SPARE:
                self._drop_cancelled()

    def pop_before(self, limit: int) -> Entries:
        """Removes and returns valid entries before a time."""
        found: list[Entries] = []
        while self._entries and self._entries[0][0][0] < limit:
            times, numbers, marks = self._entries.popleft()
            self._size -= len(times)
            due = int(np.searchsorted(times, limit))
            found.append((times[:due], numbers[:due], marks[:due]))
            if due < len(times):
                self._entries.appendleft((times[due:], numbers[due:], marks[due:]))
                self._size += len(times) - due
        return self._counting(found)

    def first(self) -> int | None:
        """The earliest time of a valid entry."""
        while self._entries:
            times, numbers, marks = self._entries[0]
            cancelled = self._cancelled(numbers, marks)
            self._size -= cancelled
            if cancelled < len(times):
                rest = slice(cancelled, None)
                self._entries[0] = (times[rest], numbers[rest], marks[rest])
                return int(times[cancelled])
            self._entries.popleft()
        return None

    def _cancelled(self, numbers: Rows, marks: Rows) -> int:
        """The number of cancelled entries at the front; checks few first."""
        first, some = 0, _LOOK_AT
        while first < len(numbers):
            chosen = slice(first, first + some)
            counting = np.flatnonzero(self._still(numbers[chosen], marks[chosen]))
            if len(counting):
                return first + int(counting[0])
            first, some = first + some, 4 * some
        return len(numbers)

    def _drop_cancelled(self) -> None:
        kept = self._counting(list(self._entries))
        self._entries = deque([kept] if len(kept[0]) else [])
        self._size = self._counted = len(kept[0])

    def _counting(self, parts: list[Entries]) -> Entries:
        if not parts:
            return NO_ROWS, NO_ROWS, NO_ROWS
        times, numbers, marks = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        still = self._still(numbers, marks)
        return times[still], numbers[still], marks[still]


class LastValues:
    """The last reading by code, in columns that grow by doubling with the number of identities.

    A value is `known` from its reading until it is stale; `seen`: there was one.
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
        """Ensures capacity for codes below `size`, and for values like those given."""
        if like is not None:
            self._fit_values(like)
        if size <= len(self.seen):
            return
        wider = max(2 * len(self.seen), size, _FIRST_SIZE)
        for name in ("seen", "known", "times", "stale", "blurs", "ids", "_marks"):
            setattr(self, name, widened(getattr(self, name), wider))
        if self.values is not None:
            self.values = widened(self.values, wider)

    def note(
        self, codes: Rows, times: Rows, values: Array, ids: Array, stale: Rows, blurs: Rows
    ) -> None:
        """Sets the newest reading of some codes, in order of time; each code once."""
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
        """Marks the last readings of codes as stale."""
        self.known[codes] = False
        self.stale[codes] = 0

    def pop_stale(self, before: int) -> tuple[Rows, Rows]:
        """Times and codes of last readings that become stale before a time, each once."""
        parts = [queue.pop_before(before) for queue in self._expiries.values()]
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate([one[0] for one in parts]), np.concatenate([p[1] for p in parts])

    def first_stale(self) -> int | None:
        """When the next last reading becomes stale."""
        times = [queue.first() for queue in self._expiries.values()]
        return min((time for time in times if time is not None), default=None)

    def state(self) -> dict[str, Any]:
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


def texts_at(ids: pa.Array, places: Rows) -> Array:
    """The texts at positions of a column, as objects."""
    if len(places) < _FEW:
        return np.fromiter((ids[place].as_py() for place in places.tolist()), object, len(places))
    found = np.empty(len(places), object)
    found[:] = ids.take(pa.array(places)).to_pylist()
    return found


class HeldValues(NamedTuple):
    """The last readings of identities at given moments."""

    known: Mask
    """False before the first reading, and while the last is stale."""
    seen: Mask
    values: Array
    codes: Rows
    rows: Rows
    """The row in the track; -1: before this portion."""

    def at(self, rows: Rows) -> HeldValues:
        return HeldValues(
            self.known[rows], self.seen[rows], self.values[rows], self.codes[rows], self.rows[rows]
        )


class Track:
    """The steps of one stream in a portion, sorted by identity, then time.

    `readings` has the stream's row of each step, EXPIRED where a value becomes stale.
    """

    def __init__(
        self, last: LastValues, rows: StreamRows, readings: Rows, codes: Rows, times: Rows
    ) -> None:
        self.last, self.rows = last, rows
        self.readings, self.codes, self.times = readings, codes, times
        self.order: Rows = NO_ROWS
        self._keys: Rows = NO_ROWS
        self._span = 1

    def arrange(self, order: Rows, span: int) -> None:
        """Sorts the steps, given the position of each within the portion."""
        if not len(self.codes):
            return
        self._span = span
        keys = self.codes * span + order
        sorting = np.argsort(keys, kind="stable")
        self._keys, self.order = keys[sorting], order[sorting]
        self.readings, self.codes = self.readings[sorting], self.codes[sorting]
        self.times = self.times[sorting]

    def held(self, codes: Rows, order: Rows) -> HeldValues:
        """The last readings of identities up to and including positions in the order."""
        last = self.last
        last.grow(int(codes.max()) + 1 if len(codes) else 0, self.rows.values)
        assert last.values is not None
        values, known, seen = last.values[codes], last.known[codes], last.seen[codes]
        if not len(self.codes):
            return HeldValues(known, seen, values, codes, np.full(len(codes), -1))
        found = np.searchsorted(self._keys, codes * self._span + order, side="right") - 1
        here = found >= 0
        here[here] = self.codes[found[here]] == codes[here]
        found[~here] = -1
        readings = self.readings[found]
        now = here & (readings != EXPIRED)
        if now.any():
            if values.dtype != self.rows.values.dtype:
                values = values.astype(object)
            values[now] = self.rows.values[readings[now]]
        return HeldValues(np.where(here, now, known), here | seen, values, codes, found)

    def causes(self, held: HeldValues, chosen: Rows, ids: pa.Array) -> tuple[Rows, Array, Rows]:
        """Time, id and clock uncertainty of the readings held in the chosen rows."""
        codes, found = held.codes[chosen], held.rows[chosen]
        last = self.last
        times, names, blurs = last.times[codes], last.ids[codes], last.blurs[codes]
        now = found >= 0
        if now.any():
            readings = self.readings[found[now]]
            times[now] = self.rows.times[readings]
            names[now] = texts_at(ids, self.rows.ordinals[readings])
            if self.rows.blurs is not None:
                blurs[now] = self.rows.blurs[readings]
        return times, names, blurs

    def settle(self, stale: Rows, ids: pa.Array) -> None:
        """Stores the last readings of this portion."""
        if not len(self.codes):
            return
        is_reading = self.readings != EXPIRED
        newest = np.flatnonzero(is_last(self.codes[is_reading]))
        steps = np.flatnonzero(is_reading)[newest]
        ended = self.codes[is_last(self.codes) & ~is_reading]
        steps = steps[np.argsort(self.times[steps], kind="stable")]
        codes, readings = self.codes[steps], self.readings[steps]
        if len(codes):
            after = np.where(np.isin(codes, ended), 0, stale[readings]) if len(ended) else None
            blurs = self.rows.blurs
            self.last.note(
                codes,
                self.times[steps],
                self.rows.values[readings],
                texts_at(ids, self.rows.ordinals[readings]),
                stale[readings] if after is None else after,
                np.zeros(len(codes), np.int64) if blurs is None else blurs[readings],
            )
        if len(ended):
            self.last.forget_value(ended)


def is_last(codes: Rows) -> Mask:
    """Which rows, sorted by code, are the last of their code."""
    found = np.ones(len(codes), np.bool_)
    found[:-1] = codes[1:] != codes[:-1]
    return found


class Timeline:
    """Keeps the last readings of some streams and turns portions of readings into tracks."""

    def __init__(
        self,
        streams: Mapping[str, Sequence[IdentityFilter]],
        identities: Mapping[str, Identities],
        stale: Mapping[str, int],
        blurs: Mapping[str, int],
    ) -> None:
        """
        Args:
            streams: each with the filters of its identities; readings that no filter allows are
                skipped.
            stale: how long the readings of a source count, where that is limited.
            blurs: how far the clock of a source may be wrong, where it may.
        """
        self._streams, self._identities = streams, identities
        self._stale, self._blurs = stale, blurs
        self.last = {stream: LastValues() for stream in streams}
        self._ids: pa.Array = pa.array([], pa.string())
        self._stale_of: dict[str, Rows] = {}

    def tracks(self, readings: pa.RecordBatch, limit: int) -> dict[str, Track]:
        """The steps of a portion up to time `limit` (exclusive), by stream; only streams with a
        reading."""
        if len(readings):
            self._ids = readings.column("id")
        made = {}
        for stream in self._streams:
            track = self._track(stream, readings, limit)
            if track is not None:
                made[stream] = track
        _arrange(list(made.values()), len(readings))
        return made

    def settle(self, tracks: Mapping[str, Track]) -> None:
        """Continues after a portion."""
        for stream, track in tracks.items():
            track.settle(self._stale_of[stream], self._ids)

    def causes(self, track: Track, held: HeldValues, chosen: Rows) -> tuple[Rows, Array, Rows]:
        """Time, id and clock uncertainty of the readings held in the chosen rows."""
        return track.causes(held, chosen, self._ids)

    def _track(self, stream: str, readings: pa.RecordBatch, limit: int) -> Track | None:
        last = self.last[stream]
        rows = self._rows(stream, readings)
        if rows is None:
            if last.values is None:
                return None
            rows = StreamRows(NO_ROWS, NO_ROWS, NO_ROWS, last.values[:0])
        stale = self._stale_of[stream] = self._of_source(readings, rows, self._stale)
        if self._blurs:
            rows.blurs = self._of_source(readings, rows, self._blurs)
        expired_at, expired = (
            _expiries(rows, stale, last, limit) if self._stale else (NO_ROWS, NO_ROWS)
        )
        numbers = np.arange(len(rows.codes))
        if not len(expired):
            return Track(last, rows, numbers, rows.codes, rows.times)
        return Track(
            last,
            rows,
            np.concatenate((numbers, np.full(len(expired), EXPIRED))),
            np.concatenate((rows.codes, expired)),
            np.concatenate((rows.times, expired_at)),
        )

    def _rows(self, stream: str, readings: pa.RecordBatch) -> StreamRows | None:
        if not len(readings):
            return None
        rows = rows_of_stream(readings, stream, self._identities[stream.partition(".")[0]], 0)
        if rows is None:
            return None
        id_filters = self._streams[stream]
        suits = np.logical_or.reduce([id_filter.allowed()[rows.codes] for id_filter in id_filters])
        if suits.all():
            return rows
        chosen = np.flatnonzero(suits)
        return StreamRows(
            rows.codes[chosen], rows.times[chosen], rows.ordinals[chosen], rows.values[chosen]
        )

    def _of_source(
        self, readings: pa.RecordBatch, rows: StreamRows, by_source: Mapping[str, int]
    ) -> Rows:
        if not by_source or not len(rows.codes):
            return np.zeros(len(rows.codes), np.int64)
        found: Rows = blurs_of(readings, by_source)[rows.ordinals]
        return found


def _expiries(rows: StreamRows, stale: Rows, last: LastValues, limit: int) -> tuple[Rows, Rows]:
    """Times and codes of values that become stale before `limit`, from before this portion and from
    it, unless a newer reading replaced them in time."""
    old_times, old_codes = last.pop_stale(limit)
    sorting = np.argsort(rows.codes, kind="stable")
    codes, times = rows.codes[sorting], rows.times[sorting]
    after = stale[sorting]
    until = np.full(len(codes), limit - 1)
    followed = ~is_last(codes)
    until[followed] = times[np.flatnonzero(followed) + 1]
    gone = (after > 0) & (times + after <= until)
    if len(old_codes) and len(codes):
        first = np.minimum(np.searchsorted(codes, old_codes), len(codes) - 1)
        kept = (codes[first] != old_codes) | (times[first] >= old_times)
        old_times, old_codes = old_times[kept], old_codes[kept]
    return (
        np.concatenate((old_times, times[gone] + after[gone])),
        np.concatenate((old_codes, codes[gone])),
    )


def _arrange(tracks: list[Track], readings: int) -> None:
    """Gives every step its position: by time, expiry before readings, then in reading order."""
    if all(len(track.readings) == len(track.rows.codes) for track in tracks):
        for track in tracks:
            track.arrange(track.rows.ordinals, readings + 1)
        return
    times = np.concatenate([track.times for track in tracks])
    came = np.concatenate([_places_in_batch(track) for track in tracks])
    order = np.empty(len(times), np.int64)
    order[np.lexsort((came, times))] = np.arange(len(times))
    edges = np.cumsum([len(track.times) for track in tracks])[:-1]
    for track, places in zip(tracks, np.split(order, edges), strict=True):
        track.arrange(places, len(times) + 1)


def _places_in_batch(track: Track) -> Rows:
    return np.concatenate(
        (track.rows.ordinals, np.full(len(track.readings) - len(track.rows.codes), EXPIRED))
    )


_CODES = 31
"""Bits of a code in the key of a pair."""


NOT_ENDED = 2**62


_COLUMNS = ("own", "partner", "since", "start", "blur", "fired", "causes")


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
