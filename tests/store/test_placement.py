"""Logs spread over several stores: each in one of them, by a placement that is kept. [CH-13]"""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rapport.core.errors import StoreUnavailable
from rapport.store.base import AppendConflict
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from rapport.store.placement import PLACEMENTS, Placements, RoutedLogStore, read_placements


class Far(MemoryLogStore):
    """A store that others write, too."""

    def __init__(self):
        super().__init__()
        self.watchers = []

    def append_after(self, log, after, blocks, received):
        if after != self.last_position(log):
            raise AppendConflict("too late")
        return self.append(log, blocks, received)

    def watch(self, grown):
        self.watchers.append(grown)


def by_name(log):
    return "far" if log.startswith("f") else "embedded"


def routed(records=None, choose=by_name):
    stores = {"embedded": MemoryLogStore(), "far": Far()}
    placements = Placements(records or MemoryRecordStore(), choose)
    return RoutedLogStore(stores, placements), stores


def test_a_new_log_goes_where_it_is_wanted_and_that_is_kept():
    records = MemoryRecordStore()
    log, stores = routed(records)
    log.append("f1", [(2, b"x")], 0)
    log.append_after("e1", 0, [(1, b"y")], 0)
    assert stores["far"].logs() == ["f1"]
    assert stores["embedded"].logs() == ["e1"]
    assert read_placements(records) == {"f1": "far", "e1": "embedded"}
    assert log.logs() == ["e1", "f1"]
    assert [log.last_position("f1"), log.first_position("f1"), log.last_position("new")] == [
        2,
        1,
        0,
    ]
    assert log.read_after("f1", 0)[0].body == b"x"
    assert [piece.last for piece in log.pieces("f1", 5)] == [2]
    assert log.kept_bytes("f1") == 1
    log.close_piece("f1")
    log.trim("f1", 3)
    assert log.first_position("f1") == 3
    assert log.store_of("e1") is stores["embedded"]


def test_an_overtaken_append_in_a_shared_store_is_reported_through_the_route():
    log, stores = routed()
    stores["far"].append("f", [(1, b"x")], 0)
    with pytest.raises(AppendConflict):
        log.append_after("f", 0, [(1, b"y")], 0)
    assert log.append_after("f", 1, [(1, b"y")], 0)[0].first == 2


def test_what_is_placed_stays_whatever_is_wanted_later_and_the_command_is_named():
    records = MemoryRecordStore()
    records.put(PLACEMENTS, "f1", b"embedded")
    with capture_logs() as told:
        log, stores = routed(records)
        log._placements.adopt("embedded", ["f2", "e1"])
        log._placements.log_differences()
    assert {entry["command"] for entry in told} == {
        "rapport channel move f1 --to far",
        "rapport channel move f2 --to far",
    }
    stores["far"].append("f1", [(1, b"left behind")], 0)
    log.append("f1", [(1, b"here")], 0)
    assert log.read_after("f1", 0)[0].body == b"here"
    assert log.logs() == ["f1"]
    assert read_placements(records) == {"f1": "embedded", "f2": "embedded"}


def test_growth_is_reported_of_logs_that_live_in_the_store_that_grew():
    records = MemoryRecordStore()
    records.put(PLACEMENTS, "f1", b"embedded")
    log, stores = routed(records)
    heard = []
    log.watch(lambda *news: heard.append(news))
    for name in ("f1", "f2"):
        stores["far"].watchers[0](name, 7)
    assert heard == [("f2", 7)]


def test_a_log_in_a_store_the_site_does_not_name_is_refused_with_what_to_add():
    records = MemoryRecordStore()
    records.put(PLACEMENTS, "a", b"nats")
    log, _stores = routed(records)
    with pytest.raises(StoreUnavailable) as caught:
        log.append("a", [(1, b"x")], 0)
    assert caught.value.code == "store.not_configured"
    assert "RAPPORT_NATS" in caught.value.hint


def test_many_placements_are_all_read():
    records = MemoryRecordStore()
    for number in range(2_500):
        records.put(PLACEMENTS, f"{number:04d}", b"far")
    assert len(read_placements(records)) == 2_500


def test_closing_closes_all_even_when_one_fails():
    log, stores = routed()

    def fail():
        raise StoreUnavailable("no")

    stores["far"].close = fail
    with pytest.raises(StoreUnavailable):
        log.close()
    with pytest.raises(StoreUnavailable):
        stores["embedded"].last_position("a")
