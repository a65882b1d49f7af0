"""The truth of the guard of a policy with conditions, for the identities of its matches. [SI-9]"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.operators.columns import Rows
from rapport.policy.operators.guard_filter import GuardMaker, GuardQuestion
from rapport.policy.plan import Plan
from rapport.policy.situation_plan import SituationPlan
from rapport.policy.situations.binding_rows import JoinedRows
from rapport.policy.situations.graph import Frame, PlacedCondition, SituationGraph
from rapport.policy.situations.situation_operator import (
    count_before,
    longest_step_ms,
    readings_since,
)
from rapport.policy.situations.traces import TRUE, Step

_NOTHING = pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64())], names=["time"])


def guard_maker(
    plan: Plan, pull: PullData, sources: Mapping[str, PushSource], began: int | None
) -> GuardMaker | None:
    """Makes the guard of a plan; None if it has none. `began`: the start of the policy; None: the
    first reading of the record."""
    if plan.guard is None:
        return None
    return lambda late_ms: GuardTruth(plan, pull, sources, began, late_ms)


def guard_situation(plan: Plan, aliases: Collection[str]) -> SituationPlan:
    """The guard of a plan as a situation of some of its aliases."""
    assert plan.guard is not None, "the plan has a guard"
    return SituationPlan(
        policy=plan.policy,
        aliases=tuple(bound for bound in plan.guard_aliases if bound.alias in aliases),
        situation=plan.guard,
        actions=(),
    )


class GuardTruth:
    """Runs the traces of a guard beside an operator; they are sampled for its matches."""

    def __init__(
        self,
        plan: Plan,
        pull: PullData,
        sources: Mapping[str, PushSource],
        began: int | None,
        late_ms: int,
    ) -> None:
        """`late_ms`: how long after its time a match may be decided."""
        assert plan.guard is not None, "the plan has a guard"
        guarded = guard_situation(plan, [bound.alias for bound in plan.guard_aliases])
        self._graph = graph = SituationGraph(pull, sources)
        graph.prepare([guarded])
        graph.history_ms += late_ms
        self._aliases = frozenset(bound.alias for bound in plan.guard_aliases)
        self._placed: dict[frozenset[str], PlacedCondition] = {}
        """By the aliases that a match binds: quantifiers do not count their instances."""
        for bound in _bound_sets(plan):
            own = tuple(one for one in plan.guard_aliases if one.alias in bound)
            frame = graph.frame_of_plan(replace(guarded, aliases=own))
            placed = self._placed[bound] = graph.condition(plan.guard, frame)
            if late_ms:
                placed.trace.keep_history(graph.history_ms)
        self._start = self._watermark = began

    def begin_at(self, time: int) -> None:
        """Sets the start if there is none."""
        if self._start is None:
            self._start = self._watermark = time

    def are_true(
        self, readings: pa.RecordBatch, watermark: int, questions: Sequence[GuardQuestion]
    ) -> list[bool]:
        """See `Guard`. Time ends with the last question or reading."""
        if len(readings):
            self.begin_at(int(readings.column("time")[0].as_py()))
        found = [False] * len(questions)
        if self._start is None or self._watermark is None:
            return found
        readings = readings_since(readings, self._start)
        if watermark >= END_OF_TIME:
            times = readings.column("time").to_pylist()[-1:]
            times += [one.time for one in questions]
            watermark = max([self._watermark, *(time + 1 for time in times)])
        open_questions = sorted(range(len(questions)), key=lambda one: questions[one].time)
        while self._watermark < watermark or open_questions:
            end = min(watermark, self._watermark + longest_step_ms(self._graph))
            count = count_before(readings, end)
            own, readings = readings.slice(0, count), readings.slice(count)
            step = Step(self._watermark, end, self._start, self._graph.history_ms)
            self._graph.run(own, step)
            ready = [one for one in open_questions if questions[one].time < end]
            open_questions = open_questions[len(ready) :]
            truths = self._truths([questions[one] for one in ready])
            for one, is_true in zip(ready, truths, strict=True):
                found[one] = is_true
            self._graph.commit(step)
            self._watermark = end
        return found

    def advance_to(self, watermark: int) -> None:
        """Tables that change then change at the watermark."""
        if self._watermark is not None and self._watermark < watermark < END_OF_TIME:
            self.are_true(_NOTHING, watermark, ())

    def state(self) -> dict[str, Any]:
        return {
            "start": self._start,
            "watermark": self._watermark,
            "graph": self._graph.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._start, self._watermark = state["start"], state["watermark"]
        self._graph.restore(state["graph"])

    def _truths(self, questions: Sequence[GuardQuestion]) -> list[bool]:
        """Of questions in the order of time, within a step."""
        if not questions:
            return []
        assert self._start is not None
        times = np.array([one.time for one in questions], np.int64)
        bound = [self._aliases & one.bindings.keys() for one in questions]
        found = np.zeros(len(questions), np.bool_)
        for aliases, placed in self._placed.items():
            own = np.flatnonzero([one == aliases for one in bound])
            rows = _rows_of(placed.frame, [questions[place].bindings for place in own.tolist()])
            own, rows = own[rows >= 0], rows[rows >= 0]
            if len(own):
                found[own] = placed.trace.sample(rows, times[own]) == TRUE
        return (found & (times >= self._start)).tolist()  # type: ignore[no-any-return]


def _bound_sets(plan: Plan) -> list[frozenset[str]]:
    """Which aliases of its guard matches may bind."""
    named = frozenset(one.alias for one in plan.guard_aliases)
    always = named & plan.always_bound()
    rest = sorted(named - always)
    return [
        always.union(some) for count in range(len(rest) + 1) for some in combinations(rest, count)
    ]


def _rows_of(frame: Frame, bindings: Sequence[Mapping[str, str]]) -> Rows:
    """The row of each binding in a frame; -1 where it has none, so that the guard is not true."""
    codes = {
        alias: _codes_of(frame, alias, [one[alias] for one in bindings]) for alias in frame.aliases
    }
    if not codes:
        return np.zeros(len(bindings), np.int64)
    if not isinstance(frame.rows, JoinedRows):
        [only] = codes.values()
        return only
    columns = frame.rows.columns
    first, *others = codes
    places, rows = columns[first].find(codes[first])
    for alias in others:
        chosen = columns[alias].targets(rows) == codes[alias][places]
        places, rows = places[chosen], rows[chosen]
    found = np.full(len(bindings), -1, np.int64)
    found[places] = rows
    return found


def _codes_of(frame: Frame, alias: str, ids: Sequence[str]) -> Rows:
    """The number of each identity of a concept; -1 for those not seen."""
    return np.array([frame.identities[alias].code(one) for one in ids], np.int64)
