"""What every LogStore and RecordStore must do; bound to the back ends in tests/conformance. [CH-13]

A class that inherits a suite gives the fixture it names: a place where the store can be opened
again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest

from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.store.base import READ_BYTES, Block, Delete, LogStore, Put, RecordStore

S = TypeVar("S", covariant=True)


class Place(Protocol[S]):
    """Where a store lives: `open` gives it, also again after it was closed."""

    def open(self) -> S:
        """The store; the former one must be closed."""


def bodies(blocks: list[Block]) -> list[bytes]:
    """What the blocks hold."""
    return [block.body for block in blocks]


def positions(blocks: list[Block]) -> list[int]:
    """Every position in the blocks, in order."""
    return [place for block in blocks for place in range(block.first, block.last + 1)]


class LogStoreSuite:
    """Needs the fixture `log_place`: Place[LogStore], small segments if it has any."""

    def test_a_new_log_is_empty(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        assert store.last_position("a") == 0
        assert store.first_position("a") == 1
        assert store.read_after("a", 0) == []
        assert store.logs() == []

    def test_positions_count_records_from_one_without_gaps(
        self, log_place: Place[LogStore]
    ) -> None:
        store = log_place.open()
        first = store.append("a", [(3, b"x"), (1, b"y")], 7)
        second = store.append("a", [(2, b"z")], 8)
        assert [(block.first, block.count, block.received) for block in first + second] == [
            (1, 3, 7),
            (4, 1, 7),
            (5, 2, 8),
        ]
        assert store.last_position("a") == 6

    def test_reading_after_a_position_never_returns_it_again(
        self, log_place: Place[LogStore]
    ) -> None:
        store = log_place.open()
        for number in range(50):
            store.append("a", [(1, b"%d" % number)], number)
        position, found = 0, []
        while blocks := store.read_after("a", position, max_records=7):
            assert blocks[0].first == position + 1
            found += bodies(blocks)
            position = blocks[-1].last
        assert found == [b"%d" % number for number in range(50)]

    def test_a_block_comes_whole_even_when_the_position_lies_inside(
        self, log_place: Place[LogStore]
    ) -> None:
        store = log_place.open()
        store.append("a", [(10, b"ten"), (10, b"twenty")], 0)
        assert bodies(store.read_after("a", 4, max_records=1)) == [b"ten"]
        assert bodies(store.read_after("a", 10, max_records=1)) == [b"twenty"]
        assert store.read_after("a", 20) == []

    def test_logs_do_not_mix_and_are_named_sorted(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        for name in ("b", "a", "raw.readers", "A", "../up", "ü / %2F"):
            store.append(name, [(1, name.encode())], 0)
        assert store.logs() == sorted(["b", "a", "raw.readers", "A", "../up", "ü / %2F"])
        for name in store.logs():
            assert bodies(store.read_after(name, 0)) == [name.encode()]

    def test_many_segments_read_like_one(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        for number in range(300):
            store.append("a", [(2, bytes([number % 251]) * 100)], number)
        assert positions(store.read_after("a", 0, max_records=10_000)) == list(range(1, 601))
        assert store.read_after("a", 599)[0].first == 599

    def test_large_and_small_blocks_stand_side_by_side(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        sizes = [1, 300_000, 0, 262_144, 262_095, 3_000_000, 7]
        for size in sizes:
            store.append("a", [(1, b"x" * size)], 0)
        assert [len(body) for body in bodies(store.read_after("a", 0))] == sizes
        for position, size in enumerate(sizes):
            (block,) = store.read_after("a", position, max_records=1)
            assert (block.first, len(block.body)) == (position + 1, size)

    def test_what_is_large_is_read_in_portions(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        size, count = READ_BYTES // 4 - 100, 10
        for number in range(count):
            store.append("a", [(1, b"x" * size), (2, b"yz")], number)
        position, found = 0, []
        while blocks := store.read_after("a", position, max_records=1000):
            assert sum(len(block.body) for block in blocks) < 2 * READ_BYTES
            found += positions(blocks)
            position = blocks[-1].last
        assert found == list(range(1, 3 * count + 1))

    def test_trimming_lets_go_of_old_records_only(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        for number in range(300):
            store.append("a", [(1, b"x" * 100)], number)
        store.trim("a", 200)
        first = store.first_position("a")
        assert 1 < first <= 200
        assert positions(store.read_after("a", 0, max_records=1000)) == list(range(first, 301))
        store.trim("a", 10_000)
        assert store.last_position("a") == 300
        assert store.append("a", [(1, b"y")], 0)[0].first == 301

    def test_nothing_is_appended_by_an_empty_append(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        assert store.append("a", [], 0) == []
        assert store.last_position("a") == 0

    def test_a_block_without_records_is_refused(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        with pytest.raises(InvalidInput):
            store.append("a", [(1, b"x"), (0, b"y")], 0)
        assert store.last_position("a") == 0

    def test_a_closed_store_refuses_clearly_and_closing_twice_is_no_error(
        self, log_place: Place[LogStore]
    ) -> None:
        store = log_place.open()
        store.append("a", [(1, b"x")], 0)
        store.close()
        store.close()
        with pytest.raises(StoreUnavailable):
            store.append("a", [(1, b"y")], 0)

    def test_everything_is_there_after_opening_again(self, log_place: Place[LogStore]) -> None:
        store = log_place.open()
        for number in range(120):
            store.append("a", [(2, b"%d" % number * 20)], number)
        before = store.read_after("a", 0, max_records=1000)
        store.close()
        store = log_place.open()
        assert store.last_position("a") == 240
        assert store.read_after("a", 0, max_records=1000) == before
        assert store.append("a", [(1, b"next")], 9)[0].first == 241


class RecordStoreSuite:
    """Needs the fixture `record_place`: Place[RecordStore]."""

    def test_what_is_put_is_got_and_what_is_deleted_is_gone(
        self, record_place: Place[RecordStore]
    ) -> None:
        store = record_place.open()
        assert store.get("t", "k") is None
        store.put("t", "k", b"one")
        store.put("t", "k", b"two")
        assert store.get("t", "k") == b"two"
        store.delete("t", "k")
        store.delete("t", "k")
        assert store.get("t", "k") is None

    def test_tables_do_not_mix(self, record_place: Place[RecordStore]) -> None:
        store = record_place.open()
        store.put("a", "k", b"1")
        store.put("b", "k", b"2")
        store.delete("a", "k")
        assert store.get("b", "k") == b"2"
        assert store.find("a") == []

    def test_keys_come_in_the_order_of_code_points(self, record_place: Place[RecordStore]) -> None:
        store = record_place.open()
        keys = ["b", "a", "ä", "A", "a/1", "a/10", "a/2", "\U0001f600", "\uffff", "", "a\x00b"]
        for key in keys:
            store.put("t", key, key.encode())
        assert [key for key, _value in store.find("t")] == sorted(key for key in keys if key)

    def test_finding_by_prefix_goes_on_after_a_key(self, record_place: Place[RecordStore]) -> None:
        store = record_place.open()
        for number in range(25):
            store.put("t", f"x/{number:02d}", b"%d" % number)
        store.put("t", "x", b"no")
        store.put("t", "x0", b"no")
        store.put("t", "w", b"no")
        found, after = [], ""
        while page := store.find("t", prefix="x/", after=after, limit=4):
            found += [value for _key, value in page]
            after = page[-1][0]
        assert found == [b"%d" % number for number in range(25)]
        assert store.find("t", prefix="x/", after="y") == []
        assert store.find("t", prefix="zz") == []
        assert [key for key, _value in store.find("t", prefix="x", limit=1)] == ["x"]

    def test_several_changes_happen_together_and_in_order(
        self, record_place: Place[RecordStore]
    ) -> None:
        store = record_place.open()
        store.apply(
            [Put("t", "a", b"1"), Put("u", "b", b"2"), Delete("t", "a"), Put("t", "c", b"")]
        )
        assert store.get("t", "a") is None
        assert store.get("u", "b") == b"2"
        assert store.get("t", "c") == b""

    def test_changes_of_which_one_fails_leave_nothing(
        self, record_place: Place[RecordStore]
    ) -> None:
        store = record_place.open()
        with pytest.raises(InvalidInput):
            store.apply([Put("t", "a", b"1"), Put("t", "b", "no bytes")])  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            store.apply([Put("t", "a", b"1"), Put("t", "\ud800", b"2")])
        assert store.find("t") == []

    def test_a_closed_record_store_refuses_clearly(self, record_place: Place[RecordStore]) -> None:
        store = record_place.open()
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.get("t", "k"),
            lambda: store.put("t", "k", b""),
            lambda: store.find("t"),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable):
                call()

    def test_records_are_there_after_opening_again(self, record_place: Place[RecordStore]) -> None:
        store = record_place.open()
        store.apply([Put("t", f"{number:03d}", b"%d" % number) for number in range(100)])
        store.close()
        store = record_place.open()
        assert len(store.find("t")) == 100
        assert store.get("t", "042") == b"42"
