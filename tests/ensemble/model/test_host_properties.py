"""A host does what a naive evaluator does, on random components, ensembles and replicas."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.knowledge import Knowledge
from rapport.ensemble import Component, Ensemble, Role
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.role import RoleType, plan_of, role_names
from rapport.ensemble.model.snapshots import snapshot_of
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.kernel.clock import Chance, Now


class Giver(Role):
    stock: int
    given: dict[str, int]


class Taker(Role):
    need: int
    taken: list[str]


class Shop(Component, Giver): ...


class Guest(Component, Taker): ...


class Trader(Component, Giver, Taker): ...


CLASSES: dict[str, type[Component]] = {"Shop": Shop, "Guest": Guest, "Trader": Trader}
ROLES: dict[str, RoleType] = {"Giver": Giver, "Taker": Taker}


def first_field(one: Any) -> int:
    return int(one.stock if hasattr(one, "stock") else one.need)


def more(coordinator: Any, member: Any) -> bool:
    return first_field(coordinator) > first_field(member)


def odd(coordinator: Any, member: Any) -> bool:
    return (first_field(coordinator) + first_field(member)) % 2 == 1


def everybody(coordinator: Any, member: Any) -> bool:
    return True


def fussy(coordinator: Any, member: Any) -> bool:
    if first_field(member) == 3:
        raise ValueError("three")
    return True


def trade(one: Any, other: Any) -> None:
    """Changes whatever it finds, on both sides, assigned and in place."""
    for here, there in ((one, other), (other, one)):
        if hasattr(here, "given"):
            here.given[there.id] = here.given.get(there.id, 0) + first_field(there)
            here.stock = here.stock - 1
        else:
            here.taken.append(there.id)
            here.need += len(here.taken)


def trade_once(one: Any, other: Any) -> None:
    trade(one, other)
    if first_field(other) > 4:
        raise RuntimeError("changed too much")


def copy_over(one: Any, other: Any) -> None:
    if hasattr(one, "given"):
        one.given = {other.id: 1}


MEMBERSHIPS, EXCHANGES = (more, odd, everybody, fussy), (trade, trade_once, copy_over)


def naive(local: dict[str, Any], replicas: dict[str, Any], ensemble: type[Ensemble]) -> None:
    """Evaluates on whole copies for each pair; changes `local` (id to values and role names)."""
    hints: Any = ensemble.__annotations__
    coordinator_role, member_role = (hints[side].__name__ for side in ("coordinator", "member"))
    start, known = copy.deepcopy(local), {**local, **replicas}

    def having(role: str, among: dict[str, Any]) -> list[str]:
        return [name for name, (_values, roles) in among.items() if role in roles]

    pairs = [
        (one, other)
        for one in having(coordinator_role, local)
        for other in having(member_role, known)
        if one != other and (other in local or ensemble.writes != "member")
    ] + [
        (one, other)
        for one in having(coordinator_role, replicas)
        for other in having(member_role, local)
        if ensemble.writes != "coordinator"
    ]

    def copied(pair: tuple[str, str], state: dict[str, Any]) -> list[Any]:
        found = []
        for name, side in zip(pair, ("coordinator", "member"), strict=True):
            values = copy.deepcopy(state[name] if name in state else replicas[name])[0]
            if name not in state:  # of a replica only the fields of its role are seen
                values = {field: values[field] for field in plan_of(hints[side]).published}
            found.append(SimpleNamespace(id=name, **values))
        return found

    def belongs(pair: tuple[str, str]) -> bool:
        try:
            return bool(ensemble.membership(*copied(pair, start)))  # type: ignore[attr-defined]
        except ValueError:
            return False

    for pair in filter(belongs, pairs):
        sides = copied(pair, local)
        try:
            ensemble.exchange(*sides)  # type: ignore[attr-defined]
        except RuntimeError:
            continue
        for name, side, worked_on in zip(pair, ("coordinator", "member"), sides, strict=True):
            if name in local and ensemble.writes in ("", side):
                changed = {key: value for key, value in vars(worked_on).items() if key != "id"}
                local[name] = (changed, local[name][1])


@st.composite
def systems(draw: st.DrawFn) -> tuple[list[Component], list[Component], list[type[Ensemble]]]:
    """Components here, components elsewhere, ensembles."""

    def component(name: str) -> Component:
        numbers = st.integers(0, 6)
        kind = CLASSES[draw(st.sampled_from(sorted(CLASSES)))]
        given: dict[str, Any] = {"id": name}
        if issubclass(kind, Giver):
            given |= {"stock": draw(numbers), "given": draw(st.sampled_from([{}, {"x": 1}]))}
        if issubclass(kind, Taker):
            given |= {"need": draw(numbers), "taken": draw(st.sampled_from([[], ["y"]]))}
        return kind(**given)

    def ensemble(number: int) -> type[Ensemble]:
        role = st.sampled_from(sorted(ROLES))
        made: type[Ensemble] = type(
            f"Ensemble{number}",
            (Ensemble,),
            {
                "__annotations__": {
                    "coordinator": ROLES[draw(role)],
                    "member": ROLES[draw(role)],
                },
                "membership": draw(st.sampled_from(MEMBERSHIPS)),
                "exchange": draw(st.sampled_from(EXCHANGES)),
            },
            every="1 s",
            writes=draw(st.sampled_from(["", "coordinator", "member"])),
        )
        return made

    here = [component(f"here{number}") for number in range(draw(st.integers(0, 4)))]
    there = [component(f"there{number}") for number in range(draw(st.integers(0, 4)))]
    return here, there, [ensemble(number) for number in range(draw(st.integers(1, 3)))]


def values(one: Component) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in vars(one).items() if name != "id"}


@pytest.mark.slow
@given(systems(), st.booleans())
def test_a_host_does_what_a_naive_evaluator_does(
    system: tuple[list[Component], list[Component], list[type[Ensemble]]], as_bytes: bool
) -> None:
    here, there, ensembles = system
    host = Host("here", ensembles, Chance(1), HostSettings(offset_ms=0))
    for one in here:
        host.add(one, Now(0, 0.0))
    for one in there:
        snapshot = snapshot_of(one, (), most_bytes=10_000, most_levels=9)
        if as_bytes:
            host.replace(
                PublishedKnowledge(one.id, 1, 1, "n", snapshot.roles, snapshot.body), Now(0, 0.0)
            )
        else:
            host.replace(Knowledge(one.id, "n", snapshot.roles, 1, 1, snapshot.values), Now(0, 0.0))
    local = {one.id: (values(one), role_names(type(one))) for one in here}
    replicas = {one.id: (values(one), role_names(type(one))) for one in there}
    told = {name: copy.deepcopy(host.replicas[name].values) for name in host.replicas}
    for period in (1, 2):
        for ensemble in ensembles:
            naive(local, replicas, ensemble)
        host.run(Now(period * 1_000, period * 1_000.0))
    assert {one.id: values(one) for one in here} == {name: kept[0] for name, kept in local.items()}
    assert {name: host.replicas[name].values for name in host.replicas} == told
    assert all(fault.code != "ensemble.contended" for fault in host.faults)


@given(systems())
def test_only_components_of_this_node_change(
    system: tuple[list[Component], list[Component], list[type[Ensemble]]],
) -> None:
    here, there, ensembles = system
    host = Host("here", ensembles, Chance(1), HostSettings(offset_ms=0))
    for one in here:
        host.add(one, Now(0, 0.0))
    bodies = {}
    for one in there:
        body = snapshot_of(one, (), most_bytes=10_000, most_levels=9).values
        bodies[one.id] = (body, copy.deepcopy(body))
        host.replace(
            PublishedKnowledge(one.id, 1, 1, "n", role_names(type(one)), body), Now(0, 0.0)
        )
    ids = [one.id for one in here]
    for period in range(1, 4):
        host.run(Now(period * 1_000, period * 1_000.0))
    assert [one.id for one in here] == ids
    assert all(body == before for body, before in bodies.values())
    assert {name for pairs in host.formed.values() for pair in pairs for name in pair} <= {
        *ids,
        *bodies,
    }
