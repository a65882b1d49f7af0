"""The rows that tables had, read back from the channel `tables.rows` of a node, a log or a lake.
[PO-2, PO-11]
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.channel import Channel, Channels
from rapport.channel.finding.by_time import oldest
from rapport.core.errors import SiteError
from rapport.tables.loaded import LoadedTable
from rapport.tables.recorded_rows import (
    ROWS_CHANNEL,
    RowsFolded,
    RowsPiece,
    RowsVersion,
    TableRows,
    piece_of,
)
from rapport.tables.row_file import LooseRows
from rapport.tables.rows_recorder import recorded_columns, rows_to_record
from rapport.tables.tables import Tables

_PAGE = 500


async def versions_on_record(
    channels: Channels, *, since: int | None = None, most_events: int | None = None
) -> list[RowsVersion]:
    """What tables held from a time of readings on (None: as far back as is kept), oldest first: the
    first is the version that was in force then. Empty when nothing is on record.

    Costs what was recorded since the base before that time; `most_events` ends it earlier.
    """
    if ROWS_CHANNEL not in channels.names():
        return []
    channel = channels.channel(ROWS_CHANNEL)
    after = 0 if since is None else await _base_before(channel, since)
    found = await _folded(channel, after, most_events)
    if after and (not found or (since is not None and found[0].place.since > since)):
        found = await _folded(channel, 0, most_events)  # what began there was never finished
    if since is None:
        return found
    begun = [number for number, one in enumerate(found) if one.place.since <= since]
    return found[begun[-1] :] if begun else found


def version_at(versions: Sequence[RowsVersion], time: int) -> RowsVersion | None:
    """What readings of a time met; before the first version that one. None when there is none."""
    met = [one for one in versions if one.place.since <= time]
    return met[-1] if met else versions[0] if versions else None


async def _folded(channel: Channel, after: int, most_events: int | None) -> list[RowsVersion]:
    folded, found, left = RowsFolded(), list[RowsVersion](), most_events
    while batch := await channel.read_after(after, limit=_PAGE):
        after = batch[-1].position
        found += [version for stored in batch if (version := folded.take(stored)) is not None]
        if left is not None and (left := left - len(batch)) <= 0:
            break
    return found


async def _base_before(channel: Channel, since: int) -> int:
    """The position after which the last base stands that was in force at a time; 0 when nobody can
    tell. Looks at about as many events as the logarithm of what is kept.
    """
    first = await oldest(channel)
    if first is None:
        return 0
    low, high = first.position, channel.last_position() + 1
    found: tuple[int, RowsPiece] | None = None
    while low < high:  # what stands before `low` is not later than `since`
        middle = (low + high) // 2
        read = await channel.read_after(middle - 1, limit=1)
        piece = piece_of(read[0]) if read else None
        if piece is None:
            return 0
        if piece.place.since <= since:
            found = read[0].position, piece
            low = max(read[0].position, middle) + 1
        else:
            high = middle
    if found is None:
        return 0
    position, piece = found
    return max(position - piece.part - 1, 0) if piece.is_base else piece.base


class RecordedTableRows:
    """The tables of a site with the rows of any version; of tables whose rows are not on record, or
    no longer fit what the site says about them, with those of today.

    Typing the rows of a table takes about a second for 100,000 of them, once for each time they
    changed in what is asked for.
    """

    def __init__(self, tables: Tables) -> None:
        self._today = tables.seen()
        self._digests: dict[str, str] = {}
        self._last: tuple[dict[str, str], Tables] = ({}, self._today)
        self.unusable: dict[str, TableRows | None] = {}
        """Tables of which the rows of today were used; None: nothing was on record."""

    def at(self, version: RowsVersion) -> Tables:
        """The tables as they were. Blocks for the time it takes to type rows."""
        wanted = {name: self._usable(name, version) for name in self.recorded()}
        digests = {name: rows.digest for name, rows in wanted.items() if rows is not None}
        before, tables = self._last
        read: list[LoadedTable] = []
        for name in [name for name in digests if before.get(name) != digests[name]]:
            rows = wanted[name]
            assert rows is not None
            if (loaded := self._loaded(name, rows)) is None:
                del digests[name]
            else:
                read.append(loaded)
        today = self._today.loaded()
        read += [today[name] for name in before.keys() - digests.keys()]
        try:
            self._last = digests, tables.seen(read) if read else tables
        except SiteError:  # together they do not fit what the site says now
            self.unusable |= dict.fromkeys(digests)
            self._last = {}, self._today
        return self._last[1]

    def recorded(self) -> list[str]:
        """The tables whose rows are put on record."""
        today = self._today
        pairs = today.functions()
        return [name for name, one in today.declarations().items() if recorded_columns(one, pairs)]

    def is_of_today(self, version: RowsVersion) -> bool:
        """Whether tables hold the same now, as far as is known."""
        return all(
            name in version.tables and version.tables[name].digest == self._digest_of_today(name)
            for name in self.recorded()
        )

    def _usable(self, name: str, version: RowsVersion) -> TableRows | None:
        """The rows of a table, unless those of today have to do, or are the same."""
        rows = version.tables.get(name)
        if rows is not None and rows.digest == self._digest_of_today(name):
            return None
        if rows is None or not rows.is_known:
            self.unusable[name] = rows
            return None
        return rows

    def _loaded(self, name: str, rows: TableRows) -> LoadedTable | None:
        today = self._today.loaded()[name]
        fields = [list(row) for row in rows.rows]
        file = LooseRows(today.declared.shown, list(rows.header), fields, rows.digest)
        try:
            return self._today.given(name, file)
        except SiteError:
            self.unusable[name] = rows
            return None

    def _digest_of_today(self, name: str) -> str:
        if name not in self._digests:
            found = rows_to_record(self._today.loaded()[name], self._today.functions())
            self._digests[name] = "" if found is None else found.rows.digest
        return self._digests[name]
