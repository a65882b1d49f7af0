"""Every event reaches the lake exactly once, whatever happens while it is written. [CH-16, LK-3]"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.errors import Conflict, StoreUnavailable
from rapport.core.event import Event, StoredEvent, make_event
from rapport.kernel.clock import ManualClock
from rapport.lake import table as tables
from rapport.lake.bronze import bronze_table, export_channels, exported_position, stored_events
from rapport.lake.places import Lake
from rapport.lake.table import CONCURRENT_WRITER, Table

DAY_MS = 86_400_000


class Crash(Exception):
    """Stands for the end of the process at this point."""


def some_events(first: int, count: int, kind: str = "badge.seen") -> list[Event]:
    return [
        make_event(source="readers", id=f"e{n}", type=kind, time=n, data={"n": n})
        for n in range(first, first + count)
    ]


def rows_of(lake: Path, channel: str = "events") -> list[tuple[int, str]]:
    """Every row of a table as (position, id), sorted; read by a reader that is not ours."""
    frame = pl.read_delta(str(lake / "bronze" / channel))
    return sorted(frame.select("position", "id").iter_rows())


def expected_rows(count: int) -> list[tuple[int, str]]:
    return [(n, f"e{n}") for n in range(1, count + 1)]


def test_a_second_export_goes_on_where_the_first_ended(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(some_events(1, 5))
        first = await export_channels(channels, tmp_path)
        await channels.channel("events").append(some_events(6, 3))
        second = await export_channels(channels, tmp_path)
        third = await export_channels(channels, tmp_path)
        assert (first.rows, second.rows, third.rows) == (5, 3, 0)
        assert third.positions == {"events": 8}

    asyncio.run(scenario())
    assert rows_of(tmp_path) == expected_rows(8)


def test_a_channel_is_a_table_with_a_file_for_each_day_of_arrival(
    clock: ManualClock, tmp_path: Path
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("raw.readers").append(some_events(1, 2, "a/b") + some_events(3, 2))
        clock.set_ms(clock.now_ms() + DAY_MS)
        await channels.channel("raw.readers").append(some_events(5, 1, "c"))
        await export_channels(channels, tmp_path)

    asyncio.run(scenario())
    files = Lake.at(tmp_path).open("bronze", "raw.readers").files()
    assert [(str(file.partition["day"]), file.rows) for file in files] == [
        ("2026-03-02", 4),
        ("2026-03-03", 1),
    ]
    assert [(file.low["position"], file.high["position"]) for file in files] == [(1, 4), (5, 5)]


@given(
    time=st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2_000_000_000_000)),
    data=st.one_of(st.binary(max_size=20), st.text(max_size=20).map(str.encode)),
    headers=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3),
)
def test_a_row_is_the_event_whatever_its_time_and_payload(
    time: int, data: bytes, headers: dict[str, str]
) -> None:
    event = Event("s", "1", "t", "tag/7", time, data, headers)
    stored = [StoredEvent(7, 1_800_000_000_123, event), StoredEvent(8, 0, event)]
    assert stored_events(bronze_table(stored)) == stored


def test_other_readers_find_types_units_and_rows(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(some_events(1, 3, "größe 5%"))
        await export_channels(channels, tmp_path)

    asyncio.run(scenario())
    table = Lake.at(tmp_path).open("bronze", "events")
    frame = pl.read_delta(table.uri)
    assert frame.schema["time"] == pl.Datetime("us", "UTC")
    assert frame.schema["position"] == pl.Int64
    assert frame["data"].to_list() == ['{"n":1}', '{"n":2}', '{"n":3}']
    paths = [file.uri for file in table.files()]
    assert set(pd.read_parquet(paths)["type"]) == {"größe 5%"}
    query = "SELECT type, count(*), max(position) FROM read_parquet($1) GROUP BY 1"
    assert duckdb.execute(query, [paths]).fetchall() == [("größe 5%", 3, 3)]
    assert table.unit("time_ms") == "ms"


def test_small_limits_give_more_files_and_the_same_rows(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(some_events(1, 50))
        by_rows = await export_channels(channels, tmp_path / "rows", rows_at_once=7)
        by_bytes = await export_channels(channels, tmp_path / "bytes", bytes_at_once=30)
        assert by_rows.files == 8
        assert by_bytes.rows == 50

    asyncio.run(scenario())
    assert rows_of(tmp_path / "rows") == expected_rows(50)
    assert rows_of(tmp_path / "bytes") == expected_rows(50)


@contextmanager
def crash_at(step: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends the export at its n-th step, a written file or a commit, before or after it."""
    steps = iter(range(1_000))

    def ending(work):
        def step_of(*arguments, **named):
            now = next(steps) == step
            if now and not after:
                raise Crash
            result = work(*arguments, **named)
            if now:
                raise Crash
            return result

        return step_of

    with monkeypatch.context() as patch:
        patch.setattr(tables, "_write_file", ending(tables._write_file))
        patch.setattr(Table, "commit", ending(Table.commit))
        yield


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(5))
def test_a_crash_between_any_two_steps_neither_loses_nor_doubles(
    step: int,
    after: bool,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(some_events(1, 4))
        clock.set_ms(clock.now_ms() + DAY_MS)
        await channels.channel("events").append(some_events(5, 6))
        with crash_at(step, after, monkeypatch), pytest.raises(Crash):
            await export_channels(channels, tmp_path, rows_at_once=6)
        await channels.channel("events").append(some_events(11, 5))
        await export_channels(channels, tmp_path, rows_at_once=9)

    asyncio.run(scenario())
    assert rows_of(tmp_path) == expected_rows(15)
    Lake.at(tmp_path).open("bronze", "events").vacuum(0)
    assert rows_of(tmp_path) == expected_rows(15)


def test_an_export_between_a_commit_and_the_look_after_it_writes_no_event_twice(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = open_memory(clock)
    refresh, commit, others = Table.refresh, Table.commit, [1]

    def commit_and_be_overtaken(table: Table, *args: Any, **settings: Any) -> int:
        def refresh_late(one: Table) -> Table:
            if others:
                others.pop()
                asyncio.run(export_channels(channels, tmp_path, rows_at_once=4))
            return refresh(one)

        with monkeypatch.context() as patch:
            patch.setattr(Table, "refresh", refresh_late)
            return commit(table, *args, **settings)

    asyncio.run(channels.channel("events").append(some_events(1, 12)))
    monkeypatch.setattr(Table, "commit", commit_and_be_overtaken)
    asyncio.run(export_channels(channels, tmp_path, rows_at_once=4))
    assert not others
    assert rows_of(tmp_path) == expected_rows(12)


def test_several_exports_at_once_write_each_event_once(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        for first in range(1, 100, 10):
            await channels.channel("events").append(some_events(first, 10))
            exports = (export_channels(channels, tmp_path, rows_at_once=4) for _ in range(3))
            done = await asyncio.gather(*exports)
            assert sum(one.rows for one in done) == 10

    asyncio.run(scenario())
    assert rows_of(tmp_path) == expected_rows(100)


def test_a_stale_writer_cannot_commit_what_another_has_committed(
    clock: ManualClock, tmp_path: Path
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(some_events(1, 5))
        await export_channels(channels, tmp_path)

    asyncio.run(scenario())
    lake = Lake.at(tmp_path)
    first, second = lake.open("bronze", "events"), lake.open("bronze", "events")
    rows = first.read()
    first.append(rows.slice(0, 1), progress={"export": 6})
    with pytest.raises(Conflict) as caught:
        second.append(rows.slice(0, 1), progress={"export": 6})
    assert caught.value.code == CONCURRENT_WRITER
    assert lake.open("bronze", "events").rows() == 6


def test_a_lake_of_another_log_is_refused(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        before, other = open_memory(clock), open_memory(clock)
        await before.channel("events").append(some_events(1, 5))
        await other.channel("events").append(some_events(1, 2))
        await export_channels(before, tmp_path)
        with pytest.raises(Conflict) as caught:
            await export_channels(other, tmp_path)
        assert caught.value.code == "lake.other_log"

    asyncio.run(scenario())


def test_a_lake_of_the_former_format_is_named_with_what_to_do(
    clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "channels": {}}')
    with pytest.raises(Conflict) as caught:
        asyncio.run(export_channels(open_memory(clock), tmp_path))
    assert caught.value.code == "lake.former_format"
    assert "convert" in caught.value.hint


def test_a_lake_that_is_no_directory_is_reported(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(some_events(1, 5))
        await export_channels(channels, tmp_path / "lake")

    (tmp_path / "lake").write_text("a file")
    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(scenario())
    assert caught.value.code == "lake.unavailable"


def test_only_named_channels_are_exported(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        await channels.channel("events").append(some_events(1, 2))
        await channels.channel("log").append(some_events(1, 2))
        await export_channels(channels, tmp_path, names=["log"])

    asyncio.run(scenario(open_memory(clock)))
    lake = Lake.at(tmp_path)
    assert lake.names("bronze") == ["log"]
    assert exported_position(lake, "log") == 2
    assert exported_position(lake, "events") == 0
