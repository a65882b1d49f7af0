"""Several v0 brokers: the walk and the way back byte by byte, asterisks, joining, leaving.
[CX-2, CX-4, CX-5, CX-6]
"""

from __future__ import annotations

from typing import Any

import pytest

from rapport.context.broker.broker_settings import ReplicationSettings
from rapport.context.v0.v0_machine import V0Broker
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.overlay.membership_steps import MembershipSettings

T = 1516060800000
ROOM = ContextRecord("p1", EntityRef("room", "r3"), "status", T, T + 60_000, {"free": "yes"})
REQUEST = b"3|1516060800000|room|r3|status"
RECORD = b"8|p1|room|r3|status|1516060800000|1516060860000|free=yes"
RESPONSE = b"4|1516060800000|" + RECORD
CONSUMER = ("10.0.9.9", 51234)
TO_CONSUMER = b"|10.0.9.9|51234"
CONTROLLER = ("10.0.9.1", 40000)
ACK = b"5|1516060800000|ACK|Status:101|Operation Context Request|Requested by 10.0.9.9"
NACK = b"6|1516060800000|NACK|Status:202|Operation Context Request|Requested by 10.0.9.9"
ALL = ReplicationSettings(kind="path")
NONE = ReplicationSettings(kind="none")


def of_joining(status: int, requester: str = "10.0.9.1") -> bytes:
    word = "ACK" if status < 200 else "NACK"
    kind = 5 if status < 200 else 6
    return (
        f"{kind}|1516060800000|{word}|Status:{status}|Operation BrokerJoining"
        f"|Requested by {requester}"
    ).encode()


def line(world: Any, length: int, **settings: Any) -> None:
    """Brokers 1 - 2 - ... - length."""
    for number in range(1, length + 1):
        beside = [one for one in (number - 1, number + 1) if 1 <= one <= length]
        world.broker(number, beside, **settings)


def between(world: Any) -> list[tuple[str, bytes, str]]:
    return [(sender[0], datagram, to[0]) for sender, datagram, to in world.wire]


def at(world: Any, number: int) -> V0Broker:
    return world.brokers[f"10.0.0.{number}", 7410]


def test_a_walk_appends_the_address_that_each_datagram_came_from(world: Any) -> None:
    line(world, 3, replication=NONE)
    world.put(3, ROOM)
    assert world.send(REQUEST, 1) == [ACK, RESPONSE]
    assert between(world) == [
        ("10.0.0.1", REQUEST + TO_CONSUMER, "10.0.0.2"),
        ("10.0.0.2", REQUEST + TO_CONSUMER + b"|10.0.0.1|7410", "10.0.0.3"),
        ("10.0.0.3", RESPONSE + TO_CONSUMER + b"|10.0.0.1|7410", "10.0.0.2"),
        ("10.0.0.2", RESPONSE + TO_CONSUMER, "10.0.0.1"),
    ]


def test_the_mark_for_a_broker_stands_behind_the_pair_that_is_last_when_it_arrives(
    world: Any,
) -> None:
    line(world, 3, replication=ALL)
    world.put(3, ROOM)
    assert world.send(REQUEST, 1) == [ACK, RESPONSE]
    assert between(world)[2:] == [
        ("10.0.0.3", RESPONSE + TO_CONSUMER + b"|*|10.0.0.1|7410|*", "10.0.0.2"),
        ("10.0.0.2", RESPONSE + TO_CONSUMER + b"|*", "10.0.0.1"),
    ]
    assert world.has(1, ROOM)
    assert world.has(2, ROOM)


def test_only_the_marked_broker_keeps_a_copy(world: Any) -> None:
    line(world, 4, replication=ReplicationSettings(kind="passive"))
    world.put(4, ROOM)
    world.send(REQUEST, 1)
    assert [world.has(number, ROOM) for number in (1, 2, 3)] == [True, False, False]


def test_a_foreign_response_with_a_mark_is_kept_and_passed_on(world: Any) -> None:
    world.broker(1, [2], replication=NONE)
    world.broker(2, [1], replication=ALL)
    at(world, 2).handle(
        RESPONSE + TO_CONSUMER + b"|10.0.0.1|7410|*", ("10.0.0.77", 7410), world.now
    )
    assert at(world, 2).outbox == [(RESPONSE + TO_CONSUMER, ("10.0.0.1", 7410))]
    assert world.has(2, ROOM)


def test_nothing_is_replicated_that_v0_may_not_write(world: Any) -> None:
    world.broker(1, [2], allows=lambda _identity, right, *_what: right == "read")
    marked = RESPONSE + TO_CONSUMER + b"|10.0.0.2|7410|*"
    at(world, 1).handle(marked, ("10.0.0.3", 7410), world.now)
    assert len(world.records["10.0.0.1", 7410]) == 0
    assert at(world, 1).outbox == [(RESPONSE + TO_CONSUMER, ("10.0.0.2", 7410))]


def test_what_is_nearly_over_is_not_replicated_even_when_marked(world: Any) -> None:
    world.broker(1, [2])
    soon = b"4|1516060800000|8|p1|room|r3|status|1516060800000|1516060804999|free=yes"
    at(world, 1).handle(soon + TO_CONSUMER + b"|10.0.0.2|7410|*", ("10.0.0.3", 7410), world.now)
    assert len(world.records["10.0.0.1", 7410]) == 0
    assert at(world, 1).outbox == [(soon + TO_CONSUMER, ("10.0.0.2", 7410))]


def test_a_refusal_goes_back_along_the_path_of_the_request(world: Any) -> None:
    line(world, 3)
    assert world.send(REQUEST, 1) == [ACK, NACK]
    # 3 is a dead end, so the walk goes back over 2 to 1, who has nowhere left to go.
    assert between(world) == [
        ("10.0.0.1", REQUEST + TO_CONSUMER, "10.0.0.2"),
        ("10.0.0.2", REQUEST + TO_CONSUMER + b"|10.0.0.1|7410", "10.0.0.3"),
        ("10.0.0.3", REQUEST + TO_CONSUMER + b"|10.0.0.1|7410|10.0.0.2|7410", "10.0.0.2"),
        (
            "10.0.0.2",
            REQUEST + TO_CONSUMER + b"|10.0.0.1|7410|10.0.0.2|7410|10.0.0.3|7410",
            "10.0.0.1",
        ),
    ]


def test_a_walk_that_reaches_the_hop_limit_is_refused_over_the_path(world: Any) -> None:
    line(world, 5, hop_limit=2)
    world.put(5, ROOM)
    assert world.send(REQUEST, 1) == [ACK, NACK]
    assert between(world)[2:] == [
        ("10.0.0.3", NACK + TO_CONSUMER + b"|10.0.0.1|7410", "10.0.0.2"),
        ("10.0.0.2", NACK + TO_CONSUMER, "10.0.0.1"),
    ]


def test_the_answer_leaves_out_the_detours_of_the_walk(world: Any) -> None:
    # A cross: 1 - 2, and 2 beside 3, 4 and 5. Wherever the walk goes first, the answer of 5
    # passes 2 and 1 only.
    for number, beside in {1: [2], 2: [1, 3, 4, 5], 3: [2], 4: [2], 5: [2]}.items():
        world.broker(number, beside, replication=NONE)
    world.put(5, ROOM)
    assert world.send(REQUEST, 1) == [ACK, RESPONSE]
    back = [(sender, to) for sender, datagram, to in between(world) if datagram[:1] == b"4"]
    assert back == [("10.0.0.5", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")]


def test_brokers_get_no_acks_for_requests(world: Any) -> None:
    line(world, 3)
    world.put(3, ROOM)
    world.send(REQUEST, 1)
    assert not [datagram for _from, datagram, _to in between(world) if datagram[:1] == b"5"]


def test_a_consumer_that_hears_nothing_is_refused_when_the_time_is_up(world: Any) -> None:
    line(world, 2)
    world.put(2, ROOM)
    world.lose = lambda sender, _to: sender[0] == "10.0.0.2"
    assert world.send(REQUEST, 1) == [ACK]
    assert world.wait(1_990) == []
    assert world.wait(20) == [NACK.replace(b"0800000", b"0802000")]
    assert at(world, 1).searches == 0


def test_an_answer_after_the_refusal_is_dropped(world: Any) -> None:
    line(world, 2)
    world.put(2, ROOM)
    world.lose = lambda sender, _to: sender[0] == "10.0.0.2"
    world.send(REQUEST, 1)
    world.wait(2_100)
    at(world, 1).handle(RESPONSE + TO_CONSUMER, ("10.0.0.2", 7410), world.now)
    assert at(world, 1).outbox == []
    assert at(world, 1).counters.late == 1


def test_a_response_that_has_become_invalid_on_its_way_is_a_refusal(world: Any) -> None:
    line(world, 2)
    world.lose = lambda sender, _to: sender[0] == "10.0.0.2"
    world.send(REQUEST, 1)
    past = RESPONSE.replace(b"1516060860000", b"1516060800001").replace(
        b"1516060800000|15", b"1516060700000|15"
    )
    world.wait(10)
    at(world, 1).handle(past + TO_CONSUMER, ("10.0.0.2", 7410), world.now)
    [(datagram, to)] = at(world, 1).outbox
    assert datagram.startswith(b"6|1516060800010|NACK|Status:202|")
    assert to == CONSUMER


def test_the_way_back_leaves_out_a_broker_that_has_left(world: Any) -> None:
    world.broker(1, [2, 3], replication=NONE)
    world.broker(3, [1, 2], replication=NONE)
    world.broker(2, [1, 3])
    world.put(3, ROOM)
    at(world, 3).handle(b"7|1516060800000|*", ("10.0.0.2", 7410), world.now)
    way = TO_CONSUMER + b"|10.0.0.1|7410|10.0.0.2|7410"
    at(world, 3).handle(RESPONSE + way, ("10.0.0.4", 7410), world.now)
    assert at(world, 3).outbox == [(RESPONSE + TO_CONSUMER, ("10.0.0.1", 7410))]


def test_a_broker_that_was_silent_and_speaks_again_is_answered(world: Any) -> None:
    world.broker(2, [1], replication=NONE)
    world.put(2, ROOM)
    for _ in range(2):
        at(world, 2).handle(b"7|1516060800000|*", ("10.0.0.1", 7410), world.now)
    at(world, 2).handle(REQUEST + TO_CONSUMER, ("10.0.0.1", 7410), world.now)
    assert at(world, 2).outbox == [(RESPONSE + TO_CONSUMER, ("10.0.0.1", 7410))]


def test_a_consumer_is_answered_directly_when_every_broker_before_it_has_left(world: Any) -> None:
    world.broker(2, [1])
    at(world, 2).handle(b"7|1516060800000|*", ("10.0.0.1", 7410), world.now)
    at(world, 2).handle(RESPONSE + TO_CONSUMER + b"|10.0.0.1|7410", ("10.0.0.4", 7410), world.now)
    assert at(world, 2).outbox == [(RESPONSE, CONSUMER)]


def test_nobody_can_make_a_broker_send_to_an_address_of_his_choice(world: Any) -> None:
    victim = b"|192.0.2.1|53"
    world.broker(1, [2])
    world.put(1, ROOM)
    broker = at(world, 1)
    for datagram in (
        RESPONSE + victim,
        RESPONSE + victim + victim,
        RESPONSE + victim + b"|*",
        NACK + victim,
        NACK + victim + victim,
    ):
        for sender in (("10.0.0.2", 7410), ("192.0.2.9", 9)):
            broker.handle(datagram, sender, world.now)
    assert [to for _datagram, to in broker.outbox if to[0].startswith("192.")] == []


def test_a_request_with_a_path_is_taken_from_brokers_only(world: Any) -> None:
    world.broker(1, [2], brokers=("10.0.0.0/24",))
    world.put(1, ROOM)
    [answer] = world.send(REQUEST + b"|10.0.9.9|51234", 1)
    assert answer.startswith(b"6|1516060800000|NACK|Status:301|")


def test_what_no_v0_broker_has_is_searched_in_v1(world: Any, network: Any) -> None:
    line(world, 2)
    world.broker(1, [2], search=network)
    assert world.send(REQUEST, 1) == [ACK]
    [(question, within_ms, found)] = network.asked
    assert (question.entity, question.scope, within_ms) == (ROOM.entity, "status", 2_000)
    found(ROOM, world.now)
    world.run()
    assert world.told[-1] == (RESPONSE, CONSUMER)
    found(ROOM, world.now)
    world.run()
    assert world.told.count((RESPONSE, CONSUMER)) == 1


def test_what_v1_does_not_have_either_is_refused(world: Any, network: Any) -> None:
    world.broker(1, search=network)
    world.send(REQUEST, 1)
    network.asked[0][2](None, world.now)
    world.run()
    assert world.told[-1] == (NACK, CONSUMER)


def test_what_v1_finds_too_late_is_not_sent(world: Any, network: Any) -> None:
    world.broker(1, search=network)
    world.send(REQUEST, 1)
    assert len(world.wait(2_100)) == 1
    network.asked[0][2](ROOM, world.now)
    assert at(world, 1).outbox == []


def test_a_silent_walk_goes_on_in_v1(world: Any, network: Any) -> None:
    world.broker(1, [2], search=network)
    world.broker(2, [1])
    world.lose = lambda _sender, to: to[0] == "10.0.0.2"
    world.send(REQUEST, 1)
    assert network.asked == []
    world.wait(1_000)
    assert [within_ms for _question, within_ms, _found in network.asked] == [1_000]


def test_a_walk_of_others_that_ends_here_is_searched_in_v1_and_answered_over_its_path(
    world: Any, network: Any
) -> None:
    world.broker(1, [2], replication=NONE)
    world.broker(2, [1], search=network, hop_limit=1, replication=NONE)
    assert world.send(REQUEST, 1) == [ACK]
    network.asked[0][2](ROOM, world.now)
    world.run()
    assert world.told[-1] == (RESPONSE, CONSUMER)
    assert between(world)[-1] == ("10.0.0.2", RESPONSE + TO_CONSUMER, "10.0.0.1")


def test_a_refusal_of_a_foreign_broker_without_a_path_is_about_the_oldest_request_sent_there(
    world: Any, network: Any
) -> None:
    world.broker(1, [66], search=network)
    assert world.send(REQUEST, 1) == [ACK]
    world.send(NACK.replace(b"10.0.9.9", b"10.0.0.1"), 1, ("10.0.0.66", 7410))
    assert len(network.asked) == 1


def test_too_many_searches_at_once_are_refused_with_201(world: Any, network: Any) -> None:
    world.broker(1, search=network, searches_per_consumer=2)
    for _ in range(2):
        world.send(REQUEST, 1)
    assert world.send(REQUEST, 1) == [ACK, NACK.replace(b"202", b"201")]
    assert world.send(REQUEST, 1, ("10.0.9.8", 1)) != []


def test_joining_asks_each_named_broker_and_tells_the_controller_twice(world: Any) -> None:
    for number in (1, 2, 3):
        world.broker(number)
    answers = world.send(b"8|1516060800000|10.0.0.2|10.0.0.3", 1, CONTROLLER)
    assert answers == [of_joining(101), of_joining(102)]
    asked = [entry for entry in between(world) if entry[0] == "10.0.0.1"]
    assert asked == [
        ("10.0.0.1", b"8|1516060800000|*", "10.0.0.2"),
        ("10.0.0.1", b"8|1516060800000|*", "10.0.0.3"),
    ]
    by_2 = [datagram for sender, datagram, _to in between(world) if sender == "10.0.0.2"]
    assert by_2 == [of_joining(101, "10.0.0.1"), of_joining(102, "10.0.0.1")]
    assert at(world, 1).neighbours == (("10.0.0.2", 7410), ("10.0.0.3", 7410))
    assert at(world, 2).neighbours == (("10.0.0.1", 7410),)


def test_a_broker_that_does_not_answer_is_not_joined_and_asked_three_times(world: Any) -> None:
    world.broker(1)
    world.broker(2)
    assert world.send(b"8|1516060800000|10.0.0.2|10.0.0.9", 1, CONTROLLER) == [of_joining(101)]
    told = world.wait(1_600)
    assert [datagram[:1] for datagram in told] == [b"8", b"8", b"5"]
    assert told[-1] == of_joining(102).replace(b"0800000", b"0801500")
    assert at(world, 1).neighbours == (("10.0.0.2", 7410),)


def test_joining_nobody_is_refused_with_201(world: Any) -> None:
    world.broker(1)
    world.send(b"8|1516060800000|10.0.0.9", 1, CONTROLLER)
    assert world.wait(1_600)[-1] == of_joining(201).replace(b"0800000", b"0801500")
    assert at(world, 1).neighbours == ()


def test_a_name_without_a_port_means_the_port_of_this_broker(world: Any) -> None:
    world.broker(1)
    world.send(b"8|1516060800000|10.0.0.8|10.0.0.9:7500|[::1]:7600|::2", 1, CONTROLLER)
    asked = [to for datagram, to in world.told if datagram == b"8|1516060800000|*"]
    assert asked == [("10.0.0.8", 7410), ("10.0.0.9", 7500), ("::1", 7600), ("::2", 7410)]


@pytest.mark.parametrize("named", [b"10.0.0.9:0", b"10.0.0.9:x", b":7410", b"10.0.0.1"])
def test_joining_what_is_no_other_broker_is_refused_with_301(world: Any, named: bytes) -> None:
    world.broker(1)
    assert world.send(b"8|1516060800000|" + named, 1, CONTROLLER) == [of_joining(301)]


def test_a_broker_with_enough_neighbours_declines(world: Any) -> None:
    world.broker(1)
    world.broker(2, [5], at_most=1)
    answers = world.send(b"8|1516060800000|10.0.0.2", 1, CONTROLLER)
    assert answers == [of_joining(101), of_joining(201)]
    assert at(world, 1).neighbours == ()


def test_leaving_tells_the_neighbours_who_pass_it_on_to_nobody(world: Any) -> None:
    line(world, 3)
    answers = world.send(b"7|1516060800000", 2, CONTROLLER)
    assert answers == [
        b"5|1516060800000|ACK|Status:101|Operation BrokerLeaving|Requested by 10.0.9.1"
    ]
    assert between(world) == [
        ("10.0.0.2", b"7|1516060800000|*", "10.0.0.1"),
        ("10.0.0.2", b"7|1516060800000|*", "10.0.0.3"),
    ]
    assert [at(world, number).neighbours for number in (1, 2, 3)] == [(), (), ()]


def test_monitoring_finds_a_silent_neighbour_and_keeps_one_that_answers(world: Any) -> None:
    pings = MembershipSettings(period_ms=100, misses=3)
    world.broker(1, [2, 9], membership=pings)
    world.broker(2, [1])
    answers = world.send(b"0|1516060800000", 1, CONTROLLER)
    assert answers == [
        b"5|1516060800000|ACK|Status:101|Operation StartNeighborsMonitoring|Requested by 10.0.9.1"
    ]
    world.wait(1_000)
    assert at(world, 1).neighbours == (("10.0.0.2", 7410),)
    answered = [datagram for sender, datagram, _to in between(world) if sender == "10.0.0.2"]
    assert answered[0].endswith(b"|Ctx_Broker|10.0.0.2")


def test_without_the_command_nobody_is_pinged(world: Any) -> None:
    world.broker(1, [2])
    world.broker(2, [1])
    world.wait(3_000)
    assert world.wire == []
    assert at(world, 1).next_due_ms() is None


def test_commands_are_audited_and_taken_from_controllers_only(world: Any) -> None:
    broker = world.broker(1, controllers=("10.0.9.1",))
    world.send(b"0|1516060800000", 1, CONTROLLER)
    [refused] = world.send(b"0|1516060800000", 1, ("10.0.9.2", 1))
    assert refused.startswith(b"6|1516060800000|NACK|Status:301|")
    assert [(one.what, one.status) for one in broker.effects] == [
        ("monitor", 102),
        ("monitor", 401),
    ]
