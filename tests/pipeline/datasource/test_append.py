from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.core.errors import Conflict, InvalidInput, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.pipeline.datasource import append
from rapport.pipeline.datasource.append import (
    AppendCounts,
    AppendTarget,
    append_rows,
    events_of,
    request_batches,
)
from rapport.pipeline.datasource.locations import SiteFiles
from support.written_log import WrittenLog

MAP = pa.map_(pa.string(), pa.string())


def rows(*numbers: int, **others: Any) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "source": ["spark"] * len(numbers),
        "id": [f"r{n}" for n in numbers],
        "type": ["found"] * len(numbers),
        "time": list(numbers),
        "headers": pa.array([[("cause", f"e{n}")] for n in numbers], MAP),
        "data": [b'{"n": %d}' % n for n in numbers],
    }
    return pa.RecordBatch.from_pydict(columns | others)


def test_a_row_becomes_the_event_it_describes() -> None:
    (event,) = events_of([rows(7, subject=["thing/7"])], "")
    assert event == Event("spark", "r7", "found", "thing/7", 7, b'{"n": 7}', {"cause": "e7"})


def test_rows_without_an_id_are_named_by_the_token_and_their_number() -> None:
    batches = [rows(1, 2, id=[None, ""]), rows(3, 4, id=pa.array([None, "own"]))]
    assert [event.id for event in events_of(batches, "q/0/1")] == [
        *("q/0/1/0", "q/0/1/1", "q/0/1/2", "own"),
    ]
    with pytest.raises(InvalidInput, match="has no id"):
        list(events_of(batches, ""))


def test_text_is_taken_for_data_and_places_of_before_are_left_out() -> None:
    batch = rows(1, data=['{"a": "Ærø"}'], position=[9], received=[9], channel=["other"])
    (event,) = events_of([batch], "")
    assert event.payload() == {"a": "Ærø"}


@pytest.mark.parametrize(
    ("others", "code", "says"),
    [
        ({"data": [b"{"]}, "event.bad_data", "row 0"),
        ({"data": [b"\xff"]}, "event.bad_data", "not JSON"),
        ({"data": [None]}, "sink.null", "data is null"),
        ({"type": [None]}, "sink.null", "type is null"),
        ({"type": [""]}, "event.missing_field", "no type"),
        ({"source": ["a\n"]}, "event.bad_field", "unprintable"),
        ({"time": [1.5]}, "sink.wrong_type", "'time' is double, not TIMESTAMP or BIGINT"),
        ({"source": [5]}, "sink.wrong_type", "'source' is int64"),
        ({"data": [{"a": 1}]}, "sink.wrong_type", "JSON"),
        ({"headers": ["x"]}, "sink.wrong_type", "MAP"),
        ({"headers": pa.array([[("id", "x")]], MAP)}, "sink.bad_header", "'id'"),
        ({"subjekt": ["x"]}, "sink.unknown_column", "subjekt"),
    ],
)
def test_a_row_that_is_no_event_is_refused(others: dict, code: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        list(events_of([rows(1, **others)], ""))
    assert caught.value.code == code


def test_how_a_copied_event_arrived_is_left_out() -> None:
    pairs = [("publisher", "p"), ("epoch", "1"), ("sequence", "7"), ("sequencedin", "raw.x")]
    pairs += [("hops", "n"), ("cause", "e1"), ("gone", None)]
    (event,) = events_of([rows(1, headers=pa.array([pairs], MAP))], "")
    assert event.headers == {"cause": "e1"}


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InvalidInput, match="'time'"):
        list(events_of([rows(1).drop_columns(["time"])], ""))


def test_requests_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(append, "_MOST_EVENTS", 3)
    monkeypatch.setattr(append, "_MOST_BYTES", 20)
    events = list(events_of([rows(*range(1, 9))], ""))
    assert [len(one) for one in request_batches(events)] == [2, 2, 2, 2]
    monkeypatch.setattr(append, "_MOST_BYTES", 1_000)
    assert [len(one) for one in request_batches(events)] == [3, 3, 2]
    assert list(request_batches([])) == []


# --- into the log itself --------------------------------------------------------------------------


def test_the_log_of_a_resting_site_is_written_each_row_once(site: Path) -> None:
    target = AppendTarget(SiteFiles(str(site)), "detections")
    assert append_rows(target, [rows(1, 2, 3)]) == AppendCounts(3, 0)
    assert append_rows(target, pa.Table.from_batches([rows(2, 3, 4)])) == AppendCounts(3, 2)
    assert append_rows(target, []) == AppendCounts()
    stored = WrittenLog(site / ".rapport" / "log")["detections"]
    assert [one.event.id for one in stored] == ["r1", "r2", "r3", "r4"]
    assert stored[0].event.headers == {"cause": "e1"}


def test_a_lock_that_another_task_holds_is_waited_for(site: Path) -> None:
    async def scenario() -> None:
        other = open_embedded(site / ".rapport" / "log", SystemClock())
        target = AppendTarget(SiteFiles(str(site)), "found")
        waiting = asyncio.create_task(asyncio.to_thread(append_rows, target, [rows(1)]))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        await other.close()
        assert await waiting == AppendCounts(1, 0)

    asyncio.run(scenario())


def test_a_lock_that_stays_is_told_with_what_to_do(site: Path) -> None:
    async def scenario() -> None:
        other = open_embedded(site / ".rapport" / "log", SystemClock())
        target = AppendTarget(SiteFiles(str(site)), "found", patience_ms=100)
        with pytest.raises(StoreUnavailable) as caught:
            await asyncio.to_thread(append_rows, target, [rows(1)])
        assert caught.value.code == "store.locked"
        assert "url" in caught.value.hint
        await other.close()

    asyncio.run(scenario())


def test_a_channel_with_interceptors_needs_its_node(site: Path) -> None:
    file = site / "site.toml"
    file.write_text(file.read_text() + '\n[channels.found]\ninterceptors = ["log"]\n')
    with pytest.raises(Conflict) as caught:
        append_rows(AppendTarget(SiteFiles(str(site)), "found"), [rows(1)])
    assert caught.value.code == "sink.needs_node"


def test_targets_travel_to_workers_without_a_key() -> None:
    from rapport.pipeline.datasource.locations import NodeApi

    target = AppendTarget(NodeApi("http://127.0.0.1:1", "secret.key"), "found")
    assert b"secret.key" in msgspec.json.encode(msgspec.to_builtins(target.location))
