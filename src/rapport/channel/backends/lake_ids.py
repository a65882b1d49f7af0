"""At which positions an id stands in a lake: an index of sorted ids beside it, and a look through
what came since. [CH-16, PO-11]

Derived from the files, so it can be deleted at any time; a damaged part is made anew. A part covers
all positions of a channel from one to another, whatever files they lie in, so compaction does not
touch it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.channel.backends.lake_files import ChannelFiles
from rapport.channel.export.files import make_directory, partition_name
from rapport.kernel.files import atomic_replacement
from rapport.kernel.telemetry import get_logger

INDEX = ".index"
WORTH_INDEXING = 200_000
"""So many events that are in no part yet are worth one; fewer are looked through."""
_MOST_IN_PART = 2_000_000
_ROWS = 8_192
"""Ids of a row group: what one look reads."""
_COLUMNS = ("id", "position")
_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet\Z")
_log = get_logger(__name__)


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
        """By channel what is in no part: the position it goes on from, ids and positions."""
        self._is_writable = True

    def positions(self, channel: str, files: ChannelFiles, id: str) -> list[int]:
        """Where the id stands in a channel, in order; a damaged file is passed over."""
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
        """Looks at the folder anew when next asked."""
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
        for path in sorted((self._folder / partition_name("channel", channel)).glob("*.parquet")):
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
            return  # what a damaged file holds must not be taken for indexed
        tables: list[pa.Table] = []
        rows = 0
        for place, group in enumerate(groups):
            table = files.column_rows(group, _COLUMNS)
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
        rows = pa.concat_tables(tables).select(list(_COLUMNS))
        rows = rows.filter(pa.array(rows.column("position").to_numpy() > covered))
        folder = self._folder / partition_name("channel", channel)
        path = folder / f"{covered + 1:020d}-{last:020d}.parquet"
        try:
            make_directory(folder)
            ordered = rows.sort_by([("id", "ascending"), ("position", "ascending")])
            with atomic_replacement(path) as temporary:
                pq.write_table(ordered, temporary, compression="zstd", row_group_size=_ROWS)
        except OSError as error:
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
            if (table := files.column_rows(group, _COLUMNS)) is not None
        ]
        if tables and sum(map(len, tables)) <= self._worth:
            self._recent[channel] = (covered, pa.concat_tables(tables))
        return tables


def _looked_up(part: _Part, id: str) -> list[int]:
    """The positions of an id in a part."""
    # An id may stand in several row groups that follow on each other.
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
            told = metadata.row_group(number).column(0).statistics
            part.least.append(told.min)
            part.greatest.append(told.max)
        return True
    except (pa.ArrowInvalid, OSError, AttributeError):
        part.path.unlink(missing_ok=True)
        return False
