"""Rows of a stream that only absence may ask about: kept as they came until it does. [PO-6, PO-13]

However small the batches were, who asks finds the rows in one piece: batches that wait are put
behind the others a few at a time. So a question costs one look over the rows of its span, and a
row that nobody asks about costs being copied once, if at all.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from rapport.policy.runners.base import END_OF_TIME
from rapport.policy.runners.operators.horizons import Horizons
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.table import Array, Columns, Mask, Rows, concatenate, count

_MOST_WAITING = 16
_FEW_CODES = 4
"""So many comparisons are cheaper than a look into a mask for each row."""
_FEW_READERS = 8
_LEAST_ROOM = 1_024
_NO_ROWS: Rows = np.zeros(0, np.int64)


class DeferredRows:
    """The recent rows of one stream, in one piece for all operators that read them. Adding is a
    reference per batch, and a copy once some wait; what every reader has done with is forgotten,
    mostly without having been copied. Places of rows are good until the next row comes.
    """

    def __init__(self) -> None:
        self.readers = Horizons()
        self.floor = -END_OF_TIME
        """Nobody asks about what came before this time."""
        self._waiting: deque[tuple[StreamRows, int]] = deque()
        self._columns: Columns = {}
        self._first = self._last = 0
        """Which part of the columns are rows; the rest is room for more."""
        self._batch = -1

    def __len__(self) -> int:
        return self._last - self._first + sum(len(rows.times) for rows, _ in self._waiting)

    def add(self, rows: StreamRows, first: int, batch: int) -> None:
        """Keeps what a batch brings, unless another reader has brought it; `first`: the ordinal of
        the batch's first event.
        """
        if batch != self._batch:
            self._batch = batch
            self.forget()
            self._waiting.append((rows, first))
            if len(self._waiting) > _MOST_WAITING:
                self._put_together()

    def forget(self) -> None:
        """Lets go of what every reader has done with."""
        passed = self.readers.passed(at_once=len(self.readers) <= _FEW_READERS)
        if passed is None:
            return
        self.floor = passed
        while self._waiting and self._waiting[0][0].times[-1] < passed:
            self._waiting.popleft()
        if self._first < self._last:
            times = self._columns["end"][self._first : self._last]
            self._first += int(np.searchsorted(times, passed))

    def span(self, low: int, high: int, since: int = 0) -> slice:
        """The places of rows with times in [low, high) and ordinals from `since` on."""
        self._put_together()
        if self._first == self._last:
            return slice(0, 0)
        rows = slice(self._first, self._last)
        times, events = self._columns["end"][rows], self._columns["event"][rows]
        start = int(np.searchsorted(times, low))
        if since > events[0]:
            start = max(start, int(np.searchsorted(events, since)))
        stop = int(np.searchsorted(times, high))
        return slice(self._first + start, self._first + max(start, stop))

    def of(self, codes: Rows, known: int, span: slice) -> Rows:
        """Of a span the places of rows of some identities; `known`: how many have codes."""
        if not len(codes) or span.start == span.stop:
            return _NO_ROWS
        column = self._columns["code"][span]
        if len(codes) <= _FEW_CODES:
            mask = np.zeros(len(column), np.bool_)
            for code in codes.tolist():
                mask |= column == code
        else:
            wanted = np.zeros(known, np.bool_)
            wanted[codes] = True
            mask = wanted[column]
        return _places(mask, span)

    def in_boxes(self, boxes: list[tuple[Array, Array]], span: slice) -> Rows:
        """Of a span the places of rows whose point lies in one of some boxes (lowest corner,
        highest).
        """
        points = self._columns["value"][span]
        mask = np.zeros(len(points), np.bool_)
        for low, high in boxes:
            mask |= _in_box(points, low, high)
        return _places(mask, span)

    def columns_at(self, places: Rows | slice) -> Columns:
        """The rows there, in columns."""
        return {name: column[places] for name, column in self._columns.items()}

    def take(self, places: Rows | slice) -> StreamRows:
        """The rows there; ordinals are those of the runner."""
        own = self._columns
        names = ("code", "end", "event", "value")
        taken = StreamRows(*(own[name][places] for name in names))
        if "blur" in own:
            taken.blurs = own["blur"][places]
        return taken

    def _put_together(self) -> None:
        if not self._waiting:
            return
        rows = concatenate([_columns_of(*each) for each in self._waiting])
        self._waiting.clear()
        many = count(rows)
        self._make_room(rows, many)
        for name, column in rows.items():
            self._columns[name][self._last : self._last + many] = column
        self._last += many

    def _make_room(self, rows: Columns, many: int) -> None:
        """Room behind the rows for some more, of a kind that holds both. What is moved is no more
        than what came since the last time.
        """
        kept, size = slice(self._first, self._last), self._last - self._first
        room = len(self._columns["end"]) if self._holds(rows) else 0
        if self._last + many <= room:
            return
        wanted = max(_LEAST_ROOM, 2 * (size + many))
        if wanted > room or wanted * 8 < room:
            self._columns = {
                name: _with_room(self._columns[name][kept] if size else column[:0], column, wanted)
                for name, column in rows.items()
            }
        else:
            for column in self._columns.values():
                column[:size] = column[kept]
        self._first, self._last = 0, size

    def _holds(self, rows: Columns) -> bool:
        """Whether there are columns for values of these kinds."""
        own = self._columns
        return bool(own) and all(
            np.result_type(own[name], column) == own[name].dtype for name, column in rows.items()
        )


def _with_room(kept: Array, more: Array, size: int) -> Array:
    """A column that begins with those kept and holds values like the others too."""
    made = np.empty((size, *more.shape[1:]), np.result_type(kept, more))
    made[: len(kept)] = kept
    return made


def _columns_of(rows: StreamRows, first: int) -> Columns:
    columns: Columns = {
        "code": rows.codes,
        "end": rows.times,
        "event": rows.ordinals + first,
        "value": rows.values,
    }
    return columns if rows.blurs is None else columns | {"blur": rows.blurs}


def _places(mask: Mask, span: slice) -> Rows:
    places: Rows = np.flatnonzero(mask) + span.start
    return places


def _in_box(points: Array, low: Array, high: Array) -> Mask:
    x, y = points[:, 0], points[:, 1]
    return np.asarray((x >= low[0]) & (x <= high[0]) & (y >= low[1]) & (y <= high[1]), np.bool_)
