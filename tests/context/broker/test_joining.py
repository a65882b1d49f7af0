"""Brokers that come, go and come back, in words of the protocol."""

from __future__ import annotations

import pytest

from rapport.context.broker.broker_state import JoinFailed, NeighbourLost, NetworkJoined
from rapport.context.protocol import NOT_FOUND, RECEIVED, Command, Departure
from rapport.transport.base import Address, Sender
from rapport_lab.topology import Topology, from_edges, is_connected, mesh


def neighbourhoods(net) -> Topology[Address]:
    return Topology(
        {name: m.neighbours for name, m in net.machines.items() if name not in net.dead}
    )


def grown(network, names: list, **links: object):
    """A network that grew by brokers joining one after another."""
    net = network(from_edges([], nodes=names), adopt=False, **links)
    for place, name in enumerate(names[1:], 1):
        known = names[max(0, place - 6) : place]
        net.act(name, lambda machine, known=known: machine.join(known, net.now))
        net.run(700)
    return net


def test_brokers_that_join_one_after_another_are_one_network(network, brokers) -> None:
    names = brokers(12)
    net = grown(network, names)
    assert is_connected(neighbourhoods(net))
    assert len([e for _, e in net.effects if isinstance(e, NetworkJoined)]) >= 11
    net.put(names[0], "r1")
    assert all(net.ask(name, "r1").found for name in names)


def test_a_broker_whose_list_is_silent_does_not_join_and_says_so(network, brokers) -> None:
    names = brokers(1)
    net = network(from_edges([], nodes=names), adopt=False)
    net.act(names[0], lambda m: m.join([("nobody", 1), ("nobody", 2)], net.now))
    net.run(3_000)
    assert [e for _, e in net.effects] == [JoinFailed(0, 2)]
    assert net.machines[names[0]].neighbours == ()


def test_who_waits_for_a_join_hears_when_the_broker_is_commanded_to_leave_meanwhile(
    network, brokers
) -> None:
    """Else those that wait would add up until no command is taken any more."""
    (name,) = brokers(1)
    net = network(from_edges([], nodes=[name]), adopt=False)
    controller = Sender(("controller", 1))
    for id in range(0, 200, 2):
        net.deliver(Command(id, "join", (("nobody", 1),)), controller, name)
        net.deliver(Command(id + 1, "leave"), controller, name)
    net.run(100)
    said = [message for message, _ in net.inbox[controller.address]]
    assert {m.status for m in said if m.id % 2} == {RECEIVED}
    assert [m.status for m in said if m.id % 2 == 0] == [RECEIVED, NOT_FOUND] * 100
    assert [e for _, e in net.effects] == [JoinFailed(0, 1)] * 100
    assert net.machines[name].neighbours == ()


def test_a_broker_that_leaves_is_asked_no_more_and_the_word_goes_further(network, brokers) -> None:
    names = brokers(5)
    net = network(mesh(names))
    net.logs = True
    net.put(names[1], "r1")
    net.act(names[4], lambda machine: machine.leave(net.now))
    net.run(50)
    assert all(names[4] not in net.machines[name].neighbours for name in names[:4])
    departed = [m for m, _, _ in net.log if isinstance(m, Departure)]
    assert {m.broker for m in departed} == {names[4]}
    assert {m.ttl for m in departed} == {0, 1}
    assert net.ask(names[0], "r1").found


@pytest.mark.slow
def test_a_killed_broker_is_noticed_and_finds_its_way_back(network, brokers) -> None:
    names = brokers(8)
    net = grown(network, names)
    net.kill(names[2])
    net.run(6_000)
    assert all(names[2] not in m.neighbours for n, m in net.machines.items() if n != names[2])
    assert any(isinstance(e, NeighbourLost) and e.abrupt for _, e in net.effects)
    assert is_connected(neighbourhoods(net))
    former = net.machines[names[2]].neighbours
    net.dead.clear()
    net._planned.pop(names[2], None)
    net.add(names[2], former=former)  # a new process, which remembers whom it knew
    net.act(names[2], lambda machine: machine.join([names[0]], net.now))
    net.run(3_000)
    assert len(net.machines[names[2]].neighbours) >= 2
    net.put(names[5], "r1")
    assert net.ask(names[2], "r1").found


def test_neighbours_learn_each_others_round_trips_and_load(network, brokers) -> None:
    names = brokers(3)
    net = network(mesh(names), delay_ms=4)
    net.run(3_000)
    for near in net.machines[names[0]].status().neighbours:
        assert near.round_trip_ms == pytest.approx(8, abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_while_brokers_come_and_go_what_is_reachable_is_found(
    network, brokers, found_share, loss: float
) -> None:
    names = brokers(14)
    net = grown(network, names, loss=loss, jitter_ms=3, seed=4)
    net.run(2_000)
    outcomes = []
    for turn in range(8):
        holder = names[turn % 4]
        net.put(holder, "r1", valid_ms=60_000)
        goes = names[6 + turn % 4]
        if turn % 2:
            net.kill(goes)
        else:
            net.act(goes, lambda machine: machine.leave(net.now))
        for name in names[:5]:
            outcomes.append(net.request(name, "r1", again=9))
            net.run(100)
        net.run(2_500)
        net.dead.discard(goes)
        net._planned.pop(goes, None)
        net.add(goes)
        net.act(goes, lambda machine: machine.join(names[:3], net.now))
        net.run(1_500)
    net.run(3_000)
    assert found_share(outcomes) >= (1.0 if loss == 0 else 0.97)
    assert is_connected(neighbourhoods(net))


@pytest.mark.slow
def test_a_partition_answers_what_it_holds_refuses_the_rest_and_heals(network, brokers) -> None:
    names = brokers(8)
    net = grown(network, names)
    left, right = set(names[:4]), set(names[4:])
    net.put(names[0], "here", valid_ms=10**7)
    net.put(names[7], "there", valid_ms=10**7)
    net.cut = (left, right)
    net.run(8_000)
    here, there = net.request(names[1], "here"), net.request(names[1], "there")
    net.run(2_200)
    assert here.found
    assert there.reply.status == 202
    net.cut = ()
    net.run(15_000)
    assert net.ask(names[1], "there").found
