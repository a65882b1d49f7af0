"""Membership by random probing: the dead are found by all, the living stay, cuts heal. [EN-10]"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.kernel.clock import Chance
from rapport.overlay.swim import Swim
from rapport.overlay.swim_protocol import (
    MOST_INCARNATION,
    Ack,
    Claim,
    Gossip,
    Ping,
    State,
    SwimSettings,
    Table,
    decode,
)
from rapport.transport.base import Now
from rapport_lab.simulated_transport import SimulatedLink
from rapport_lab.swim_study import SwimNetwork
from support.examples import examples

OWN, OTHER, THIRD = ("a", 1), ("b", 1), ("c", 1)


def machine(**changed: float) -> Swim:
    made = Swim("a", OWN, Chance(1), SwimSettings(**changed))  # type: ignore[arg-type]
    made.start(Now(0, 0.0))
    return made


def alive(address: tuple[str, int], incarnation: int = 0, name: str = "b") -> Claim:
    return Claim(State.ALIVE, address, incarnation, name)


def test_all_who_join_through_one_soon_know_each_other() -> None:
    network = SwimNetwork(20)
    network.run_periods(5)
    assert network.agree()


def test_whoever_joined_through_somebody_else_is_known_too() -> None:
    network = SwimNetwork(5)
    network.run_periods(3)
    network.add(5, known=(network.address(3),))
    network.run_periods(4)
    assert network.agree()


def test_a_dead_one_is_found_by_everybody_and_nobody_else_is_accused() -> None:
    network = SwimNetwork(20)
    network.run_periods(5)
    network.kill(7)
    network.run_periods(12)
    rest = [number for number in range(20) if number != 7]
    assert network.agree(*rest)
    assert {told.change.address for told in network.told if told.change.kind == "failed"} == {
        network.address(7)
    }


def test_who_leaves_is_known_to_have_left_without_being_suspected() -> None:
    network = SwimNetwork(12)
    network.run_periods(5)
    network.leave(3)
    network.run_periods(4)
    assert len(network.noticed("left", 3)) == 11
    assert not network.noticed("suspected", 3)


def test_one_that_was_killed_and_starts_anew_is_taken_back() -> None:
    network = SwimNetwork(8)
    network.run_periods(5)
    network.kill(2)
    network.run_periods(12)
    network.add(2, known=(network.address(4),))
    network.run_periods(5)
    assert network.agree()
    assert network.swim(2).incarnation > 0


def test_one_that_starts_anew_without_knowing_anybody_is_found_by_those_that_knew_it() -> None:
    network = SwimNetwork(6)
    network.run_periods(5)
    network.kill(2)
    network.add(2, name="other")
    network.run_periods(10)
    assert network.agree()
    assert [network.address(2)] == network.swim(0).roster.namesakes("other")


@pytest.mark.slow
def test_a_network_that_was_cut_for_an_hour_grows_together() -> None:
    network = SwimNetwork(8, settings=SwimSettings(forget_periods=30))
    network.run_periods(5)
    halves = [[network.address(number) for number in group] for group in (range(4), range(4, 8))]
    network.medium.cut(halves)
    network.run_periods(3_600)
    assert network.agree(0, 1, 2, 3)
    assert network.agree(4, 5, 6, 7)
    network.medium.heal()
    network.run_periods(20)
    assert network.agree()


def test_one_that_starts_alone_joins_when_the_one_it_knows_starts_later() -> None:
    network = SwimNetwork(0)
    network.add(1, known=(network.address(0),))
    network.run_periods(5)
    network.add(0)
    network.run_periods(4)
    assert network.agree()


def test_a_starved_one_accuses_nobody_to_death() -> None:
    network = SwimNetwork(20)
    network.run_periods(5)
    network.starve(0, asleep_ms=3_000)
    network.run_periods(40)
    slow = network.address(0)
    assert {told.change.address for told in network.told if told.change.kind == "failed"} <= {slow}


def test_one_that_was_stopped_for_a_while_comes_back() -> None:
    network = SwimNetwork(10)
    network.run_periods(5)
    network.starve(0, asleep_ms=20_000, awake_ms=1e9)
    network.run_periods(19)
    assert network.noticed("failed", 0)
    network.run_periods(10)
    assert network.agree()


@settings(max_examples=examples(12))
@given(st.integers(2, 12), st.integers(0, 2**16), st.sampled_from([0.0, 5.0, 60.0]))
def test_without_loss_nobody_is_ever_called_dead(nodes: int, seed: int, jitter_ms: float) -> None:
    network = SwimNetwork(nodes, seed=seed, link=SimulatedLink(delay_ms=1, jitter_ms=jitter_ms))
    network.run_periods(25)
    assert network.agree()
    assert not [told for told in network.told if told.change.kind in ("failed", "suspected")]


@settings(max_examples=examples(12))
@given(st.integers(4, 10), st.integers(0, 2**16), st.floats(0, 0.3), st.data())
def test_whatever_happened_all_agree_when_the_network_is_calm(
    nodes: int, seed: int, loss: float, data: st.DataObject
) -> None:
    link = SimulatedLink(delay_ms=1, jitter_ms=20, loss=loss, duplication=0.1)
    network = SwimNetwork(nodes, seed=seed, link=link)
    dead: set[int] = set()
    for _ in range(data.draw(st.integers(1, 4))):
        network.run_periods(data.draw(st.floats(0, 10)))
        number = data.draw(st.integers(1, nodes - 1))
        if number in dead:
            network.add(number, known=(network.address(0),))
            dead.remove(number)
        else:
            network.kill(number)
            dead.add(number)
    network.medium.link = SimulatedLink(delay_ms=1)
    network.run_periods(60)
    assert network.agree(*(number for number in range(nodes) if number not in dead))


def test_what_is_said_of_this_node_is_objected_to() -> None:
    node = machine()
    node.handle(Gossip((Claim(State.SUSPECT, OWN, 4, "a", OTHER),)), OTHER, Now(0, 1.0))
    assert node.incarnation == 5
    assert node.health.score == 1


def test_who_is_said_to_have_objected_as_often_as_can_be_counted_is_soon_heard_again() -> None:
    """It cannot object, but what it says can still be read: it is taken back when it is forgotten
    that it was dead.
    """
    net = SwimNetwork(4)
    net.run_periods(10)
    forged = Gossip((Claim(State.SUSPECT, net.address(1), MOST_INCARNATION, "n1"),))
    for number in (1, 2):
        net.swim(number).handle(forged, net.address(0), net.scheduler.now)
    net.run_periods(200)
    assert net.agree()


def test_the_suspected_is_reported_first() -> None:
    node = machine()
    node.handle(Table((alive(OTHER), alive(THIRD, name="c"))), OTHER, Now(0, 1.0))
    node.handle(Gossip((Claim(State.SUSPECT, OTHER, 0, "b", THIRD),)), THIRD, Now(0, 2.0))
    node.outbox.clear()
    node.handle(Ping(7), OTHER, Now(0, 3.0))
    (answer, to), *_ = node.outbox
    assert to == OTHER
    assert isinstance(answer, Ack)
    assert answer.news[0] == Claim(State.SUSPECT, OTHER, 0, "b", THIRD)


@pytest.mark.parametrize("first", ["alive", "dead"])
def test_claims_give_the_same_in_any_order(first: str) -> None:
    node = machine()
    node.handle(Table((alive(OTHER),)), OTHER, Now(0, 1.0))
    claims = [alive(OTHER, 2), Claim(State.DEAD, OTHER, 1, "b")]
    for claim in claims if first == "alive" else reversed(claims):
        node.handle(Gossip((claim,)), THIRD, Now(0, 2.0))
    assert node.present == (OTHER,)


def test_two_nodes_of_one_name_are_both_known_and_distinguished() -> None:
    network = SwimNetwork(3)
    network.add(3, known=(network.address(0),), name="n1")
    network.run_periods(5)
    assert set(network.swim(0).roster.namesakes("n1")) == {network.address(1), network.address(3)}


def test_nothing_is_said_after_leaving() -> None:
    node = machine()
    node.handle(Table((alive(OTHER),)), OTHER, Now(0, 1.0))
    node.leave()
    node.outbox.clear()
    node.handle(Ping(1), OTHER, Now(0, 2.0))
    node.tick(Now(0, 5_000.0))
    assert node.outbox == []
    assert node.next_due_ms() is None


def test_no_more_than_the_most_members_are_taken_in() -> None:
    node = machine(most_members=5)
    claims = tuple(alive(("x", number), name=f"x{number}") for number in range(1, 50))
    node.handle(Gossip(claims), OTHER, Now(0, 1.0))
    assert len(node.present) == 5


def test_the_role_of_a_member_is_known_to_all_and_outlives_suspicion() -> None:
    node = machine()
    node.handle(Gossip((Claim(State.ALIVE, OTHER, 0, "b", role="grouper"),)), THIRD, Now(0, 1.0))
    assert node.roster.with_role("grouper") == (OTHER,)
    node.handle(Gossip((Claim(State.SUSPECT, OTHER, 0, "b", THIRD),)), THIRD, Now(0, 2.0))
    assert node.roster.with_role("grouper") == (OTHER,)
    node.handle(Gossip((alive(OTHER, 1),)), THIRD, Now(0, 3.0))
    assert node.roster.with_role("grouper") == ()
    node.changes.clear()
    node.handle(
        Gossip((Claim(State.ALIVE, OTHER, 1, "b", role="grouper"),)), THIRD, Now(0, 4.0)
    )  # passed on meanwhile by a node that knows no roles
    assert [change.kind for change in node.changes] == ["renamed"]
    assert node.roster.with_role("grouper") == (OTHER,)


def test_a_member_objects_to_a_role_that_it_does_not_have() -> None:
    node = machine()
    node.handle(Gossip((Claim(State.ALIVE, OWN, 0, "a", role="grouper"),)), OTHER, Now(0, 1.0))
    assert node.incarnation == 1
    node.handle(Gossip((Claim(State.ALIVE, OWN, 1, "a"),)), OTHER, Now(0, 2.0))
    assert node.incarnation == 1


def test_claims_without_a_role_are_read_as_they_were_before() -> None:
    old = msgspec.msgpack.encode(["G", [[0, list(OTHER), 3, "b", None]]])
    assert decode(old) == Gossip((alive(OTHER, 3),))
