"""The channels of a lake: exported events, read only, with positions and times as in the log.
[CH-16, PI-3, PO-11]

Needs neither Spark nor the log. `ChannelFiles` reads the files of one table of bronze: its log
knows the positions and days of each file, footers those of each row group, so little more than the
requested rows is read. `LakeIds` is an index of
sorted ids beside the lake, derived from the files: it can be deleted at any time, and a damaged
part is rebuilt. Raises Corrupt, naming the file, where a damaged file may hold requested events.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.channel.channel import AppendResult, Subscription
from rapport.channel.event_lookup import BACKWARDS_MS
from rapport.channel.validation import check_channel_name
from rapport.core.errors import Corrupt, Unavailable, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.files import temporary_path
from rapport.kernel.telemetry import get_logger
from rapport.lake.bronze import DAY_MS, SCHEMA, WRITER, stored_events
from rapport.lake.places import BRONZE, Lake, folder_name
from rapport.lake.table import Table

Positions = npt.NDArray[np.int64]

_MOST_BYTES = 256 * 1024 * 1024
"""Most bytes of cached row groups."""
_MOST_SORTED = 64
_MOST_LISTINGS = 3
_FAULTS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError, KeyError)
_log = get_logger(__name__)
INDEX = ".index"
WORTH_INDEXING = 200_000
"""So many events that are in no part yet are worth one; fewer are looked through."""
_MOST_IN_PART = 2_000_000
_ROWS = 8_192
"""Ids of a row group: the unit of reading."""
_ID_COLUMNS = ("id", "position")
_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet\Z")
T = TypeVar("T")
_COLUMNS = tuple(name for name in SCHEMA.names if name != "day")


class LakeFile(msgspec.Struct, frozen=True, order=True):
    """A file whose rows have positions in [first, last] and were received on one day."""

    first: int
    last: int
    path: str
    day: int
    """Days since 1970."""


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
    """One channel's files. Not thread-safe. A damaged file is remembered in `damaged`, and raises
    Corrupt only where its content is requested.
    """

    def __init__(self, table: Table | None, look_up: Callable[[], None] | None = None) -> None:
        """None where the lake does not have the channel. `look_up` is called before each footer and
        row group that is read, and may raise.
        """
        self._table_of, self._look_up = table, look_up
        self.damaged: dict[str, Corrupt] = {}
        self._files: list[LakeFile] = []
        self._groups: dict[str, list[RowGroup]] = {}
        self._tables: OrderedDict[tuple[RowGroup, tuple[str, ...]], pa.Table] = OrderedDict()
        self._sorted: dict[RowGroup, tuple[Positions, Positions]] = {}
        self._list()

    @property
    def last(self) -> int:
        """The last position; 0 without any."""
        return 0 if self._table_of is None else self._table_of.progress(WRITER) or 0

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
        return rows

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
            return pa.schema([SCHEMA.field(name) for name in columns]).empty_table()
        whole = parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="default")
        order = np.argsort(_numbers(whole), kind="stable")
        return whole.take(pa.array(order))

    # --- by time ---

    def position_before(self, received_ms: int) -> int:
        """The last position before everything that was received at a time or later."""
        return self.steadily(lambda: self._position_before(received_ms))

    def _position_before(self, received_ms: int) -> int:
        asked = received_ms // DAY_MS
        days = sorted({file.day for file in self._files if file.day >= asked})
        best = self.last
        for day in days:
            files = [file for file in self._files if file.day == day]
            groups = [group for file in files for group in self._groups_of(file)]
            for group in sorted(one for one in groups if one.newest >= received_ms):
                if group.first <= best:
                    best = min(best, self._first_received(group, received_ms) - 1)
            if best < self.last:
                break
        return max(best, 0)

    def _first_received(self, group: RowGroup, received_ms: int) -> int:
        rows = self._table(group, ("position", "received"), keep=False)
        received = rows.column("received").cast(pa.int64()).to_numpy() // 1_000
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
        """Runs work on files that a vacuum may delete meanwhile, after a compaction."""
        for _ in range(_MOST_LISTINGS):
            try:
                return work()
            except FileNotFoundError:
                if self._table_of is not None:
                    self._table_of.refresh()
                self._list()
        raise Unavailable("the files of the lake keep changing", code="lake.unavailable")

    def _list(self) -> None:
        files = [] if self._table_of is None else self._table_of.files()
        self._files = sorted(
            LakeFile(
                file.low.get("position", 0),
                file.high.get("position", 2**62),
                file.uri,
                (file.partition["day"] - date(1970, 1, 1)).days,
            )
            for file in files
        )
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
        hint="replace it by a sound copy, or remove it: then its events are missing",
    )


def _row_groups(file: LakeFile) -> list[RowGroup]:
    metadata = pq.read_metadata(file.path)
    names = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        position = group.column(names["position"]).statistics
        received = group.column(names["received"]).statistics
        is_told = position is not None and position.has_min_max
        newest = (
            _milliseconds(received.max) if received is not None and received.has_min_max else 2**62
        )
        first, last = (position.min, position.max) if is_told else (file.first, file.last)
        if group.num_rows:
            found.append(RowGroup(first, last, file.path, number, newest, group.num_rows))
    return found


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _taken(table: pa.Table, rows: Positions) -> pa.Table:
    """Some rows; a slice, which copies nothing, where they are adjacent."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and np.all(np.diff(rows) == 1):
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))


def _numbers(rows: pa.Table) -> Positions:
    positions: Positions = rows.column("position").to_numpy().astype(np.int64, copy=False)
    return positions


class _Part(msgspec.Struct):
    """A file of sorted ids: the least and the greatest of each row group."""

    path: Path
    first: int
    last: int
    least: list[str] = []
    greatest: list[str] = []


class LakeIds:
    """The index of a lake. Not for several threads at once."""

    def __init__(self, lake: Path, *, worth_indexing: int = WORTH_INDEXING) -> None:
        self._folder = lake / INDEX / "ids"
        self._worth = worth_indexing
        self._parts: dict[str, list[_Part]] = {}
        self._recent: dict[str, tuple[int, pa.Table]] = {}
        """By channel, unindexed ids: the position they continue from, ids and positions."""
        self._is_writable = True

    def positions(self, channel: str, files: ChannelFiles, id: str) -> list[int]:
        """The positions of the id in a channel, in order; damaged files are skipped."""
        found: set[int] = set()
        for part in self._covering(channel, files):
            try:
                found.update(_looked_up(part, id))
            except (pa.ArrowInvalid, OSError):
                part.path.unlink(missing_ok=True)
                self.forget(channel)
                return self.positions(channel, files, id)
        for rows in self._uncovered(channel, files):
            chosen = rows.filter(pc.equal(rows.column("id"), id))
            found.update(chosen.column("position").to_pylist())
        return sorted(found)

    def forget(self, channel: str) -> None:
        """Lists the folder again at the next call."""
        self._parts.pop(channel, None)
        self._recent.pop(channel, None)

    # --- parts ---

    def _covering(self, channel: str, files: ChannelFiles) -> list[_Part]:
        """The parts there are, with new ones where many events are in none."""
        if channel not in self._parts:
            self._parts[channel] = self._opened(channel)
            if self._is_writable:
                self._extend(channel, files)
        return self._parts[channel]

    def _opened(self, channel: str) -> list[_Part]:
        """The parts that follow on each other from the beginning."""
        found: list[_Part] = []
        for path in sorted((self._folder / folder_name(channel)).glob("*.parquet")):
            named = _NAME.match(path.name)
            covered = found[-1].last if found else 0
            if named is not None and int(named[1]) == covered + 1:
                part = _Part(path, int(named[1]), int(named[2]))
                if not _read_bounds(part):
                    break
                found.append(part)
        return found

    def _extend(self, channel: str, files: ChannelFiles) -> None:
        parts = self._parts[channel]
        covered = parts[-1].last if parts else 0
        groups = sorted(files.groups_after(covered))
        if sum(group.rows for group in groups) < self._worth or files.damaged:
            return  # the content of a damaged file must not count as indexed
        tables: list[pa.Table] = []
        rows = 0
        for place, group in enumerate(groups):
            table = files.column_rows(group, _ID_COLUMNS)
            if table is None:
                return
            tables.append(table)
            rows += len(table)
            # A part may end only where no later group reaches back.
            following = groups[place + 1].first if place + 1 < len(groups) else files.last + 1
            reached = max(one.last for one in groups[: place + 1])
            if (rows >= _MOST_IN_PART and following > reached) or place + 1 == len(groups):
                part = self._write(channel, covered, following - 1, tables)
                if part is None:
                    return
                parts.append(part)
                covered, tables, rows = part.last, [], 0

    def _write(self, channel: str, covered: int, last: int, tables: list[pa.Table]) -> _Part | None:
        """None where the lake may not be written: then everything is looked through."""
        rows = pa.concat_tables(tables).select(list(_ID_COLUMNS))
        rows = rows.filter(pa.array(rows.column("position").to_numpy() > covered))
        folder = self._folder / folder_name(channel)
        path = folder / f"{covered + 1:020d}-{last:020d}.parquet"
        temporary = temporary_path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            ordered = rows.sort_by([("id", "ascending"), ("position", "ascending")])
            pq.write_table(ordered, temporary, compression="zstd", row_group_size=_ROWS)
            temporary.rename(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            _log.info("no index of ids beside the lake", lake=str(self._folder), reason=str(error))
            self._is_writable = False
            return None
        part = _Part(path, covered + 1, last)
        return part if _read_bounds(part) else None

    # --- the rest ---

    def _uncovered(self, channel: str, files: ChannelFiles) -> list[pa.Table]:
        """Ids and positions after the last part; kept while they are few."""
        parts = self._parts[channel]
        covered = parts[-1].last if parts else 0
        kept = self._recent.get(channel)
        if kept is not None and kept[0] == covered:
            return [kept[1]]
        tables = [
            table
            for group in files.groups_after(covered)
            if (table := files.column_rows(group, _ID_COLUMNS)) is not None
        ]
        if tables and sum(map(len, tables)) <= self._worth:
            self._recent[channel] = (covered, pa.concat_tables(tables))
        return tables


def _looked_up(part: _Part, id: str) -> list[int]:
    # An id may occur in several consecutive row groups.
    wanted = range(bisect_left(part.greatest, id), bisect_right(part.least, id))
    if not wanted:
        return []
    with pq.ParquetFile(part.path) as file:
        rows = file.read_row_groups(list(wanted))
    chosen = rows.filter(pc.equal(rows.column("id"), id))
    positions: list[int] = chosen.column("position").to_pylist()
    return positions


def _read_bounds(part: _Part) -> bool:
    """Takes the bounds of its row groups in; a part that cannot be read is removed."""
    try:
        metadata = pq.read_metadata(part.path)
        for number in range(metadata.num_row_groups):
            statistics = metadata.row_group(number).column(0).statistics
            part.least.append(statistics.min)
            part.greatest.append(statistics.max)
        return True
    except (pa.ArrowInvalid, OSError, AttributeError):
        part.path.unlink(missing_ok=True)
        return False


class ThreadRunner(Protocol):
    """Runs file reads in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Returns or raises as `work` does."""


def open_lake(
    directory: Path,
    *,
    aside: ThreadRunner = asyncio.to_thread,
    look_up: Callable[[], None] | None = None,
) -> LakeChannels:
    """The channels as the lake has them now; raises UnknownName when it is none, Conflict for one
    of a former format. See LakeChannels.
    """
    Lake.at(directory).refuse_former_format()
    if not is_lake(directory):
        raise UnknownName("lake", str(directory), code="lake.none")
    return LakeChannels(directory, aside=aside, look_up=look_up)


def is_lake(directory: Path) -> bool:
    """Whether there are tables that can be read: not in a lake of a former format."""
    return bool(Lake.at(directory).names(BRONZE))


class LakeChannels:
    """See Channels; writes are refused with Unsupported."""

    def __init__(
        self,
        directory: Path,
        *,
        worth_indexing: int = WORTH_INDEXING,
        aside: ThreadRunner = asyncio.to_thread,
        look_up: Callable[[], None] | None = None,
    ) -> None:
        """`look_up` is called before each row group that is read, in the reading thread; an
        exception of it ends the read.
        """
        self.directory = directory
        self._aside, self._look_up = aside, look_up
        self._names: list[str] | None = None
        self._lake = Lake.at(directory)
        self._files: dict[str, ChannelFiles] = {}
        self._ids = LakeIds(directory, worth_indexing=worth_indexing)
        self._turn = threading.Lock()

    def channel(self, name: str) -> LakeChannel:
        check_channel_name(name)
        return LakeChannel(name, self)

    def names(self) -> list[str]:
        """See Channels. The first call lists all files; later files are not shown."""
        if self._names is None:
            self._names = [name for name in self._lake.names(BRONZE) if self.files(name).last]
        return list(self._names)

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> Subscription:
        """Refused: a lake's channel does not grow while it is open."""
        raise Unsupported("a subscription", "a lake", hint="use read_after")

    async def find_event(
        self, event_id: str, *, among: Collection[str] | None = None
    ) -> list[tuple[str, StoredEvent]]:
        """See Channels; `among`: only these channels.

        The first call builds an index beside a large lake: about a second for a million events.
        Raises Corrupt when it is not found and a damaged file may hold it.
        """
        return await self._aside(partial(self._find, event_id, among))

    async def close(self) -> None:
        """Nothing is held open."""

    def _find(self, event_id: str, among: Collection[str] | None) -> list[tuple[str, StoredEvent]]:
        found: list[tuple[str, StoredEvent]] = []
        faults: list[Corrupt] = []
        for name in self.names():
            if among is not None and name not in among:
                continue
            with self._turn:
                files = self.files(name)
                find = partial(self._ids.positions, name, files, event_id)
                positions = files.steadily(find)
                faults += files.damaged.values()
            for position in positions:
                stored = self.read_now(name, position - 1, 1)
                if stored and stored[0].event.id == event_id:
                    found.append((name, stored[0]))
        if not found and faults:
            raise faults[0]
        return found

    def read_now(self, name: str, position: int, limit: int) -> list[StoredEvent]:
        """The same as a channel's `read_after`, blocking."""
        with self._turn:
            rows = self.files(name).read_after(position, limit, _COLUMNS)
        return stored_events(rows)

    async def aside(self, work: Callable[[], T]) -> T:
        """Reads where this lake's files are read."""
        return await self._aside(work)

    def position_before(self, name: str, received_ms: int) -> int:
        """A position before everything received at a time or later."""
        with self._turn:
            return self.files(name).position_before(received_ms)

    def damaged(self) -> list[Corrupt]:
        """The files that could not be read so far."""
        return [fault for files in self._files.values() for fault in files.damaged.values()]

    def files(self, name: str) -> ChannelFiles:
        """The files of a channel; none for one that the lake does not have."""
        found = self._files.get(name)
        if found is None:
            table = self._lake.open(BRONZE, name) if self._lake.has(BRONZE, name) else None
            found = self._files[name] = ChannelFiles(table, self._look_up)
        return found


class LakeChannel:
    """See Channel."""

    def __init__(self, name: str, lake: LakeChannels) -> None:
        self.name, self._lake = name, lake

    async def append(self, events: Sequence[Event]) -> AppendResult:
        """Refused: the lake follows the log."""
        raise Unsupported("appending", "a lake", hint="publish to the node; its log is exported")

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        return await self._lake.aside(partial(self._lake.read_now, self.name, position, limit))

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """Whether there is something now; it does not grow."""
        return self.last_position() > position

    async def position_before(self, received_ms: int) -> int:
        """See `by_time.position_before`: from folders and footers, and one row group."""
        wanted = received_ms - BACKWARDS_MS
        return await self._lake.aside(partial(self._lake.position_before, self.name, wanted))

    def last_position(self) -> int:
        return self._lake.files(self.name).last
