"""Searches in small networks: what is reachable is found, what is not is refused in time."""

from __future__ import annotations

import itertools

import pytest

from rapport.context.broker.broker_settings import (
    LOOK_AHEADS,
    STRATEGIES,
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
)
from rapport.context.protocol import NOT_FOUND, Answer, Status
from rapport.kernel.clock import Chance
from rapport_lab.topology import from_edges, mesh, ring, waxman

NO_COPIES = ReplicationSettings(kind="none")


def settings(**search: object) -> BrokerSettings:
    return BrokerSettings(search=SearchSettings(**search), replication=NO_COPIES)


@pytest.fixture(params=["ring", "mesh", "waxman", "line", "tree"])
def topology(request: pytest.FixtureRequest, brokers):
    names = brokers(10)
    line = from_edges(list(itertools.pairwise(names)))
    tree = from_edges([(names[(n - 1) // 2], names[n]) for n in range(1, 10)])
    made = {"ring": ring(names), "mesh": mesh(names), "line": line, "tree": tree}
    return made.get(request.param) or waxman(names, Chance(3), alpha=0.6, beta=0.6, degree=2.5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("look_ahead", LOOK_AHEADS)
def test_a_reachable_record_is_found_from_everywhere(
    network, topology, strategy: str, look_ahead: str
) -> None:
    flood_ttl = 10
    net = network(
        topology, settings(strategy=strategy, look_ahead=look_ahead, flood_ttl=flood_ttl, width=9)
    )
    names = topology.nodes
    record = net.put(names[7], "r1")
    net.run(1_500)
    for name in names:
        outcome = net.ask(name, "r1")
        assert isinstance(outcome.reply, Answer), (name, outcome.reply)
        assert outcome.reply.record == record
        assert outcome.answers == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_nobody_has_is_refused_once_within_the_deadline(
    network, topology, strategy: str
) -> None:
    net = network(topology, settings(strategy=strategy))
    for name in topology.nodes:
        outcome = net.ask(name, "r9", within_ms=1_000)
        assert isinstance(outcome.reply, Status)
        assert outcome.reply.status == NOT_FOUND
        assert outcome.took_ms <= 1_010
        assert outcome.reply.why


def test_the_hop_limit_ends_a_walk_and_the_refusal_comes_home(network, brokers) -> None:
    names = brokers(10)
    line = from_edges(list(itertools.pairwise(names)))
    net = network(line, settings(hop_limit=4, look_ahead="off"))
    net.put(names[9], "far")
    net.put(names[4], "near")
    assert net.ask(names[0], "near").found
    outcome = net.ask(names[0], "far")
    assert outcome.reply.status == NOT_FOUND
    assert outcome.took_ms < 20, "it does not wait for the deadline"


def test_the_answer_says_how_far_it_was(network, brokers) -> None:
    names = brokers(5)
    line = from_edges(list(itertools.pairwise(names)))
    net = network(line, settings(look_ahead="off"))
    net.put(names[3], "r1")
    assert net.ask(names[0], "r1").reply.hops == 3
    assert net.ask(names[3], "r1").reply.hops == 0


@pytest.mark.slow
def test_looking_ahead_finds_it_with_fewer_steps(network, brokers) -> None:
    names = brokers(30)
    topology = waxman(names, Chance(5), alpha=0.5, beta=0.5, degree=5)
    steps = {}
    for look_ahead in LOOK_AHEADS:
        net = network(topology, settings(look_ahead=look_ahead))
        net.put(names[20], "r1")
        net.run(2_500)
        net.sent.clear()
        for name in names:
            assert net.ask(name, "r1").found
        steps[look_ahead] = net.sent.get("Ask", 0)
        if look_ahead == "bloom":
            assert "Probe" not in net.sent, "filters cost no messages"
    assert steps["probe"] < steps["off"] / 2
    assert steps["bloom"] < steps["off"] / 2


def test_looking_two_ahead_reaches_further_than_one(network, brokers) -> None:
    names = brokers(7)
    line = from_edges(list(itertools.pairwise(names)))
    asks = []
    for depth in (0, 1, 2):
        net = network(line, settings(look_ahead_depth=depth))
        net.put(names[6], "r1")
        assert net.ask(names[0], "r1").found
        asks.append(net.sent["Ask"])
    assert asks == [6, 5, 4]


@pytest.mark.slow
def test_avoiding_the_visited_finds_more_within_the_same_hops(
    network, brokers, found_share
) -> None:
    shares = {}
    for avoid in (True, False):
        outcomes = []
        for seed in range(12):
            names = brokers(10)
            net = network(
                ring(names),
                settings(avoid_visited=avoid, hop_limit=10, look_ahead="off"),
                seed=seed,
            )
            net.put(names[5], "r1")
            outcomes += [net.ask(name, "r1") for name in names if name != names[5]]
        shares[avoid] = found_share(outcomes)
    assert shares[True] == 1.0
    assert shares[False] < 0.75


def test_a_broker_without_neighbours_refuses_at_once(network, brokers) -> None:
    net = network(from_edges([], nodes=brokers(1)))
    outcome = net.ask(brokers(1)[0], "r1")
    assert outcome.reply.status == NOT_FOUND
    assert "neighbours" in outcome.reply.why


def test_repeating_a_request_gives_the_same_answer_without_another_search(network, brokers) -> None:
    from rapport.context.protocol import Request
    from rapport.transport.base import Sender

    names = brokers(4)
    net = network(ring(names), settings())
    net.put(names[2], "r1")
    request = Request(77, net.question("r1"))
    sender = Sender(("c", 1), "", "client")
    net.deliver(request, sender, names[0])
    net.deliver(request, sender, names[0])
    net.run(200)
    net.deliver(request, sender, names[0])
    net.run(200)
    assert net.machines[names[0]].counts["searches"] == 1
    assert len([m for m, _ in net.inbox["c", 1] if isinstance(m, Answer)]) == 2
