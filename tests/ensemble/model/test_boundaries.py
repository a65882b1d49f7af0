"""How far knowledge goes, and in which groups, by what ensembles say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rapport.core.knowledge import Knowledge
from rapport.ensemble import Component, Ensemble, NodeKnowledge, Role
from rapport.ensemble.model.host import Host
from rapport.kernel.clock import Now

At = Callable[[float], Now]
MakeHost = Callable[..., Host]
MakeKnowledge = Callable[..., Knowledge]


class Placed(Role):
    x: float


class Talking(Role):
    words: list[str]


class Walker(Component, Placed):
    team: Any = "red"


class Meeting(Ensemble, every="1 s"):
    coordinator: Placed
    member: Placed

    @staticmethod
    def membership(coordinator: Placed, member: Placed) -> bool:
        return True

    @staticmethod
    def exchange(coordinator: Placed, member: Placed) -> None: ...


class Nearby(Meeting):
    @staticmethod
    def boundary(sender: Placed, node: NodeKnowledge) -> bool:
        return any(
            isinstance(one, Placed) and abs(one.x - sender.x) < 10 for one in node.components
        )


class Northern(Meeting):
    @staticmethod
    def boundary(sender: Placed, node: NodeKnowledge) -> bool:
        return sender.x > 1_000


class Gossiping(Ensemble, every="1 s"):
    coordinator: Talking
    member: Talking

    @staticmethod
    def membership(coordinator: Talking, member: Talking) -> bool:
        return True

    @staticmethod
    def exchange(coordinator: Talking, member: Talking) -> None: ...


def node(make_host: MakeHost, at: At, *ensembles: Any) -> Host:
    host = make_host(*ensembles)
    host.add(Walker(id="w", x=100), at(0))
    return host


def test_without_a_boundary_everything_is_passed_on(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = node(make_host, at, Meeting)
    assert host.may_pass_on(knowledge("a", "Placed", x=5_000.0))


def test_the_boundary_sees_the_sender_and_all_local_components(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = node(make_host, at, Nearby)
    assert host.may_pass_on(knowledge("a", "Placed", x=95.0))
    assert not host.may_pass_on(knowledge("a", "Placed", x=5.0))
    host.add(Walker(id="v", x=0), at(0))
    assert host.may_pass_on(knowledge("a", "Placed", x=5.0))


def test_of_several_boundaries_any_suffices(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = node(make_host, at, Nearby, Northern)
    passed = [host.may_pass_on(knowledge("a", "Placed", x=x)) for x in (95.0, 5.0, 2_000.0)]
    assert passed == [True, False, True]


def test_an_ensemble_without_a_boundary_wants_its_roles_everywhere(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = node(make_host, at, Nearby, Gossiping)
    assert not host.may_pass_on(knowledge("a", "Placed", x=5.0))
    assert host.may_pass_on(knowledge("a", "Placed", "Talking", x=5.0, words=[]))


def test_knowledge_that_no_ensemble_here_speaks_of_is_passed_on(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = node(make_host, at, Nearby)
    assert host.may_pass_on(knowledge("a", "Stranger", x=5.0))
    assert host.may_pass_on(knowledge("a", "Placed", x="far"))


@pytest.mark.parametrize("statement", ["raise ValueError", "return None", "sender.nothing"])
def test_a_boundary_that_cannot_judge_holds_nothing_up(
    statement: str, make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    scope: dict[str, Any] = {}
    exec(f"def boundary(sender, node):\n    {statement}", scope)
    Broken = type("Broken", (Meeting,), {"boundary": scope["boundary"]})
    host = node(make_host, at, Broken)
    assert host.may_pass_on(knowledge("a", "Placed", x=5.0))
    (fault,) = host.faults
    assert (fault.name, fault.count) == ("Broken", 1)


class Team(Meeting):
    @staticmethod
    def group(coordinator: Walker) -> Any:
        return coordinator.team


@pytest.mark.parametrize(
    ("team", "groups"),
    [
        ("red", ("Team:red",)),
        (["a", 1], ('Team:["a",1]',)),
        (7, ("Team:7",)),
        (None, ()),
    ],
)
def test_groups_travel_as_texts(
    team: Any, groups: tuple[str, ...], make_host: MakeHost, at: At
) -> None:
    class Tuples(Team):
        @staticmethod
        def group(coordinator: Walker) -> Any:
            team = coordinator.team
            return tuple(team) if isinstance(team, list) else team

    Tuples.__name__ = "Team"
    host = make_host(Tuples)
    host.add(Walker(id="w", x=1, team=team), at(0))
    snapshot = host.snapshot("w")
    assert snapshot is not None
    assert snapshot.groups == groups
    assert len(host.faults) == 0


@pytest.mark.parametrize("team", [{}, [1], "x" * 300, "\ud800"])
def test_a_value_that_cannot_name_a_group_is_a_fault(
    team: Any, make_host: MakeHost, at: At
) -> None:
    host = make_host(Team)
    host.add(Walker(id="w", x=1, team="red"), at(0))
    host.components["w"].team = team  # type: ignore[attr-defined]
    host.snapshot("w")
    assert "ensemble.odd_answer" in {fault.code for fault in host.faults}


def test_a_group_that_raises_is_a_fault_and_no_group(make_host: MakeHost, at: At) -> None:
    class Failing(Meeting):
        @staticmethod
        def group(coordinator: Walker) -> str:
            raise KeyError("team")

    host = make_host(Failing)
    host.add(Walker(id="w", x=1), at(0))
    snapshot = host.snapshot("w")
    assert snapshot is not None
    assert snapshot.groups == ()
    assert [fault.code for fault in host.faults] == ["ensemble.group_raised"]


def test_a_component_without_the_role_is_in_no_group(make_host: MakeHost, at: At) -> None:
    class Silent(Component): ...

    host = make_host(Team)
    host.add(Silent(id="s"), at(0))
    snapshot = host.snapshot("s")
    assert snapshot is not None
    assert snapshot.groups == ()
