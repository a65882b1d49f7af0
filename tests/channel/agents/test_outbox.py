"""The outbox on disk: what waits, what was settled, damage, locks, copies. [CH-5]"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.agents.connection import Reason
from rapport.channel.agents.outbox import (
    IDENTITY_NAME,
    PROGRESS,
    REJECTED,
    Outbox,
    RejectedEvent,
    inspect_outbox,
    read_identity,
)
from rapport.core.errors import Corrupt, StoreUnavailable, UnknownName
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock

WHY = Reason("event.bad", "it is bad")


def event(number: int, data: bytes = b"{}") -> Event:
    return Event("s", str(number), "t", "", 0, data, {"own": "header"})


def open_outbox(directory: Path, now_ms: int = 1000, **more) -> Outbox:
    return Outbox(directory, ManualClock(now_ms), new_name="name", **more)


def rejection(sequence: int) -> RejectedEvent:
    return RejectedEvent(sequence=sequence, time=5, reason=WHY, event=event(sequence))


def ids(outbox: Outbox, first: int, last: int, most_bytes: int = 10**9) -> list[str]:
    return [one.event.id for one in outbox.read_waiting(first, last, most_bytes=most_bytes)]


def test_events_are_numbered_from_one_and_outlive_the_process(tmp_path):
    outbox = open_outbox(tmp_path / "deep" / "down")
    assert outbox.add([event(1), event(2)]) == 2
    assert outbox.add([]) == 2
    outbox.settle(1)
    outbox.close()
    again = open_outbox(tmp_path / "deep" / "down")
    assert (again.last, again.settled) == (2, 1)
    assert ids(again, 2, 2) == ["2"]
    assert again.add([event(3)]) == 3
    again.close()


def test_each_opening_is_a_later_epoch_of_the_same_publisher_also_when_the_clock_goes_back(
    tmp_path,
):
    epochs = []
    for now_ms in (1000, 500, 2000):
        outbox = open_outbox(tmp_path, now_ms, url="http://x", channel="c")
        epochs.append(outbox.identity.epoch)
        outbox.add([event(len(epochs))])
        outbox.close()
    assert epochs == [1000, 1001, 2000]
    outbox = open_outbox(tmp_path, 3000)
    stamps = [one.event.headers for one in outbox.read_waiting(1, 3, most_bytes=10**9)]
    assert stamps == [
        {"own": "header", "publisher": "name", "epoch": str(epoch)} for epoch in epochs
    ]
    outbox.close()


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=30),
    limit=st.integers(1, 20_000),
    first=st.integers(1, 30),
)
def test_a_request_holds_what_fits_and_at_least_one(tmp_path_factory, sizes, limit, first):
    outbox = open_outbox(tmp_path_factory.mktemp("outbox"))
    outbox.add([event(n, b"x" * size) for n, size in enumerate(sizes, start=1)])
    found = outbox.read_waiting(first, len(sizes), most_bytes=limit)
    outbox.close()
    assert [one.sequence for one in found] == list(range(first, first + len(found)))
    assert bool(found) == (first <= len(sizes))
    assert len(found) <= 1 or sum(len(one.event.data) for one in found) <= limit


def test_large_events_have_blocks_of_their_own(tmp_path):
    outbox = open_outbox(tmp_path)
    outbox.add([event(n, b"x" * 700_000) for n in range(1, 8)] + [event(8)])
    assert ids(outbox, 1, 8) == [str(n) for n in range(1, 9)]
    assert ids(outbox, 2, 8, most_bytes=1_500_000) == ["2", "3"]
    outbox.close()


def test_states_are_read_without_the_lock(tmp_path):
    outbox = open_outbox(tmp_path, url="http://x", channel="c")
    outbox.add([event(n) for n in range(1, 6)])
    outbox.settle(1)
    outbox.settle(2, rejection(2))
    outbox.settle(3)
    seen = inspect_outbox(tmp_path, limit=10)
    assert [one.state for one in seen.entries] == ["sent", "rejected", "sent", "pending", "pending"]
    assert seen.entries[1].reason == WHY
    assert (seen.pending, seen.settled, seen.holder) == (2, 3, str(os.getpid()))
    assert seen.identity is not None
    assert seen.identity.url == "http://x"
    assert [one.state for one in inspect_outbox(tmp_path, limit=1).entries] == ["sent"]
    outbox.close()


def test_a_rejection_written_twice_by_a_crash_stands_once(tmp_path):
    outbox = open_outbox(tmp_path)
    outbox.add([event(1)])
    outbox.settle(1, rejection(1))
    written_before = msgspec.msgpack.encode(rejection(1))
    outbox._store.append(REJECTED, [(1, written_before)], 0)
    assert [one.sequence for one in outbox.rejected()] == [1]
    outbox.close()
    again = open_outbox(tmp_path)
    assert again.rejected_count == 1
    again.settle(1, rejection(1))
    assert again.rejected_count == len(again.rejected()) == 1
    again.close()


def test_damage_costs_the_events_it_hit_and_no_others(tmp_path):
    outbox = open_outbox(tmp_path)
    for number in range(1, 6):
        outbox.add([event(number, b'"%d"' % number * 50)])
    outbox.close()
    (log,) = (tmp_path / "logs" / "events").glob("*.log")
    raw = bytearray(log.read_bytes())
    place = raw.index(b'"3"')
    raw[place] ^= 0xFF
    log.write_bytes(raw)
    again = open_outbox(tmp_path)
    assert ids(again, 1, 5) == ["1", "2", "4", "5"]
    assert ids(again, 3, 3) == []
    assert again.problems()
    again.close()


def test_calls_of_many_threads_share_syncs_and_keep_their_order(tmp_path):
    outbox = open_outbox(tmp_path)
    numbers: dict[int, list[int]] = {worker: [] for worker in range(6)}

    def work(worker: int) -> None:
        for n in range(20):
            numbers[worker].append(outbox.add([event(worker * 1000 + n)]))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outbox.last == 120
    for own in numbers.values():
        assert own == sorted(own)
    found = [int(one) for one in ids(outbox, 1, 120)]
    for worker in numbers:
        own = [one for one in found if one // 1000 == worker]
        assert own == sorted(own)
    outbox.close()


def test_a_disk_that_refuses_is_reported_to_every_caller_and_the_next_call_works(
    tmp_path, monkeypatch
):
    outbox = open_outbox(tmp_path)
    append = outbox._store.append

    def refuse(log, blocks, received):
        raise StoreUnavailable("the disk is full", code="store.full")

    monkeypatch.setattr(outbox._store, "append", refuse)
    with pytest.raises(StoreUnavailable, match="full"):
        outbox.add([event(1)])
    monkeypatch.setattr(outbox._store, "append", append)
    assert outbox.add([event(1)]) == 1
    outbox.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_may_not_use_its_parents_outbox(tmp_path):
    outbox = open_outbox(tmp_path)
    outbox.add([event(1)])
    child = os.fork()
    if child == 0:
        try:
            outbox.add([event(2)])
        except StoreUnavailable as error:
            outbox.close()
            os._exit(0 if error.code == "outbox.forked" else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert outbox.add([event(2)]) == 2
    outbox.close()


def test_a_directory_without_an_outbox_is_reported(tmp_path):
    with pytest.raises(UnknownName):
        inspect_outbox(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / IDENTITY_NAME).write_text("{")
    with pytest.raises(Corrupt, match="cannot be read"):
        read_identity(tmp_path)
    with pytest.raises(Corrupt):
        open_outbox(tmp_path)
    (tmp_path / IDENTITY_NAME).unlink()
    open_outbox(tmp_path).close()  # the failed opening left no lock behind
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        open_outbox(tmp_path / "file")


def test_a_rejection_is_counted_once_though_the_mark_could_not_be_moved(tmp_path, monkeypatch):
    outbox = open_outbox(tmp_path)
    outbox.add([event(1), event(2)])
    append = outbox._store.append

    def refuses_marks(log, blocks, received):
        if log == PROGRESS:
            raise StoreUnavailable("the disk is full", code="store.disk_full")
        return append(log, blocks, received)

    with monkeypatch.context() as patch:
        patch.setattr(outbox._store, "append", refuses_marks)
        for _again in range(3):
            with pytest.raises(StoreUnavailable):
                outbox.settle(1, rejection(1))
    outbox.settle(1, rejection(1))
    outbox.settle(2, rejection(2))
    assert outbox.rejected_count == len(outbox.rejected()) == 2
    assert outbox._store.last_position(REJECTED) == 2
    outbox.close()
