"""Ensembles in a host: who belongs together, and whose knowledge changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rapport.core.errors import DuplicateName, InvalidInput
from rapport.core.knowledge import Knowledge
from rapport.ensemble import Component, Ensemble, Role, process
from rapport.ensemble.model.calls import run_call
from rapport.ensemble.model.ensemble import plan_of_ensemble
from rapport.ensemble.model.host import Host
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.ensemble.trace import Kind
from rapport.kernel.clock import Now

At = Callable[[float], Now]
MakeHost = Callable[..., Host]
MakeKnowledge = Callable[..., Knowledge]


class Hot(Role):
    degrees: float

    def is_hot(self) -> bool:
        return self.degrees > 50

    @property
    def kelvin(self) -> float:
        return self.degrees + 273.15


class Watching(Role):
    seen: dict[str, float]


class Oven(Component, Hot):
    door: str = "shut"
    warned: list[str] = []  # noqa: RUF012


class Guard(Component, Watching):
    count: int = 0
    alarms: int = 0

    @process(on_change="seen", reads=(), writes="alarms")
    def alarm(self) -> None:
        self.alarms += 1


class Both(Component, Hot, Watching): ...


class Patrol(Ensemble, every="1 s"):
    coordinator: Watching
    member: Hot

    @staticmethod
    def membership(coordinator: Watching, member: Hot) -> bool:
        return member.is_hot()

    @staticmethod
    def exchange(coordinator: Watching, member: Hot) -> None:
        coordinator.seen[member.id] = member.degrees
        if isinstance(member, Oven):
            member.warned.append(coordinator.id)


def guard(**given: Any) -> Guard:
    return Guard(**{"id": "g", "seen": {}, **given})


def test_a_local_coordinator_learns_from_local_and_remote_members(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, one, oven = make_host(Patrol), guard(), Oven(id="o", degrees=90)
    host.add(one, at(0))
    host.add(oven, at(0))
    host.replace(knowledge("far", "Hot", degrees=70), at(1))
    host.replace(knowledge("cold", "Hot", degrees=7), at(1))
    host.run(at(1_000))
    assert one.seen == {"o": 90.0, "far": 70.0}
    assert oven.warned == ["g"]
    assert host.formed == {"Patrol": (("g", "o"), ("g", "far"))}
    assert host.pairs == 3
    assert len(host.faults) == 0


def test_a_local_member_learns_from_a_remote_coordinator_that_does_not_change(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, oven = make_host(Patrol), Oven(id="o", degrees=90)
    told = knowledge("far", "Watching", seen={"x": 1.0})
    host.add(oven, at(0))
    host.replace(told, at(1))
    host.run(at(1_000))
    host.run(at(2_000))
    assert oven.warned == ["far", "far"]
    assert host.replicas["far"].values == {"seen": {"x": 1.0}}


def test_two_replicas_are_none_of_this_nodes_business(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host = make_host(Patrol)
    host.add(guard(), at(0))
    host.replace(knowledge("a", "Watching", seen={}), at(1))
    host.replace(knowledge("b", "Hot", degrees=70), at(1))
    host.run(at(1_000))
    assert host.formed["Patrol"] == (("g", "b"),)


def test_a_component_is_never_its_own_member(make_host: MakeHost, at: At) -> None:
    host, one = make_host(Patrol), Both(id="b", degrees=99, seen={})
    host.add(one, at(0))
    host.run(at(1_000))
    assert one.seen == {}
    assert host.pairs == 0


def test_an_exchange_is_a_change_that_runs_processes(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, one = make_host(Patrol), guard()
    host.add(one, at(0))
    host.replace(knowledge("far", "Hot", degrees=70), at(1))
    host.run(at(1_000))
    assert one.alarms == 1
    host.run(at(2_000))
    assert one.alarms == 1  # exchanged again, but nothing is different


def test_isinstance_is_true_of_replicas_by_the_names_and_fields_that_travel(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    answers: dict[str, tuple[bool, ...]] = {}

    class Sorting(Ensemble, every="1 s"):
        coordinator: Guard
        member: Role

        @staticmethod
        def membership(coordinator: Guard, member: Role) -> bool:
            answers[member.id] = tuple(isinstance(member, cls) for cls in (Oven, Hot, Component))
            return False

        @staticmethod
        def exchange(coordinator: Guard, member: Role) -> None: ...

    host = make_host(Sorting)
    host.add(guard(), at(0))
    host.add(Oven(id="here", degrees=1), at(0))
    whole = {"degrees": 1.0, "door": "shut", "warned": []}
    host.replace(knowledge("kiln", "Kiln", "Oven", "Hot", **whole, colour="red"), at(1))
    host.replace(knowledge("partly", "Oven", "Hot", degrees=1.0), at(1))
    host.replace(knowledge("liar", "Oven", "Hot", door="open"), at(1))
    host.replace(knowledge("other", "Fridge", degrees=1.0), at(1))
    host.run(at(1_000))
    assert answers == {
        "here": (True, True, True),
        "kiln": (True, True, True),
        "partly": (True, True, True),  # what has a default may be missing
        "liar": (False, False, True),
        "other": (False, False, True),
    }


def test_replicas_have_the_methods_and_properties_of_their_role(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    class Warm(Patrol, every="1 s"):
        @staticmethod
        def exchange(coordinator: Watching, member: Hot) -> None:
            coordinator.seen[member.id] = member.kelvin

    host, one = make_host(Warm), guard()
    host.add(one, at(0))
    host.replace(knowledge("far", "Hot", degrees=100), at(1))
    host.run(at(1_000))
    assert one.seen == {"far": 373.15}


def test_replicas_tell_when_they_were_published_and_what_time_it_is(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    class Aged(Patrol, every="1 s"):
        @staticmethod
        def exchange(coordinator: Watching, member: Hot) -> None:
            coordinator.seen[member.id] = member.now_ms - member.created_ms

    host, one = make_host(Aged), guard()
    host.add(one, at(0))
    host.add(Oven(id="here", degrees=60), at(0))
    host.replace(knowledge("far", "Hot", version=400, degrees=100), at(1))
    host.run(at(1_000))
    assert one.seen == {"here": 0, "far": 1_600}


@pytest.mark.parametrize(
    "statement",
    [
        "raise ValueError",
        "raise SystemExit",
        "coordinator.sen = 1",
        "coordinator.count = 'many'",
        "coordinator.id = 'thief'",
        "member.nothing",
    ],
)
def test_an_exchange_that_fails_half_way_leaves_nothing_and_stops_no_other(
    statement: str, make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    scope: dict[str, Any] = {}
    exec(
        "def exchange(coordinator, member):\n"
        "    coordinator.seen[member.id] = member.degrees\n"
        "    coordinator.count += 1\n"
        f"    if member.id == 'bad': {statement}",
        scope,
    )
    Failing = type("Failing", (Patrol,), {"exchange": scope["exchange"]})
    host, one = make_host(Failing), guard()
    host.add(one, at(0))
    for name in ("a", "bad", "c"):
        host.replace(knowledge(name, "Hot", degrees=60), at(1))
    host.run(at(1_000))
    assert (one.seen, one.count, one.id) == ({"a": 60.0, "c": 60.0}, 2, "g")
    assert host.formed["Failing"] == (("g", "a"), ("g", "c"))
    (fault,) = host.faults
    assert fault.name == "Failing"
    assert "exchange of g and bad" in fault.message


@pytest.mark.parametrize("statement", ["raise ValueError", "return None", "return 'yes'"])
def test_a_membership_that_cannot_say_is_no_and_a_fault(
    statement: str, make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    scope: dict[str, Any] = {}
    exec(
        f"def membership(coordinator, member):\n    if member.id == 'bad': {statement}\n"
        "    return True",
        scope,
    )
    Unsure = type("Unsure", (Patrol,), {"membership": scope["membership"]})
    host, one = make_host(Unsure), guard()
    host.add(one, at(0))
    for name in ("a", "bad", "c"):
        host.replace(knowledge(name, "Hot", degrees=60), at(1))
    host.run(at(1_000))
    assert list(one.seen) == ["a", "c"]
    assert len(host.faults) == 1


def test_what_membership_writes_is_gone(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    class Scribbling(Patrol, every="1 s"):
        @staticmethod
        def membership(coordinator: Watching, member: Hot) -> bool:
            coordinator.seen["scribble"] = 1.0
            member.degrees = 1_000.0
            return True

    host, one, oven = make_host(Scribbling), guard(), Oven(id="o", degrees=5)
    host.add(one, at(0))
    host.add(oven, at(0))
    host.run(at(1_000))
    assert one.seen == {"o": 5.0}
    assert oven.degrees == 5


def test_what_is_written_to_a_replica_is_gone_before_the_next_pair(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    class Thieving(Patrol, every="1 s"):
        @staticmethod
        def exchange(coordinator: Watching, member: Hot) -> None:
            coordinator.seen[member.id] = member.degrees
            member.degrees = -1.0

    host, one, other = make_host(Thieving), guard(), guard(id="h")
    host.add(one, at(0))
    host.add(other, at(0))
    host.replace(knowledge("far", "Hot", degrees=60), at(1))
    host.run(at(1_000))
    host.run(at(2_000))
    assert one.seen == other.seen == {"far": 60.0}


@pytest.mark.parametrize(
    ("writes", "seen", "warned"),
    [("coordinator", {"o": 90.0, "far": 70.0}, []), ("member", {}, ["g", "boss"])],
)
def test_an_ensemble_that_writes_to_one_side_only_leaves_the_other_alone(
    writes: str,
    seen: dict[str, float],
    warned: list[str],
    make_host: MakeHost,
    at: At,
    knowledge: MakeKnowledge,
) -> None:
    class OneSided(Patrol, every="1 s", writes=writes): ...

    host, one, oven = make_host(OneSided), guard(), Oven(id="o", degrees=90)
    host.add(one, at(0))
    host.add(oven, at(0))
    host.replace(knowledge("far", "Hot", degrees=70), at(1))
    host.replace(knowledge("boss", "Watching", seen={}), at(1))
    host.run(at(1_000))
    assert (one.seen, oven.warned) == (seen, warned)
    assert host.pairs == 2


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "missing required field"),
        ({"degrees": "hot"}, "Expected `float`"),
        ({"degrees": None}, "Expected `float`"),
    ],
)
def test_a_replica_that_is_not_what_it_says_is_no_candidate(
    values: dict[str, Any], why: str, make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, one = make_host(Patrol), guard()
    host.add(one, at(0))
    host.replace(knowledge("odd", "Hot", **values), at(1))
    host.run(at(1_000))
    host.run(at(2_000))
    assert one.seen == {}
    (fault,) = host.faults
    assert (fault.code, fault.component, fault.count) == ("ensemble.not_of_role", "odd", 1)
    assert why in fault.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"\x91" * 100_000,
        b"\x81\xa7degrees" + b"\x91" * 100_000 + b"\xc0",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"degrees": 60.0})[:-1],
        None,
        object(),
    ],
    ids=["empty", "odd", "nothing", "deep", "deep_field", "list", "cut", "none", "object"],
)
def test_bodies_that_cannot_be_read_are_no_candidates(
    body: Any, make_host: MakeHost, at: At
) -> None:
    host, one = make_host(Patrol), guard()
    host.add(one, at(0))
    assert host.replace(PublishedKnowledge("far", 1, 1, "there", ("Hot",), body), at(1))
    host.run(at(1_000))
    assert one.seen == {}
    assert [fault.code for fault in host.faults] == ["ensemble.not_of_role"]
    assert host.replicas["far"].knowledge.component == "far"


def test_bodies_in_msgpack_are_typed_also_with_keys_that_travelled_as_texts(
    make_host: MakeHost, at: At
) -> None:
    class Numbered(Role):
        names: dict[int, str]

    class Gathering(Ensemble, every="1 s"):
        coordinator: Guard
        member: Numbered

        @staticmethod
        def membership(coordinator: Guard, member: Numbered) -> bool:
            return member.names[7] == "seven"

        @staticmethod
        def exchange(coordinator: Guard, member: Numbered) -> None:
            coordinator.count = len(member.names)

    globals()["Numbered"] = Numbered
    host, one = make_host(Gathering), guard()
    host.add(one, at(0))
    body = msgspec.msgpack.encode({"names": {"7": "seven"}})
    host.replace(PublishedKnowledge("far", 1, 1, "there", ("Numbered",), body), at(1))
    host.run(at(1_000))
    assert one.count == 1


def test_an_evaluation_that_hangs_harms_nobody_and_is_not_started_again(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, one = make_host(Patrol, process_ms=1_500), guard()
    host.add(one, at(0))
    host.replace(knowledge("far", "Hot", degrees=70), at(1))
    (stuck,) = host.tick(at(1_000))
    assert host.tick(at(2_000)) == []
    host.assign("g", {"seen": {"x": 1}}, at(2_500))
    host.run(at(2_500))
    assert one.alarms == 1
    codes = {fault.code: fault.count for fault in host.faults}
    assert codes == {"ensemble.overran": 1, "ensemble.hangs": 1}
    host.finished(stuck, run_call(stuck), at(2_600))
    assert one.seen == {"x": 1.0}
    host.run(at(3_000))
    assert one.seen == {"x": 1.0, "far": 70.0}


class Census(Ensemble, every="1 s", writes="coordinator"):
    coordinator: Guard
    member: Hot

    def membership(coordinator: Any, member: Any) -> bool:
        return True

    def exchange(coordinator: Any, member: Any) -> None:
        coordinator.count += 1


def test_what_an_evaluation_found_for_one_is_not_given_to_another_that_took_its_name(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    host, one, other = make_host(Census), guard(), guard()
    host.add(one, at(0))
    host.replace(knowledge("far", "Hot", degrees=70), at(1))
    (call,) = host.tick(at(1_000))
    found = run_call(call)
    host.remove("g")
    host.add(other, at(1_100))
    host.finished(call, found, at(1_200))
    assert (one.count, other.count) == (0, 0)
    host.run(at(2_000))
    assert other.count == 1


def test_the_trace_tells_each_pair_and_each_process(
    make_host: MakeHost, at: At, knowledge: MakeKnowledge
) -> None:
    events: list[Any] = []
    host = make_host(Patrol, trace=events.append)
    host.add(guard(), at(0))
    host.add(Oven(id="o", degrees=5), at(0))
    host.replace(knowledge("far", "Hot", version=9, degrees=70), at(1))
    host.replace(knowledge("boss", "Watching", version=8, seen={}), at(1))
    host.run(at(1_000))
    told = [(e.kind, e.other, e.component, e.version, e.detail) for e in events]
    assert told == [
        (Kind.EVALUATED, "g", "o", 0, "Patrol"),
        (Kind.EVALUATED, "g", "far", 9, "Patrol"),
        (Kind.EXCHANGED, "g", "far", 9, "Patrol"),
        (Kind.EVALUATED, "o", "boss", 8, "Patrol"),
        (Kind.PROCESS_RAN, "", "g", 0, "alarm"),
    ]


class NoPeriod(Ensemble):
    coordinator: Watching
    member: Hot


class NoMember(Ensemble, every="1 s"):
    coordinator: Watching
    membre: Hot


class NoRole(Ensemble, every="1 s"):
    coordinator: int
    member: Hot


class Misspelt(Ensemble, every="1 s"):
    coordinator: Watching
    member: Hot

    @staticmethod
    def memebership(coordinator: Watching, member: Hot) -> bool:
        return True


class WithSelf(Patrol):
    def exchange(self, coordinator: Watching, member: Hot) -> None: ...  # type: ignore[override]


class Waiting(Patrol):
    @staticmethod
    async def exchange(coordinator: Watching, member: Hot) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("ensemble", "message", "hint"),
    [
        (NoPeriod, "no period", 'every="1 s"'),
        (NoMember, "no role for its member", "you wrote 'membre'"),
        (NoRole, "which is no role", "Role or Component"),
        (Misspelt, "no membership", "'memebership'"),
        (WithSelf, "does not take 2 arguments", "def exchange(coordinator, member), without self"),
        (Waiting, "not a plain function", "write def"),
        (Guard, "not an ensemble", "Ensemble"),
        (7, "not an ensemble", "Ensemble"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_ensemble_that_cannot_be_meant_is_refused_with_a_hint(
    ensemble: Any, message: str, hint: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        plan_of_ensemble(ensemble)
    assert hint in caught.value.hint


def test_odd_options_of_an_ensemble_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        type("Odd", (Patrol,), {}, every="never")
    assert caught.value.code == "ensemble.bad_schedule"
    with pytest.raises(InvalidInput) as caught:
        type("Odd", (Patrol,), {}, writes="coordinater")
    assert caught.value.hint == "did you mean 'coordinator'?"


def test_two_ensembles_of_one_name_are_refused(make_host: MakeHost) -> None:
    with pytest.raises(DuplicateName):
        make_host(Patrol, Patrol)


def test_two_components_of_one_id_are_refused(make_host: MakeHost, at: At) -> None:
    host = make_host()
    host.add(guard(), at(0))
    with pytest.raises(DuplicateName) as caught:
        host.add(guard(), at(0))
    assert caught.value.code == "ensemble.duplicate_component"
    with pytest.raises(InvalidInput):
        host.add(object(), at(0))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        host.add(Component(id="bare"), at(0))
