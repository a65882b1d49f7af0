"""Reading over damaged and missing stretches of a log: what cannot be read is named. [CH-13, CH-14]

The files are real: bytes are flipped in them, and whole ones are removed, while the node is down
and while it runs.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded
from rapport.channel.backends.readonly import open_readonly
from rapport.channel.channel import gaps_between
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.requests.request import Batch, Request
from rapport.core.event import Event, Gap
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from rapport.lake.places import Lake

EVENTS = 24
SEGMENT_BYTES = 500
NOW_MS = 1_772_442_845_210
KEEPS_LITTLE = ChannelsConfig(rules=(ChannelRules(keep_bytes=600, keep_hard=True),))
Damage = Callable[[Path], object]


def numbered(number: int, **headers: str) -> Event:
    kind = "even" if number % 2 == 0 else "odd"
    return Event("s", f"e{number}", kind, "", number, b'{"n":%d}' % number, headers)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[LoggedChannels]:
    channels = open_embedded(directory, ManualClock(NOW_MS), segment_bytes=SEGMENT_BYTES)
    try:
        yield channels
    finally:
        await channels.close()


async def fill(directory: Path, events: Sequence[Event] | None = None) -> None:
    """A log of several segments, one block per event."""
    async with opened(directory) as channels:
        for event in events or [numbered(number) for number in range(1, EVENTS + 1)]:
            await channels.channel("c").append([event])


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "logs" / "c").glob("*.log"))


def flip(directory: Path, number: int) -> None:
    """Damages the record of one event."""
    mark = b'{"n":%d}' % number
    for path in segments(directory):
        content = path.read_bytes()
        if mark in content:
            path.write_bytes(content.replace(mark, mark[:-1] + b"!"))
            return
    raise AssertionError(f"event {number} is in no segment")


def positions_of(path: Path) -> range:
    later = [other for other in segments(path.parents[2]) if other > path]
    return range(int(path.stem), int(later[0].stem))


async def read_through(channels: LoggedChannels, limit: int) -> tuple[list[int], list[Gap]]:
    """Everything, page by page, as a reader by position goes on."""
    channel, position = channels.channel("c"), 0
    given: list[int] = []
    gaps: list[Gap] = []
    while position < channel.last_position():
        page = await channel.read_after(position, limit=limit)
        reached = page[-1].position if page else channel.last_position()
        gaps += channel.gaps_between(position, reached)
        given += [stored.position for stored in page]
        position = reached
    return given, gaps


def covered(given: Sequence[int], gaps: Sequence[Gap]) -> list[int]:
    lost = [position for gap in gaps for position in range(gap.first, gap.last + 1)]
    return sorted([*given, *lost])


def in_a_log(
    tmp_path: Path, damage: Damage, look: Callable[[LoggedChannels], Awaitable[object]]
) -> None:
    """Damages a log while nobody has it open, then looks at it."""

    async def scenario() -> None:
        await fill(tmp_path)
        damage(tmp_path)
        async with opened(tmp_path) as channels:
            await look(channels)

    asyncio.run(scenario())


def test_a_sound_log_has_no_gaps(tmp_path: Path) -> None:
    async def look(channels: LoggedChannels) -> None:
        assert await read_through(channels, 7) == ([*range(1, EVENTS + 1)], [])

    in_a_log(tmp_path, lambda _: None, look)


def test_a_damaged_record_is_a_gap_of_its_position(tmp_path: Path) -> None:
    async def look(channels: LoggedChannels) -> None:
        for limit in (1, 7, 1000):
            given, gaps = await read_through(channels, limit)
            assert gaps == [Gap(5, 5, "damaged"), Gap(EVENTS, EVENTS, "damaged")]
            assert covered(given, gaps) == [*range(1, EVENTS + 1)]

    in_a_log(tmp_path, lambda log: (flip(log, 5), flip(log, EVENTS)), look)


@pytest.mark.parametrize("number", [0, 1, -2, -1])
def test_a_segment_removed_while_the_node_is_down_is_a_gap(tmp_path: Path, number: int) -> None:
    """The first one too, which could be taken for let go, and the last one, whose positions could
    be given out again.
    """
    firsts: list[int] = []

    def remove(log: Path) -> None:
        firsts.extend(int(path.stem) for path in segments(log))
        segments(log)[number].unlink()

    async def look(channels: LoggedChannels) -> None:
        ends = [*firsts[1:], EVENTS + 1]
        given, gaps = await read_through(channels, 1000)
        assert [(gap.first, gap.last) for gap in gaps] == [(firsts[number], ends[number] - 1)]
        assert covered(given, gaps) == [*range(1, EVENTS + 1)]
        if number != -1:
            assert gaps[0].reason == "missing"
        appended = await channels.channel("c").append([numbered(EVENTS + 1)])
        assert appended.positions == (EVENTS + 1,)

    in_a_log(tmp_path, remove, look)


def test_a_segment_removed_while_the_node_runs_is_a_gap_unless_it_is_still_open(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        await fill(tmp_path)
        async with opened(tmp_path) as channels:
            path = segments(tmp_path)[1]
            lost = positions_of(path)
            path.unlink()
            given, gaps = await read_through(channels, 1000)
            assert covered(given, gaps) == [*range(1, EVENTS + 1)]
            assert gaps in ([], [Gap(lost[0], lost[-1], "missing")])
            channels.use_rules(KEEPS_LITTLE)
            await channels.sweeper.sweep_all()
            assert channels.channel("c").first_position() > lost[-1]
            assert channels.channel("c").gaps_between(0, EVENTS) == ()

    asyncio.run(scenario())


def test_a_segment_that_is_restored_is_read_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(tmp_path)
        sound = {path: path.read_bytes() for path in segments(tmp_path)}
        flip(tmp_path, 12)
        async with opened(tmp_path) as channels:
            assert (await read_through(channels, 1000))[1] == [Gap(12, 12, "damaged")]
            for path, content in sound.items():
                path.write_bytes(content)
            channels.decoded.clear()
            assert await read_through(channels, 1000) == ([*range(1, EVENTS + 1)], [])

    asyncio.run(scenario())


def test_what_retention_let_go_is_no_gap(tmp_path: Path) -> None:
    async def look(channels: LoggedChannels) -> None:
        channels.use_rules(KEEPS_LITTLE)
        await channels.sweeper.sweep_all()
        first = channels.channel("c").first_position()
        assert first > 5
        assert await read_through(channels, 1000) == ([*range(first, EVENTS + 1)], [])

    in_a_log(tmp_path, lambda _: None, look)


def test_what_is_past_its_time_to_live_is_no_gap(tmp_path: Path) -> None:
    async def scenario() -> None:
        mortal = [
            numbered(number, **({"ttlms": "1"} if number in (4, 5, 6) else {}))
            for number in range(1, 11)
        ]
        await fill(tmp_path, mortal)
        flip(tmp_path, 7)
        channels = open_embedded(tmp_path, ManualClock(NOW_MS + 60_000))
        given, gaps = await read_through(channels, 1000)
        assert given == [1, 2, 3, 8, 9, 10]
        assert gaps == [Gap(7, 7, "damaged")]
        await channels.close()

    asyncio.run(scenario())


def test_a_process_that_only_reads_names_the_same_gaps(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(tmp_path)
        lost = positions_of(segments(tmp_path)[0])
        flip(tmp_path, 20)
        segments(tmp_path)[0].unlink()
        channels = open_readonly(tmp_path, ManualClock(NOW_MS))
        channel = channels.channel("c")
        read = await channel.read_after(0, limit=1000)
        gaps = gaps_between(channel, 0, EVENTS)
        assert gaps == (Gap(1, lost[-1], "missing"), Gap(20, 20, "damaged"))
        assert covered([one.position for one in read], gaps) == [*range(1, EVENTS + 1)]
        await channels.close()

    asyncio.run(scenario())


# --- requests by query and token ------------------------------------------------------------------


async def batches(channels: LoggedChannels, query: str, most: int) -> list[Batch]:
    request = Request(query=query, max_messages=most)
    found = [await channels.source.request("c", request, identity="me")]
    while (token := found[-1].next_token) is not None:
        request = Request(token=token)
        found.append(await channels.source.request("c", request, identity="me"))
    return found


@pytest.mark.parametrize("indexed", [False, True])
def test_each_gap_of_the_range_stands_in_one_batch(tmp_path: Path, indexed: bool) -> None:
    lost = (3, 6, 10, 11, 12, EVENTS - 1, EVENTS)

    async def scenario() -> None:
        await fill(tmp_path)
        rules = ChannelRules(index=("type",) if indexed else ())
        if indexed:
            async with opened(tmp_path) as channels:
                channels.use_rules(ChannelsConfig(rules=(rules,)))
                channels.wake_index()
                await batches(channels, "type = 'even'", 5)
        for number in lost:
            flip(tmp_path, number)
        async with opened(tmp_path) as channels:
            channels.use_rules(ChannelsConfig(rules=(rules,)))
            found = await batches(channels, "type = 'even'", 4)
            given = [one.position for batch in found for one in batch.events]
            assert given == [n for n in range(2, EVENTS + 1, 2) if n not in lost]
            named = [gap for batch in found for gap in batch.gaps]
            missed = covered((), named)
            assert len(set(missed)) == len(missed)
            # An index rules odd ones out without reading them.
            assert set(missed) <= set(lost)
            assert {n for n in lost if n % 2 == 0 or not indexed} <= set(missed)

    asyncio.run(scenario())


def test_a_query_within_bounds_names_no_gap_beyond_them(tmp_path: Path) -> None:
    async def look(channels: LoggedChannels) -> None:
        await read_through(channels, 1000)
        (batch,) = await batches(channels, "position > 10 AND position <= 20", 100)
        assert batch.gaps == (Gap(15, 15, "damaged"),)

    in_a_log(tmp_path, lambda log: [flip(log, number) for number in (5, 15, 22)], look)


def test_a_set_whose_messages_are_damaged_afterwards_is_gone_and_names_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(tmp_path)
        async with opened(tmp_path) as channels:
            first = (await batches(channels, "", 10))[0]
        flip(tmp_path, 8)
        async with opened(tmp_path) as channels:
            again = await channels.source.request(
                "c", Request(token=first.current_token), identity="me"
            )
            assert again.gone
            assert again.gaps == ()
            rest = await channels.source.request(
                "c", Request(token=again.next_token or ""), identity="me"
            )
            assert Gap(8, 8, "damaged") in rest.gaps

    asyncio.run(scenario())


def test_workers_that_lease_messages_are_notified_of_a_gap_once(tmp_path: Path) -> None:
    async def look(channels: LoggedChannels) -> None:
        request = Request(query="", take=True, lease_ms=60_000, max_messages=10)
        found = [await channels.source.request("c", request, identity="me") for _ in range(4)]
        given = [one.position for batch in found for one in batch.events]
        named = [gap for batch in found for gap in batch.gaps]
        assert named == [Gap(5, 5, "damaged"), Gap(EVENTS, EVENTS, "damaged")]
        assert covered(given, named) == [*range(1, EVENTS + 1)]

    in_a_log(tmp_path, lambda log: (flip(log, 5), flip(log, EVENTS)), look)


# --- export ---------------------------------------------------------------------------------------


def test_the_lake_names_what_could_not_be_exported(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, lake = tmp_path / "log", tmp_path / "lake"
        log.mkdir()
        await fill(log)
        flip(log, 8)
        flip(log, 9)
        async with opened(log) as channels:
            done = await export_channels(channels, lake)
            assert (done.rows, done.passed_over, done.unreadable) == (EVENTS - 2, 2, 2)
            gaps = Lake.at(lake).open("gaps").read().to_pylist()
            assert gaps == [{"channel": "c", "first": 8, "last": 9, "reason": "damaged"}]

    asyncio.run(scenario())


# --- any damage -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound log, to be copied."""
    directory = tmp_path_factory.mktemp("written")
    asyncio.run(fill(directory))
    return directory


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[str, float, float]]:
    """What happens, to which segment, and where in it; both as parts of the whole."""
    part = st.floats(0, 1, exclude_max=True)
    kinds = st.sampled_from(("flip", "flip", "zero", "cut", "remove", "lose index"))
    return draw(st.lists(st.tuples(kinds, part, part), min_size=1, max_size=4))


def apply(directory: Path, damage: tuple[str, float, float]) -> None:
    kind, segment, where = damage
    paths = segments(directory)
    if not paths:
        return
    path = paths[int(segment * len(paths))]
    content = bytearray(path.read_bytes())
    at = int(where * len(content))
    if kind == "remove":
        path.unlink()
        return
    if kind == "lose index":
        path.with_suffix(".index").unlink(missing_ok=True)
        return
    if kind == "flip" and content:
        content[at] ^= 0xFF
    elif kind == "zero":
        content[at : at + 60] = bytes(len(content[at : at + 60]))
    elif kind == "cut":
        del content[at:]
    path.write_bytes(content)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(done=damages(), limit=st.integers(1, 50), most=st.integers(1, 50))
def test_events_and_gaps_cover_every_position_whatever_is_damaged(
    tmp_path_factory: pytest.TempPathFactory,
    written: Path,
    done: list[tuple[str, float, float]],
    limit: int,
    most: int,
) -> None:
    async def scenario() -> None:
        directory = tmp_path_factory.mktemp("damaged") / "log"
        shutil.copytree(written, directory)
        for one in done:
            apply(directory, one)
        async with opened(directory) as channels:
            channel = channels.channel("c")
            expected = [*range(channel.first_position(), channel.last_position() + 1)]
            given, gaps = await read_through(channels, limit)
            assert covered(given, gaps) == expected
            found = await batches(channels, "", most)
            given = [one.position for batch in found for one in batch.events]
            assert covered(given, [gap for batch in found for gap in batch.gaps]) == expected
            if all(kind != "lose index" for kind, *_ in done):
                assert expected == [*range(1, EVENTS + 1)]

    asyncio.run(scenario())
