"""What a v0 broker says to clients, byte by byte. [CX-2, CX-3, CX-9]"""

from __future__ import annotations

from typing import Any

import pytest

from rapport.context.protocol import TOO_BUSY
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput

T = 1516060800000
ADVERTISE = (
    b"2|1516060800000|25|A|p1|room|r3|status|1516060800000|1516060860000|free=yes;temperature=21.5"
)
UPDATE = b"2|1516060800000|9|U|p1|room|r3|status|1516060801000|1516060860000|free=no;a".replace(
    b"|9|", b"|7|"
).replace(b";a", b"")
REQUEST = b"3|1516060800000|room|r3|status"
RESPONSE = (
    b"4|1516060800000|25|p1|room|r3|status|1516060800000|1516060860000|free=yes;temperature=21.5"
)
RECEIVED = b"5|1516060800000|ACK|Status:101|Operation %s|Requested by 10.0.9.9"
PROCESSED = b"5|1516060800000|ACK|Status:102|Operation %s|Requested by 10.0.9.9"
NOT_FOUND = b"6|1516060800000|NACK|Status:202|Operation Context Request|Requested by 10.0.9.9"
BAD = b"6|1516060800000|NACK|Status:301|Operation %s|Requested by 10.0.9.9"
FAILED = b"6|1516060800000|NACK|Status:201|Operation %s|Requested by 10.0.9.9"
OF_UPDATE, OF_REQUEST = b"Context Update/Advertisement", b"Context Request"
STRANGER = ("192.0.2.66", 4444)


def test_a_provider_gets_both_acks_and_a_consumer_the_record(world: Any) -> None:
    world.broker(1)
    assert world.send(ADVERTISE, 1) == [RECEIVED % OF_UPDATE, PROCESSED % OF_UPDATE]
    assert world.send(REQUEST, 1) == [RECEIVED % OF_REQUEST, RESPONSE]


def test_an_update_without_an_advertisement_adds(world: Any) -> None:
    world.broker(1)
    update = ADVERTISE.replace(b"|A|", b"|U|")
    assert world.send(update, 1) == [RECEIVED % OF_UPDATE, PROCESSED % OF_UPDATE]
    assert world.send(REQUEST, 1) == [RECEIVED % OF_REQUEST, RESPONSE]
    assert [advertised for _record, advertised in world.kept] == [False]


def test_an_update_takes_the_place_of_what_was_there(world: Any) -> None:
    world.broker(1)
    world.send(ADVERTISE, 1)
    world.wait(1_000)
    world.send(UPDATE, 1)
    answer = world.send(REQUEST, 1)[1]
    assert answer.endswith(b"|1516060801000|1516060860000|free=no")


def test_the_literal_reading_sends_a_consumer_the_second_ack_too(world: Any) -> None:
    world.broker(1, second_ack_to_consumers=True)
    world.send(ADVERTISE, 1)
    assert world.send(REQUEST, 1) == [RECEIVED % OF_REQUEST, RESPONSE, PROCESSED % OF_REQUEST]


def test_what_nobody_has_is_refused_with_202(world: Any) -> None:
    world.broker(1)
    assert world.send(REQUEST, 1) == [RECEIVED % OF_REQUEST, NOT_FOUND]


def test_nothing_is_sent_before_or_past_its_validity(world: Any) -> None:
    world.broker(1)
    later = ADVERTISE.replace(b"status|1516060800000", b"status|1516060800500")
    world.send(later, 1)
    assert world.send(REQUEST, 1)[1] == NOT_FOUND
    world.wait(500)
    assert world.send(REQUEST, 1)[1].startswith(b"4|")
    world.wait(60_000)
    assert world.send(REQUEST, 1)[1].startswith(b"6|1516060860500|NACK|Status:202|")


def test_the_second_ack_waits_until_the_record_is_kept(world: Any) -> None:
    waiting: list[Any] = []
    broker = world.broker(1, keep=lambda _record, _advertises, done: waiting.append(done))
    assert world.send(ADVERTISE, 1) == [RECEIVED % OF_UPDATE]
    waiting[0](102, world.now)
    assert broker.outbox.pop() == (PROCESSED % OF_UPDATE, ("10.0.9.9", 51234))
    waiting[0](TOO_BUSY, world.now)
    assert broker.outbox.pop() == (FAILED % OF_UPDATE, ("10.0.9.9", 51234))


@pytest.mark.parametrize(
    ("datagram", "operation"),
    [
        (b"3|1516060800000|room|r3", OF_REQUEST),
        (b"2|1516060800000|3|X|p|t|i|s|1|2|a=1", OF_UPDATE),
        (b"8|1516060800000", b"BrokerJoining"),
        (b"7|now", b"BrokerLeaving"),
        (b"0|", b"StartNeighborsMonitoring"),
        (b"1|", b"Ping"),
        (b"hello", b"Unknown"),
        (b"", b"Unknown"),
    ],
)
def test_what_cannot_be_read_is_refused_with_301(
    world: Any, datagram: bytes, operation: bytes
) -> None:
    world.broker(1)
    assert world.send(datagram, 1) == [BAD % operation]


@pytest.mark.parametrize("datagram", [b"4|broken", b"5|broken", b"6|broken", b"9|broken"])
def test_a_broken_answer_is_never_answered(world: Any, datagram: bytes) -> None:
    world.broker(1)
    assert world.send(datagram, 1) == []


def test_a_ping_is_answered_with_the_brokers_host(world: Any) -> None:
    world.broker(1)
    assert world.send(b"1|1516060800000", 1) == [b"9|1516060800000|Ctx_Broker|10.0.0.1"]


def test_rights_are_those_of_the_identity_v0(world: Any) -> None:
    asked: list[tuple[str, str, EntityRef, str]] = []

    def allows(*what: Any) -> bool:
        asked.append(what)
        return False

    broker = world.broker(1, allows=allows)
    assert world.send(ADVERTISE, 1) == [BAD % OF_UPDATE]
    assert world.send(REQUEST, 1) == [BAD % OF_REQUEST]
    room = EntityRef("room", "r3")
    assert asked == [("v0", "write", room, "status"), ("v0", "read", room, "status")]
    assert [(one.what, one.status) for one in broker.effects] == [("put", 401), ("request", 401)]
    assert world.kept == []


def test_reading_is_audited(world: Any) -> None:
    broker = world.broker(1)
    world.send(ADVERTISE, 1)
    world.send(REQUEST, 1)
    [line] = broker.effects
    assert (line.what, line.identity, line.status) == ("request", "v0", 102)
    assert (line.entity, line.scope) == (EntityRef("room", "r3"), "status")


def test_a_host_that_the_site_does_not_name_gets_no_more_than_it_sent(world: Any) -> None:
    broker = world.broker(1)
    world.send(ADVERTISE, 1)
    assert world.send(REQUEST, 1, STRANGER) == []
    assert world.send(b"1|1516060800000", 1, STRANGER) == []
    assert broker.counters.withheld == 3
    long = b"3|1516060800000|room|r3|" + b"s" * 100
    [received] = world.send(long, 1, STRANGER)
    assert received.startswith(b"5|")
    assert len(received) <= len(long)


def test_a_host_that_the_site_does_not_name_changes_nothing_and_starts_no_search(
    world: Any, network: Any
) -> None:
    world.broker(1, [2], search=network)
    world.broker(2)
    world.send(ADVERTISE, 1, STRANGER)
    assert world.kept == []
    world.send(REQUEST, 1, STRANGER)
    world.send(b"8|1516060800000|10.0.0.2", 1, STRANGER)
    world.send(b"8|1516060800000|*", 1, STRANGER)
    world.send(b"7|1516060800000", 1, STRANGER)
    assert world.wire == []
    assert network.asked == []
    assert world.brokers["10.0.0.1", 7410].neighbours == (("10.0.0.2", 7410),)


def test_datagrams_beyond_the_rate_of_a_host_are_dropped(world: Any) -> None:
    broker = world.broker(1, datagrams_per_second=10)
    ping = b"1|1516060800000"
    answers = [len(world.send(ping, 1)) for _ in range(30)]
    assert sum(answers) == 20
    assert broker.counters.dropped == 10
    assert world.send(ping, 1, ("10.0.9.8", 1)) != []
    world.wait(500)
    assert sum(len(world.send(ping, 1)) for _ in range(10)) == 5


def test_strangers_share_one_rate_that_takes_nothing_from_named_hosts(world: Any) -> None:
    broker = world.broker(1, strangers_per_second=5)
    for number in range(30):
        world.send(REQUEST, 1, (f"192.0.2.{number}", 1))
    assert broker.counters.dropped == 20
    assert world.send(b"1|1516060800000", 1) != []


def test_a_record_too_large_for_a_datagram_is_refused_with_201(world: Any) -> None:
    world.broker(1)
    large = ContextRecord(
        "p1", EntityRef("room", "r3"), "status", T, T + 60_000, {"text": "x" * 70_000}
    )
    world.put(1, large)
    assert world.send(REQUEST, 1) == [RECEIVED % OF_REQUEST, FAILED % OF_REQUEST]


def test_typed_values_of_v1_are_sent_as_texts(world: Any) -> None:
    world.broker(1)
    values = {"free": True, "seats": 4, "note": "a|b"}
    world.put(1, ContextRecord("p1", EntityRef("room", "r3"), "status", T, T + 60_000, values))
    assert world.send(REQUEST, 1)[1].endswith(b"|free=true;seats=4;note=a%7Cb")


def test_a_datagram_that_claims_to_be_from_the_broker_itself_is_dropped(world: Any) -> None:
    broker = world.broker(1)
    broker.handle(b"1|1516060800000", ("10.0.0.1", 7410), world.now)
    assert broker.outbox == []


def test_hosts_that_are_neither_address_nor_network_are_refused(world: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        world.broker(1, clients=("10.0.0.0/99",))
    assert caught.value.code == "context.bad_hosts"
