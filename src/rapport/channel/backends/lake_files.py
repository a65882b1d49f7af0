"""The files of one channel in the lake, read by position and by the time of receiving. [CH-16,
PI-3]

Names tell positions, folders tell days, footers tell both for each row group: what is asked for is
read, and little else. Compaction may exchange files meanwhile; then they are listed anew.
"""

from __future__ import annotations

import heapq
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.core.errors import Corrupt, Unavailable
from rapport.core.times import format_time

T = TypeVar("T")
Positions = npt.NDArray[np.int64]

_RANGE = re.compile(r"(\d{20})-(\d{20})\.parquet\Z")
_DAY = re.compile(r"day=(-?\d{4}-\d\d-\d\d)\Z")
_ANY_DAY = "9999-99-99"
"""Of files that lie elsewhere: they may hold what was received on any day."""
_MOST_BYTES = 256 * 1024 * 1024
"""Of row groups kept in memory; each is what one export wrote at once, or less."""
_MOST_SORTED = 64
_MOST_LISTINGS = 3
_FAULTS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError, KeyError)


class LakeFile(msgspec.Struct, frozen=True, order=True):
    """A file whose rows have positions in [first, last] and were received on one day."""

    first: int
    last: int
    path: str
    day: str


class RowGroup(msgspec.Struct, frozen=True, order=True):
    """A part of a file that is read at once; bounds are those of its rows."""

    first: int
    last: int
    path: str
    number: int
    newest: int
    """When the last of them was received."""
    rows: int


class ChannelFiles:
    """One channel's files. Not for several threads at once.

    A damaged file is remembered in `damaged`, and raises Corrupt only where what it holds was asked
    for.
    """

    def __init__(
        self, folder: Path, limit: int | None, look_up: Callable[[], None] | None = None
    ) -> None:
        """`limit`: the last position that is whole; later ones may still be on the way. `look_up`
        is called before each footer and row group that is read, and may raise.
        """
        self._folder, self._limit, self._look_up = folder, limit, look_up
        self.damaged: dict[str, Corrupt] = {}
        self._files: list[LakeFile] = []
        self._groups: dict[str, list[RowGroup]] = {}
        self._tables: OrderedDict[tuple[RowGroup, tuple[str, ...]], pa.Table] = OrderedDict()
        self._sorted: dict[RowGroup, tuple[Positions, Positions]] = {}
        self._list()

    @property
    def last(self) -> int:
        """The last position; 0 without any."""
        found = max((file.last for file in self._files), default=0)
        return found if self._limit is None else min(found, self._limit)

    # --- by position ---

    def read_after(self, position: int, limit: int, columns: tuple[str, ...]) -> pa.Table:
        """Up to `limit` rows after a position in order, each once; raises Corrupt when a damaged
        file may hold one of them.
        """
        return self.steadily(lambda: self._read_after(position, limit, columns))

    def groups_after(self, position: int) -> Iterator[RowGroup]:
        """The row groups that hold something after a position, those of damaged files left out."""
        for file in self._files:
            if file.last > position:
                yield from (one for one in self._groups_of(file) if one.last > position)

    def column_rows(self, group: RowGroup, columns: tuple[str, ...]) -> pa.Table | None:
        """Some columns of a row group as far as they are whole; None for a damaged one."""
        try:
            rows = self._table(group, columns, keep=False)
        except Corrupt:
            return None
        if self._limit is None or group.last <= self._limit:
            return rows
        return rows.filter(pa.array(_numbers(rows) <= self._limit))

    def _read_after(self, position: int, limit: int, columns: tuple[str, ...]) -> pa.Table:
        end = self.last
        waiting: list[LakeFile | RowGroup] = [file for file in self._files if file.last > position]
        heap = [(file.first, number, file) for number, file in enumerate(waiting)]
        heapq.heapify(heap)
        loaded: list[tuple[RowGroup, Positions]] = []
        found = np.empty(0, np.int64)
        count = len(heap)
        while heap and not (len(found) >= limit and found[limit - 1] < heap[0][0]):
            _first, _number, one = heapq.heappop(heap)
            if isinstance(one, LakeFile):
                self._refuse_damaged(one)
                for group in self._groups_of(one):
                    if group.last > position:
                        count += 1
                        heapq.heappush(heap, (group.first, count, group))
                self._refuse_damaged(one)
                continue
            places, _rows = self._places(one)
            after, until = np.searchsorted(places, (position, end), side="right")
            places = places[after:until][:limit]  # of one part no more can be among the first
            loaded.append((one, places))
            found = np.union1d(found, places)
        return self._rows(loaded, found[:limit], columns)

    def _rows(
        self, loaded: list[tuple[RowGroup, Positions]], wanted: Positions, columns: tuple[str, ...]
    ) -> pa.Table:
        """The rows at certain positions, in order."""
        parts: list[pa.Table] = []
        left = wanted
        for group, places in loaded:
            chosen = np.intersect1d(left, places)
            if len(chosen):
                sorted_places, rows = self._places(group)
                taken = rows[np.searchsorted(sorted_places, chosen)]
                parts.append(_taken(self._table(group, columns), taken))
                left = np.setdiff1d(left, chosen)
        if not parts:
            return pa.table({name: [] for name in columns})
        whole = parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="default")
        order = np.argsort(_numbers(whole), kind="stable")
        return whole.take(pa.array(order))

    # --- by time ---

    def position_before(self, received_ms: int) -> int:
        """The last position before everything that was received at a time or later."""
        return self.steadily(lambda: self._position_before(received_ms))

    def _position_before(self, received_ms: int) -> int:
        asked = format_time(received_ms)[:10]
        days = sorted({file.day for file in self._files if file.day >= asked})
        best = self.last
        for day in days:
            files = [file for file in self._files if file.day == day]
            groups = [group for file in files for group in self._groups_of(file)]
            for group in sorted(one for one in groups if one.newest >= received_ms):
                if group.first <= best:
                    best = min(best, self._first_received(group, received_ms) - 1)
            if best < self.last and day != _ANY_DAY:
                break
        return max(best, 0)

    def _first_received(self, group: RowGroup, received_ms: int) -> int:
        rows = self._table(group, ("position", "received"), keep=False)
        received = rows.column("received").to_numpy()
        return int(_numbers(rows)[received >= received_ms].min())

    # --- row groups ---

    def _places(self, group: RowGroup) -> tuple[Positions, Positions]:
        """Its positions, sorted, and the row of each."""
        known = self._sorted.get(group)
        if known is None:
            places = _numbers(self._table(group, ("position",), keep=False))
            order = np.argsort(places, kind="stable")  # quick where they are in order already
            known = self._sorted[group] = (places[order], order)
            if len(self._sorted) > _MOST_SORTED:
                del self._sorted[next(iter(self._sorted))]
        return known

    # --- files ---

    def steadily(self, work: Callable[[], T]) -> T:
        """Does work on files that somebody may exchange meanwhile."""
        for _ in range(_MOST_LISTINGS):
            try:
                return work()
            except FileNotFoundError:
                self._list()
        raise Unavailable(f"the files in {self._folder} keep changing", code="lake.unavailable")

    def _list(self) -> None:
        self._files = sorted(_listed(self._folder))
        self._groups.clear()
        self._tables.clear()
        self._sorted.clear()

    def _groups_of(self, file: LakeFile) -> list[RowGroup]:
        """From the footer; none of a damaged file."""
        known = self._groups.get(file.path)
        if known is None:
            self._before_reading()
            try:
                known = _row_groups(file)
            except FileNotFoundError:
                raise
            except _FAULTS as error:
                self.damaged[file.path], known = damaged(file.path, error), []
            self._groups[file.path] = known
        return known

    def _refuse_damaged(self, file: LakeFile) -> None:
        if file.path in self.damaged:
            raise self.damaged[file.path]

    def _table(self, group: RowGroup, columns: tuple[str, ...], *, keep: bool = True) -> pa.Table:
        key = (group, columns)
        table = self._tables.get(key)
        if table is None:
            self._before_reading()
            try:
                with pq.ParquetFile(group.path, memory_map=True) as file:
                    table = file.read_row_group(group.number, columns=list(columns))
            except FileNotFoundError:
                raise
            except _FAULTS as error:
                self.damaged[group.path] = damaged(group.path, error)
                raise self.damaged[group.path] from None
        if keep:
            self._tables[key] = table
            self._tables.move_to_end(key)
            while len(self._tables) > 1 and self._kept_bytes() > _MOST_BYTES:
                self._tables.popitem(last=False)
        return table

    def _before_reading(self) -> None:
        if self._look_up is not None:
            self._look_up()

    def _kept_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables.values())


def damaged(path: str, error: object) -> Corrupt:
    """The error that names a file."""
    return Corrupt(
        f"{path} cannot be read: {error}",
        code="lake.bad_file",
        hint="put a sound copy in its place, or move it aside: then what it held is missing",
    )


def _listed(folder: Path) -> Iterator[LakeFile]:
    for path in folder.rglob("*.parquet"):
        if path.name.startswith((".", "_")):
            continue
        named = _RANGE.match(path.name)
        day = next((found[1] for part in path.parts if (found := _DAY.match(part))), _ANY_DAY)
        if named is not None:
            yield LakeFile(int(named[1]), int(named[2]), str(path), day)
        else:  # of other names only the footer tells
            yield LakeFile(0, 2**62, str(path), day)


def _row_groups(file: LakeFile) -> list[RowGroup]:
    metadata = pq.read_metadata(file.path)
    names = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        position = group.column(names["position"]).statistics
        received = group.column(names["received"]).statistics
        is_told = position is not None and position.has_min_max
        newest = received.max if received is not None and received.has_min_max else 2**62
        first, last = (position.min, position.max) if is_told else (file.first, file.last)
        if group.num_rows:
            found.append(RowGroup(first, last, file.path, number, newest, group.num_rows))
    return found


def _taken(table: pa.Table, rows: Positions) -> pa.Table:
    """Some rows; a slice, which copies nothing, where they stand together."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and np.all(np.diff(rows) == 1):
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))


def _numbers(rows: pa.Table) -> Positions:
    positions: Positions = rows.column("position").to_numpy().astype(np.int64, copy=False)
    return positions
