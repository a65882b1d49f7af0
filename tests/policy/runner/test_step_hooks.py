"""Steps within an operator: occurrences that come with time, with causes of any number and age."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from rapport.core.detection import Detection
from rapport.policy.operators import make_operator, window
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.columns import Columns
from rapport.policy.operators.operator import PlanOperator
from rapport.policy.plan import (
    Absent,
    Clause,
    Plan,
    Positive,
    QueryTerm,
    Sequence,
    Side,
    SilentTerm,
)
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.occurrences import Reading
from support.varied.worlds import Pull, readings_batch

Given = tuple[int, tuple[tuple[int, str], ...]]
"""End and causes."""


class FakeStep:
    """Gives occurrences of person `g` at fixed times, whatever is read."""

    def __init__(self, given: list[Given], code: int) -> None:
        self._given, self._code, self.takes = sorted(given), code, 0

    def take(self, readings: pa.RecordBatch, watermark: int) -> Columns:
        self.takes += 1
        ready = [one for one in self._given if one[0] < watermark]
        self._given = self._given[len(ready) :]
        causes = np.empty(len(ready), object)
        causes[:] = [one[1] for one in ready]
        ends = np.array([one[0] for one in ready], np.int64)
        codes = np.full(len(ready), self._code)
        return {"first": codes, "second": codes, "end": ends, "start": ends, "causes": causes}

    def pending_until(self) -> int | None:
        return self._given[0][0] if self._given else None

    def advance_to(self, watermark: int) -> None: ...

    def state(self) -> Any:
        return self._given

    def restore(self, state: Any) -> None:
        self._given = [(end, tuple((time, id) for time, id in own)) for end, own in state]


PERSON = Side("A", "person", "position", (), "person.position")
ROOM = Side("R", "room", "area", (), None)
QUIET = SilentTerm(PERSON, ("person.position",), 10)
INSIDE = QueryTerm(PERSON, ROOM, "inside")
MANY: tuple[tuple[int, str], ...] = ((-900, "old"), (3, "x"), (4, "y"))

Make = Callable[..., PlanOperator]


def plan(*clauses: tuple[Any, ...], **more: Any) -> Plan:
    return Plan(
        policy="p",
        terms=(QUIET, INSIDE),
        clauses=tuple(Clause(children) for children in clauses),
        actions=(),
        window_ms=100,
        **more,
    )


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, rooms: Pull) -> Make:
    """An operator whose step gives these occurrences."""

    def made(given: list[Given], made_plan: Plan) -> PlanOperator:
        def make_step(term: Any, identities: Any, *_: Any) -> FakeStep:
            [code] = identities["person"].encode_list(["g"])
            return FakeStep(given, int(code))

        monkeypatch.setattr(window, "make_step", make_step)
        return make_operator(made_plan, rooms)

    return made


@pytest.fixture
def rooms() -> Pull:
    area = np.array([[0.0, 0.0, 9.0, 9.0]])
    return Pull({"room": Instances("room", ["lab"], {"area": area})})


def enters(time: int, id: str = "e", who: str = "g") -> pa.RecordBatch:
    return readings_batch([Reading(time, id, "person.position", who, (1.0, 1.0))])


def suppressed(operator: PlanOperator) -> int:
    return operator.suppressed_by(operator.plan.policy)


NOTHING = readings_batch([])


def said(found: list[Detection]) -> list[tuple[int, dict[str, str], list[str]]]:
    return [(one.time, one.bindings, [id for _, id in one.causes]) for one in found]


def test_occurrences_come_when_the_watermark_passes_them(make: Make) -> None:
    operator = make([(50, ()), (70, MANY)], plan((Positive(0),)))
    assert operator.process(enters(10), 11) == []
    assert operator.pending_until() == 51
    assert operator.process(NOTHING, 50) == []
    assert said(operator.process(NOTHING, 51)) == [(50, {"A": "g"}, [])]
    assert operator.pending_until() == 71
    assert said(operator.process(NOTHING, END_OF_TIME)) == [(70, {"A": "g"}, ["old", "x", "y"])]
    assert operator.pending_until() is None


def test_they_join_others_that_come_before_or_after(make: Make) -> None:
    both = plan((Positive(0),), (Positive(1),))
    operator = make([(50, MANY)], both)
    found = operator.process(enters(3, "x"), 40) + operator.process(enters(60), END_OF_TIME)
    assert said(found) == [
        (50, {"A": "g", "R": "lab"}, ["old", "x", "y"]),
        (60, {"A": "g", "R": "lab"}, ["old", "x", "y", "e"]),
    ]


def test_they_open_absence_and_follow_each_other(make: Make) -> None:
    operator = make([(50, ())], plan((Positive(0),), (Absent(1),)))
    assert operator.process(enters(10), 60) == []
    assert operator.pending_until() == 150
    assert said(operator.process(NOTHING, 150)) == [(150, {"A": "g"}, [])]
    operator = make([(50, ())], plan((Sequence(1, 0),)))
    found = operator.process(enters(10), END_OF_TIME)
    assert said(found) == [(50, {"A": "g", "R": "lab"}, ["e"])]


def test_a_mixed_clause_compares_causes_as_lists_whatever_their_number(make: Make) -> None:
    """Two occurrences end at the same time; the one with the smaller causes is earlier."""
    mixed = plan((Positive(1),), (Positive(0), Absent(1)))
    operator = make([(50, ((40, "b"),)), (50, ((40, "a"), (41, "z"))), (50, MANY)], mixed)
    found = operator.process(enters(10), END_OF_TIME)
    assert [ids for _, _, ids in said(found)] == [["old", "x", "y", "e"]]
    operator = make([(50, ((40, "b"),)), (50, ((40, "a"), (41, "z")))], mixed)
    found = operator.process(enters(10), END_OF_TIME)
    assert [ids for _, _, ids in said(found)] == [["e", "a", "z"]]


def test_saving_in_between_changes_nothing(make: Make) -> None:
    given: list[Given] = [(50, MANY), (55, ()), (120, ((7, "k"),))]
    both = plan((Positive(0),), (Positive(1),), (Absent(1),), once_per_ms=30)
    straight = make(given, both)
    steps = [(enters(20), 30), (NOTHING, 56), (enters(60, "f"), 61), (NOTHING, END_OF_TIME)]
    expected = [one for batch, mark in steps for one in straight.process(batch, mark)]
    operator, found = make(given, both), []
    for batch, mark in steps:
        found += operator.process(batch, mark)
        saved, operator = operator.snapshot(), make([], both)
        operator.restore(saved)
        assert operator.snapshot() == saved
    assert said(found) == said(expected)
    assert suppressed(operator) == suppressed(straight)


def test_a_detection_emitted_a_moment_ago_is_suppressed_and_counted(make: Make) -> None:
    operator = make(
        [(30, ()), (40, ()), (129, ()), (130, ())], plan((Positive(0),), once_per_ms=100)
    )
    assert [one.time for one in operator.process(enters(25), 35)] == [30]
    assert operator.pending_until() == 41
    assert operator.process(NOTHING, 41) == []
    assert suppressed(operator) == 1
    assert [one.time for one in operator.process(NOTHING, END_OF_TIME)] == [130]
    assert suppressed(operator) == 2


def test_other_bindings_are_not_left_out_and_each_waits_for_its_turn(make: Make) -> None:
    once = plan((Positive(0), Sequence(1, 0, second_negated=True)), once_per_ms=1_000)
    operator = make([(130, ())], once)
    assert operator.process(enters(20), 30) == []
    assert operator.pending_until() == 120
    assert operator.process(NOTHING, 120) == []  # another at 120 may yet come
    assert operator.pending_until() == 121
    found = operator.process(NOTHING, END_OF_TIME)
    assert said(found) == [(120, {"A": "g", "R": "lab"}, ["e"]), (130, {"A": "g"}, [])]
    assert suppressed(operator) == 0


def test_a_plan_begins_where_the_runner_stands(
    monkeypatch: pytest.MonkeyPatch, rooms: Pull
) -> None:
    began: list[int | None] = []

    def make_step(
        term: Any, identities: Any, pull: Any, sources: Any, start: int | None, shared: Any
    ) -> Any:
        began.append(start)
        return FakeStep([], 0)

    monkeypatch.setattr(window, "make_step", make_step)
    first = plan((Positive(0),))
    second = msgspec.structs.replace(first, policy="q")
    runner = LocalRunner([first], rooms, lateness_ms=5)
    runner.feed(enters(100))
    runner.deploy(second)
    assert began == [None, 95]
    restarted = LocalRunner(
        [first, msgspec.structs.replace(first, policy="r")], rooms, lateness_ms=5
    )
    assert restarted.restore_known(runner.snapshot()) == ["r"]
    assert began[2:] == [None, 95]  # what is new begins where the others stand
