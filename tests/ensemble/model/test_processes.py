"""Processes in a host: when they run, what they may touch, and what happens when they do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from rapport.core.errors import InvalidInput, UnknownName
from rapport.ensemble import Component, Local, process
from rapport.ensemble.model.calls import run_call
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.role import RoleType
from rapport.kernel.clock import Now

At = Callable[[float], Now]
MakeHost = Callable[..., Host]


class Route(msgspec.Struct):
    stops: list[str]
    length: float = 0.0


class Robot(Component):
    ticks: int = 0
    log: list[str] = []  # noqa: RUF012
    route: Route = Route([])
    goal: str = ""
    other: int = 0
    tool: Local[Any] = None

    @process(every="1 s", writes="ticks")
    def count(self) -> None:
        self.ticks += 1

    @process(on_change="route.stops", writes=("goal", "log"))
    def plan(self) -> None:
        self.goal = self.route.stops[-1] if self.route.stops else ""
        self.log.append(f"goal {self.goal}")


class Unequal:
    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]


def faults(host: Host) -> dict[str, int]:
    return {fault.code: fault.count for fault in host.faults}


def test_a_periodic_process_runs_once_a_period(make_host: MakeHost, at: At) -> None:
    host, robot = make_host(), Robot(id="r")
    host.add(robot, at(0))
    assert host.next_due_ms() == 1_000
    assert host.run(at(999)) == 0
    for ms in range(1_000, 5_001, 250):
        host.run(at(ms))
    assert robot.ticks == 5


def test_missed_periods_are_not_made_up_for_and_wall_clocks_may_jump(
    make_host: MakeHost,
) -> None:
    host, robot = make_host(), Robot(id="r")
    host.add(robot, Now(5_000_000, 0.0))
    host.run(Now(1, 3_600_000.0))
    host.run(Now(9_999_999_999, 3_600_999.0))
    assert robot.ticks == 1
    host.run(Now(-5, 3_601_000.0))
    assert robot.ticks == 2


def test_offsets_are_drawn_so_that_nodes_do_not_act_together(at: At, make_host: MakeHost) -> None:
    host = make_host(offset_ms=None)
    for number in range(20):
        host.add(Robot(id=str(number)), at(0))
    calls = [len(host.tick(at(ms))) for ms in range(0, 1_001, 100)]
    assert sum(calls) == 20
    assert max(calls) < 10


def test_a_change_of_a_path_runs_the_process_an_assignment_of_the_same_value_does_not(
    make_host: MakeHost, at: At
) -> None:
    host, robot = make_host(), Robot(id="r")
    host.add(robot, at(0))
    robot.route.length = 7.0
    host.run(at(1))
    assert robot.log == []
    robot.route = Route([], 8.0)
    host.run(at(2))
    assert robot.log == []
    robot.route.stops.append("home")
    host.run(at(3))
    assert (robot.goal, robot.log) == ("home", ["goal home"])
    host.run(at(4))
    assert robot.log == ["goal home"]


@pytest.mark.parametrize("path", ["route.nothing.below", "route.stops.0", "log.-1"])
def test_paths_that_lead_nowhere_are_no_change(path: str, make_host: MakeHost, at: At) -> None:
    class Watching(Robot):
        seen: int = 0

        @process(on_change=path, writes="seen")
        def watch(self) -> None:
            self.seen += 1

    host, robot = make_host(), Watching(id="w")
    host.add(robot, at(0))
    host.run(at(1))
    assert robot.seen == 0
    if path == "route.stops.0":
        robot.route.stops.append("a")
        host.run(at(2))
        assert robot.seen == 1


def test_outputs_are_taken_over_in_one_piece_or_not_at_all(make_host: MakeHost, at: At) -> None:
    class Half(Robot):
        @process(every="1 s", writes=("goal", "log"))
        def fail(self) -> None:
            self.goal = "changed"
            self.log.append("changed")
            raise ValueError("half way")

    host, robot = make_host(), Half(id="h")
    host.add(robot, at(0))
    host.run(at(1_000))
    assert (robot.goal, robot.log, robot.ticks) == ("", [], 1)
    (fault,) = host.faults.of("h", "fail")
    assert (fault.code, fault.message) == ("ensemble.raised", "ValueError: half way")
    assert fault.place.startswith("test_processes.py:")
    assert fault.last_ms == 1_001_000
    host.run(at(2_000))
    assert host.faults.of("h", "fail")[0].count == 2


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("self.other = 1", "ensemble.undeclared_write"),
        ("self.log.append('x')", "ensemble.undeclared_write"),
        ("self.id = 'thief'", "ensemble.unknown_field"),
        ("self.tool = 1", "ensemble.undeclared_write"),
        ("self.gaol = 'x'", "ensemble.unknown_field"),
        ("self._hidden = 1", "ensemble.unknown_field"),
        ("self.goal = 7", "ensemble.bad_value"),
        ("raise SystemExit", "ensemble.raised"),
        ("raise RecursionError", "ensemble.raised"),
        ("raise GeneratorExit", "ensemble.raised"),
        ("return 5", "ensemble.odd_answer"),
        ("self.nothing", "ensemble.unknown_field"),
        ("del self.goal; self.goal", "ensemble.undeclared_read"),
    ],
)
def test_what_a_process_may_not_do_is_its_fault_and_changes_nothing(
    statement: str, code: str, make_host: MakeHost, at: At
) -> None:
    scope: dict[str, Any] = {}
    exec(f"def act(self):\n    self.goal = 'x'\n    {statement}", scope)
    act = process(every="1 s", writes="goal")(scope["act"])
    Odd = RoleType("Odd", (Robot,), {"act": act})
    host, robot = make_host(), Odd(id="o")
    host.add(robot, at(0))
    before = dict(robot.__dict__, ticks=1)
    host.run(at(1_000))
    assert faults(host) == {code: 1}
    assert robot.__dict__ == before


def test_a_process_is_given_only_what_it_declares(make_host: MakeHost, at: At) -> None:
    class Narrow(Robot):
        @process(every="1 s", reads="goal", writes="other")
        def look(self) -> None:
            self.other = len(self.goal) + self.ticks

    host, robot = make_host(), Narrow(id="n")
    host.add(robot, at(0))
    host.run(at(1_000))
    (fault,) = host.faults
    assert fault.code == "ensemble.undeclared_read"
    assert fault.hint == 'add it: reads=(..., "ticks")'


def test_local_fields_are_shared_and_written_when_declared(make_host: MakeHost, at: At) -> None:
    class Handy(Robot):
        @process(every="1 s", reads=(), writes="tool")
        def use(self) -> None:
            self.tool.append(1)
            if len(self.tool) == 2:
                self.tool = ["new"]

    tool: list[Any] = []
    host, robot = make_host(), Handy(id="h", tool=tool)
    host.add(robot, at(0))
    host.run(at(1_000))
    assert robot.tool is tool
    host.run(at(2_000))
    assert (tool, robot.tool) == ([1, 1], ["new"])


def test_a_process_knows_the_time_it_began(make_host: MakeHost, at: At) -> None:
    class Timed(Robot):
        @process(every="1 s", writes="other")
        def look(self) -> None:
            self.other = self.now_ms

    host, robot = make_host(), Timed(id="t")
    host.add(robot, at(0))
    host.run(at(1_000))
    assert robot.other == 1_001_000


def test_a_process_that_triggers_itself_for_ever_is_ended(make_host: MakeHost, at: At) -> None:
    class Restless(Component):
        count: int = 0

        @process(on_change="count", writes="count")
        def again(self) -> None:
            self.count += 1

    host, restless = make_host(longest_cascade=5), Restless(id="r")
    host.add(restless, at(0))
    restless.count = 1
    host.run(at(1))
    assert restless.count == 1 + 6
    assert faults(host) == {"ensemble.endless_cascade": 1}
    assert host.next_due_ms() is None
    restless.count = 100
    host.run(at(2))
    assert restless.count == 106


def test_a_value_that_cannot_be_compared_is_a_change_only_when_it_is_another(
    make_host: MakeHost, at: At
) -> None:
    class Loose(Component):
        thing: Any = None
        seen: int = 0

        @process(on_change="thing", reads=(), writes="seen")
        def look(self) -> None:
            self.seen += 1

    cycle: list[Any] = []
    cycle.append(cycle)
    host, loose = make_host(), Loose(id="l")
    host.add(loose, at(0))
    for number, thing in enumerate((cycle, Route([], math.nan), [Unequal()]), start=1):
        loose.thing = thing
        for ms in range(10 * number, 10 * number + 4):
            host.run(at(ms))
            assert loose.seen == number
            assert host.next_due_ms() is None


def test_a_call_that_never_returns_harms_nobody_and_is_not_started_again(
    make_host: MakeHost, at: At
) -> None:
    class Stuck(Robot):
        @process(every="1 s", writes="goal")
        def hang(self) -> None:
            self.goal = "late"

    host, robot = make_host(process_ms=2_500), Stuck(id="s")
    host.add(robot, at(0))
    stuck = None
    for ms in range(1_000, 5_001, 500):
        for call in host.tick(at(ms)):
            if call.name == "hang":
                assert stuck is None
                stuck = call
            else:
                host.finished(call, run_call(call), at(ms))
    assert robot.ticks == 5
    assert faults(host) == {"ensemble.overran": 4, "ensemble.hangs": 1}
    assert stuck is not None
    host.finished(stuck, run_call(stuck), at(5_100))
    assert robot.goal == ""
    assert [call.name for call in host.tick(at(6_000))] == ["count", "hang"]


def test_the_host_wakes_to_find_a_hanging_call(make_host: MakeHost, at: At) -> None:
    host = make_host(process_ms=300)
    host.add(Robot(id="r"), at(0))
    host.tick(at(1_000))
    assert host.next_due_ms() == 1_300


def test_a_process_triggered_while_it_runs_runs_again_afterwards(
    make_host: MakeHost, at: At
) -> None:
    host, robot = make_host(), Robot(id="r")
    host.add(robot, at(0))
    robot.route = Route(["a"])
    (first,) = host.tick(at(1))
    robot.route = Route(["a", "b"])
    assert host.tick(at(2)) == []
    host.finished(first, run_call(first), at(3))
    assert host.next_due_ms() == 3
    (second,) = host.tick(at(3))
    host.finished(second, run_call(second), at(4))
    assert robot.goal == "b"


def test_what_two_write_at_once_is_made_again_from_the_newer(make_host: MakeHost, at: At) -> None:
    host, robot = make_host(), Robot(id="r")
    host.add(robot, at(0))
    (call,) = host.tick(at(1_000))
    outcome = run_call(call)
    robot.ticks = 10
    host.finished(call, outcome, at(1_001))
    assert robot.ticks == 10
    assert host.next_due_ms() == 1_001
    host.run(at(1_001))
    assert robot.ticks == 11
    assert len(host.faults) == 0


def test_endless_contention_is_told_and_left(make_host: MakeHost, at: At) -> None:
    host, robot = make_host(most_retries=2), Robot(id="r")
    host.add(robot, at(0))
    count = 0
    for _ in range(10):
        for call in host.tick(at(1_000)):
            outcome = run_call(call)
            robot.ticks += 100
            host.finished(call, outcome, at(1_000))
            count += 1
    assert count == 3
    assert faults(host) == {"ensemble.contended": 1}


def test_fields_assigned_from_outside_are_checked_and_wake_the_host(
    make_host: MakeHost, at: At
) -> None:
    host, robot = make_host(), Robot(id="r")
    host.add(robot, at(0))
    host.assign("r", {"route": {"stops": ["x"]}, "other": 3}, at(5))
    assert (robot.route, robot.other) == (Route(["x"]), 3)
    assert host.next_due_ms() == 5
    host.run(at(5))
    assert robot.goal == "x"
    with pytest.raises(InvalidInput) as caught:
        host.assign("r", {"other": 4, "route": 5}, at(6))
    assert (caught.value.code, robot.other) == ("ensemble.bad_value", 3)
    with pytest.raises(InvalidInput, match="no field 'gaol'"):
        host.assign("r", {"gaol": "x"}, at(6))
    with pytest.raises(UnknownName):
        host.assign("q", {}, at(6))


def test_calls_in_threads_lose_nothing_that_others_wrote(make_host: MakeHost, at: At) -> None:
    class Counters(Component):
        count: int = 0
        first: int = 0
        second: int = 0

        @process(every="1 ms", writes=("count", "first"))
        def one(self) -> None:
            self.count, self.first = self.count + 1, self.first + 1

        @process(every="1 ms", writes=("count", "second"))
        def two(self) -> None:
            self.count, self.second = self.count + 1, self.second + 1

    host, both = make_host(most_retries=1_000), Counters(id="c")
    host.add(both, at(0))
    with ThreadPoolExecutor(2) as threads:
        for ms in range(1, 101):
            while calls := host.tick(at(ms)):
                for call, outcome in zip(calls, threads.map(run_call, calls), strict=True):
                    host.finished(call, outcome, at(ms))
    assert (both.count, both.first, both.second) == (200, 100, 100)
    assert len(host.faults) == 0


def test_an_exception_instead_of_an_outcome_is_a_fault(make_host: MakeHost, at: At) -> None:
    host = make_host()
    host.add(Robot(id="r"), at(0))
    (call,) = host.tick(at(1_000))
    host.finished(call, TimeoutError("given up"), at(2_000))
    (fault,) = host.faults
    assert (fault.component, fault.name, fault.message) == (
        "r",
        "count",
        "TimeoutError: given up",
    )


def test_what_a_removed_component_still_does_is_not_taken(make_host: MakeHost, at: At) -> None:
    host, robot = make_host(), Robot(id="r")
    host.add(robot, at(0))
    (call,) = host.tick(at(1_000))
    host.remove("r")
    host.remove("r")
    again = Robot(id="r")
    host.add(again, at(1_001))
    host.finished(call, run_call(call), at(1_002))
    host.finished(call, run_call(call), at(1_003))
    assert (robot.ticks, again.ticks) == (0, 0)
    host.run(at(2_000))
    assert again.ticks == 1


def test_exceptions_that_cannot_even_be_shown_are_counted(make_host: MakeHost, at: At) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    class Silent(Component):
        @process(every="1 s")
        def act(self) -> None:
            raise Mute

    host = make_host()
    host.add(Silent(id="s"), at(0))
    host.run(at(1_000))
    assert [fault.message for fault in host.faults] == ["Mute"]
