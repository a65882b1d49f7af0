"""Guarded changes on every record store: all or nothing, and only while the guards hold. [CO-17]"""

from __future__ import annotations

import threading

import pytest

from rapport.core.errors import InvalidInput, Unsupported
from rapport.store import postgres_records
from rapport.store.base import Delete, Guard, GuardFailed, Put, as_guarded, put_if_absent
from rapport.store.memory import MemoryRecordStore
from rapport.store.postgres_records import PostgresRecordStore
from rapport.store.sqlite import SqliteRecordStore


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def stores(request, tmp_path):
    """Two openings of one store; memory has only one."""
    match request.param:
        case "memory":
            opened = [MemoryRecordStore()] * 2
        case "sqlite":
            opened = [SqliteRecordStore(tmp_path / "records.sqlite") for _ in range(2)]
        case _:
            address = request.getfixturevalue("postgres")
            opened = [PostgresRecordStore(address.dsn, schema=address.schema) for _ in range(2)]
    yield opened
    for store in opened:
        store.close()


def test_changes_happen_while_all_guards_hold(stores):
    one, other = stores
    one.put("leases", "a", b"mine")
    one.put("t", "gone", b"x")
    one.apply_guarded(
        [Put("t", "k", b"1"), Delete("t", "gone")],
        [Guard("leases", "a", b"mine"), Guard("leases", "b", None)],
    )
    assert other.get("t", "k") == b"1"
    assert other.get("t", "gone") is None


@pytest.mark.parametrize(
    "guard",
    [Guard("leases", "a", b"another's"), Guard("leases", "a", None), Guard("leases", "b", b"mine")],
)
def test_nothing_happens_when_one_guard_does_not_hold(stores, guard):
    one, other = stores
    one.put("leases", "a", b"mine")
    with pytest.raises(GuardFailed) as caught:
        one.apply_guarded([Put("t", "k", b"1")], [Guard("leases", "a", b"mine"), guard])
    assert caught.value.guard == guard
    assert caught.value.code == "store.guard_failed"
    assert other.find("t") == []
    one.put("t", "k", b"still works")
    assert other.get("t", "k") == b"still works"


def test_a_change_that_cannot_be_kept_leaves_nothing(stores):
    one, _ = stores
    with pytest.raises(InvalidInput):
        one.apply_guarded([Put("t", "a", b"1"), Put("t", "b", "text")], [])
    assert one.find("t") == []


def test_without_guards_it_is_apply(stores):
    one, other = stores
    one.apply_guarded([Put("t", "a", b"1"), Put("t", "a", b"2")], [])
    assert other.get("t", "a") == b"2"


@pytest.mark.parametrize("kept", [None, b"0"])
def test_of_many_that_change_what_they_guard_each_time_one_succeeds(stores, kept):
    """A counter that nobody loses: also when it is not there at first."""
    if kept is not None:
        stores[0].put("t", "count", kept)
    rounds, threads = 10, 4

    def count(store):
        for _ in range(rounds):
            while True:
                before = store.get("t", "count")
                after = str(int(before or 0) + 1).encode()
                try:
                    store.apply_guarded([Put("t", "count", after)], [Guard("t", "count", before)])
                    break
                except GuardFailed:
                    continue

    workers = [threading.Thread(target=count, args=(stores[n % 2],)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert stores[0].get("t", "count") == str(rounds * threads).encode()


def test_a_fence_that_moved_stops_whoever_was_behind_it(stores):
    """The sum over all writes under one epoch never grows after the epoch did."""
    one, other = stores
    one.put("leases", "a", b"1")
    stop = threading.Event()

    def write_on():
        number = 0
        while not stop.wait(0.001):  # SQLite is not fair: without a pause others may starve
            number += 1
            try:
                one.apply_guarded(
                    [Put("t", "written", b"%d" % number)], [Guard("leases", "a", b"1")]
                )
            except GuardFailed:
                return

    writer = threading.Thread(target=write_on)
    writer.start()
    while other.get("t", "written") is None:
        continue
    other.apply_guarded([Put("leases", "a", b"2")], [Guard("leases", "a", b"1")])
    after = other.get("t", "written")
    writer.join(10)
    stop.set()
    assert not writer.is_alive()
    assert other.get("t", "written") == after


def test_two_that_each_guard_against_the_others_change_do_not_both_succeed(stores):
    """No write skew, also about records that are not there."""
    for number in range(5):
        mine, yours = f"{number}/mine", f"{number}/yours"
        done = []

        def claim(store, change, guard, done=done):
            try:
                store.apply_guarded([Put("t", change, b"x")], [Guard("t", guard, None)])
                done.append(change)
            except GuardFailed:
                return

        claims = [(stores[0], mine, yours), (stores[1], yours, mine)]
        workers = [threading.Thread(target=claim, args=each) for each in claims]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
        assert len(done) == 1


def test_keeping_the_first_gives_everybody_the_same(stores):
    one, other = stores
    assert put_if_absent(one, "secrets", "a", b"first") == b"first"
    assert put_if_absent(other, "secrets", "a", b"second") == b"first"


def test_a_store_without_guards_is_refused():
    with pytest.raises(Unsupported):
        as_guarded(object())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guard", "change"),
    [
        (Guard("leases", "b", None), Put("t", "late", b"x")),
        (Guard("leases", "a", b"frozen"), Put("leases", "a", b"late")),
    ],
)
def test_a_process_that_froze_inside_a_guarded_change_is_cut_off(
    postgres, monkeypatch, guard, change
):
    """Its locks would keep everybody from taking over what it held."""
    store, frozen = (PostgresRecordStore(postgres.dsn, schema=postgres.schema) for _ in range(2))
    store.put("leases", "a", b"frozen")
    entered, go_on, told = threading.Event(), threading.Event(), []
    change_one = postgres_records._change

    def freeze(link, changed):
        if threading.current_thread() is writer and not entered.is_set():
            entered.set()
            go_on.wait(20)
        change_one(link, changed)

    def write():
        try:
            frozen.apply_guarded([change], [Guard("leases", "a", b"frozen"), guard])
        except GuardFailed as error:
            told.append(error)

    monkeypatch.setattr(postgres_records, "_change", freeze)
    writer = threading.Thread(target=write)
    writer.start()
    assert entered.wait(10)
    store.apply_guarded([Put("leases", "a", b"taken")], [Guard("leases", "a", b"frozen")])
    go_on.set()
    writer.join(10)
    assert len(told) == 1
    assert (store.get("t", "late"), store.get("leases", "a")) == (None, b"taken")
    store.close()
    frozen.close()
