"""Every event reaches the lake exactly once, whatever happens while it is written."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.channel.export import lake_export as export_manifest
from rapport.channel.export import parquet_files as export_files
from rapport.channel.export.lake_export import export_channels, read_manifest, take_lock
from rapport.channel.export.parquet_files import export_readings, partition_name
from rapport.core.errors import Conflict, Corrupt, StoreUnavailable
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock

DAY_MS = 86_400_000


class Crash(Exception):
    """Stands for the end of the process at this point."""


def some_events(first: int, count: int, kind: str = "badge.seen") -> list[Event]:
    return [
        make_event(source="readers", id=f"e{n}", type=kind, time=n, data={"n": n})
        for n in range(first, first + count)
    ]


def rows_of(lake: Path) -> list[tuple[str, int, str]]:
    """Every row of the lake as (channel, position, id), sorted."""
    rows = []
    for path in lake.glob("bronze/**/*.parquet"):
        table = pq.read_table(path, partitioning=None)
        rows += zip(
            *(table[name].to_pylist() for name in ("channel", "position", "id")), strict=True
        )
    return sorted(rows)


def expected_rows(channel: str, count: int) -> list[tuple[str, int, str]]:
    return sorted((channel, n, f"e{n}") for n in range(1, count + 1))


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
    assert rows_of(tmp_path) == expected_rows("events", 8)


def test_files_are_parted_by_channel_day_of_arrival_and_type(
    clock: ManualClock, tmp_path: Path
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("raw.readers").append(some_events(1, 2, "a/b"))
        clock.set_ms(clock.now_ms() + DAY_MS)
        await channels.channel("raw.readers").append(some_events(3, 1, "c"))
        await export_channels(channels, tmp_path)

    asyncio.run(scenario())
    folders = sorted(str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("*.parquet"))
    assert folders == [
        "bronze/channel=raw.readers/day=2026-03-02/type=a%2Fb",
        "bronze/channel=raw.readers/day=2026-03-03/type=c",
    ]


def test_rows_keep_the_whole_envelope(clock: ManualClock, tmp_path: Path) -> None:
    event = make_event(
        source="s", id="1", type="t", subject="tag/7", time=-5, data=[1], headers={"cause": "0"}
    )

    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append([event])
        await export_channels(channels, tmp_path)

    asyncio.run(scenario())
    (path,) = tmp_path.rglob("*.parquet")
    assert pq.read_table(path, partitioning=None).to_pylist() == [
        {
            "channel": "events",
            "position": 1,
            "received": clock.now_ms(),
            "time": -5,
            "source": "s",
            "id": "1",
            "type": "t",
            "subject": "tag/7",
            "headers": [("cause", "0")],
            "data": b"[1]",
        }
    ]


def test_pandas_and_duckdb_read_the_lake_as_it_is(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(some_events(1, 3, "größe 5%"))
        await channels.channel("log").append(some_events(1, 2, "12"))
        await export_channels(channels, tmp_path)

    asyncio.run(scenario())
    frame = pd.read_parquet(tmp_path / "bronze")
    assert sorted(set(frame["type"])) == ["12", "größe 5%"]
    query = f"SELECT type, count(*) FROM '{tmp_path}/bronze/**/*.parquet' GROUP BY 1 ORDER BY 1"
    assert duckdb.sql(query).fetchall() == [("12", 2), ("größe 5%", 3)]


def test_small_limits_give_more_files_and_the_same_rows(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(some_events(1, 50))
        by_rows = await export_channels(channels, tmp_path / "rows", rows_per_file=7)
        by_bytes = await export_channels(channels, tmp_path / "bytes", bytes_per_file=30)
        assert by_rows.files == 8
        assert by_bytes.rows == 50

    asyncio.run(scenario())
    assert rows_of(tmp_path / "rows") == expected_rows("events", 50)
    assert rows_of(tmp_path / "bytes") == expected_rows("events", 50)


@contextmanager
def crash_at(step: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends the export at its n-th file, before or after the file took its place."""
    steps = iter(range(1_000))
    original = export_files.replaced_file

    @contextmanager
    def replaced_file(path: Path) -> Iterator[Path]:
        now = next(steps) == step
        if now and not after:
            raise Crash
        with original(path) as temporary:
            yield temporary
        if now:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(export_files, "replaced_file", replaced_file)
        patch.setattr(export_manifest, "replaced_file", replaced_file)
        yield


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(8))
def test_a_crash_between_any_two_files_neither_loses_nor_doubles(
    step: int,
    after: bool,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("events").append(
            some_events(1, 4, "a") + some_events(5, 4, "b") + some_events(9, 2, "a")
        )
        with crash_at(step, after, monkeypatch), pytest.raises(Crash):
            await export_channels(channels, tmp_path, rows_per_file=6)
        # The log grows before the next export: it may not be cut differently because of that.
        await channels.channel("events").append(some_events(11, 5, "b"))
        await export_channels(channels, tmp_path, rows_per_file=9)

    asyncio.run(scenario())
    assert rows_of(tmp_path) == expected_rows("events", 15)
    assert not list(tmp_path.rglob("*.tmp"))


def test_two_exports_at_once_are_refused(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        lock = take_lock(tmp_path)
        with pytest.raises(Conflict) as caught:
            await export_channels(channels, tmp_path)
        assert caught.value.code == "lake.export_running"
        os.close(lock)
        await export_channels(channels, tmp_path)

    asyncio.run(scenario())


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


def test_a_damaged_manifest_is_reported(clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "chan')
    with pytest.raises(Corrupt) as caught:
        asyncio.run(export_channels(open_memory(clock), tmp_path))
    assert caught.value.code == "lake.bad_manifest"


def test_a_lake_that_is_no_directory_is_reported(clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(export_channels(open_memory(clock), tmp_path / "lake"))
    assert caught.value.code == "lake.unavailable"


def test_only_named_channels_are_exported(clock: ManualClock, tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        await channels.channel("events").append(some_events(1, 2))
        await channels.channel("log").append(some_events(1, 2))
        await export_channels(channels, tmp_path, names=["log"])

    asyncio.run(scenario(open_memory(clock)))
    assert rows_of(tmp_path) == expected_rows("log", 2)
    assert list(read_manifest(tmp_path).channels) == ["log"]


@given(st.text(max_size=300))
def test_a_partition_is_one_folder_of_bearable_length(value: str) -> None:
    name = partition_name("type", value)
    assert name.startswith("type=")
    assert "/" not in name
    assert len(name.encode()) <= 255


def test_readings_in_tiny_batches_become_one_file_of_few_row_groups(tmp_path: Path) -> None:
    schema = pa.schema([("time", pa.int64()), ("id", pa.string())])
    batches = (pa.record_batch([[n], [f"e{n}"]], schema=schema) for n in range(500))
    path = tmp_path / "deep" / "readings.parquet"
    assert export_readings(batches, path, schema) == 500
    assert pq.ParquetFile(path).num_row_groups == 1
    assert pq.read_table(path)["time"].to_pylist() == list(range(500))


def test_a_failing_source_leaves_no_half_file(tmp_path: Path) -> None:
    schema = pa.schema([("time", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[1]], schema=schema)
        raise Crash

    with pytest.raises(Crash):
        export_readings(batches(), tmp_path / "readings.parquet", schema)
    assert list(tmp_path.iterdir()) == []
