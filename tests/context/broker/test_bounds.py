"""Nothing that arrives breaks a broker, fills it, or makes it tell what is not valid."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.context import protocol as m
from rapport.context.broker.broker_machine import BrokerMachine
from rapport.context.broker.broker_settings import (
    BrokerLimits,
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
)
from rapport.context.records import TableLimits
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Sender
from rapport_lab.topology import from_edges, random_regular, waxman

ADDRESSES = st.sampled_from([("b", 0), ("b", 1), ("b", 2), ("c", 9), ("", 0)])
NUMBERS = st.one_of(st.integers(-3, 70), st.integers(-(2**63), 2**63 - 1))
SMALL = st.integers(0, 3)
ENTITIES = st.builds(EntityRef, st.just("room"), st.sampled_from(["r1", "r2"]))
RECORDS = st.builds(
    ContextRecord,
    st.sampled_from(["p", "q"]),
    ENTITIES,
    st.just("status"),
    st.integers(900, 1_200),
    st.integers(900, 9_000),
    st.just({"a": 1}),
)
QUESTIONS = st.builds(m.Question, ENTITIES, st.just("status"))
PATHS = st.lists(ADDRESSES, max_size=5).map(tuple)
TEXTS = st.sampled_from(["", "walk", "flood", "normalized", "ask", "fnd", "join", "leave"])
HOP = (SMALL, SMALL, st.one_of(SMALL, NUMBERS))

MESSAGES = st.one_of(
    st.builds(m.Put, SMALL, RECORDS),
    st.builds(m.Request, SMALL, QUESTIONS, NUMBERS),
    st.builds(m.Answer, SMALL, RECORDS, NUMBERS),
    st.builds(m.Status, SMALL, NUMBERS, TEXTS),
    st.builds(m.Ask, *HOP, QUESTIONS, PATHS, NUMBERS, NUMBERS, TEXTS, TEXTS, st.booleans()),
    st.builds(
        m.FoundRecord,
        *HOP,
        RECORDS,
        PATHS,
        st.lists(NUMBERS, max_size=3).map(tuple),
        ADDRESSES,
        NUMBERS,
    ),
    st.builds(m.SearchRefusal, *HOP, PATHS, NUMBERS, TEXTS, st.booleans()),
    st.builds(m.HopAck, *HOP, TEXTS),
    st.builds(m.Probe, *HOP, QUESTIONS, NUMBERS, ADDRESSES),
    st.builds(m.Have, *HOP, RECORDS, ADDRESSES),
    st.builds(m.Ping, NUMBERS),
    st.builds(m.Pong, NUMBERS, st.floats(), st.binary(max_size=20)),
    st.builds(m.Join, NUMBERS, st.booleans()),
    st.builds(m.Welcome, NUMBERS, st.booleans(), PATHS),
    st.builds(m.Departure, NUMBERS, ADDRESSES, NUMBERS, st.booleans()),
    st.builds(m.Command, SMALL, TEXTS, PATHS),
    st.builds(m.Watch, SMALL, QUESTIONS, NUMBERS, NUMBERS, TEXTS, st.booleans()),
    st.builds(m.Unwatch, SMALL),
    st.builds(m.Notice, SMALL, NUMBERS, RECORDS),
    st.builds(m.NoticeAck, SMALL, NUMBERS),
    st.builds(
        m.Invalidation,
        SMALL,
        st.tuples(st.just("p"), st.just("room"), st.just("r1"), st.just("status")),
        NUMBERS,
        NUMBERS,
    ),
)


def records_in(message: m.Message) -> list[ContextRecord]:
    return (
        [message.record]
        if isinstance(message, m.Answer | m.FoundRecord | m.Have | m.Notice)
        else []
    )


@pytest.mark.slow
@given(
    st.lists(st.tuples(MESSAGES, ADDRESSES, st.booleans(), st.integers(0, 400)), max_size=30),
    st.sampled_from(["probe", "bloom", "off"]),
)
def test_no_message_breaks_a_broker_or_makes_it_tell_an_invalid_record(
    said: list, look_ahead: str
) -> None:
    chosen = BrokerSettings(search=SearchSettings(look_ahead=look_ahead))
    broker = BrokerMachine(("b", 0), chosen, Chance(1))
    now = Now(1_000, 0.0)
    broker.adopt([("b", 1), ("b", 2)], now)
    for message, address, is_client, passes in said:
        now = Now(now.wall_ms + passes, now.steady_ms + passes)
        kind = "client" if is_client else "network"
        broker.handle(message, Sender(address, "x", kind), now)
        due = broker.next_due_ms()
        if due is not None and due <= now.steady_ms:
            broker.tick(now)
        for out, _to in broker.outbox:
            assert all(record.is_valid_at(now.wall_ms) for record in records_in(out)), out
            msgspec.msgpack.encode(out)
        broker.outbox.clear()
        broker.effects.clear()


@pytest.mark.slow
def test_no_record_is_sent_outside_its_validity_while_providers_come_and_go(
    network, brokers
) -> None:
    """The harness asserts it for every answer; here updates are short and copies many."""
    names = brokers(12)
    chosen = BrokerSettings(replication=ReplicationSettings(kind="path", least_validity_ms=0))
    net = network(waxman(names, Chance(2), alpha=0.6, beta=0.6, degree=3), chosen, jitter_ms=30)
    chance = Chance(8)
    outcomes = []
    for _ in range(600):
        name = f"r{chance.randrange(8)}"
        if chance.random() < 0.3:
            net.put(chance.choice(names), name, valid_ms=chance.randrange(20, 400))
        outcomes.append(net.request(chance.choice(names), name, within_ms=300))
        net.run(chance.randrange(20))
    net.run(500)
    assert all(one.reply is not None for one in outcomes)
    assert sum(one.found for one in outcomes) > 100


def sizes(net) -> int:
    """Everything that could grow in all brokers."""
    total = 0
    for machine in net.machines.values():
        total += len(machine.table) + len(machine._searches) + len(machine._hop_sender)
        total += len(machine._probes) + len(machine._subscriptions) + len(machine._state.agenda)
        total += len(machine._requests._finished) + len(machine._requests._pending)
        total += len(machine._requests._per_sender)
    return total


@pytest.mark.long
def test_memory_stays_bounded_over_a_hundred_thousand_requests(network, brokers) -> None:
    names = brokers(10)
    chosen = BrokerSettings(
        search=SearchSettings(look_ahead="off"),
        limits=BrokerLimits(remembered=200),
        table=TableLimits(replicas=50),
        monitors=False,
    )
    net = network(random_regular(names, 4, Chance(2)), chosen)
    chance = Chance(5)
    for number in range(100):
        net.put(chance.choice(names), f"r{number}", valid_ms=10**9)
    after = []
    for _ in range(10):
        for _ in range(10_000):
            net.request(chance.choice(names), f"r{chance.randrange(130)}", within_ms=200)
            net.outcomes.clear()
            net.inbox.clear()
            net.run(2)
        net.run(300)
        after.append(sizes(net))
    assert max(after[2:]) <= 1.3 * after[1], after


@pytest.mark.slow
def test_walkers_do_not_multiply_though_acknowledgements_are_lost(network, brokers) -> None:
    names = brokers(400)
    chosen = BrokerSettings(search=SearchSettings(look_ahead="off"), monitors=False)
    net = network(random_regular(names, 6, Chance(2)), chosen, loss=0.3, seed=6)
    outcomes = [net.request(names[number], "nothing", within_ms=2_000) for number in range(20)]
    net.run(3_000)
    sent = net.sent["Ask"]
    net.run(20_000)
    assert net.sent["Ask"] == sent, "no walker outlives its request"
    assert not any(one.found for one in outcomes)
    # Some hops are believed lost though they arrived. Were each to make a walker with all hops
    # left, there would be 4,000 questions sent for one request; each hop is sent about twice.
    asks = sent / len(outcomes)
    assert asks < 64 * chosen.search.rounds * 2 * 2, asks
    assert sum(len(machine._hop_sender) for machine in net.machines.values()) == 0


def test_what_ends_all_at_once_is_freed_in_pieces(network, brokers) -> None:
    (name,) = brokers(1)
    net = network(from_edges([(name, ("broker", 9))]))
    for number in range(5_000):
        net.put(name, f"r{number}", valid_ms=2_000)
    net.run(2_000)
    sizes = []
    for _ in range(300):
        net.run(5)
        sizes.append(len(net.machines[name].table))
    assert any(0 < size < 5_000 for size in sizes), "messages have their turn in between"
    assert sizes[-1] == 0


def test_the_code_on_the_page_of_searches_runs() -> None:
    page = Path(__file__).parents[3] / "docs/concepts/context-search.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(block, str(page), "exec"), {})


def test_answers_kept_for_repetitions_go_when_their_time_is_over(network, brokers) -> None:
    names = brokers(2)
    net = network(from_edges([(names[0], names[1])]))
    for number in range(50):
        net.ask(names[0], f"nobody{number}", within_ms=100)
    net.run(11_000)
    net.ask(names[0], "nobody", within_ms=100)
    assert len(net.machines[names[0]]._requests._finished) == 1


def test_a_followed_record_is_planned_for_once_however_often_it_changes(network, brokers) -> None:
    names = brokers(2)
    net = network(from_edges([(names[0], names[1])]))
    net.put(names[1], "r1", v=0)
    watch = m.Watch(7, net.question("r1"), 3_600_000)
    net.deliver(watch, Sender(("watcher", 1), "x", "client"), names[0])
    net.run(500)
    for version in range(200):
        net.put(names[1], "r1", v=version)
        net.run(50)
    net.run(15_000)  # notices that nobody acknowledged are given up
    assert len(net.machines[names[0]].agenda) < 20
