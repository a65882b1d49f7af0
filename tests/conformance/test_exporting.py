"""Closed pieces of a log go to the lake, each event once, on every back end. [CH-13, CH-16]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rapport.channel import export_schedule as export_due
from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.backends.stores import open_channels
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.logged_channel import reader_positions
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels, stored_events
from rapport.lake.places import Lake
from rapport.node.maintenance import LakeExporter
from support.servers.postgres_channels import open_postgres

HOUR = 3_600_000
DAY = 24 * HOUR
KEEP = ChannelRules(pattern="c", export=True, keep_for_ms=2 * HOUR)
DECLARED = ChannelsConfig(rules=(KEEP,))
Open = Callable[[], LoggedChannels]


@pytest.fixture(params=["memory", "embedded", "postgres", "nats"])
def open_place(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Open:
    def embedded() -> LoggedChannels:
        return open_embedded(tmp_path / "log", clock, segment_bytes=2_000)

    def postgres() -> LoggedChannels:
        address = request.getfixturevalue("postgres")
        return open_postgres(address.dsn, clock, schema=address.schema)

    def nats() -> LoggedChannels:
        (tmp_path / "nats-address").write_text(request.getfixturevalue("nats_address"))
        declared = ChannelsConfig(nats="file:nats-address", common=ChannelRules(log="nats"))
        return open_channels(tmp_path / "log", clock, declared, site=tmp_path, segment_bytes=2_000)

    places = {
        "memory": lambda: open_memory(clock),
        "embedded": embedded,
        "postgres": postgres,
        "nats": nats,
    }
    return places[request.param]


@pytest.fixture(autouse=True)
def few_rows_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_due, "ENOUGH_ROWS", 40)


def numbered(first: int, count: int) -> list:
    return [
        make_event(
            source="scale", id=f"e{n}", type=f"kind.{n % 3}", time=n, data={"n": n, "x": "y" * 60}
        )
        for n in range(first, first + count)
    ]


async def append(channels: LoggedChannels, first: int, count: int) -> None:
    """In blocks of five, as publishers do."""
    for start in range(first, first + count, 5):
        await channels.channel("c").append(numbered(start, min(5, first + count - start)))


def in_lake(lake: Path) -> list[tuple[int, str, bytes]]:
    """(position, id, data) of every row, sorted."""
    if not Lake.at(lake).has("bronze", "c"):
        return []
    stored = stored_events(Lake.at(lake).open("bronze", "c").read())
    return sorted((one.position, one.event.id, one.event.data) for one in stored)


async def in_log(channels: LoggedChannels) -> list[tuple[int, str, bytes]]:
    stored = await channels.channel("c").read_after(0, limit=100_000)
    return [(one.position, one.event.id, one.event.data) for one in stored]


def play(work: Awaitable[None]) -> None:
    asyncio.run(work)


async def place_of(channels: LoggedChannels) -> int | None:
    return (await channels.look(lambda records: reader_positions(records, "c"))).get("export")


@pytest.mark.slow
def test_closed_pieces_are_exported_and_the_rest_within_an_hour(
    open_place: Open, clock: ManualClock, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"

    async def scenario() -> None:
        channels = open_place()
        exporting = LakeExporter(channels, DECLARED, lake, clock)
        await append(channels, 1, 103)
        await channels.channel("other").append(numbered(1, 5))
        await exporting.export_due()
        early = in_lake(lake)
        everything = await in_log(channels)
        assert early == everything[: len(early)]
        assert len(early) >= 40
        await append(channels, 104, 5)
        clock.set_ms(clock.now_ms() + HOUR)
        await exporting.export_due()
        assert in_lake(lake) == await in_log(channels)
        assert await place_of(channels) == 108
        assert exporting.troubles == {}
        await exporting.export_due()
        assert len(in_lake(lake)) == 108
        assert sorted(path.name for path in lake.glob("bronze/*")) == ["c"]
        await channels.close()

    play(scenario())


@pytest.mark.slow
def test_retention_waits_for_the_lake(open_place: Open, clock: ManualClock, tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    async def scenario() -> None:
        channels = open_place()
        channels.use_rules(DECLARED)
        await append(channels, 1, 100)
        everything = await in_log(channels)
        for _round in range(3):  # longer than a start is distrusted
            clock.set_ms(clock.now_ms() + HOUR)
            await channels.sweeper.sweep_all()
        swept = await channels.sweeper.sweep("c")
        assert swept is not None
        assert (swept.first, swept.held_by) == (1, ("export",))
        await LakeExporter(channels, DECLARED, lake, clock).export_due()
        assert in_lake(lake) == everything
        swept = await channels.sweeper.sweep("c")
        assert swept is not None
        assert swept.first > 90
        await append(channels, 101, 10)
        clock.set_ms(clock.now_ms() + HOUR)
        await LakeExporter(channels, DECLARED, lake, clock).export_due()
        assert [row[0] for row in in_lake(lake)] == list(range(1, 111))
        await channels.close()

    play(scenario())


def test_what_was_exported_by_hand_is_not_exported_again(
    open_place: Open, clock: ManualClock, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"

    async def scenario() -> None:
        channels = open_place()
        exporting = LakeExporter(channels, DECLARED, lake, clock)
        await append(channels, 1, 53)
        await exporting.export_due()
        await export_channels(channels, lake)
        await exporting.export_due()
        assert await place_of(channels) == 53
        await append(channels, 54, 80)
        await exporting.export_due()
        await export_channels(channels, lake)
        assert in_lake(lake) == await in_log(channels)
        await channels.close()

    play(scenario())
