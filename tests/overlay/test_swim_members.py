"""The parts of membership: messages, news, turns, settings. [EN-10]"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport.overlay.swim import ProbeOrder
from rapport.overlay.swim_members import UpdateQueue
from rapport.overlay.swim_protocol import (
    MAX_NAME,
    TABLE_BYTES,
    Ack,
    Claim,
    Digest,
    Gossip,
    Nack,
    Ping,
    PingFor,
    State,
    SwimMessage,
    SwimSettings,
    Table,
    decode,
    encode,
    tables_of,
)

CLAIM = Claim(State.SUSPECT, ("127.0.0.1", 7), 3, "n", ("::1", 9))
MESSAGES: list[SwimMessage] = [
    Ping(1, (CLAIM,)),
    Ack(2),
    PingFor(3, ("127.0.0.1", 7), (CLAIM,)),
    Nack(4),
    Gossip((CLAIM, CLAIM)),
    Digest(2**47),
    Table((CLAIM,), wants_back=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_what_is_written_is_read_again(message: SwimMessage) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    try:
        decode(data)
    except InvalidInput as error:
        assert error.code == "overlay.bad_message"


@given(st.sampled_from(MESSAGES), st.integers(0, 60), st.integers(0, 255))
def test_changed_bytes_are_refused_or_another_message(
    message: SwimMessage, place: int, byte: int
) -> None:
    data = bytearray(encode(message))
    data[place % len(data)] = byte
    try:
        decode(bytes(data))
    except InvalidInput as error:
        assert error.code == "overlay.bad_message"


@pytest.mark.parametrize(
    "message",
    [
        Ping(-1),
        PingFor(1, ("", 7)),
        Gossip((Claim(State.ALIVE, ("a", 70_000), 0),)),
        Gossip((Claim(State.ALIVE, ("a", 7), -1),)),
        Gossip((Claim(State.ALIVE, ("a", 7), 0, "x" * 256),)),
        Gossip((Claim(State.SUSPECT, ("a", 7), 0, "x", ("h" * 65, 7)),)),
        Table((CLAIM,) * 1_025),
    ],
    ids=["number", "host", "port", "incarnation", "name", "accuser", "claims"],
)
def test_what_nobody_says_is_refused(message: SwimMessage) -> None:
    with pytest.raises(InvalidInput) as raised:
        decode(encode(message))
    assert raised.value.code == "overlay.bad_message"


def test_a_large_table_goes_in_several_datagrams_and_only_the_last_asks_back() -> None:
    claims = [Claim(State.ALIVE, ("10.0.0.1", n + 1), n, f"node-{n}") for n in range(200)]
    tables = tables_of(claims, wants_back=True)
    assert [claim for table in tables for claim in table.claims] == claims
    assert [table.wants_back for table in tables] == [False] * (len(tables) - 1) + [True]
    assert all(len(encode(table)) <= 1_200 for table in tables)


def news_of(count: int) -> UpdateQueue:
    queue = UpdateQueue(SwimSettings(news_bytes=256))
    for number in range(count):
        queue.add(Claim(State.ALIVE, ("10.0.0.1", number + 1), 0, f"node-{number}"))
    return queue


@given(st.integers(0, 60), st.integers(1, 1_000))
def test_no_message_carries_more_news_than_it_may(count: int, nodes: int) -> None:
    queue = news_of(count)
    while taken := queue.take(nodes):
        assert len(encode(Gossip(taken))) <= 256 + 3


def test_each_news_is_reported_equally_often_and_then_no_more() -> None:
    queue, told = news_of(30), dict.fromkeys(range(30), 0)
    while taken := queue.take(100):
        for claim in taken:
            told[claim.address[1] - 1] += 1
    assert set(told.values()) == {SwimSettings().transmissions(100)}


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_a_node_of_the_longest_name_is_announced_like_any_other(letter: str) -> None:
    """Else its news would never be done with, and be gossiped about without a word for ever."""
    queue = UpdateQueue(SwimSettings(news_bytes=128))
    long = Claim(State.SUSPECT, ("127.0.0.1", 1), 0, letter * MAX_NAME, ("127.0.0.1", 2))
    others = [Claim(State.ALIVE, ("127.0.0.1", port), 0, "n") for port in (3, 4)]
    for claim in (long, *others):
        queue.add(claim)
    told = [queue.take(10) for _ in range(60)]
    assert sum(long in news for news in told) == sum(others[0] in news for news in told) > 1
    assert len(queue) == 0
    assert all(news == (long,) for news in told if long in news), "it goes alone"
    assert len(encode(Gossip((long,)))) < TABLE_BYTES + 64


def test_only_the_latest_of_a_member_is_sent() -> None:
    queue = news_of(1)
    dead = Claim(State.DEAD, ("10.0.0.1", 1), 0, "node-0")
    queue.add(dead)
    assert queue.take(10) == (dead,)


@given(st.integers(1, 20), st.integers(0, 2**16))
def test_everybody_has_one_turn_in_each_round(count: int, seed: int) -> None:
    present = tuple(("n", number) for number in range(count))
    turns = ProbeOrder(Chance(seed))
    for _ in range(3):
        met = [turns.next(present, lambda one: True) for _ in present]
        assert sorted(met) == sorted(present)


def test_who_is_confirmed_by_several_has_less_time() -> None:
    settings = SwimSettings()
    times = [settings.suspicion_ms(50, confirmed) for confirmed in range(5)]
    assert times == sorted(times, reverse=True)
    assert times[0] == settings.least_suspicion_ms(50) * settings.patience
    assert times[3] == times[4] == settings.least_suspicion_ms(50)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ack_ms": 400},
        {"period_ms": 0},
        {"fan_out": 0},
        {"repeats": -1},
        {"suspicion": 0},
        {"patience": 0.5},
        {"news_bytes": 10},
    ],
    ids=lambda one: next(iter(one)),
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as raised:
        SwimSettings(**wrong)
    assert raised.value.code == "overlay.bad_settings"
