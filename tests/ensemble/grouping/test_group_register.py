from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.ensemble.grouping.group_register import MemberRegister
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.kernel.clock import Now
from rapport.transport.base import Address
from support.examples import examples

HERE: Address = ("10.0.0.1", 1)
THERE: Address = ("10.0.0.2", 1)


def at(periods: float) -> Now:
    return Now(0, 5_000 * periods)


def members(register: MemberRegister, group: str, now: Now) -> set[Address]:
    return {entry.address for entry in register.entries(group, now)}


def test_a_node_is_in_a_table_once_with_the_age_of_its_youngest_component() -> None:
    register = MemberRegister(GroupingSettings())
    register.update("a", 1, HERE, ["red"], at(0))
    register.update("b", 1, HERE, ["red"], at(1))
    [entry] = register.entries("red", at(1.5))
    assert (entry.address, entry.age_ms) == (HERE, 2_500)


def test_who_changes_its_groups_is_only_in_the_new_ones() -> None:
    register = MemberRegister(GroupingSettings())
    assert register.update("a", 1, HERE, ["red", "blue"], at(0))
    assert register.update("a", 2, HERE, ["blue", "green"], at(0))
    assert sorted(register.groups()) == ["blue", "green"]
    assert register.update("a", 3, HERE, [], at(0))
    assert register.groups() == []
    assert "a" not in register


def test_a_group_that_is_named_twice_counts_once() -> None:
    register = MemberRegister(GroupingSettings())
    register.update("a", 1, HERE, ["red", "red"], at(0))
    register.update("a", 2, HERE, [], at(0))
    assert register.groups() == []


def test_copies_of_what_was_said_keep_nobody_alive() -> None:
    register = MemberRegister(GroupingSettings())
    register.update("a", 7, HERE, ["red"], at(0))
    assert not register.update("a", 7, HERE, ["red"], at(2))
    assert not register.update("a", 6, HERE, ["blue"], at(2))
    register.drop_silent(at(2.2))
    assert len(register) == 0


def test_nobody_takes_the_name_of_a_registered_component() -> None:
    register = MemberRegister(GroupingSettings())
    register.update("a", 1, HERE, ["red"], at(0))
    assert not register.update("a", 9, THERE, ["red"], at(0))
    assert members(register, "red", at(0)) == {HERE}
    assert register.refused == 1
    register.drop_silent(at(2.2))
    assert register.update("a", 9, THERE, ["red"], at(2.2))


def test_a_dead_node_is_out_of_all_tables_at_once() -> None:
    register = MemberRegister(GroupingSettings())
    register.update("a", 1, HERE, ["red"], at(0))
    register.update("b", 1, HERE, ["blue"], at(0))
    register.update("c", 1, THERE, ["blue"], at(0))
    register.gone(HERE)
    assert register.groups() == ["blue"]
    assert members(register, "blue", at(0)) == {THERE}


@pytest.mark.parametrize("limit", ["members", "node_members", "group_members"])
def test_no_more_are_registered_than_there_is_room_for(limit: str) -> None:
    register = MemberRegister(GroupingSettings(**{limit: 3}))  # type: ignore[arg-type]
    for number in range(5):
        register.update(f"component {number}", 1, HERE, ["red"], at(0))
    assert len(register) == 3
    assert register.refused == 2
    register.update("component 0", 2, HERE, [], at(0))
    assert register.update("component 4", 2, HERE, ["red"], at(0))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 9),
            st.frozensets(st.sampled_from("rgb")),
            st.booleans(),
        )
    )
)
@settings(max_examples=examples(50), deadline=None)
def test_a_register_is_what_a_naive_one_is(
    steps: list[tuple[int, int, frozenset[str], bool]],
) -> None:
    register, now_periods = MemberRegister(GroupingSettings()), 0.0
    naive: dict[str, tuple[int, float, frozenset[str]]] = {}
    for number, version, groups, later in steps:
        now_periods += 0.65 * later
        register.drop_silent(at(now_periods))
        naive = {key: one for key, one in naive.items() if now_periods - one[1] < 2.1}
        name, address = f"component {number}", ("10.0.0.1", number)
        register.update(name, version, address, sorted(groups), at(now_periods))
        if version > naive.get(name, (-1,))[0]:
            naive[name] = version, now_periods, groups
        naive = {key: one for key, one in naive.items() if one[2]}
    for group in "rgb":
        expected = {("10.0.0.1", int(key[-1])) for key, one in naive.items() if group in one[2]}
        assert members(register, group, at(now_periods)) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"period_ms": 0},
        {"copies": 0},
        {"fan_out": -1},
        {"page_members": 7},
        {"groupers": 0},
        {"announce_ms": 4_000},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput) as refused:
        GroupingSettings(**wrong)
    assert refused.value.code == "ensemble.bad_grouping"
    assert refused.value.hint
