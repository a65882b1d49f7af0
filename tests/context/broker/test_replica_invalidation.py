"""Copies are called back when who gave them knows something newer; they hide no move. [CX-6]"""

from __future__ import annotations

import itertools

import msgspec
import pytest

from rapport.context.broker.broker_settings import (
    BrokerLimits,
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
)
from rapport.context.protocol import (
    HopAck,
    Invalidation,
    Notice,
    NoticeAck,
    Put,
    Watch,
    decode,
    encode,
)
from rapport.core.context_record import ContextRecord
from rapport.transport.base import Sender
from rapport_lab.topology import from_edges, ring

READER = ("reader", 1)
PROVIDES = Sender(("provider", 2), "", "client")
LOOK_AHEADS = pytest.mark.parametrize("look_ahead", ["off", "probe"])


def settings(look_ahead: str = "off", **replication: object) -> BrokerSettings:
    search = SearchSettings(look_ahead=look_ahead)
    return BrokerSettings(search=search, replication=ReplicationSettings(**replication))


def line(names: list):
    return from_edges(list(itertools.pairwise(names)))


def versions(net, names: list, asked: str = "r1") -> list[int]:
    """What each of these brokers says."""
    return [net.ask(name, asked).reply.record.values["v"] for name in names]


def farewell(net, broker, record: ContextRecord) -> None:
    """What a provider that moves tells its broker of before."""
    now = net.now.wall_ms
    start = record.valid_from + 1
    ended = msgspec.structs.replace(record, valid_from=start, valid_until=max(now, start) + 50)
    net.deliver(Put(99, ended), PROVIDES, broker)


class Follower:
    """Watches a question at a broker, and acknowledges what it is told."""

    def __init__(self, net, broker, name: str = "r1") -> None:
        self.net, self.told = net, list[int]()
        self._read = 0
        watches = Sender(READER, "x", "client")
        net.deliver(Watch(7, net.question(name), 3_600_000), watches, broker)

    def run(self, duration_ms: float) -> None:
        until = self.net.scheduler.time_ms + duration_ms
        while self.net.scheduler.time_ms < until:
            self.net.run(20)
            box = self.net.inbox.get(READER, [])
            for message, source in box[self._read :]:
                if isinstance(message, Notice):
                    self.told.append(message.record.values["v"])
                    self.net.send(NoticeAck(message.id, message.number), READER, source, "client")
            self._read = len(box)


@LOOK_AHEADS
def test_an_update_is_seen_where_copies_of_the_old_record_were(
    network, brokers, look_ahead: str
) -> None:
    names = brokers(6)
    net = network(line(names), settings(look_ahead))
    net.put(names[5], "r1", v=1)
    assert versions(net, names) == [1] * 6
    assert net.holders("r1") == set(names)
    net.run(10)
    net.put(names[5], "r1", v=2)
    net.run(50)
    assert versions(net, names) == [2] * 6


@LOOK_AHEADS
def test_copies_of_copies_are_called_back_as_well(network, brokers, look_ahead: str) -> None:
    names = brokers(7)
    net = network(line(names), settings(look_ahead))
    net.put(names[6], "r1", v=1)
    for at in (4, 2, 0):  # each finds the copies that the one before left
        net.ask(names[at], "r1")
    assert net.holders("r1") == set(names)
    net.run(10)
    net.put(names[6], "r1", v=2)
    net.run(50)
    assert net.holders("r1") == {names[6]}


@LOOK_AHEADS
def test_a_provider_that_goes_to_another_broker_is_found_there(
    network, brokers, look_ahead: str
) -> None:
    names = brokers(6)
    net = network(ring(names), settings(look_ahead))
    old = net.put(names[2], "r1", v=1)
    versions(net, names)
    net.run(10)
    net.put(names[5], "r1", v=2)
    farewell(net, names[2], old)
    net.run(100)
    assert versions(net, names) == [2] * 6


@pytest.mark.slow
def test_calls_that_are_lost_are_sent_again(network, brokers) -> None:
    names = brokers(6)
    hidden = 0
    for seed in range(20):
        net = network(line(names), settings(), seed=seed)
        net.put(names[5], "r1", v=1)
        versions(net, names)
        net.run(10)
        net.loss = 0.3
        net.put(names[5], "r1", v=2)
        net.run(10_000)
        hidden += len(net.holders("r1")) - 1
    assert hidden <= 2, "of a hundred copies; a single try would leave thirty"


def test_where_a_site_wants_it_copies_stay_until_they_end(network, brokers) -> None:
    names = brokers(4)
    net = network(line(names), settings(recall=False))
    net.put(names[3], "r1", v=1)
    versions(net, names)
    net.run(10)
    net.put(names[3], "r1", v=2)
    net.run(100)
    assert versions(net, names) == [1, 1, 1, 2]
    assert "Invalidation" not in net.sent


def test_what_was_announced_calls_nothing_back_before_it_begins(network, brokers) -> None:
    names = brokers(3)
    net = network(line(names), settings())
    net.put(names[2], "r1", v=1)
    versions(net, names)
    later = msgspec.structs.replace(net.record("r1", v=2), valid_from=net.now.wall_ms + 2_000)
    net.deliver(Put(99, later), PROVIDES, names[2])
    net.run(100)
    assert net.holders("r1") == set(names)
    assert versions(net, names) == [1, 1, 1]
    net.run(3_000)
    assert versions(net, names) == [2, 2, 2]


def test_a_farewell_that_begins_in_a_moment_calls_back_before_it_is_over(network, brokers) -> None:
    names = brokers(4)
    net = network(line(names), settings())
    record = net.put(names[3], "r1", v=1)
    versions(net, names)
    start = net.now.wall_ms + 20  # by the provider's clock, which is a little ahead
    ended = msgspec.structs.replace(record, valid_from=start, valid_until=start + 50)
    net.deliver(Put(99, ended), PROVIDES, names[3])
    net.run(200)
    assert net.holders("r1") == set()


def test_an_older_record_on_its_way_leaves_no_copy_behind_the_call(network, brokers) -> None:
    names = brokers(5)
    net = network(line(names), settings(), delay_ms=20.0)
    net.put(names[4], "r1", v=1)
    net.request(names[0], "r1")
    net.run(90)  # the question has arrived, and the answer has just left
    net.put(names[4], "r1", v=2)
    net.run(500)
    assert [net.machines[name].table.replicas for name in names[:4]] == [0, 0, 0, 0]
    assert versions(net, names) == [2] * 5


def test_another_provider_that_tells_something_newer_here_calls_the_others_copies_back(
    network, brokers
) -> None:
    names = brokers(4)
    net = network(line(names), settings())
    net.put(names[3], "r1", provider="a", v=1)
    versions(net, names)
    net.run(10)
    net.put(names[3], "r1", provider="b", v=2)
    net.run(50)
    assert versions(net, names) == [2] * 4


def test_who_calls_an_older_copy_back_is_still_known_to_have_the_newer_one(
    network, brokers
) -> None:
    """A broker that had the record before its provider came here calls its old copies back when it
    gets one of ours: that one is still to be called back when there is something newer.
    """
    names = brokers(3)
    net = network(line(names), settings())
    first = net.put(names[2], "r1", v=1)
    assert versions(net, names[:2]) == [1, 1]
    net.run(10)
    call = Invalidation(5, first.key(), first.valid_from, 0, called=True)
    for name in names[:2]:
        net.deliver(call, Sender(name), names[2])
    net.put(names[2], "r1", v=2)
    net.run(50)
    assert versions(net, names) == [2, 2, 2]


def test_each_copy_is_called_back_once_and_acknowledged(network, brokers) -> None:
    names = brokers(6)
    net = network(line(names), settings())
    net.put(names[5], "r1", v=1)
    versions(net, names)
    for version in range(2, 12):  # nobody asks meanwhile: there is nothing more to call back
        net.run(10)
        net.put(names[5], "r1", v=version)
    net.run(5_000)
    assert net.sent["Invalidation"] == 5


def test_a_broker_of_before_acts_on_a_call_and_its_silence_ends_it(network, brokers) -> None:
    names = brokers(3)
    net = network(line(names), settings())
    net.put(names[2], "r1", v=1)
    versions(net, names)
    send = net.send

    def without_acknowledgement(message, source, to, kind="network") -> None:
        if not (isinstance(message, HopAck) and message.kind == "out"):
            send(message, source, to, kind)

    net.send = without_acknowledgement
    net.run(10)
    net.put(names[2], "r1", v=2)
    net.run(30_000)
    assert net.holders("r1") == {names[2]}
    assert net.sent["Invalidation"] <= 2 * 5
    assert net.machines[names[2]]._invalidation._open == set()


class OutdatedOfBefore(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag="out"):
    """As brokers knew it before copies were called back."""

    id: int
    key: tuple[str, str, str, str]
    before: int
    ttl: int


def test_brokers_of_before_understand_a_call_and_are_understood() -> None:
    call = Invalidation(7, ("p", "room", "r1", "s"), 5, 0, called=True)
    read = msgspec.msgpack.decode(encode(call)[1:], type=OutdatedOfBefore)
    assert (read.id, read.key, read.before, read.ttl) == (7, call.key, 5, 0)
    flooded = b"\x01" + msgspec.msgpack.encode(OutdatedOfBefore(7, call.key, 5, 2))
    assert decode(flooded) == Invalidation(7, call.key, 5, 2)


def test_what_is_known_of_copies_is_bounded_and_ends_with_them(network, brokers) -> None:
    names = brokers(3)
    limits = BrokerLimits(copies_known=10)
    base = settings()
    chosen = BrokerSettings(search=base.search, limits=limits)
    net = network(line(names), chosen)
    for number in range(30):
        net.put(names[2], f"r{number}", valid_ms=60_000)
        assert net.ask(names[0], f"r{number}", within_ms=100).found
    recalling = net.machines[names[2]]._invalidation
    assert len(recalling) == 10
    assert len(recalling) == sum(len(one.to) for one in recalling._given.values())
    net.run(60_000)
    net.put(names[2], "last")
    net.ask(names[0], "last")
    assert len(recalling) == 2


@LOOK_AHEADS
def test_a_subscriber_follows_a_provider_though_copies_lead_to_its_broker_of_before(
    network, brokers, look_ahead: str
) -> None:
    names = brokers(6)
    net = network(line(names), settings(look_ahead, recall=False))  # as if all calls were lost
    old = net.put(names[3], "r1", v=1)
    versions(net, names)
    follower = Follower(net, names[0])
    follower.run(500)
    net.put(names[5], "r1", v=2)
    farewell(net, names[3], old)
    follower.run(3_000)
    net.put(names[5], "r1", v=3)
    follower.run(500)
    assert follower.told == [1, 1, 2, 3], "the farewell is told, and no older copy after it"


@LOOK_AHEADS
def test_a_subscriber_follows_a_provider_though_copies_lead_to_a_dead_broker(
    network, brokers, look_ahead: str
) -> None:
    names = brokers(6)
    net = network(ring(names), settings(look_ahead))
    net.put(names[2], "r1", v=1)
    versions(net, names)
    follower = Follower(net, names[0])
    follower.run(500)
    net.kill(names[2])
    follower.run(200)
    net.put(names[4], "r1", v=2)
    follower.run(15_000)
    net.put(names[4], "r1", v=3)
    follower.run(500)
    assert follower.told == [1, 2, 3]


def test_a_subscriber_follows_a_provider_that_left_its_own_broker_and_left_copies(
    network, brokers
) -> None:
    names = brokers(5)
    net = network(line(names), settings(recall=False))
    old = net.put(names[0], "r1", v=1)
    versions(net, names)
    follower = Follower(net, names[0])
    follower.run(500)
    net.put(names[4], "r1", v=2)
    farewell(net, names[0], old)
    follower.run(3_000)
    net.put(names[4], "r1", v=3)
    follower.run(500)
    assert follower.told[-1] == 3
