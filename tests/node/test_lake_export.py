"""The exporter of a running node: crashes, other exporters, and changes of mind. [CH-16]"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.config import ChannelRules, ChannelsConfig, channels_from_site
from rapport.channel.export_schedule import ExportBacklog, ExportDecision, decide_export
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.logged_channel import reader_positions
from rapport.cli import pipeline as pipeline
from rapport.cli.pipeline import export_site
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.kernel.toml import TomlFile
from rapport.lake import bronze, table
from rapport.lake.bronze import exported_position
from rapport.lake.places import Lake
from rapport.lake.table import Table
from rapport.node import maintenance as exporting_module
from rapport.node.maintenance import LakeExporter
from rapport.node.wiring import make_node
from rapport.site.site import load_site

HOUR = 3_600_000
EXPORTED = ChannelsConfig(common=ChannelRules(export=True))


class Crash(BaseException):
    """Stands for the end of the process at this point."""


def some_events(first: int, count: int) -> list[Event]:
    return [
        make_event(source="s", id=f"e{n}", type=f"t{n % 2}", time=n, data={"n": n})
        for n in range(first, first + count)
    ]


def positions_in(lake: Path, channel: str = "c") -> list[int]:
    place = Lake.at(lake)
    if not place.has("bronze", channel):
        return []
    return sorted(place.open("bronze", channel).read(["position"])["position"].to_pylist())


async def readers(channels: LoggedChannels, name: str = "c") -> dict[str, int]:
    return await channels.look(lambda records: reader_positions(records, name))


@contextmanager
def crash_at(step: int, channels: LoggedChannels, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends the exporter before its n-th step: a file written, a commit, or a place saved."""
    steps = iter(range(1_000))
    write_file, commit, apply = table._write_file, Table.commit, channels.apply

    def write_unless(*arguments):
        if next(steps) == step:
            raise Crash
        return write_file(*arguments)

    def commit_unless(*arguments, **named):
        if next(steps) == step:
            raise Crash
        return commit(*arguments, **named)

    async def apply_unless(changes) -> None:
        if next(steps) == step:
            raise Crash
        await apply(changes)

    with patch.context() as within:
        within.setattr(table, "_write_file", write_unless)
        within.setattr(Table, "commit", commit_unless)
        within.setattr(channels, "apply", apply_unless)
        yield


@pytest.mark.parametrize("step", range(4))
def test_a_crash_between_any_two_steps_neither_loses_nor_doubles(
    step: int, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("c").append(some_events(1, 6))
        clock.set_ms(clock.now_ms() + HOUR)
        with crash_at(step, channels, monkeypatch), pytest.raises(Crash):
            await LakeExporter(channels, EXPORTED, tmp_path, clock).export_due()
        # The process begins anew, and the log has grown before it looks.
        place = (await readers(channels)).get("export", 0)
        assert place <= exported_position(Lake.at(tmp_path), "c")
        await channels.channel("c").append(some_events(7, 5))
        clock.set_ms(clock.now_ms() + HOUR)
        await LakeExporter(channels, EXPORTED, tmp_path, clock).export_due()
        assert positions_in(tmp_path) == list(range(1, 12))
        assert await readers(channels) == {"export": 11}

    asyncio.run(scenario())


def test_a_lake_that_was_moved_aside_is_made_again_and_retention_waits_again(
    clock: ManualClock, tmp_path: Path
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("c").append(some_events(1, 4))
        clock.set_ms(clock.now_ms() + HOUR)
        exporting = LakeExporter(channels, EXPORTED, tmp_path / "lake", clock)
        await exporting.export_due()
        shutil.rmtree(tmp_path / "lake")
        (tmp_path / "lake").write_text("in the way")  # nothing can be exported for now
        await exporting.export_due()
        assert await readers(channels) == {"export": 0}
        (tmp_path / "lake").unlink()
        await exporting.export_due()
        assert positions_in(tmp_path / "lake") == [1, 2, 3, 4]

    asyncio.run(scenario())


def test_a_channel_in_trouble_does_not_keep_the_others(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        longer, channels = open_memory(clock), open_memory(clock)
        await longer.channel("a").append(some_events(1, 9))
        await channels.channel("a").append(some_events(1, 3))
        await channels.channel("b").append(some_events(1, 3))
        clock.set_ms(clock.now_ms() + HOUR)
        await LakeExporter(longer, EXPORTED, tmp_path, clock).export_due()
        exporting = LakeExporter(channels, EXPORTED, tmp_path, clock)
        await exporting.export_due()
        assert exporting.troubles == {"a": "lake.other_log"}
        assert await readers(channels, "a") == {}  # so retention keeps everything
        assert positions_in(tmp_path, "b") == [1, 2, 3]

    asyncio.run(scenario())


def test_a_disk_that_refuses_is_told_and_tried_again(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels, lake = open_memory(clock), tmp_path / "lake"
        await channels.channel("c").append(some_events(1, 3))
        clock.set_ms(clock.now_ms() + HOUR)
        lake.write_text("in the way")
        exporting = LakeExporter(channels, EXPORTED, lake, clock)
        await exporting.export_due()
        assert exporting.troubles == {"c": "lake.unavailable"}
        lake.unlink()
        await exporting.export_due()
        assert (positions_in(lake), exporting.troubles) == ([1, 2, 3], {})

    asyncio.run(scenario())


def test_where_nothing_is_exported_any_more_retention_waits_no_longer(
    clock: ManualClock, tmp_path: Path
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("c").append(some_events(1, 3))
        await channels.channel("mine").append(some_events(1, 3))
        await channels.subscribe("mine", "export")  # a reader that happens to have this name
        only_c = ChannelsConfig(rules=(ChannelRules(pattern="c", export=True),))
        await LakeExporter(channels, only_c, tmp_path, clock).export_due()
        assert await readers(channels) == {"export": 0}
        await LakeExporter(channels, ChannelsConfig(), tmp_path, clock).run()
        assert await readers(channels) == {}
        assert await readers(channels, "mine") == {"export": 0}

    asyncio.run(scenario())


def test_what_is_gone_from_the_log_does_not_hold_up_what_follows(
    clock: ManualClock, tmp_path: Path
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        for first in (1, 4, 7):
            await channels.channel("c").append(some_events(first, 3))
        channels.channel("c").trim(7)
        clock.set_ms(clock.now_ms() + HOUR)
        await LakeExporter(channels, EXPORTED, tmp_path, clock).export_due()
        assert positions_in(tmp_path) == [7, 8, 9]
        assert await readers(channels) == {"export": 9}

    asyncio.run(scenario())


def test_what_is_due() -> None:
    def waiting(**other) -> ExportBacklog:
        known = {"exported": 10, "last": 50, "closed": 30, "is_fluid": False, "oldest_ms": 0}
        return ExportBacklog(**(known | other))

    assert decide_export(waiting(last=10), HOUR) == ExportDecision(10)
    assert decide_export(waiting(), 1) == ExportDecision(30)
    assert decide_export(waiting(closed=5), 1) == ExportDecision(10)
    assert decide_export(waiting(), HOUR) == ExportDecision(50, close=True)
    assert decide_export(waiting(closed=50), HOUR) == ExportDecision(50)
    assert decide_export(waiting(is_fluid=True), 1) == ExportDecision(10)
    assert decide_export(waiting(is_fluid=True, last=60_000), 1) == ExportDecision(60_000)
    assert decide_export(waiting(is_fluid=True), HOUR) == ExportDecision(50)
    assert decide_export(waiting(oldest_ms=9 * HOUR), HOUR) == ExportDecision(50, close=True)


def test_the_site_says_which_channels_are_exported() -> None:
    text = b'[channels]\nexport = true\n[channels."raw.*"]\nexport = false\n'
    declared, problems = channels_from_site(TomlFile.parse(text, name="site.toml"))
    assert problems == []
    assert declared.rules_for("events").export is True
    assert declared.rules_for("raw.readers").export is False
    wrong = TomlFile.parse(b"[channels]\nexport = 3\n", name="site.toml")
    assert [problem.line for problem in channels_from_site(wrong)[1]] == [2]


SITE = """
[site]
name = "exporting"
[concepts.sample.attributes]
mass = "number"
[channels."c"]
export = true
"""


def test_a_node_exports_what_is_closed_and_by_hand_the_rest_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting_module, "LOOK_EVERY_MS", 20)
    (tmp_path / "site.toml").write_text(SITE)
    lake = tmp_path / ".rapport" / "lake"

    async def scenario() -> list[int]:
        settings = NodeSettings(port=0, segment_bytes=2_000)
        node = make_node(load_site(tmp_path), settings, SystemClock())
        await node.start()
        try:
            for first in range(1, 200, 10):
                await node.append("c", some_events(first, 10))
            by_itself: list[int] = []

            def is_row() -> bool:
                """Of several files that come together one may be seen before the others."""
                by_itself[:] = positions_in(lake)
                return len(by_itself) > 100 and by_itself[-1] == len(by_itself)

            await until(is_row)
            done = await asyncio.to_thread(export_site, tmp_path)
            assert done["positions"] == {"c": 200}
            assert positions_in(lake) == list(range(1, 201))
            state = await node.maintenance.state("c")
            assert [reader.reader for reader in state.readers] == ["export"]
            assert node.not_ready() == []
        finally:
            await node.stop()
        return by_itself

    by_itself = asyncio.run(scenario())
    assert by_itself == list(range(1, len(by_itself) + 1))
    assert len(by_itself) < 200  # the growing segment waits


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await SystemClock().sleep(10)


def test_what_is_past_its_time_to_live_goes_to_nobody_not_even_the_lake(
    clock: ManualClock, tmp_path: Path
) -> None:
    declared = ChannelsConfig(common=ChannelRules(export=True, ttl_ms=2 * HOUR))

    async def scenario() -> None:
        channels = open_memory(clock)
        channels.use_rules(declared)
        await channels.channel("c").append(some_events(1, 3))
        clock.set_ms(clock.now_ms() + 3 * HOUR)
        await channels.channel("c").append(some_events(4, 2))
        await LakeExporter(channels, declared, tmp_path, clock).export_due()
        assert positions_in(tmp_path) == [4, 5]
        assert await readers(channels) == {"export": 5}

    asyncio.run(scenario())


def test_a_cancelled_export_ends_when_its_files_are_written(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    write_files = bronze.write_files

    def slow(*arguments):
        begun.set()
        assert go_on.wait(10)
        return write_files(*arguments)

    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("c").append(some_events(1, 3))
        clock.set_ms(clock.now_ms() + HOUR)
        monkeypatch.setattr(bronze, "write_files", slow)
        exporting = LakeExporter(channels, EXPORTED, tmp_path, clock)
        task = asyncio.create_task(exporting.export_due())
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.to_thread(lambda: None)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert positions_in(tmp_path) == [1, 2, 3]
        assert exported_position(Lake.at(tmp_path), "c") == 3

    asyncio.run(scenario())
