"""Several partitions looked into at once: the same positions as one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.store.field_index import Column, SqliteFieldIndex
from rapport.store.field_keys import Range, RangeLookup
from rapport.store.field_search import MOST_AT_ONCE, PARTITION_SIZE, PartitionGroups, batch_size

PARTITIONS = 90
PLACES = st.dictionaries(
    st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 6)).map(
        lambda place: place[0] * PARTITION_SIZE + place[1]
    ),
    st.integers(10, 14),
    max_size=60,
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteFieldIndex]:
    made = SqliteFieldIndex(tmp_path_factory.mktemp("index") / "fields.sqlite")
    yield made
    made.close()


@given(
    keys=PLACES,
    ends=st.tuples(st.integers(10, 14), st.integers(10, 14)),
    after=st.integers(0, 3).map(lambda partition: partition * PARTITION_SIZE + 3),
    until=st.integers(5, PARTITIONS).map(lambda partition: partition * PARTITION_SIZE + 2),
    limit=st.integers(1, 20),
)
def test_a_search_over_partitions_finds_what_looking_at_every_position_finds(
    index: SqliteFieldIndex,
    keys: dict[int, int],
    ends: tuple[int, int],
    after: int,
    until: int,
    limit: int,
) -> None:
    index.declare("log", ("x",))
    index.forget("log")
    column = Column("x", 1, (), more=sorted(keys.items()))
    index.feed("log", (column,), (), {"x": (PARTITIONS + 1) * PARTITION_SIZE})
    low, high = min(ends), max(ends)
    found = index.search(
        "log", RangeLookup("x", (Range(low, high),), False), after=after, until=until, limit=limit
    )
    expected = [
        place for place in sorted(keys) if after < place <= until and low <= keys[place] <= high
    ]
    assert found.positions is not None
    assert found.through <= until
    assert found.positions == [place for place in expected if place <= found.through]
    assert len(found.positions) >= min(limit, len(expected))


def test_too_many_matches_in_a_group_are_asked_for_one_partition_at_a_time(tmp_path: Path) -> None:
    index = SqliteFieldIndex(tmp_path / "fields.sqlite")
    index.declare("log", ("x",))
    for partition in range(2, 8):
        index.feed(
            "log",
            (Column("x", partition * PARTITION_SIZE, [7] * 1_000),),
            (),
            {"x": 9 * PARTITION_SIZE},
        )
    for wanted in (Range(7, 7), Range(6, 8)):
        found = index.search(
            "log",
            RangeLookup("x", (wanted,), False),
            after=0,
            until=8 * PARTITION_SIZE,
            limit=1_500,
        )
        assert found.positions is not None
        assert found.positions[0] == 2 * PARTITION_SIZE
        assert found.positions[1_499] == 3 * PARTITION_SIZE + 499


def test_groups_leave_no_partition_out() -> None:
    groups = PartitionGroups(3, 200, 50)
    seen: list[int] = []
    for number, group in enumerate(groups):
        if number == 2:
            group = groups.one_by_one(group)
        assert 1 <= len(group) <= MOST_AT_ONCE
        seen += group
        groups.found += len(group) // 4
    assert seen == list(range(3, 201))


def test_the_next_group_is_as_large_as_matches_are_rare() -> None:
    assert batch_size(0, 0, 200) == 1
    assert batch_size(1, 13, 200) == 15
    assert batch_size(9, 0, 200) == MOST_AT_ONCE
