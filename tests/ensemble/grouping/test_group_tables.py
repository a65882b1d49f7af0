from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.ensemble.grouping.group_tables import (
    GroupingSettings,
    GroupPeers,
    GroupTable,
    TableEntry,
    encode_body,
    read_table,
    split,
)
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.kernel.clock import Now
from rapport.transport.base import Address
from support.examples import examples

GROUPER: Address = ("10.0.0.1", 1)
OTHER: Address = ("10.0.0.2", 1)


def at(periods: float) -> Now:
    return Now(0, 5_000 * periods)


def entries(*numbers: int, age_ms: int = 0) -> tuple[TableEntry, ...]:
    return tuple(TableEntry("10.1.0.0", number, age_ms) for number in numbers)


def ports(peers: GroupPeers, periods: float = 0, group: str = "red") -> list[int]:
    return sorted(port for _host, port in peers.members(group, at(periods)))


@given(st.integers(1, 300), st.integers(8, 40))
@settings(max_examples=examples(40), deadline=None)
def test_pages_hold_every_member_once_and_none_too_many(count: int, most: int) -> None:
    pages = split(entries(*range(count)), most)
    assert sorted(entry.port for page in pages for entry in page) == list(range(count))
    assert max(map(len, pages)) <= most
    assert len(pages) <= max(1, 8 * count // most)


def test_a_member_stays_on_its_page_when_others_come() -> None:
    before = split(entries(*range(60)), 16)
    after = split(entries(*range(62)), 16)
    assert len(before) == len(after)
    assert all(set(old) <= set(new) for old, new in zip(before, after, strict=True))


def test_the_last_table_of_each_group_counts() -> None:
    peers = GroupPeers(GroupingSettings())
    assert peers.apply(GroupTable("red", (GROUPER,), entries(1, 2), 0, 1), GROUPER, 5, at(0))
    assert peers.apply(GroupTable("blue", (GROUPER,), entries(7), 0, 1), GROUPER, 6, at(0))
    assert peers.apply(GroupTable("red", (GROUPER,), entries(2, 3), 0, 1), GROUPER, 7, at(0))
    assert not peers.apply(GroupTable("red", (GROUPER,), entries(9), 0, 1), GROUPER, 6, at(0))
    assert (ports(peers), ports(peers, group="blue")) == ([2, 3], [7])


def test_another_groupers_table_takes_the_place_of_the_first() -> None:
    peers = GroupPeers(GroupingSettings())
    peers.apply(GroupTable("red", (GROUPER, OTHER), entries(1), 0, 1), GROUPER, 9, at(0))
    peers.apply(GroupTable("red", (OTHER,), entries(2), 0, 1), OTHER, 1, at(0))
    assert ports(peers) == [2]
    assert peers.groupers("red", at(0)) == (OTHER,)


def test_a_lost_page_leaves_the_others_as_they_are() -> None:
    peers = GroupPeers(GroupingSettings())
    peers.apply(GroupTable("red", (GROUPER,), entries(1, 2), 0, 2), GROUPER, 1, at(0))
    peers.apply(GroupTable("red", (GROUPER,), entries(3, 4), 1, 2), GROUPER, 2, at(0))
    peers.apply(GroupTable("red", (GROUPER,), entries(1), 0, 2), GROUPER, 3, at(1))
    assert ports(peers, 1) == [1, 3, 4]
    peers.apply(GroupTable("red", (GROUPER,), entries(1, 3), 0, 1), GROUPER, 4, at(2))
    assert ports(peers, 2) == [1, 3]


def test_members_are_forgotten_by_the_age_that_the_table_says() -> None:
    peers = GroupPeers(GroupingSettings())
    members = entries(1, age_ms=5_000) + entries(2)
    peers.apply(GroupTable("red", (GROUPER,), members, 0, 1), GROUPER, 1, at(0))
    assert [ports(peers, periods) for periods in (1.7, 1.9, 2.9)] == [[1, 2], [2], []]
    assert peers.groupers("red", at(3.1)) == ()


def test_a_grouper_that_begins_anew_with_its_clock_set_back_is_believed_within_three_periods() -> (
    None
):
    peers = GroupPeers(GroupingSettings())
    hour_ms = 3_600_000
    table = GroupTable("red", (GROUPER,), entries(1), 0, 1)
    assert peers.apply(table, GROUPER, 2 * hour_ms, at(0))
    assert not peers.apply(table, GROUPER, hour_ms + 5_000, at(1))
    assert peers.apply(table, GROUPER, hour_ms + 15_000, at(3))
    assert not peers.apply(table, GROUPER, hour_ms + 10_000, at(3.5))
    assert ports(peers, 3.5) == [1]


def test_a_group_that_is_left_is_told_twice_and_has_no_peers() -> None:
    peers = GroupPeers(GroupingSettings())
    peers.apply(GroupTable("red", (GROUPER,), entries(1), 0, 1), GROUPER, 1, at(0))
    assert peers.leave("red", at(0)) == (GROUPER,)
    assert ports(peers) == []
    assert peers.leave("red", at(1)) == (GROUPER,)
    assert peers.groups() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93",
        b"\xc1" * 20,
        None,
        {"group": "red"},
        encode_body(GroupTable("red", (), (), 3, 2)),
        encode_body(GroupTable("red", (), (), -1, 2)),
        encode_body(GroupTable("red", (), (), 0, 1_000_000)),
        encode_body(GroupTable("red", (("", 1),))),
        encode_body(GroupTable("red", (), (TableEntry("10.0.0.1", 70_000),), 0, 1)),
    ],
    ids=[
        "empty",
        "cut",
        "noise",
        "nothing",
        "object",
        "page",
        "negative",
        "many",
        "no host",
        "no port",
    ],
)
def test_what_is_no_table_is_none(body: object) -> None:
    assert read_table(PublishedKnowledge("grouper/x", 1, 1, "x", ("GroupTable",), body)) is None
