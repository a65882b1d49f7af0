"""The field index: keys keep the order, ranges come out in order of positions, pieces go."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.store.field_index import Column, SqliteFieldIndex
from rapport.store.field_keys import (
    AllOf,
    AnyOf,
    Key,
    Lookup,
    Range,
    RangeLookup,
    key_of,
    number_key,
    points,
    text_key,
)
from rapport.store.field_search import PARTITION_SIZE, UNORDERED_LIMIT
from rapport.store.location_files import FILE_BITS, pack_locations

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS, NUMBERS)
def test_keys_of_numbers_are_never_out_of_order(one: float, other: float) -> None:
    if one <= other:
        assert number_key(one) <= number_key(other)
    if float(min(abs(one), 2**53)) == one == other:
        assert number_key(one) == number_key(other)


@given(st.text(max_size=70), st.text(max_size=70))
def test_keys_of_texts_are_never_out_of_order(one: str, other: str) -> None:
    if one <= other:
        assert text_key(one) <= text_key(other)


def test_other_values_have_no_key() -> None:
    assert key_of(None) is None
    assert key_of([1]) is None
    assert key_of({"a": 1}) is None
    assert (key_of(True), key_of(False)) == (1, 0)


@pytest.fixture
def index(tmp_path: Path) -> SqliteFieldIndex:
    made = SqliteFieldIndex(tmp_path / "fields.sqlite")
    made.declare("log", ("type", "data.x"))
    return made


def feed(index: SqliteFieldIndex, path: str, keys: list[Key | None], first: int = 1) -> None:
    reached = first + len(keys) - 1
    index.feed("log", [Column(path, first, keys)], (), {path: reached})


def find(
    index: SqliteFieldIndex, lookup: Lookup, *, after: int = 0, until: int = 10**9, limit: int = 100
) -> tuple[list[int] | None, int]:
    found = index.search("log", lookup, after=after, until=until, limit=limit)
    return found.positions, found.through


def test_a_point_gives_positions_in_order_and_stops_at_the_limit(index: SqliteFieldIndex) -> None:
    feed(index, "type", ["a", "b"] * 50)
    lookup = RangeLookup("type", points("a"), True)
    assert find(index, lookup, limit=3) == ([1, 3, 5], 5)
    assert find(index, lookup, after=5, limit=2) == ([7, 9], 9)
    assert find(index, lookup, after=97, limit=5) == ([99], 100)


def test_what_was_not_fed_is_left_to_be_read(index: SqliteFieldIndex) -> None:
    feed(index, "type", ["a", "b"])
    assert find(index, RangeLookup("type", points("a"), True), after=2, until=50) == (None, 50)
    assert find(index, RangeLookup("data.x", points(1), False), until=50) == (None, 50)
    assert find(index, RangeLookup("no such field", points(1), False), until=50) == (None, 50)
    assert find(index, RangeLookup("type", points("c"), True), until=50) == ([], 2)


def test_ranges_hold_only_values_of_their_kind(index: SqliteFieldIndex) -> None:
    values = [5, "5", True, None, -1.5, "a", "ä", 10**30, "b\0c", False]
    feed(index, "data.x", [key_of(value) for value in values])

    def within(low: object, high: object, text: bool) -> list[int] | None:
        return find(index, RangeLookup("data.x", (Range(key_of(low), key_of(high)),), text))[0]

    assert within(None, 5, False) == [1, 3, 5, 10]
    assert within(5, None, False) == [1, 8]
    assert within("a", None, True) == [6, 7, 9]
    assert within(None, "a", True) == [2, 6]
    assert within("b", "b", True) == [9]


def test_a_wide_range_is_left_to_be_read(index: SqliteFieldIndex) -> None:
    feed(index, "data.x", list(range(UNORDERED_LIMIT + 1)))
    everything = RangeLookup("data.x", (Range(0, UNORDERED_LIMIT),), False)
    assert find(index, everything, until=5_000) == (None, UNORDERED_LIMIT + 1)
    some = RangeLookup("data.x", (Range(1, UNORDERED_LIMIT),), False)
    assert find(index, some, until=5_000)[0] == list(range(2, UNORDERED_LIMIT + 2))


def test_all_and_any_are_put_together(index: SqliteFieldIndex) -> None:
    feed(index, "type", ["a", "b", "a", "b", "a", "c"])
    feed(index, "data.x", [1, 1, 2, 2, 3, 1])
    a, one = RangeLookup("type", points("a"), True), RangeLookup("data.x", points(1), False)
    two = RangeLookup("data.x", (Range(2, 3),), False)
    assert find(index, AllOf((a, one)))[0] == [1]
    assert find(index, AllOf((a, two)))[0] == [3, 5]
    assert find(index, AnyOf((one, two)))[0] == [1, 2, 3, 4, 5, 6]
    assert find(index, AnyOf((a, one)))[0] == [1, 2, 3, 5, 6]
    unknown = RangeLookup("none", points(1), False)
    assert find(index, AllOf((a, unknown)))[0] == [1, 3, 5]
    assert find(index, AnyOf((a, unknown)), until=6)[0] is None


def test_the_rarer_part_of_both_leads(index: SqliteFieldIndex) -> None:
    feed(index, "type", ["a"] * 2_000)
    feed(index, "data.x", [7 if n == 1_500 else 1 for n in range(2_000)])
    lookup = AllOf(
        (RangeLookup("type", points("a"), True), RangeLookup("data.x", points(7), False))
    )
    assert find(index, lookup, limit=10) == ([1_501], 2_000)


def test_a_search_goes_on_over_partitions(index: SqliteFieldIndex) -> None:
    places = (1, PARTITION_SIZE - 1, PARTITION_SIZE, PARTITION_SIZE + 1, 3 * PARTITION_SIZE)
    for place in places:
        feed(index, "type", ["a"], first=place)
    index.feed("log", (), (), {"type": 4 * PARTITION_SIZE})
    lookup = RangeLookup("type", points("a"), True)
    assert find(index, lookup) == (list(places), 4 * PARTITION_SIZE)
    assert find(index, lookup, after=PARTITION_SIZE - 1, limit=1) == (
        [PARTITION_SIZE],
        PARTITION_SIZE,
    )
    assert find(index, lookup, after=PARTITION_SIZE, until=2 * PARTITION_SIZE)[0] == [
        PARTITION_SIZE + 1
    ]


def test_pruning_drops_whole_partitions_and_says_what_it_no_longer_knows(
    index: SqliteFieldIndex,
) -> None:
    for place in (1, PARTITION_SIZE, 2 * PARTITION_SIZE, 3 * PARTITION_SIZE):
        feed(index, "type", ["a"], first=place)
    lookup = RangeLookup("type", points("a"), True)
    assert index.prune("log", 2 * PARTITION_SIZE + 5) is True
    assert index.prune("log", 2 * PARTITION_SIZE + 5) is False
    assert index.prune("log", 2 * PARTITION_SIZE + 5) is False
    assert find(index, lookup, until=PARTITION_SIZE)[0] is None
    assert find(index, lookup, after=2 * PARTITION_SIZE - 1)[0] == [
        2 * PARTITION_SIZE,
        3 * PARTITION_SIZE,
    ]
    assert index.prune("unknown", 10**9) is False


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    first = SqliteFieldIndex(tmp_path / "f")
    first.declare("log", ("type",))
    feed(first, "type", ["a", "b"])
    first.close()
    second = SqliteFieldIndex(tmp_path / "f")
    second.declare("log", ("type", "data.x"))
    assert second.fed("log") == {"type": 2, "data.x": 0}
    assert find(second, RangeLookup("type", points("b"), True), until=2) == ([2], 2)
    second.declare("log", ("data.x",))
    assert second.fed("log") == {"data.x": 0}
    second.declare("log", ("type",))
    assert second.fed("log") == {"type": 0}
    second.close()


def test_forgetting_begins_again(index: SqliteFieldIndex) -> None:
    feed(index, "type", ["a"])
    index.forget("log")
    assert index.fed("log") == {"type": 0, "data.x": 0}
    assert find(index, RangeLookup("type", points("a"), True), until=5)[0] is None


def test_spots_are_found_one_by_one(index: SqliteFieldIndex) -> None:
    bodies = [bytes([n % 256]) * (n % 7 + 1) for n in range(266)]
    index.feed("log", (), [pack_locations(11, 1, 99, 1_000, bodies)], {})
    spots = index.locations("log", [5, 11, 12, 267, 276, 277])
    assert [spot.position for spot in spots] == [11, 12, 267, 276]
    assert (spots[0].offset, spots[0].length, spots[0].received) == (1_000, 1, 99)
    assert [spot.segment for spot in spots] == [1, 1, 1, 1]
    assert spots[1].checksum == crc32(bodies[1])
    assert spots[1].offset == 1_000 + len(bodies[0])
    assert index.locations("other", [1]) == []


def test_spots_reach_over_the_end_of_a_piece(index: SqliteFieldIndex) -> None:
    first = (1 << FILE_BITS) - 2
    index.feed("log", (), [pack_locations(first, 7, 99, 0, [b"a", b"bb", b"ccc", b"d"])], {})
    spots = index.locations("log", range(first - 1, first + 5))
    assert [(spot.position - first, spot.offset) for spot in spots] == [
        *((0, 0), (1, 1), (2, 3), (3, 6)),
    ]
    assert {spot.segment for spot in spots} == {7}


def test_spots_outlive_the_process_and_are_dropped_with_what_they_are_of(tmp_path: Path) -> None:
    path = tmp_path / "fields.sqlite"
    spots = [pack_locations(first, first, 99, 0, [b"abc"]) for first in (5, 5 + (1 << FILE_BITS))]
    index = SqliteFieldIndex(path)
    index.declare("log", ("type",))
    index.feed("log", (), spots, {})
    index.close()
    again = SqliteFieldIndex(path)
    again.declare("log", ("type",))
    asked = [spot.first for spot in spots]
    assert [spot.position for spot in again.locations("log", asked)] == asked
    while again.prune("log", (1 << FILE_BITS) + 1):
        continue
    assert [spot.position for spot in again.locations("log", asked)] == asked[1:]
    again.forget("log")
    assert again.locations("log", asked) == []


def test_spots_of_an_index_that_was_deleted_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "fields.sqlite"
    index = SqliteFieldIndex(path)
    index.declare("log", ("type",))
    index.feed("log", (), [pack_locations(5, 1, 99, 0, [b"abc"])], {})
    index.close()
    path.unlink()
    again = SqliteFieldIndex(path)
    again.declare("log", ("type",))
    assert again.locations("log", [5]) == []


def test_an_index_of_an_older_make_is_fed_again(tmp_path: Path) -> None:
    path = tmp_path / "fields.sqlite"
    index = SqliteFieldIndex(path)
    index.declare("log", ("type",))
    feed(index, "type", ["a"])
    index.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE spots (place INTEGER PRIMARY KEY, spots BLOB)")
    again = SqliteFieldIndex(path)
    again.declare("log", ("type",))
    assert again.fed("log") == {"type": 0}
    assert find(again, RangeLookup("type", points("a"), True), until=5)[0] is None
    again.close()
    once_more = SqliteFieldIndex(path)
    once_more.declare("log", ("type",))
    feed(once_more, "type", ["a"])
    assert once_more.fed("log") == {"type": 1}
