"""Loss, doubled and reordered datagrams, and brokers that die on the path."""

from __future__ import annotations

import itertools

import pytest

from rapport.context.broker.broker_settings import (
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
)
from rapport.context.protocol import NOT_FOUND, Answer, Ask, FoundRecord, SearchRefusal, Status
from rapport.kernel.clock import Chance
from rapport_lab.topology import from_edges, mesh, ring, waxman

NO_COPIES = ReplicationSettings(kind="none")


def settings(**search: object) -> BrokerSettings:
    return BrokerSettings(search=SearchSettings(**search), replication=NO_COPIES)


def ten(kind: str, names: list):
    made = {"ring": ring(names), "mesh": mesh(names)}
    return made.get(kind) or waxman(names, Chance(4), alpha=0.6, beta=0.6, degree=2.5)


def requests_under_loss(net, names, each: int) -> list:
    for number, name in enumerate(names):
        net.put(name, f"r{number}")
    net.run(3_000)  # round trips are known
    outcomes = []
    for number in range(each):
        for place, name in enumerate(names):
            wanted = (place + 1 + number) % len(names)
            outcomes.append(net.request(name, f"r{wanted}", again=9))
            net.run(37)
    net.run(3_000)
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "mesh", "waxman"])
@pytest.mark.parametrize(("loss", "wanted"), [(0.1, 0.99), (0.3, 0.95)])
@pytest.mark.parametrize("look_ahead", ["probe", "bloom", "off"])
def test_under_loss_requests_are_answered_and_the_rest_refused_in_time(
    network, brokers, found_share, kind: str, loss: float, wanted: float, look_ahead: str
) -> None:
    names = brokers(10)
    net = network(ten(kind, names), settings(look_ahead=look_ahead), loss=loss, jitter_ms=3, seed=7)
    outcomes = requests_under_loss(net, names, 30)
    assert found_share(outcomes) >= wanted, net.machines[names[0]].counts
    for outcome in outcomes:
        # The consumer's own links lose as well: what the broker says may never reach it.
        assert outcome.reply is None or outcome.took_ms <= outcome.within_ms + 10
        if isinstance(outcome.reply, Status):
            assert outcome.reply.status == NOT_FOUND


def test_without_acknowledged_hops_loss_costs_answers(network, brokers, found_share) -> None:
    names = brokers(10)
    shares = []
    for tries in (3, 1):
        net = network(
            ring(names), settings(tries=tries, rounds=1, look_ahead="off"), loss=0.1, seed=3
        )
        for number, name in enumerate(names):
            net.put(name, f"r{number}")
        net.run(3_000)
        outcomes = [net.request(names[n % 10], f"r{(n + 5) % 10}") for n in range(200)]
        net.run(2_500)
        shares.append(found_share(outcomes))
    assert shares[0] > shares[1] + 0.2, shares


def test_doubled_and_reordered_datagrams_change_no_answer(network, brokers) -> None:
    names = brokers(10)
    topology = waxman(names, Chance(4), alpha=0.6, beta=0.6, degree=3)
    net = network(topology, settings(), duplication=0.5, jitter_ms=10, seed=2)
    records = [net.put(name, f"r{number}") for number, name in enumerate(names)]
    net.run(2_000)
    for turn in range(40):
        outcome = net.ask(names[turn % 10], f"r{(turn * 7 + 3) % 10}")
        assert outcome.reply.record == records[(turn * 7 + 3) % 10]
    assert net.machines[names[0]].counts["repeated"] > 0
    assert all(len(m._searches) == 0 for m in net.machines.values())


def test_a_walker_goes_another_way_when_the_next_broker_is_dead(network, brokers) -> None:
    a, b, c, d = brokers(4)
    net = network(from_edges([(a, b), (a, c), (b, d), (c, d)]), settings(look_ahead="off"))
    net.put(d, "r1")
    net.run(2_500)
    net.kill(b)
    outcomes = [net.request(a, "r1") for _ in range(20)]
    net.run(2_200)
    assert all(one.found for one in outcomes)
    assert net.machines[a].counts["forward_repairs"] > 0
    assert max(one.took_ms for one in outcomes) < 500


def test_an_answer_skips_a_broker_that_died_on_the_way_back(network, brokers) -> None:
    names = brokers(5)
    line = from_edges(list(itertools.pairwise(names)))
    net = network(line, settings(look_ahead="off", rounds=1))
    net.put(names[4], "r1")
    net.run(2_500)
    outcome = net.request(names[0], "r1")
    net.run(3.5)  # the question is at the last broker but one
    net.kill(names[2])
    net.run(2_000)
    assert outcome.found
    assert sum(m.counts["back_repairs"] for m in net.machines.values()) == 1


def test_a_walker_that_died_with_its_broker_sets_out_again(network, brokers) -> None:
    names = brokers(4)
    net = network(ring(names), settings(look_ahead="off", tries=1))
    net.put(names[2], "r1")
    net.run(2_500)
    outcome = net.request(names[0], "r1")
    net.run(0.5)
    net.kill(names[1])
    net.kill(names[3])
    net.run(100)
    assert outcome.reply is None
    net.dead.clear()
    net.run(1_900)
    assert outcome.found
    assert net.machines[names[0]].counts["rounds_again"] >= 1


@pytest.mark.slow
def test_brokers_killed_one_after_another_leave_the_rest_answering(network, brokers) -> None:
    names = brokers(12)
    topology = waxman(names, Chance(9), alpha=0.7, beta=0.7, degree=4)
    net = network(topology, settings(), seed=5)
    net.put(names[0], "r1")
    net.run(2_000)
    for dead in (names[3], names[7], names[10]):
        net.kill(dead)
        alive = [name for name in names if name not in net.dead and name != names[0]]
        outcomes = [net.request(name, "r1") for name in alive]
        net.run(2_200)
        assert all(one.found for one in outcomes), [one.reply for one in outcomes]
        net.run(5_000)  # the dead one is found out; too few neighbours: others are looked for


def test_a_refusal_after_silent_brokers_is_not_believed_at_once(network, brokers) -> None:
    a, b = brokers(2)
    net = network(from_edges([(a, b)]), settings(look_ahead="off"))
    net.put(b, "r1")
    net.run(2_500)
    net.kill(b)
    outcome = net.request(a, "r1")
    net.run(300)
    assert outcome.reply is None
    net.dead.clear()
    net.run(1_700)
    assert outcome.found


def test_an_answer_that_expires_on_the_way_becomes_a_refusal(network, brokers) -> None:
    names = brokers(5)
    line = from_edges(list(itertools.pairwise(names)))
    net = network(line, settings(look_ahead="off"), delay_ms=20)
    net.put(names[4], "r1", valid_ms=110)
    outcome = net.ask(names[0], "r1")
    assert isinstance(outcome.reply, Status)
    assert outcome.reply.status == NOT_FOUND
    assert sum(m.counts["expired_on_the_way"] for m in net.machines.values()) == 1


def test_every_message_of_a_search_carries_where_it_was(network, brokers) -> None:
    names = brokers(4)
    line = from_edges(list(itertools.pairwise(names)))
    net = network(line, settings(look_ahead="off"))
    net.logs = True
    net.put(names[3], "r1")
    assert net.ask(names[0], "r1").found
    asks = [m for m, _, _ in net.log if isinstance(m, Ask)]
    consumer = ("consumer", 1)
    assert [m.path for m in asks] == [
        (consumer, names[0]),
        (consumer, names[0], names[1]),
        (consumer, names[0], names[1], names[2]),
    ]
    founds = [m for m, _, _ in net.log if isinstance(m, FoundRecord)]
    assert [m.path for m in founds] == [
        (consumer, names[0], names[1]),
        (consumer, names[0]),
        (consumer,),
    ]
    assert isinstance(net.outcomes[max(net.outcomes)].reply, Answer)


def test_a_refusal_goes_home_along_the_path_of_the_question(network, brokers) -> None:
    names = brokers(4)
    line = from_edges(list(itertools.pairwise(names)))
    net = network(line, settings(look_ahead="off", hop_limit=3))
    net.logs = True
    outcome = net.ask(names[0], "nothing")
    refusals = [(m.path, to) for m, _, to in net.log if isinstance(m, SearchRefusal)]
    consumer = ("consumer", 1)
    assert refusals == [
        ((consumer, names[0], names[1]), names[2]),
        ((consumer, names[0]), names[1]),
        ((consumer,), names[0]),
    ]
    assert outcome.reply.status == NOT_FOUND


def test_when_nobody_answers_the_deadline_ends_a_search(network, brokers) -> None:
    names = brokers(4)
    net = network(ring(names), settings())
    net.run(2_500)
    for name in names[1:]:
        net.kill(name)
    outcome = net.ask(names[0], "r1", within_ms=700)
    assert outcome.reply.status == NOT_FOUND
    assert "deadline" in outcome.reply.why
    assert outcome.took_ms == pytest.approx(631, abs=2), "in time for the consumer to hear it"
