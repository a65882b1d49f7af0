"""The publisher against a sink that answers as told: refusals, stops, pauses, ends. [CH-5]"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.agents.outbox import Outbox, inspect_outbox
from rapport.client import AsyncPublisher, Event, Publisher, PublisherSettings
from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.kernel.clock import SystemClock

pytestmark = pytest.mark.slow

QUICK = PublisherSettings(first_pause_ms=5, longest_pause_ms=20, request_seconds=5)


def make(directory: Path, url: str, **options: Any) -> Publisher:
    options.setdefault("settings", QUICK)
    return Publisher(directory / "outbox", url, channel="raw.lab", source="lab", **options)


def numbers(batch: list[dict[str, Any]]) -> list[int]:
    return [one["data"] for one in batch]


def problem(status: int, title: str, detail: str, **headers: str) -> tuple[int, dict, dict]:
    return status, headers, {"title": title, "detail": detail, "status": status}


def test_events_arrive_in_order_numbered_and_with_what_was_said(tmp_path, sink):
    with make(tmp_path, sink.url, token="secret") as publisher:
        ids = [publisher.publish(type="t", data=n, subject=f"s/{n}") for n in range(50)]
        assert publisher.flush(10)
        status = publisher.status()
    assert numbers(sink.stored) == list(range(50))
    assert [one["id"] for one in sink.stored] == ids
    assert [one["sequence"] for one in sink.stored] == [str(n) for n in range(1, 51)]
    assert {one["publisher"] for one in sink.stored} == {status.publisher}
    assert {one["epoch"] for one in sink.stored} == {str(status.epoch)}
    assert set(sink.tokens) == {"Bearer secret"}
    assert (status.accepted, status.settled, status.pending, status.activity) == (50, 50, 0, "idle")


def test_publishing_needs_no_network_and_a_later_publisher_delivers(tmp_path, sink):
    with_nobody = "http://127.0.0.1:9"
    publisher = make(tmp_path, with_nobody)
    for n in range(20):
        publisher.publish(type="t", data=n)
    assert not publisher.flush(0.2)
    assert publisher.status().pending == 20
    assert publisher.status().trouble.code == "node.unreachable"
    assert publisher.close(wait=0) is False
    first_epoch = publisher.status().epoch
    with make(tmp_path, sink.url) as later:
        later.publish(type="t", data=20)
        assert later.flush(10)
        assert later.status().epoch > first_epoch
    assert numbers(sink.stored) == list(range(21))
    assert [one["sequence"] for one in sink.stored] == [str(n) for n in range(1, 22)]
    assert len({one["publisher"] for one in sink.stored}) == 1
    assert [one["epoch"] for one in sink.stored][:20] == [str(first_epoch)] * 20


def test_a_refused_event_is_kept_with_the_reason_and_blocks_nobody(tmp_path, sink):
    bad = {3, 17, 18}
    sink.answer = lambda batch: (
        problem(400, "event.bad_data", "it smells") if bad & set(numbers(batch)) else None
    )
    with make(tmp_path, sink.url) as publisher:
        publisher.publish_many({"type": "t", "data": n} for n in range(40))
        assert publisher.flush(10)
        kept = publisher.rejected()
        assert publisher.status().rejected == 3
    assert numbers(sink.stored) == [n for n in range(40) if n not in bad]
    assert [one.event.payload() for one in kept] == sorted(bad)
    assert {(one.reason.code, one.reason.message) for one in kept} == {
        ("event.bad_data", "it smells")
    }
    seen = inspect_outbox(tmp_path / "outbox", limit=100)
    assert [entry.state for entry in seen.entries].count("rejected") == 3
    assert seen.entries[3].reason.message == "it smells"
    assert seen.pending == 0


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_who_may_not_come_in_stops_and_says_so_until_resumed(tmp_path, sink, status):
    sink.answer = lambda batch: problem(status, "access.not_authenticated", "a token is needed")
    with make(tmp_path, sink.url) as publisher:
        publisher.publish(type="t", data=1)
        assert publisher.flush(10) is False  # returns at once: waiting helps nobody
        told = publisher.status()
        assert (told.activity, told.pending) == ("stopped", 1)
        assert told.trouble.code == "access.not_authenticated"
        publisher.publish(type="t", data=2)
        requests = len(sink.requests)
        assert requests == 1
        sink.answer = lambda batch: None
        publisher.resume(token="better")
        assert publisher.flush(10)
    assert numbers(sink.stored) == [1, 2]
    assert sink.tokens[-1] == "Bearer better"


def test_requests_shrink_until_the_node_takes_them(tmp_path, sink):
    sink.answer = lambda batch: problem(413, "too", "large") if len(batch) > 7 else None
    with make(tmp_path, sink.url) as publisher:
        publisher.publish_many({"type": "t", "data": n} for n in range(100))
        assert publisher.flush(10)
        assert publisher.rejected() == []
    assert numbers(sink.stored) == list(range(100))


def test_a_node_that_asks_for_a_pause_gets_it(tmp_path, sink):
    answers = [problem(503, "busy", "later", **{"Retry-After": "1"})]
    sink.answer = lambda batch: answers.pop() if answers else None
    with make(tmp_path, sink.url) as publisher:
        began = time.monotonic()
        publisher.publish(type="t", data=1)
        assert publisher.flush(0.3) is False
        told = publisher.status()
        assert (told.activity, told.trouble.message) == ("pausing", "later")
        assert 0 < told.next_try_in_ms <= 1000
        publisher.publish(type="t", data=2)
        assert publisher.flush(10)
        assert time.monotonic() - began >= 0.95
    assert [len(batch) for batch in sink.requests] == [1, 2]


def test_a_portal_that_says_yes_to_everything_takes_nothing(tmp_path, sink):
    answers = [(200, {}, b"<html>welcome</html>"), (200, {}, {"positions": []})]
    sink.answer = lambda batch: answers.pop() if answers else None
    with make(tmp_path, sink.url) as publisher:
        publisher.publish(type="t", data=1)
        assert publisher.flush(10)
    assert (numbers(sink.stored), len(sink.requests)) == ([1], 3)


def test_a_connection_that_went_away_is_opened_again(tmp_path, sink):
    with make(tmp_path, sink.url) as publisher:
        publisher.publish(type="t", data=1)
        assert publisher.flush(10)
        publisher._courier._endpoint._connection.sock.close()
        publisher.publish(type="t", data=2)
        assert publisher.flush(10)
    assert numbers(sink.stored) == [1, 2]


def test_closing_does_not_wait_for_an_answer_that_does_not_come(tmp_path, sink):
    hold = threading.Event()
    sink.answer = lambda batch: hold.wait(20) and None
    publisher = make(tmp_path, sink.url)
    publisher.publish(type="t", data=1)
    deadline = time.monotonic() + 5
    while not sink.requests and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    began = time.monotonic()
    assert publisher.close(wait=0.05) is False
    assert time.monotonic() - began < 3
    hold.set()
    assert inspect_outbox(tmp_path / "outbox").pending == 1
    with pytest.raises(StoreUnavailable, match="closed"):
        publisher.publish(type="t", data=2)
    assert publisher.close() is False
    assert publisher.status().activity == "closed"


def test_threads_publish_together_and_share_syncs(tmp_path, sink):
    with make(tmp_path, sink.url) as publisher:

        def work(worker: int) -> None:
            for n in range(30):
                publisher.publish(type="t", data=[worker, n])

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert publisher.flush(20)
    for worker in range(8):
        own = [one["data"][1] for one in sink.stored if one["data"][0] == worker]
        assert own == list(range(30))


def test_what_was_delivered_leaves_the_disk(tmp_path, sink):
    small = PublisherSettings(segment_bytes=20_000)
    with make(tmp_path, sink.url, settings=small) as publisher:
        for _round in range(30):
            publisher.publish_many({"type": "t", "data": "x" * 1000} for _n in range(20))
            assert publisher.flush(10)
    size = sum(file.stat().st_size for file in (tmp_path / "outbox").rglob("*") if file.is_file())
    assert size < 100_000
    assert len(sink.stored) == 600


def test_a_bad_event_is_told_at_once_and_nothing_is_kept(tmp_path, sink):
    with make(tmp_path, sink.url) as publisher:
        for wrong, code in (
            ({"data": 1}, "event.missing_field"),
            ({"type": "t", "date": 1}, "event.unknown_field"),
            ({"type": "t", "data": object()}, "event.bad_data"),
            ({"type": "t", "time": "now"}, "event.bad_data"),
            ({"type": "t\n"}, "event.bad_field"),
            ({"type": ""}, "event.missing_field"),
            ({"type": "t", "headers": {"id": "x"}}, "event.bad_header"),
            (Event("s", "1", "t", "", 0, b"not json"), "event.bad_data"),
            (Event("s", "1", "t", "", 0, b"{}", {"h": 5}), "event.bad_field"),
            (Event("s", "1", "t", "", 0, b"{}", {"h": object()}), "event.bad_data"),
        ):
            with pytest.raises(InvalidInput) as caught:
                publisher.publish_many([{"type": "t"}, wrong])
            assert caught.value.code == code, wrong
        assert publisher.status().accepted == 0
        publisher.publish(Event("other", "mine", "t", "", 5, b'{"a":1}', {"handback": "h"}))
        assert publisher.flush(10)
    (one,) = sink.stored
    assert (one["source"], one["id"], one["data"], one["handback"]) == (
        "other",
        "mine",
        {"a": 1},
        "h",
    )


@pytest.mark.parametrize("url", ["", "localhost:1", "ftp://x", "http://", "http://x:99999999"])
def test_an_address_that_is_none_is_refused(tmp_path, url):
    with pytest.raises(InvalidInput) as caught:
        make(tmp_path, url)
    assert caught.value.code == "url.bad"


def test_a_second_process_is_told_who_holds_the_outbox(tmp_path, sink):
    with make(tmp_path, sink.url):
        with pytest.raises(StoreUnavailable, match=f"held by process {os.getpid()}") as caught:
            make(tmp_path, sink.url)
        assert caught.value.code == "outbox.locked"


def test_an_outbox_put_back_from_an_older_copy_loses_no_new_event(tmp_path, sink):
    with make(tmp_path, sink.url) as publisher:
        publisher.publish(type="t", data="old")
        publisher.flush(10)
    copy = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with make(tmp_path, sink.url) as publisher:
        publisher.publish(type="t", data="forgotten")
        publisher.flush(10)
    for file in list(tmp_path.rglob("*")):
        if file.is_file() and file not in copy:
            file.unlink()
    for file, content in copy.items():
        file.write_bytes(content)
    with make(tmp_path, sink.url) as publisher:
        publisher.publish(type="t", data="new")
        publisher.flush(10)
    stamps = [(one["epoch"], one["sequence"]) for one in sink.stored]
    assert [sequence for _epoch, sequence in stamps] == ["1", "2", "2"]
    assert len(set(stamps)) == 3


def test_the_async_face_keeps_the_loop_free_and_the_same_promises(tmp_path, sink):
    async def scenario() -> None:
        options = {"channel": "raw.lab", "source": "lab", "settings": QUICK}
        async with AsyncPublisher(tmp_path / "outbox", sink.url, **options) as publisher:
            ids = await asyncio.gather(
                *(publisher.publish(type="t", data=n) for n in range(40)),
            )
            assert len(set(ids)) == 40
            assert len(await publisher.publish_many([{"type": "t", "data": 40}])) == 1
            assert await publisher.flush(10)
            assert publisher.status().pending == 0
            assert await publisher.rejected() == []
        unopened = AsyncPublisher(tmp_path / "outbox", sink.url, **options)
        with pytest.raises(RuntimeError, match="async with"):
            await unopened.publish(type="t")
        opened = await AsyncPublisher.open(tmp_path / "outbox", sink.url, **options)
        assert await opened.close()

    asyncio.run(scenario())
    assert sorted(numbers(sink.stored)) == list(range(41))


def test_the_client_loads_neither_numbers_nor_servers_nor_spark():
    heavy = ["numpy", "pyarrow", "pandas", "litestar", "uvicorn", "pyspark", "sqlite3", "duckdb"]
    code = f"import sys, rapport.client; print(*(set({heavy!r}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.slow
def test_a_disk_that_refuses_the_mark_makes_it_send_again_and_lose_nothing(
    tmp_path, sink, monkeypatch
):
    settle, refusals = Outbox.settle, [1, 1]

    def refusing(self, sequence, rejected=None):
        if refusals:
            refusals.pop()
            raise StoreUnavailable("the disk is full", code="store.full")
        settle(self, sequence, rejected)

    monkeypatch.setattr(Outbox, "settle", refusing)
    with make(tmp_path, sink.url) as publisher:
        publisher.publish_many({"type": "t", "data": n} for n in range(3))
        assert publisher.flush(0.5) is False
        assert publisher.status().trouble.code == "store.full"
        assert publisher.flush(10)
    assert numbers(sink.stored) == [0, 1, 2] * 3


def test_an_event_that_breaks_the_whole_request_is_rejected_and_blocks_nobody(tmp_path, sink):
    before = Outbox(tmp_path / "outbox", SystemClock(), new_name="old")
    before.add([Event("s", str(n), "t", "", 0, b"{" if n == 2 else b"{}") for n in range(5)])
    before.close()
    with make(tmp_path, sink.url) as publisher:
        assert publisher.flush(10)
        (kept,) = publisher.rejected()
    assert (kept.event.id, kept.reason.code) == ("2", "event.bad_data")
    assert [one["id"] for one in sink.stored] == ["0", "1", "3", "4"]
