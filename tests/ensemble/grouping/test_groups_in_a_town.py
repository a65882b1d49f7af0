"""Groupers and clients together: tables are true within three periods, whatever comes and goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.examples import examples


def test_every_one_of_a_hundred_sectors_has_an_owner_and_true_tables(town: Any) -> None:
    here = town()
    here.populate(8, 100, 100)
    here.run(3)
    assert here.wrong() == []
    kept = {group for one in here.groupers() for group in one.machine.register.groups()}
    assert kept == {f"sector {number}" for number in range(100)}


def test_all_groupers_know_each_other_after_half_a_period_by_one_address(town: Any) -> None:
    here = town()
    here.populate(8, 0, 1)
    here.run(0.5)
    assert [len(one.machine.others) for one in here.groupers()] == [8] * 8


def test_knowledge_reaches_the_members_of_a_group_and_nobody_else(town: Any) -> None:
    here = town()
    here.populate(3, 12, 4)
    here.run(4)
    for client in here.clients():
        number = int(client.name.split()[1])
        group = {f"car {other}" for other in range(12) if other % 4 == number % 4}
        assert set(client.heard) == group - {client.name}


def test_a_node_in_two_groups_talks_to_both(town: Any) -> None:
    here = town()
    here.populate(3, 6, 2)
    known = [here.groupers()[0].address]
    both = here.client(99, ["sector 0", "sector 1"], known)
    here.run(4)
    assert here.wrong() == []
    assert set(both.heard) == {f"car {number}" for number in range(6)}


def test_who_changes_its_group_is_in_the_new_and_out_of_the_old_table(town: Any) -> None:
    here = town()
    here.populate(8, 40, 8)
    here.run(5)
    here.clients()[3].groups = ("sector 5",)
    here.run(3)
    assert here.wrong() == []


def test_members_that_fall_silent_are_out_of_every_table_within_three_periods(town: Any) -> None:
    here = town()
    here.populate(8, 40, 8)
    here.run(5)
    for client in here.clients()[:20:3]:
        client.alive = False
    here.run(3)
    assert here.wrong() == []


@pytest.mark.parametrize("dead", range(4))
def test_a_grouper_that_dies_is_replaced_within_three_periods(town: Any, dead: int) -> None:
    here = town(seed=dead)
    here.populate(4, 40, 12)
    here.run(6)
    here.groupers()[dead].alive = False
    for number in range(100, 110):
        here.client(number, [f"sector {number % 12}"], [one.address for one in here.groupers()])
    here.run(3)
    assert here.wrong() == []


@pytest.mark.slow
def test_a_grouper_that_joins_or_leaves_never_makes_a_table_wrong(town: Any) -> None:
    here = town()
    here.populate(4, 60, 20)
    here.run(6)
    joined = here.grouper(9, [here.groupers()[0].address])
    for _step in range(40):
        here.run(0.2)
        assert here.wrong() == []
    assert joined.machine.register.groups()
    leaving = here.groupers()[1]
    leaving.machine.leave(here.scheduler.now)
    leaving.flush()
    leaving.alive = False
    for _step in range(30):
        here.run(0.2)
        assert here.wrong() == []
    assert leaving.address not in here.groupers()[0].machine.others


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_tables_of_a_hundred_clients_stay_true_while_groupers_come_and_go(
    town: Any, seed: int
) -> None:
    here = town(seed=seed)
    here.populate(8, 100, 30)
    here.run(6)
    for turn in range(6):
        groupers = here.groupers()
        known = [one.address for one in groupers]
        here.chance.choice(groupers[1:]).alive = False
        here.grouper(20 + turn, known[:1])
        clients = here.clients()
        for client in here.chance.sample(clients, 5):
            client.alive = False
        for client in here.chance.sample(here.clients(), 5):
            client.groups = (f"sector {here.chance.randrange(30)}",)
        for number in range(5):
            sector = f"sector {here.chance.randrange(30)}"
            here.client(1_000 + 10 * turn + number, [sector], known[:1])
        here.run(3)
        assert here.wrong() == []


@pytest.mark.slow
@given(
    st.integers(0, 1_000),
    st.integers(1, 5),
    st.lists(
        st.tuples(st.sampled_from(["client", "silent", "moves"]), st.integers(0, 5)), max_size=12
    ),
)
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_after_any_arrivals_and_departures_tables_are_true_in_three_periods(
    town: Any, seed: int, groupers: int, steps: list[tuple[str, int]]
) -> None:
    here = town(seed=seed)
    here.populate(groupers, 4, 3)
    for number, (what, value) in enumerate(steps):
        clients = here.clients()
        if what == "client":
            groups = [f"sector {value}", f"sector {value // 2}"]
            here.client(50 + number, groups, [here.groupers()[0].address])
        elif what == "silent" and clients:
            clients[value % len(clients)].alive = False
        elif clients:
            clients[value % len(clients)].groups = (f"sector {5 - value}",)
        here.run(0.3)
    here.run(3)
    assert here.wrong() == []


@pytest.mark.slow
def test_a_table_larger_than_a_message_comes_in_pages(town: Any) -> None:
    here = town(page_members=8)
    here.populate(3, 60, 1)
    here.log = []
    here.run(4)
    assert here.wrong() == []
    tables = [message for *_rest, message in here.log if message.roles == ("GroupTable",)]
    assert max(len(message.body) for message in tables) < 500


@pytest.mark.slow
def test_with_a_tenth_of_all_messages_lost_tables_are_nearly_true(town: Any) -> None:
    here = town(loss=0.1)
    here.populate(4, 60, 12)
    here.run(6)
    wrong = 0
    for _step in range(40):
        here.run(0.5)
        wrong += len(here.wrong())
    # A member is forgotten where two of its publications in a row were lost.
    assert wrong < 0.08 * 40 * 60


@pytest.mark.slow
def test_a_partition_of_groupers_heals(town: Any) -> None:
    here = town()
    here.populate(6, 30, 10)
    here.run(6)
    left = {one.address for one in here.groupers()[:3]} | {
        one.address for one in here.clients()[:15]
    }
    here.separated = lambda one, other: (one in left) != (other in left)
    here.run(20)
    assert [len(one.machine.others) for one in here.groupers()] == [3] * 6
    here.separated = lambda one, other: False
    here.run(5)
    assert [len(one.machine.others) for one in here.groupers()] == [6] * 6
    assert here.wrong() == []


def test_two_members_that_were_cut_off_when_they_met_hear_each_other_afterwards(
    town: Any,
) -> None:
    """The cut lasts longer than they try to reach whom they only know from a table."""
    here = town()
    grouper = here.grouper(0).address
    one, other = (here.client(number, ["red"], [grouper]) for number in (1, 2))
    here.separated = lambda *ends: set(ends) == {one.address, other.address}
    here.run(8)
    assert one.heard == other.heard == {}
    here.separated = lambda *_ends: False
    here.run(15)
    before = here.scheduler.now.wall_ms - 2 * here.settings.period_ms
    assert one.heard[other.name] > before
    assert other.heard[one.name] > before


def test_groups_stay_whole_when_only_groupers_survive_that_membership_alone_knows(
    town: Any,
) -> None:
    here = town()
    configured = here.grouper(0)
    for number in range(3):
        here.client(number, ["red"], [configured.address])
    here.run(4)
    configured.alive = False
    others = [here.grouper(number, [configured.address]) for number in (1, 2)]
    for number in range(3, 6):
        here.client(number, ["red"], [configured.address])
    addresses = [one.address for one in others]
    for node in here.nodes.values():
        node.machine.know_groupers([one for one in addresses if one != node.address])
    here.run(8)
    assert here.wrong() == []
    assert [len(one.machine.others) for one in others] == [2, 2]


def test_a_grouper_that_membership_no_longer_knows_is_not_believed(town: Any) -> None:
    here = town()
    client = here.client(1, ["red"], [("10.0.0.9", 1)])
    client.machine.know_groupers([("10.0.0.1", 7)])
    assert client.machine.trusts(("10.0.0.1", 7))
    client.machine.know_groupers([])
    assert not client.machine.trusts(("10.0.0.1", 7))
