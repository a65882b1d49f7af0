"""Subscriptions: told on change or periodically, from wherever the record is held."""

from __future__ import annotations

import itertools

import pytest

from rapport.context.broker.broker_settings import BrokerLimits, BrokerSettings
from rapport.context.broker.broker_state import AuditEffect
from rapport.context.protocol import (
    NOT_ALLOWED,
    RECEIVED,
    TOO_BUSY,
    Notice,
    NoticeAck,
    Put,
    Request,
    Status,
    Unwatch,
    Watch,
)
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.kernel.clock import Now
from rapport.transport.base import Sender
from rapport_lab.topology import from_edges, ring

CONSUMER = ("watcher", 1)
WATCHES = Sender(CONSUMER, "x", "client")


class Reader:
    """A consumer that acknowledges what it is told, unless it is asleep."""

    def __init__(self, net) -> None:
        self.net = net
        self.read = 0
        self.records: list[ContextRecord] = []
        self.asleep = False

    def run(self, duration_ms: float, step_ms: float = 5) -> None:
        until = self.net.scheduler.time_ms + duration_ms
        while self.net.scheduler.time_ms < until:
            self.net.run(min(step_ms, until - self.net.scheduler.time_ms))
            self._take()

    def _take(self) -> None:
        box = self.net.inbox.get(CONSUMER, [])
        for message, source in box[self.read :]:
            if isinstance(message, Notice) and not self.asleep:
                self.records.append(message.record)
                self.net.send(NoticeAck(message.id, message.number), CONSUMER, source, "client")
        self.read = len(box)

    def versions(self) -> list[int]:
        """What was told, each once, in order; repetitions are the network's right."""
        told = [record.values["v"] for record in self.records]
        return [v for place, v in enumerate(told) if place == 0 or told[place - 1] != v]


def line(names: list):
    return from_edges(list(itertools.pairwise(names)))


@pytest.mark.parametrize("distance", [0, 1, 3])
def test_a_watcher_is_notified_of_the_present_and_of_each_change(
    network, brokers, distance: int
) -> None:
    names = brokers(5)
    net = network(line(names))
    holder = names[distance]
    net.put(holder, "r1", v=0)
    net.run(2_000)
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 60_000), WATCHES, names[0])
    reader.run(500)
    for version in (1, 2, 3):
        net.put(holder, "r1", v=version)
        reader.run(200)
    assert reader.versions() == [0, 1, 2, 3]
    assert [record.values["v"] for record in reader.records] == [0, 1, 2, 3], "each told once"


def test_changes_reach_watchers_under_loss_and_none_is_sent_out_of_order(network, brokers) -> None:
    names = brokers(5)
    net = network(line(names), loss=0.3, jitter_ms=20, duplication=0.2, seed=11)
    net.put(names[3], "r1", v=0)
    net.run(3_000)
    reader = Reader(net)
    for _ in range(5):  # a client repeats its watch until it is confirmed
        net.send(Watch(7, net.question("r1"), 60_000), CONSUMER, names[0], "client")
        reader.run(500)
    for version in range(1, 6):
        net.put(names[3], "r1", v=version)
        reader.run(4_000)
    assert reader.versions() == sorted(set(reader.versions()))
    assert reader.versions()[-1] == 5
    assert len(reader.versions()) >= 5


def test_a_sleeping_watcher_is_notified_again_and_only_the_newest(network, brokers) -> None:
    names = brokers(3)
    net = network(ring(names))
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 60_000), WATCHES, names[0])
    reader.asleep = True
    for version in (1, 2, 3):
        net.put(names[0], "r1", v=version)
        reader.run(50)
    reader.asleep = False
    reader.run(1_000)
    assert reader.versions() == [3]


def test_notices_to_one_who_never_answers_end(network, brokers) -> None:
    names = brokers(3)
    net = network(ring(names))
    net.deliver(Watch(7, net.question("r1"), 600_000), WATCHES, names[0])
    net.put(names[0], "r1", v=1)
    net.run(60_000)
    notices = [m for m, _ in net.inbox[CONSUMER] if isinstance(m, Notice)]
    assert 2 <= len(notices) <= 6


def test_a_record_is_sent_when_its_time_comes_not_when_it_is_put(network, brokers) -> None:
    names = brokers(3)
    net = network(ring(names))
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 60_000), WATCHES, names[0])
    wall = net.now.wall_ms
    later = ContextRecord("p", EntityRef("room", "r1"), "status", wall + 400, wall + 900, {"v": 1})
    net.deliver(Put(1, later), Sender(("p", 1), "", "client"), names[0])
    reader.run(390)
    assert reader.records == []
    reader.run(30)
    assert reader.versions() == [1]


def test_a_watch_ends_with_its_lease_or_when_unsubscribed(network, brokers) -> None:
    names = brokers(3)
    net = network(ring(names))
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 1_000), WATCHES, names[0])
    net.deliver(Watch(8, net.question("r2"), 60_000), WATCHES, names[0])
    net.put(names[1], "r2", v=0)
    reader.run(900)
    net.deliver(Watch(7, net.question("r1"), 1_000), WATCHES, names[0])
    reader.run(900)
    assert net.machines[names[0]].status().watches == 2, "prolonged"
    reader.run(200)
    assert net.machines[names[0]].status().watches == 1
    reader.run(1_000)
    assert net.machines[names[1]].status().watches == 1, "watched at the holder"
    net.deliver(Unwatch(8), WATCHES, names[0])
    reader.run(50)
    assert net.machines[names[0]].status().watches == 0
    assert len(net.machines[names[0]]._upstream_subscriptions) == 0
    assert net.machines[names[1]].status().watches == 0, "the holder is told, too"


def test_watches_that_were_ended_leave_nothing_behind_until_their_lease_would_end(
    network, brokers
) -> None:
    """Whoever watches and ends it again and again, with long leases, fills no memory."""
    (name,) = brokers(1)
    net = network(from_edges([], nodes=[name]))
    net.put(name, "r1", v=0)
    for id in range(1_000):
        net.deliver(Watch(id, net.question("r1"), 3_600_000), WATCHES, name)
        net.deliver(Unwatch(id), WATCHES, name)
    net.deliver(Watch(7, net.question("r1"), 100_000), WATCHES, name)
    net.run(60_000)
    assert len(net.machines[name].agenda) < 10
    assert net.machines[name].status().watches == 1
    net.run(40_001)
    assert net.machines[name].status().watches == 0


def test_a_periodic_watcher_is_notified_each_period_changed_or_not(network, brokers) -> None:
    names = brokers(4)
    net = network(line(names))
    net.put(names[3], "r1", v=1)
    net.run(2_000)
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 60_000, every_ms=200), WATCHES, names[0])
    reader.run(1_100)
    assert 5 <= len(reader.records) <= 6
    assert {record.values["v"] for record in reader.records} == {1}


def test_when_the_holder_dies_the_record_is_followed_where_it_went(network, brokers) -> None:
    names = brokers(6)
    net = network(ring(names))
    net.put(names[2], "r1", v=1, valid_ms=20_000)
    net.run(2_000)
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 600_000), WATCHES, names[0])
    reader.run(500)
    net.kill(names[2])
    reader.run(1_000)
    net.put(names[4], "r1", v=2, valid_ms=600_000)
    reader.run(40_000, 50)
    net.put(names[4], "r1", v=3, valid_ms=600_000)
    reader.run(500)
    assert reader.versions() == [1, 2, 3]


def test_a_watch_for_what_does_not_exist_yet_is_sent_when_it_does(network, brokers) -> None:
    names = brokers(5)
    net = network(ring(names))
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 600_000), WATCHES, names[0])
    reader.run(3_000, 50)
    net.put(names[2], "r1", v=1)
    reader.run(31_000, 50)
    assert reader.versions() == [1]


def test_many_watchers_of_one_question_share_one_watch_at_the_holder(network, brokers) -> None:
    names = brokers(4)
    net = network(line(names))
    net.put(names[3], "r1", v=1)
    net.run(2_000)
    for id in range(20):
        net.deliver(Watch(id, net.question("r1"), 60_000), WATCHES, names[0])
    net.run(1_000)
    assert net.machines[names[3]].status().watches == 1
    assert net.machines[names[0]].status().watches == 20


def test_watches_are_bounded_and_need_the_right_to_read(network, brokers) -> None:
    names = brokers(3)
    limits = BrokerLimits(watches=5, watches_per_sender=2)
    net = network(
        ring(names),
        BrokerSettings(limits=limits),
        allows=lambda identity, right, entity, scope: entity.id != "secret",
    )
    for id, name in enumerate(("a", "b", "c", "secret")):
        net.deliver(Watch(id, net.question(name), 60_000), WATCHES, names[0])
    net.run(5)
    said = [m.status for m, _ in net.inbox[CONSUMER] if isinstance(m, Status)]
    assert said == [RECEIVED, RECEIVED, TOO_BUSY, NOT_ALLOWED]


def test_a_client_that_says_it_is_a_broker_is_audited_and_judged_as_a_client(
    network, brokers
) -> None:
    """Only members of the network watch at the holder, and on behalf of others."""
    (name,) = brokers(1)
    net = network(
        from_edges([], nodes=[name]),
        BrokerSettings(audits=True),
        allows=lambda identity, right, entity, scope: entity.id != "secret",
    )
    for id, room in enumerate(("r1", "secret")):
        watch = Watch(id, net.question(room), 60_000, 0, "somebody else", at_holder=True)
        net.deliver(watch, WATCHES, name)
    net.put(name, "r1", v=1)
    net.run(100)
    assert [m.record.values for m, _ in net.inbox[CONSUMER] if isinstance(m, Notice)] == [{"v": 1}]
    audited = [e for _, e in net.effects if isinstance(e, AuditEffect) and e.what == "watch"]
    assert [(one.identity, one.status) for one in audited] == [("x", RECEIVED), ("x", NOT_ALLOWED)]


def test_a_holder_that_was_started_anew_is_followed_as_before(network, brokers) -> None:
    names = brokers(2)
    net = network(line(names))
    net.put(names[1], "r1", v=0)
    net.run(2_000)
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 600_000), WATCHES, names[0])
    for version in range(1, 6):
        net.put(names[1], "r1", v=version)
        reader.run(200)
    net.add(names[1]).adopt([names[0]], net.now)
    net.put(names[1], "r1", v=6)  # as reloaded
    reader.run(6_000, 50)  # until the watch is renewed
    net.put(names[1], "r1", v=7)
    reader.run(500)
    assert reader.versions()[-2:] == [6, 7]


@pytest.mark.parametrize("other", ["update", "request"])
def test_what_begins_is_sent_also_when_the_table_is_used_before_its_turn(
    network, brokers, other: str
) -> None:
    (name,) = brokers(1)
    net = network(from_edges([], nodes=[name]))
    machine, now = net.machines[name], net.now
    machine.handle(Watch(7, net.question("r1"), 60_000), WATCHES, now)
    room, start = EntityRef("room", "r1"), now.wall_ms + 400
    client = Sender(("p", 1), "", "client")
    machine.handle(
        Put(1, ContextRecord("p", room, "status", start, start + 900, {"v": 1})), client, now
    )
    machine.outbox.clear()
    then = Now(start, now.steady_ms + 400)
    if other == "update":
        machine.handle(Put(2, _record("r2", then)), client, then)
    else:
        machine.handle(Request(2, net.question("r1")), client, then)
    machine.tick(Now(start + 1, then.steady_ms + 1))
    assert [m.record.values for m, _ in machine.outbox if isinstance(m, Notice)] == [{"v": 1}]


def test_what_its_provider_took_along_is_followed_where_it_went(network, brokers) -> None:
    names = brokers(3)
    net = network(line(names))
    net.put(names[0], "r1", v=0)
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 600_000), WATCHES, names[0])
    reader.run(500)
    net.put(names[2], "r1", v=1)
    net.put(names[0], "r1", v=0, valid_ms=50)  # the farewell
    reader.run(2_000)
    net.put(names[2], "r1", v=2)
    reader.run(500)
    assert reader.versions()[-1] == 2


def test_a_copy_that_leads_to_the_broker_of_before_hides_no_change(network, brokers) -> None:
    names = brokers(3)
    net = network(line(names))
    net.put(names[1], "r1", v=0)
    reader = Reader(net)
    net.ask(names[0], "r1")  # leaves a copy
    assert names[0] in net.holders("r1")
    net.deliver(Watch(7, net.question("r1"), 600_000), WATCHES, names[0])
    reader.run(500)
    net.put(names[2], "r1", v=1)
    net.put(names[1], "r1", v=0, valid_ms=50)  # the farewell
    reader.run(2_000)
    net.put(names[2], "r1", v=2)
    reader.run(500)
    assert reader.versions()[-1] == 2


def _record(name: str, now: Now) -> ContextRecord:
    wall = now.wall_ms
    return ContextRecord("p", EntityRef("room", name), "status", wall, wall + 60_000, {"v": 0})


def test_what_stands_here_for_another_protocol_is_watched_here(network, brokers) -> None:
    names = brokers(2)
    net = network(line(names))
    table = net.machines[names[1]].table
    table.put(net.record("r1", v=1), net.now.wall_ms, holder=names[1])
    reader = Reader(net)
    net.deliver(Watch(7, net.question("r1"), 600_000), WATCHES, names[0])
    reader.run(500)
    assert net.machines[names[1]].status().watches == 1
    assert reader.versions() == [1]
