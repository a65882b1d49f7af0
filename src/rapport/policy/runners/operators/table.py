"""Rows in order of time, as columns, with an index by identity: what operators remember of a
window. [PO-6]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Columns = dict[str, Array]

_WORTH_TRIMMING = 2_048


class Table:
    """Rows sorted by the column `end`. Appending and trimming are linear in the window, finding is
    logarithmic.
    """

    def __init__(self, empty: Mapping[str, Array]) -> None:
        self.columns: Columns = dict(empty)
        self.first_new = 0
        """Rows from here on came with the latest batch."""
        self._indexes: dict[str, tuple[Rows, Rows, Rows | None]] = {}

    def __len__(self) -> int:
        return len(self.columns["end"])

    def settle(self) -> None:
        """Nothing is new any more."""
        self.first_new = len(self)

    def append(self, rows: Mapping[str, Array]) -> None:
        """Adds rows that end no earlier than those here."""
        if len(rows["end"]):
            if len(self):
                self.columns = {
                    name: np.concatenate((column, rows[name]))
                    for name, column in self.columns.items()
                }
            else:
                self.columns = {name: rows[name] for name in self.columns}
            self._indexes.clear()

    def trim(self, before: int, *, at_once: bool = False) -> None:
        """Forgets rows that end before a time, at once or when that is worth the copying."""
        stale = int(np.searchsorted(self.columns["end"], before))
        if stale and (at_once or (stale > _WORTH_TRIMMING and stale * 2 > len(self))):
            self.columns = {name: column[stale:].copy() for name, column in self.columns.items()}
            self.first_new = max(self.first_new - stale, 0)
            self._indexes.clear()

    def rows_from(self, times: Array) -> Rows:
        """For each time the first row that ends at or after it."""
        return np.searchsorted(self.columns["end"], times).astype(np.int64)

    def find(
        self, name: str | None, codes: Rows | None, low: Rows, high: Rows
    ) -> tuple[Rows, Rows]:
        """For each question the span of rows in [low, high) whose column `name` has the code (None:
        any).
        """
        if name is None or codes is None:
            return low, np.maximum(low, high)
        _order, composite, distinct = self._index(name)
        width = len(self) + 1
        if distinct is None:
            ranks = codes
        else:
            ranks = np.searchsorted(distinct, codes)
            known = ranks < len(distinct)
            known[known] = distinct[ranks[known]] == codes[known]
            high = np.where(known, high, low)
        start = np.searchsorted(composite, ranks * width + low)
        stop = np.searchsorted(composite, ranks * width + np.maximum(low, high))
        return start.astype(np.int64), stop.astype(np.int64)

    def rows_at(self, name: str | None, places: Rows) -> Rows:
        """The rows at places within spans that `find` gave."""
        return places if name is None else self._index(name)[0][places]

    def _index(self, name: str) -> tuple[Rows, Rows, Rows | None]:
        """Rows ordered by code, then row; the sorted key code * width + row; distinct codes unless
        dense.
        """
        if name not in self._indexes:
            codes, distinct = self.columns[name], None
            if name == "cell":
                distinct, codes = np.unique(codes, return_inverse=True)
            narrow = codes.astype(np.uint16) if len(codes) and codes.max() < 65_536 else codes
            order = np.argsort(narrow, kind="stable")  # a radix sort for 16-bit codes
            self._indexes[name] = (order, codes[order] * (len(self) + 1) + order, distinct)
        return self._indexes[name]


def spread(start: Rows, stop: Rows) -> tuple[Rows, Rows]:
    """Every (number of the span, place in it) of many spans, span by span.

    >>> spread(np.array([3, 7]), np.array([5, 8]))
    (array([0, 0, 1]), array([3, 4, 7]))
    """
    counts = stop - start
    owners = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    places = np.arange(len(owners)) + np.repeat(start - before, counts)
    return owners, places


def take(columns: Mapping[str, Array], rows: Array | slice) -> Columns:
    """The chosen rows (numbers or mask, or without copying a span) of all columns."""
    return {name: column[rows] for name, column in columns.items()}


def concatenate(parts: list[Columns]) -> Columns:
    """All rows of parts with equal columns."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def count(columns: Mapping[str, Array]) -> int:
    """The number of rows."""
    return len(next(iter(columns.values())))


def with_blurs(columns: Mapping[str, Array], wanted: bool) -> Columns:
    """The columns with one that says how far each end may be wrong, or without; for what was saved
    when sources declared otherwise.
    """
    fitting = {name: column for name, column in columns.items() if wanted or name[:4] != "blur"}
    if wanted:
        for name, column in columns.items():
            if name[:3] == "end":
                fitting.setdefault(f"blur{name[3:]}", np.zeros(len(column), np.int64))
    return fitting
