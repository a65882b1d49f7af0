"""Columnar data structures of operators: tables sorted by time with an index by identity,
comparisons of columns, and packed snapshots. [PO-3, PO-6]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import Corrupt
from rapport.policy.language.tree import Operator

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Columns = dict[str, Array]
NO_ROWS: Rows = np.zeros(0, np.int64)

_WORTH_TRIMMING = 2_048
OPERATIONS: dict[Operator, Callable[[Any, Any], Any]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
}
_ARRAY = "\0array"
_OBJECTS = "\0objects"


class Table:
    """Rows sorted by the column `end`. Appending and trimming are linear in the window, finding is
    logarithmic."""

    def __init__(self, empty: Mapping[str, Array]) -> None:
        self.columns: Columns = dict(empty)
        self.first_new = 0
        """The first row of the latest batch."""
        self._indexes: dict[str, tuple[Rows, Rows, Rows | None]] = {}

    def __len__(self) -> int:
        return len(self.columns["end"])

    def settle(self) -> None:
        """Marks all rows as old."""
        self.first_new = len(self)

    def append(self, rows: Mapping[str, Array]) -> None:
        """Adds rows that end no earlier than existing ones."""
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
        """Drops rows that end before a time, at once or when worth the copying."""
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
        """For each query the range of rows in [low, high) whose column `name` has the code (None:
        any)."""
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
        """The rows at positions within ranges returned by `find`."""
        return places if name is None else self._index(name)[0][places]

    def agreeing(
        self, names: tuple[str, str], frame: Columns, first: Array, last: Array
    ) -> tuple[Array, Array]:
        """Pairs (row of the frame, row of this table) with equal identities, within ranges of rows;
        `names`: the frame's columns for `first` and `second`, which may be missing."""
        bound = [
            (name, frame[alias])
            for name, alias in zip(("first", "second"), names, strict=True)
            if alias in frame
        ]
        name, codes = bound[0] if bound else (None, None)
        owners, places = spread(*self.find(name, codes, first, last))
        rows = self.rows_at(name, places)
        for other, wanted in bound[1:]:
            mask = self.columns[other][rows] == wanted[owners]
            owners, rows = owners[mask], rows[mask]
        return owners, rows

    def _index(self, name: str) -> tuple[Rows, Rows, Rows | None]:
        """Rows ordered by code, then row; the sorted key code * width + row; distinct codes unless
        dense."""
        if name not in self._indexes:
            codes, distinct = self.columns[name], None
            if name == "cell":
                distinct, codes = np.unique(codes, return_inverse=True)
            narrow = codes.astype(np.uint16) if len(codes) and codes.max() < 65_536 else codes
            order = np.argsort(narrow, kind="stable")  # a radix sort for 16-bit codes
            self._indexes[name] = (order, codes[order] * (len(self) + 1) + order, distinct)
        return self._indexes[name]


def spread(start: Rows, stop: Rows) -> tuple[Rows, Rows]:
    """Every (number of the range, position) of many ranges, range by range.

    >>> spread(np.array([3, 7]), np.array([5, 8]))
    (array([0, 0, 1]), array([3, 4, 7]))
    """
    counts = stop - start
    owners = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    places = np.arange(len(owners)) + np.repeat(start - before, counts)
    return owners, places


def take(columns: Mapping[str, Array], rows: Array | slice) -> Columns:
    """The chosen rows of all columns; a slice does not copy."""
    return {name: column[rows] for name, column in columns.items()}


def different(columns: Columns, pairs: Iterable[tuple[str, str]]) -> Columns:
    """The rows in which the columns of each pair differ."""
    for first, second in pairs:
        columns = take(columns, columns[first] != columns[second])
    return columns


def concatenate(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def count(columns: Mapping[str, Array]) -> int:
    return len(next(iter(columns.values())))


def rows_from(columns: Columns | None, time: int) -> Columns | None:
    """The rows that end at or after a time; None if there are none."""
    if columns is None:
        return None
    stale = int(np.searchsorted(columns["end"], time))
    return take(columns, slice(stale, None)) if stale < len(columns["end"]) else None


def widened(column: Array, size: int) -> Array:
    """The column with capacity for `size` rows; new rows are 0 or None."""
    wider = np.zeros((size, *column.shape[1:]), column.dtype)
    if column.dtype == object:
        wider[...] = None
    wider[: len(column)] = column
    return wider


def with_blurs(columns: Mapping[str, Array], wanted: bool) -> Columns:
    """Adds or removes the column with the clock uncertainty of each end, for snapshots made with
    other source declarations."""
    fitting = {name: column for name, column in columns.items() if wanted or name[:4] != "blur"}
    if wanted:
        for name, column in columns.items():
            if name[:3] == "end":
                fitting.setdefault(f"blur{name[3:]}", np.zeros(len(column), np.int64))
    return fitting


def compare(left: Any, operator: Operator, right: Any) -> Mask:
    """For each row whether the comparison holds; a side may be a scalar.

    Missing values never satisfy it. Numbers are compared as columns, possibly missing texts and
    booleans one by one.
    """
    rows = len(left) if isinstance(left, np.ndarray) else len(right)
    left, right = _alike(left, right), _alike(right, left)
    known = present(left, rows) & present(right, rows)
    found = np.zeros(rows, np.bool_)
    chosen = slice(None) if known.all() else known
    found[chosen] = OPERATIONS[operator](_rows(left, chosen), _rows(right, chosen))
    return found


def present(values: Any, rows: int) -> Mask:
    """Which values are neither None nor NaN."""
    if not isinstance(values, np.ndarray):
        return np.full(rows, values is not None and values == values)  # NaN != NaN
    return complete_rows(values.reshape(-1, 1))


def complete_rows(values: Array) -> Mask:
    """Which rows of (n, parts) have no missing value."""
    if values.dtype == object:
        there = [value is not None and value == value for value in values.ravel().tolist()]
        return np.asarray(np.array(there, np.bool_).reshape(values.shape).all(axis=1))
    if values.dtype.kind == "f":
        missing = np.isnan(values[:, 0])
        for part in range(1, values.shape[1]):  # numpy is slow to reduce rows of few values
            missing |= np.isnan(values[:, part])
        return np.asarray(~missing)
    return np.ones(len(values), np.bool_)


def _alike(value: Any, other: Any) -> Any:
    """A text constant compared with booleans becomes one."""
    if not isinstance(value, str) or not isinstance(other, np.ndarray):
        return value
    if other.dtype.kind == "b":
        return value.lower() == "true"
    some = next((item for item in other.tolist() if item is not None), None)
    return value.lower() == "true" if isinstance(some, bool) else value


def _rows(values: Any, chosen: Any) -> Any:
    return values[chosen] if isinstance(values, np.ndarray) else values


def pack_state(state: Any) -> bytes:
    """The state as msgpack, without pickle."""
    return msgspec.msgpack.encode(_out(state))


def unpack_state(raw: bytes) -> Any:
    """The state from bytes; raises Corrupt."""
    try:
        return _in(msgspec.msgpack.decode(raw, strict=False))
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError, KeyError) as error:
        raise Corrupt(f"a snapshot cannot be read: {error}", code="policy.bad_snapshot") from None


def _out(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return {_OBJECTS: _out(value.ravel().tolist()), "shape": list(value.shape)}
        return {_ARRAY: value.tobytes(), "type": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, dict):
        return {key: _out(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_out(item) for item in value]
    return value


def _in(value: Any) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            kind = np.dtype(value["type"])
            return np.frombuffer(value[_ARRAY], kind).reshape(value["shape"]).copy()
        if _OBJECTS in value:
            found = np.empty(len(value[_OBJECTS]), object)
            for place, item in enumerate(value[_OBJECTS]):  # not in bulk: an item may be a list
                found[place] = _in(item)
            return found.reshape(value["shape"])
        return {key: _in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_in(item) for item in value]
    return value


NO_EVENT = -1
"""Marks no event in a column; smaller numbers identify sets of causes."""
