"""Rows of any time are found in the channel without reading all of it. [PO-2, PO-11]"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.event import StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.policy.table_history import version_at, versions_on_record
from rapport.tables.row_history import (
    ROWS_CHANNEL,
    RecordableRows,
    RecordState,
    RowsPosition,
    RowsVersion,
    TableRows,
    draft_change,
)

COUNT = 200


def rows_of(number: int) -> RecordableRows:
    people = [(str(key), "guest") for key in range(20)]
    rows = TableRows.of(("id", "status"), [*people, ("new", str(number))])
    return RecordableRows(rows=rows, keys=(0,), is_counted=False)


async def fill(channels: Channels) -> None:
    """A change at each ten seconds of the readings' time, told by the one who is new."""
    channel, standing = channels.channel(ROWS_CHANNEL), RecordState()
    for number in range(COUNT):
        draft = draft_change({"people": rows_of(number)}, standing)
        place = RowsPosition(time=number, after=number, since=number * 10_000)
        pieces = draft.at(place, standing.base)
        appended = await channel.append([piece.to_event(source="s") for piece in pieces])
        version = RowsVersion(
            change=pieces[0].change, place=place, tables=draft.tables, changed=frozenset()
        )
        if draft.is_base:
            base = appended.positions[0] - 1
            standing = RecordState(version=version, base=base, base_bytes=draft.bytes)
        else:
            standing = msgspec.structs.replace(
                standing, version=version, changes=standing.changes + 1
            )


def who(version: RowsVersion | None) -> str:
    assert version is not None
    return version.tables["people"].rows[-1][1]


def test_the_rows_of_every_time_are_found_from_the_base_before_it() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock(0))
        assert await versions_on_record(channels) == []
        await fill(channels)
        whole = await versions_on_record(channels)
        assert [who(one) for one in whole] == [str(number) for number in range(COUNT)]
        for number in range(0, COUNT, 7):
            time = number * 10_000 + 9_999
            found = await versions_on_record(channels, since=time)
            assert who(found[0]) == who(version_at(whole, time)) == str(number)
            assert [one.change for one in found] == [one.change for one in whole[number:]]
        before = await versions_on_record(channels, since=-1)
        assert len(before) == COUNT
        assert who(version_at(before, -1)) == "0"
        await channels.close()

    asyncio.run(scenario())


def test_reading_ends_where_it_should_and_reads_little() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock(0))
        await fill(channels)
        channel = channels.channel(ROWS_CHANNEL)
        read: list[int] = []
        plain = type(channel).read_after

        async def counting(self: object, position: int, *, limit: int = 1000) -> list[StoredEvent]:
            found = await plain(self, position, limit=limit)  # type: ignore[arg-type]
            read.append(len(found))
            return found

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(channel), "read_after", counting)
            found = await versions_on_record(channels, since=1_900_000, most_events=1)
        assert who(found[0]) == "190"
        assert sum(read) < 100
        await channels.close()

    asyncio.run(scenario())
