"""The listener against a source that answers as told: modes, failures, leases, ends. [CH-7]"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.agents.connection import CallBarred, CallFailed, Reason
from rapport.channel.agents.listener_state import SourceAnswer
from rapport.client import AsyncListener, Listener, ListenerSettings, ReceivedEvent
from rapport.core.errors import InvalidInput, LeaseExpired, StoreUnavailable, Unavailable
from support.judge.model_source import ModelSource

pytestmark = pytest.mark.slow

QUICK = ListenerSettings(
    batch_events=3,
    most_events=9,
    first_pause_ms=1,
    longest_pause_ms=5,
    retry_pause_ms=1,
    save_every_ms=0,
)


def make(source: ModelSource, directory: Path | None = None, **options: Any) -> Listener:
    options.setdefault("settings", QUICK)
    return Listener("http://127.0.0.1:9", "c", directory=directory, source=source, **options)


def positions(events: list[ReceivedEvent]) -> list[int]:
    return [one.position for one in events]


def pulled(listener: Listener, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        got = listener.pull(count - len(found), timeout=10)
        assert got, listener.status()
        found += positions(got)
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.005)


def source_with(count: int) -> ModelSource:
    source = ModelSource()
    source.append(count)
    return source


def test_pulls_history_then_live_and_returns_nothing_when_the_time_is_over():
    source = source_with(10)
    with make(source, handback="h") as listener:
        assert pulled(listener, 10) == list(range(1, 11))
        assert listener.pull(1, timeout=0.05) == []
        assert listener.pull() == []
        source.append(1)
        (live,) = listener.pull(5, timeout=10)
        assert (live.position, live.handback, live.event.payload()) == (11, "h", 11)
        told = listener.status()
    assert (told.handed_over, told.mode, told.waiting) == (11, "pull", 0)
    assert listener.status().activity == "closed"
    with pytest.raises(StoreUnavailable, match="closed"):
        listener.pull()
    listener.close()


def test_a_callback_gets_each_event_in_order_and_modes_are_switched_without_loss():
    source, got = source_with(100), []

    def note(received: ReceivedEvent) -> None:
        got.append(received.position)

    def has(goal: int) -> Callable[[], bool]:
        return lambda: len(got) >= goal

    with make(source) as listener:
        while len(got) < 100:
            assert listener.on_event(note) is note
            wait_until(has(min(len(got) + 7, 100)))
            assert listener.status().mode == "push"
            got += positions(listener.pull(5, timeout=0.1))
            assert listener.status().mode == "pull"
    assert got == list(range(1, 101))


def test_a_callback_may_switch_to_pull_itself():
    source, got, done = source_with(10), [], threading.Event()
    with make(source) as listener:

        def note(received: ReceivedEvent) -> None:
            got.append(received.position)
            if received.position == 4:
                got.extend(pulled(listener, 3))
                done.set()

        listener.push(note)
        assert done.wait(10)
        assert pulled(listener, 3) == [8, 9, 10]
    assert got == [1, 2, 3, 4, 5, 6, 7]


def test_a_callback_may_close_the_listener(tmp_path):
    source, got, closed = source_with(10), [], threading.Event()
    listener = make(source, tmp_path)

    def note(received: ReceivedEvent) -> None:
        got.append(received.position)
        if received.position == 3:
            listener.close()
            closed.set()

    listener.push(note)
    assert closed.wait(10)
    with make(source, tmp_path) as again:
        assert pulled(again, 7) == [4, 5, 6, 7, 8, 9, 10]
    assert got == [1, 2, 3]


def test_a_callback_that_fails_is_called_again_and_then_blocks_nobody(tmp_path):
    source, calls = source_with(5), []
    with make(source, tmp_path) as listener:

        def note(received: ReceivedEvent) -> None:
            calls.append(received.position)
            if received.position == 2 and calls.count(2) < 3:
                raise ValueError("not yet")
            if received.position == 4:
                raise SystemExit("never")

        listener.push(note)
        wait_until(lambda: 5 in calls)
        (failed,) = listener.failed()
        assert listener.status().failed == 1
    assert calls == [1, 2, 2, 2, 3, 4, 4, 4, 5]
    assert (failed.received.position, failed.reason.code) == (4, "listener.callback_failed")
    assert "never" in failed.reason.message
    with make(source, tmp_path) as again:
        assert positions([one.received for one in again.failed()]) == [4]
        assert again.pull(1, timeout=0.05) == []


def test_on_failure_takes_what_failed_and_its_own_failure_keeps_the_event():
    source, given = source_with(2), []

    def on_failure(received: ReceivedEvent, error: BaseException) -> None:
        given.append((received.position, str(error)))
        if received.position == 2:
            raise RuntimeError("no place for it")

    def note(received: ReceivedEvent) -> None:
        raise ValueError(f"no {received.position}")

    with make(source, on_failure=on_failure) as listener:
        listener.push(note)
        wait_until(lambda: listener.status().failed == 1)
        assert positions([one.received for one in listener.failed()]) == [2]
    assert given == [(1, "no 1"), (2, "no 2")]


def test_a_slow_application_stops_the_asking_and_memory_is_bounded():
    source = source_with(1_000)
    with make(source) as listener:
        wait_until(lambda: listener.status().activity == "full")
        asked = len(source.requests)
        threading.Event().wait(0.05)
        assert len(source.requests) == asked
        assert listener.status().waiting == 9
        assert pulled(listener, 1_000) == list(range(1, 1_001))


def test_a_source_that_cannot_be_reached_is_asked_again_and_raises_nothing():
    source, failures = source_with(3), [CallFailed(Reason("node.unreachable", "down"))] * 5

    def fail(_request: Any, truth: Callable[[], SourceAnswer]) -> SourceAnswer:
        return failures.pop() if failures else truth()

    source.fail = fail
    with make(source) as listener:
        assert pulled(listener, 3) == [1, 2, 3]
        assert listener.status().trouble is None


def test_a_source_that_refuses_stops_the_listener_which_says_why_until_it_is_resumed():
    source = source_with(3)
    source.fail = lambda _request, _truth: CallBarred(Reason("access.not_authenticated", "who?"))
    with make(source) as listener:
        wait_until(lambda: listener.status().activity == "stopped")
        with pytest.raises(Unavailable, match="who\\?") as told:
            listener.pull(1, timeout=None)
        assert (told.value.code, "resume(token" in told.value.hint) == (
            "access.not_authenticated",
            True,
        )
        source.fail = None
        listener.resume(token="secret")
        assert pulled(listener, 3) == [1, 2, 3]
        assert source.token == "secret"


def test_the_lease_ends_is_told_to_the_source_and_renewed_without_loss():
    source = source_with(20)
    with make(source, lease=0.05) as listener:
        wait_until(lambda: listener.status().activity == "resting")
        with pytest.raises(LeaseExpired, match="run out") as told:
            listener.pull(1, timeout=None)
        assert told.value.code == "listener.lease_over"
        wait_until(lambda: any(one.lease_minutes == 0 for one in source.requests))
        listener.renew()
        assert pulled(listener, 10) == list(range(1, 11))
        listener.cancel()
        with pytest.raises(LeaseExpired):
            listener.pull()
        listener.renew(60)
        assert pulled(listener, 10) == list(range(11, 21))
        told_now = listener.status()
        assert 0 < told_now.lease_left_ms <= 60_000
        assert told_now.begun_again >= 1, "this source forgets sessions that ended"


def test_no_callback_is_called_after_the_lease_has_run_out():
    source, got = ModelSource(), []
    with make(source, lease=0.05) as listener:
        listener.push(lambda received: got.append(received.position))
        wait_until(lambda: listener.status().activity == "resting")
        source.append(3)
        threading.Event().wait(0.03)
        assert got == []
        listener.renew(60)
        wait_until(lambda: got == [1, 2, 3])


def test_a_pull_acknowledges_the_one_before_and_leaving_without_an_error_the_last(tmp_path):
    source = source_with(20)
    listener = make(source, tmp_path)
    assert pulled(listener, 3) == [1, 2, 3]
    assert positions(listener.pull(2, timeout=10)) == [4, 5]
    listener.close()
    second = make(source, tmp_path)
    assert positions(second.pull(2, timeout=10)) == [4, 5]
    second.__exit__(KeyError, KeyError("the program's own"), None)
    with make(source, tmp_path) as third:
        assert positions(third.pull(3, timeout=10)) == [4, 5, 6]
    with make(source, tmp_path) as fourth:
        assert positions(fourth.pull(1, timeout=10)) == [7]


def test_explicit_acknowledging_is_durable_cumulative_and_may_run_ahead(tmp_path):
    source = source_with(20)
    with make(source, tmp_path, acknowledging="explicit") as listener:
        got = listener.pull(3, timeout=10)
        listener.pull(3, timeout=10)
        listener.acknowledge(got[1])
        assert listener.status().acknowledged == 2
    with make(source, tmp_path, acknowledging="explicit") as listener:
        assert pulled(listener, 2) == [3, 4]
        listener.acknowledge(11)
        assert pulled(listener, 3) == [12, 13, 14]


def test_a_listener_that_began_with_new_events_goes_on_there_after_a_crash(tmp_path):
    source = source_with(5)
    first = make(source, tmp_path, from_start=False)
    wait_until(lambda: (tmp_path / "place.json").exists())
    first.close()
    source.append(2)
    with make(source, tmp_path, from_start=False) as second:
        assert pulled(second, 2) == [6, 7]


def test_sets_that_are_gone_are_told():
    source = source_with(9)
    held = threading.Event()

    def fail(request: Any, truth: Callable[[], SourceAnswer]) -> SourceAnswer:
        if request.token and not held.is_set():
            source.let_go.update((4, 5))
            held.set()
        return truth()

    source.fail = fail
    with make(source) as listener:
        assert pulled(listener, 7) == [1, 2, 3, 6, 7, 8, 9]
        assert listener.status().gone == 1


def test_a_fault_of_the_source_itself_is_survived(monkeypatch):
    monkeypatch.setattr("rapport.channel.agents.listener_threads._STUMBLE_MS", 1)
    source, faults = source_with(3), [ZeroDivisionError("oops")] * 3

    def fail(_request: Any, truth: Callable[[], SourceAnswer]) -> SourceAnswer:
        if faults:
            raise faults.pop()
        return truth()

    source.fail = fail
    with make(source) as listener:
        assert pulled(listener, 3) == [1, 2, 3]


def test_closing_ends_the_session_unless_it_is_to_be_gone_on_with(tmp_path):
    source = source_with(1)
    with make(source) as listener:
        pulled(listener, 1)
    assert source.ended == {"s1"}
    with make(source, tmp_path) as listener:
        pulled(listener, 1)
    assert source.ended == {"s1"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": "type ="},
        {"query": {"type": object()}},
        {"handback": "x" * 1025},
        {"settings": ListenerSettings(batch_events=0)},
        {"settings": ListenerSettings(most_events=10)},
        {"settings": ListenerSettings(wait_seconds=61)},
    ],
)
def test_what_cannot_work_is_refused_when_it_is_opened(wrong):
    with pytest.raises(InvalidInput):
        make(ModelSource(), **wrong)
    with pytest.raises(InvalidInput):
        Listener("http://x", "No Channel")
    with pytest.raises(InvalidInput), make(ModelSource()) as listener:
        listener.pull(0)


def test_in_a_loop_events_are_pulled_and_pushed_to_functions_and_coroutines(tmp_path):
    async def scenario() -> list[int]:
        source, got, done = source_with(30), [], asyncio.Event()
        options = {"source": source, "settings": QUICK, "directory": tmp_path}
        async with AsyncListener("http://127.0.0.1:9", "c", **options) as listener:
            got += positions(await listener.pull(2, timeout=10))

            async def note(received: ReceivedEvent) -> None:
                got.append(received.position)
                if received.position >= 10:
                    got.extend(positions(await listener.pull(1, timeout=10)))
                    done.set()

            await listener.push(note)
            await asyncio.wait_for(done.wait(), 10)
            while len(got) < 30:
                got += positions(await listener.pull(5, timeout=10))
            assert listener.status().mode == "pull"
            assert await listener.failed() == []
        return got

    assert asyncio.run(scenario()) == list(range(1, 31))


def test_a_pull_that_is_cancelled_loses_nothing():
    async def scenario() -> list[int]:
        source, got = ModelSource(), []
        listener = await AsyncListener.open(
            "http://127.0.0.1:9", "c", source=source, settings=QUICK
        )
        for _ in range(30):
            waiting = asyncio.ensure_future(listener.pull(2, timeout=10))
            await asyncio.sleep(0.002)
            source.append(1)
            await asyncio.sleep(0.001)
            waiting.cancel()
            try:
                got += positions(await waiting)
            except asyncio.CancelledError:
                continue
        while len(got) < 30:
            got += positions(await listener.pull(3, timeout=10))
        await listener.close()
        return got

    assert asyncio.run(scenario()) == list(range(1, 31))
