"""No datagram crashes a v0 broker, and none makes it say more than it got from an address that may
be forged. [CX-2, CX-9]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.context.v0.v0_protocol import MAX_DATAGRAM
from rapport.core.context_record import ContextRecord, EntityRef
from support.examples import examples

T = 1516060800000
ROOM = ContextRecord("p1", EntityRef("room", "r3"), "status", T, T + 60_000, {"free": "yes"})
STRANGER = ("192.0.2.66", 4444)
SEEDS = [
    b"0|1516060800000",
    b"1|1516060800000",
    b"2|1516060800000|8|A|p1|room|r4|status|1516060800000|1516060860000|free=yes",
    b"3|1516060800000|room|r3|status",
    b"3|1516060800000|room|r9|status",
    b"3|1516060800000|room|r3|status|10.0.9.9|51234|10.0.0.2|7410",
    b"4|1516060800000|8|p1|room|r3|status|1516060800000|1516060860000|free=yes|10.0.9.9|51234|*",
    b"5|1516060800000|ACK|Status:101|Operation BrokerJoining|Requested by 10.0.0.1",
    b"6|1516060800000|NACK|Status:202|Operation Context Request|Requested by 10.0.9.9|10.0.9.9|1",
    b"7|1516060800000",
    b"7|1516060800000|*",
    b"8|1516060800000|10.0.0.2|10.0.0.3|10.0.0.4|10.0.0.5",
    b"8|1516060800000|*",
    b"9|1516060800000|Ctx_Broker|10.0.0.1",
]
FIELDS = [b"", b"*", b"1", b"0", b"room", b"r3", b"status", b"10.0.0.2", b"7410", b"ACK", b"\xff"]
pieces = st.lists(st.sampled_from(FIELDS), max_size=14).map(b"|".join)


@st.composite
def datagrams(draw: st.DrawFn) -> bytes:
    base = draw(st.sampled_from(SEEDS) | st.binary(max_size=60) | pieces)
    changed = bytearray(base)
    for _ in range(draw(st.integers(0, 3))):
        if changed:
            at = draw(st.integers(0, len(changed) - 1))
            changed[at : at + draw(st.integers(0, 4))] = draw(
                st.sampled_from(FIELDS) | st.binary(max_size=6)
            )
    return bytes(changed)


many = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def busy_broker(world: Any, network: Any) -> Any:
    world.brokers.clear()
    broker = world.broker(1, [2], search=network, strangers_per_second=1e9)
    world.put(1, ROOM)
    return broker


@many
@given(st.lists(datagrams(), min_size=1, max_size=5))
def test_a_stranger_never_gets_more_bytes_than_it_sent(
    world: Any, network: Any, sent: list[bytes]
) -> None:
    broker = busy_broker(world, network)
    for datagram in sent:
        broker.handle(datagram, STRANGER, world.now)
        told = broker.outbox[:]
        broker.outbox.clear()
        assert all(to == STRANGER for _answer, to in told), "nobody else hears of it"
        assert sum(len(answer) for answer, _to in told) <= len(datagram)
    world.wait(3_000)
    assert broker.outbox == []
    assert network.asked == []
    assert world.kept == []
    assert broker.neighbours == (("10.0.0.2", 7410),)


@many
@given(st.lists(st.tuples(datagrams(), st.sampled_from([2, 3, 99])), min_size=1, max_size=8))
def test_nothing_that_named_hosts_send_crashes_a_broker(
    world: Any, network: Any, sent: list[tuple[bytes, int]]
) -> None:
    broker = busy_broker(world, network)
    for datagram, host in sent:
        broker.handle(datagram, (f"10.0.0.{host}", 7410), world.now)
    world.wait(3_000)
    assert broker.searches <= len(network.asked)
    for _question, _within_ms, found in network.asked:
        found(None, world.now)
    network.asked.clear()
    assert broker.searches == 0


def longest_request(pairs: int) -> bytes:
    """A request whose path leaves no room in its datagram."""
    start = "3|1516060800000|room|r9|status"
    left = MAX_DATAGRAM - len(start)
    for number in range(pairs):
        host = f"{number:03}".ljust(left // (pairs - number) - len("||1"), "x")
        start += f"|{host}|1"
        left -= len(f"|{host}|1")
    return start.encode()


@pytest.mark.parametrize("hop_limit", [64, 512])
def test_a_path_that_leaves_no_room_for_an_answer_crashes_nobody(
    world: Any, network: Any, hop_limit: int
) -> None:
    """With one pair more, or the words of a refusal, it fits no datagram."""
    broker = world.broker(1, [2, 3], hop_limit=hop_limit)
    datagram = longest_request(500)
    assert len(datagram) == MAX_DATAGRAM
    broker.handle(datagram, ("10.0.0.2", 7410), world.now)
    assert broker.counters.bad == 0, "it can be read"
    assert broker.outbox == []
    assert broker.counters.unsaid == 1


@pytest.mark.slow
@settings(
    max_examples=examples(5_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(datagrams())
def test_many_datagrams_of_strangers(world: Any, network: Any, datagram: bytes) -> None:
    broker = busy_broker(world, network)
    broker.handle(datagram, STRANGER, world.now)
    assert sum(len(answer) for answer, _to in broker.outbox) <= len(datagram)
