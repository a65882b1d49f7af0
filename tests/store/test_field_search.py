"""Dense values: bits agree with the entries, and come and go with complete partitions."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.store.field_index import Column, SqliteFieldIndex
from rapport.store.field_keys import AllOf, Key, RangeLookup, points
from rapport.store.field_search import (
    DENSE,
    PARTITION_SIZE,
    completed_partitions,
    find_bits,
    keep_dense,
    positions_with_bit,
    positions_with_both_bits,
)
from support.examples import examples

PIECE = 4_096
EVERY_THIRD = AllOf(
    (RangeLookup("type", points("a"), True), RangeLookup("data.x", points(7), False))
)


def feed_until(index: SqliteFieldIndex, last: int, *, first: int = 1) -> None:
    """Every third event has type `a`, every fifth x = 7, every second y = 9."""
    for start in range(first, last + 1, PIECE):
        places = range(start, min(start + PIECE, last + 1))
        columns: dict[str, list[Key | None]] = {
            "type": ["a" if place % 3 == 0 else f"b{place}" for place in places],
            "data.x": [7 if place % 5 == 0 else None for place in places],
            "data.y": [9 if place % 2 == 0 else place + 10 for place in places],
        }
        fed = dict.fromkeys(columns, places[-1])
        index.feed("log", [Column(path, start, keys) for path, keys in columns.items()], (), fed)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose first partition is complete and whose second one is not."""
    path = tmp_path_factory.mktemp("dense") / "fields.sqlite"
    index = SqliteFieldIndex(path)
    index.declare("log", ("type", "data.x", "data.y"))
    feed_until(index, PARTITION_SIZE + 1_000)
    index.close()
    return path


@pytest.fixture
def index(path: Path) -> SqliteFieldIndex:
    made = SqliteFieldIndex(path)
    made.declare("log", ("type", "data.x", "data.y"))
    return made


def dense_rows(path: Path) -> list[tuple[int, int, Key]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT field, stretch, value FROM dense").fetchall()
    finally:
        connection.close()


def test_only_values_of_many_events_have_bits_and_only_in_complete_partitions(path: Path) -> None:
    assert sorted(dense_rows(path)) == [(1, 0, "a"), (2, 0, 7), (3, 0, 9)]


@pytest.mark.parametrize("after", [0, 14, 15, 70_000, PARTITION_SIZE - 20, PARTITION_SIZE + 3])
@pytest.mark.parametrize("limit", [1, 100, 5_000])
def test_two_fields_are_found_with_bits_and_where_there_are_none(
    index: SqliteFieldIndex, after: int, limit: int
) -> None:
    found = index.search("log", EVERY_THIRD, after=after, until=10**9, limit=limit)
    expected = [place for place in range(after + 1, PARTITION_SIZE + 1_001) if place % 15 == 0]
    assert found.positions == expected[:limit]
    assert found.through == (
        expected[limit - 1] if len(expected) >= limit else PARTITION_SIZE + 1_000
    )
    assert found.exact


def test_three_fields_of_which_one_is_rare_are_found(index: SqliteFieldIndex) -> None:
    rare = RangeLookup("type", points("b50"), True)
    two = (RangeLookup("data.x", points(7), False), RangeLookup("data.y", points(9), False))
    assert index.search("log", AllOf((rare, *two)), after=0, until=10**9, limit=9).positions == [50]
    assert index.search("log", AllOf((rare, *two)), after=50, until=10**9, limit=9).positions == []


def test_a_walk_goes_on_until_there_are_enough(tmp_path: Path) -> None:
    index = SqliteFieldIndex(tmp_path / "f")
    index.declare("log", ("type", "data.x"))
    rare: list[Key | None] = ["r" if place % 64 == 0 else None for place in range(PARTITION_SIZE)]
    dense: list[Key | None] = [
        1 if place >= PARTITION_SIZE // 2 else 2 for place in range(PARTITION_SIZE)
    ]
    columns = [Column("type", 0, rare), Column("data.x", 0, dense)]
    index.feed("log", columns, (), {"type": PARTITION_SIZE - 1, "data.x": PARTITION_SIZE - 1})
    assert PARTITION_SIZE // 64 < DENSE
    lookup = AllOf(
        (RangeLookup("type", points("r"), True), RangeLookup("data.x", points(1), False))
    )
    found = index.search("log", lookup, after=0, until=10**9, limit=3)
    assert found.positions == [PARTITION_SIZE // 2 + 64 * n for n in range(3)]
    index.close()


@pytest.mark.slow
def test_bits_go_with_their_partition_and_with_their_field(tmp_path: Path) -> None:
    path = tmp_path / "f"
    index = SqliteFieldIndex(path)
    index.declare("log", ("type", "data.x", "data.y"))
    feed_until(index, PARTITION_SIZE)
    index.declare("log", ("type", "data.x"))
    assert sorted(row[0] for row in dense_rows(path)) == [1, 2]
    index.prune("log", PARTITION_SIZE + 5)
    assert dense_rows(path) == []
    other = SqliteFieldIndex(tmp_path / "g")
    other.declare("log", ("type", "data.x", "data.y"))
    feed_until(other, PARTITION_SIZE)
    other.forget("log")
    assert dense_rows(tmp_path / "g") == []
    for made in (index, other):
        made.close()


def test_a_leap_over_many_partitions_costs_nothing() -> None:
    assert completed_partitions(0, 10**15, []) == [0]
    assert completed_partitions(0, 10**15, [(10**15 - 5, 10**15)]) == [0]
    assert completed_partitions(5, PARTITION_SIZE - 2, [(6, PARTITION_SIZE - 2)]) == []
    assert completed_partitions(
        PARTITION_SIZE - 2, PARTITION_SIZE - 1, [(PARTITION_SIZE - 1, PARTITION_SIZE - 1)]
    ) == [0]


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(
    st.sets(st.integers(0, PARTITION_SIZE - 1), min_size=1, max_size=50),
    st.sets(st.integers(0, PARTITION_SIZE - 1), max_size=50),
    st.integers(0, 3),
    st.data(),
)
def test_bits_say_what_the_entries_say(
    one: set[int], other: set[int], partition: int, data: st.DataObject
) -> None:
    base = partition * PARTITION_SIZE
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE entries (field, stretch, value, position)")
    connection.execute("CREATE TABLE dense (field, stretch, value, bits)")
    crowd = set(range(0, DENSE * 2, 2))
    rows: list[tuple[int, int, Key, int]] = []
    rows += [(1, partition, "v", base + place) for place in one | crowd]
    rows += [(2, partition, 5, base + place) for place in other | crowd]
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
    keep_dense(connection, 1, [partition])
    keep_dense(connection, 2, [partition])
    first = find_bits(connection, partition, [(1, "v")])
    second = find_bits(connection, partition, [(2, 5)])
    assert first is not None
    assert second is not None
    assert find_bits(connection, partition, [(1, "v"), (2, 6)]) is None
    after = base + data.draw(st.sampled_from(sorted(one))) - 1
    both = sorted(base + place for place in (one | crowd) & (other | crowd))
    assert positions_with_both_bits(first, second, partition, after) == [
        place for place in both if place > after
    ]
    some = [base + place for place in range(0, PARTITION_SIZE, 97)]
    assert positions_with_bit(first, some) == [
        place for place in some if place - base in one | crowd
    ]
    connection.close()
