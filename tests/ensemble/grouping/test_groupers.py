"""The ring of groupers: who is responsible, who takes over, and the way knowledge goes."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.ensemble.grouping.group_ensembles import (
    Grouped,
    Grouper,
    GrouperClient,
    Grouping,
    GroupJoin,
)
from rapport.ensemble.grouping.group_register import KnownGroupers
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.ensemble.model.ensemble import plan_of_ensemble
from rapport.ensemble.model.role import role_names
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.kernel.clock import Now
from rapport.transport.base import Address

SECTORS = [f"sector {number}" for number in range(100)]


def address(number: int) -> Address:
    return f"10.0.0.{number}", 7411


def at(periods: float) -> Now:
    return Now(0, 5_000 * periods)


def ring(own: int, others: dict[int, float], now: Now, **settings: Any) -> KnownGroupers:
    """A grouper that has known others, up for so many periods, since it began."""
    made = KnownGroupers(address(own), GroupingSettings(**settings), at(0))
    for number, periods in others.items():
        made.announced(address(number), 5_000 * periods, now)
    made.settle(now)
    return made


def test_eight_groupers_agree_who_of_them_publishes_each_of_a_hundred_sectors() -> None:
    rings = [ring(own, {other: 0 for other in range(8) if other != own}, at(0)) for own in range(8)]
    publishers = [[one.publisher(sector) for sector in SECTORS] for one in rings]
    assert all(one == publishers[0] for one in publishers)
    assert set(publishers[0]) == {address(number) for number in range(8)}
    assert {len(rings[0].registrars(sector)) for sector in SECTORS} == {2}


def test_who_dies_is_followed_by_one_that_registered_the_same_members_already() -> None:
    here = ring(0, {number: 9 for number in range(1, 6)}, at(9))
    before = {sector: here.registrars(sector) for sector in SECTORS}
    assert here.gone(address(3))
    assert not here.gone(address(3))
    for sector, keepers in before.items():
        left = [one for one in keepers if one != address(3)]
        assert here.publisher(sector) == left[0]


def test_a_newcomer_registers_but_publishes_nothing_before_it_has_settled() -> None:
    here = ring(0, {1: 9, 2: 9}, at(9))
    before = {sector: here.publisher(sector) for sector in SECTORS}
    here.announced(address(3), 0, at(9))
    assert {sector: here.publisher(sector) for sector in SECTORS} == before
    mine = [sector for sector in SECTORS if address(3) in here.registrars(sector)]
    assert 30 < len(mine) < 80
    here.announced(address(3), 3 * 5_000, at(12))
    here.settle(at(12.3))
    moved = [sector for sector in SECTORS if here.publisher(sector) != before[sector]]
    assert {here.publisher(sector) for sector in moved} == {address(3)}
    assert set(moved) <= set(mine)


def test_who_restarts_has_to_settle_again() -> None:
    here = ring(0, {1: 9}, at(9))
    assert address(1) in {here.publisher(sector) for sector in SECTORS}
    here.announced(address(1), 10, at(10))
    assert {here.publisher(sector) for sector in SECTORS} == {address(0)}


def test_the_silent_are_dropped_and_those_heard_by_the_membership_are_not() -> None:
    here = ring(0, {1: 9, 2: 9}, at(9))
    here.mark_alive(address(2), at(9.5))
    assert here.drop_silent(at(9.9)) == [address(1)]
    assert here.others() == [address(2)]


def test_no_more_groupers_are_known_than_the_limit() -> None:
    here = ring(0, dict.fromkeys(range(1, 9), 0.0), at(0), groupers=3)
    assert len(here) == 4
    assert not here.announced(address(0), 0, at(0))


def test_knowledge_goes_from_grouper_to_grouper_as_in_figure_20(town: Any) -> None:
    here = town(route="ring", copies=1)
    first = here.grouper(1).address
    for number in range(2, 6):
        here.grouper(number, [first])
    here.run(1)
    others = here.groupers()[0].machine.others
    group = next(one for one in SECTORS if others.publisher(one) == address(5))
    here.log = []
    component = here.client(7, [group], [address(3)])
    here.run(1.9)
    way = [(sender, to) for _time, sender, to, said in here.log if said.component == component.name]
    c, (three, four, five) = component.address, map(address, (3, 4, 5))
    assert way[:3] == [(c, three), (three, four), (four, five)]
    assert component.peers(group) == {c}
    # "Next time component C directly publishes its knowledge to grouper 5."
    here.log.clear()
    here.run(1)
    assert [to for _time, _sender, to, said in here.log if said.component == component.name] == [
        five
    ]


@pytest.mark.parametrize("route", ["ring", "direct"])
def test_no_version_visits_a_grouper_twice_and_none_travels_for_ever(town: Any, route: str) -> None:
    here = town(route=route)
    here.log = []
    here.populate(7, 30, 15)
    here.run(1)
    for grouper in here.groupers()[1:3]:
        grouper.alive = False
    here.run(4)
    passed_on: dict[tuple[Address, str, int], set[Address]] = {}
    names = {grouper.address for grouper in here.nodes.values() if hasattr(grouper, "flush")}
    for _time, sender, to, said in here.log:
        if sender in names and said.roles == ("Car",):
            targets = passed_on.setdefault((sender, said.component, said.version), set())
            assert to not in targets
            targets.add(to)
    assert passed_on
    assert all(len(targets) == 1 for targets in passed_on.values())


def test_groupers_and_clients_are_components_with_an_ensemble() -> None:
    plan = plan_of_ensemble(GroupJoin)
    assert (plan.coordinator, plan.member) == (Grouping, Grouped)
    assert role_names(Grouper) == ("Grouper", "Grouping")
    assert role_names(GrouperClient) == ("GrouperClient", "Grouped")


def test_a_grouper_may_be_a_member_of_groups_itself(town: Any) -> None:
    here = town()
    here.populate(3, 9, 3)
    bus = here.groupers()[1].machine
    bus.client._groups_of = lambda component: ("sector 1",)
    for _period in range(5):
        sent = bus.to_publish("bus line 1", here.scheduler.now)
        here.run(1)
    members = [one for one in here.clients() if one.groups == ("sector 1",)]
    assert {one.address for one in members} <= set(sent)
    assert all(here.groupers()[1].address in one.peers("sector 1") for one in members)
    in_a_group = PublishedKnowledge("x", 1, 1, "far", (), b"", None, ("sector 1",))
    assert bus.to_pass_on(in_a_group, here.scheduler.now) == []


def test_what_the_membership_says_is_believed_at_once(town: Any) -> None:
    here = town()
    here.populate(4, 12, 4)
    here.run(5)
    dead, gone = here.clients()[0], here.groupers()[2]
    dead.alive = gone.alive = False
    for one in here.groupers():
        one.machine.gone(dead.address)
        one.machine.gone(gone.address)
        one.machine.mark_alive(here.groupers()[0].address, here.scheduler.now)
    for client in here.clients():
        client.machine.gone(dead.address)
    assert here.wrong() == []
    here.run(1.1)
    assert here.wrong() == []


def test_a_grouper_that_slept_publishes_nothing_old_and_comes_back(town: Any) -> None:
    here = town()
    here.populate(3, 12, 4)
    here.run(5)
    sleeper = here.groupers()[1]
    sleeper.alive = False
    here.run(20)
    sleeper.alive = True
    sleeper.machine.tick(here.scheduler.now)
    assert {said.message.roles for said in sleeper.machine.outbox} == {("Grouper",)}
    assert len(sleeper.machine.outbox) <= 3
    sleeper.tick()
    here.run(5)
    assert [len(one.machine.others) for one in here.groupers()] == [3] * 3
    assert here.wrong() == []
