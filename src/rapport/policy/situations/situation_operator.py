"""The operator of situations: executes plans on sorted batches of readings. [SI-11]

Pure and deterministic: readings and time are arguments, and batch boundaries do not affect what is
told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided, detection_order
from rapport.core.errors import Corrupt
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.operators.columns import pack_state, unpack_state
from rapport.policy.operators.detection_output import SuppressionFilter
from rapport.policy.situation_plan import NamedAtTurns, SituationPlan
from rapport.policy.situations.current_states import SituationStates, current_states
from rapport.policy.situations.graph import SituationGraph
from rapport.policy.situations.lives import PolicySituations
from rapport.policy.situations.traces import Step

BindingsKey = tuple[tuple[str, str], ...]
"""(alias, identity) pairs in the order of aliases."""
_SNAPSHOT = 1
_MOST_KEYS = 2**62


class SituationOperator:
    """Executes plans with situations that began together; equal parts of them are computed once."""

    worth_dropping = 4_096
    """Bindings that were near once are dropped when there are more than this."""
    worth_dropping_again = 2
    """And so many times as many as were kept the last time."""

    def __init__(
        self,
        plans: Sequence[SituationPlan],
        pull: PullData,
        sources: Mapping[str, PushSource],
        began: int | None,
    ) -> None:
        """`began`: the start of the policies; None: the first reading of the record."""
        self.plans = {plan.policy: plan for plan in plans}
        self._graph = SituationGraph(pull, sources)
        self._graph.prepare(plans)
        self._policies = {plan.policy: PolicySituations(plan, self._graph) for plan in plans}
        self._start = self._watermark = began
        self._due: int | None = None
        self._kept_rows = 0
        self.on_step: Callable[[], None] | None = None
        """Called in each step while the traces still have its changes; explanations read them."""

    def streams(self) -> frozenset[str]:
        """The streams whose readings matter."""
        return frozenset(self._graph.streams)

    def begin_at(self, time: int) -> None:
        """Sets the start if there is none: the time of the first reading of any stream."""
        if self._start is None:
            self._start = self._watermark = time

    def process(self, readings: pa.RecordBatch, watermark: int) -> list[Detection]:
        """Takes readings sorted by (time, id), none before the previous watermark and all before
        this one; returns every beginning and end with a time below `watermark`.

        At the end of time nothing more is told: recorded time ends with the last reading.
        """
        if len(readings):
            self.begin_at(int(readings.column("time")[0].as_py()))
        if self._start is None or self._watermark is None or watermark >= END_OF_TIME:
            return []
        readings = readings_since(readings, self._start)
        found: list[Detection] = []
        while self._watermark < watermark:
            end = min(watermark, self._watermark + longest_step_ms(self._graph))
            if end == watermark:
                own, readings = readings, readings.slice(len(readings))
            else:
                count = count_before(readings, end)
                own, readings = readings.slice(0, count), readings.slice(count)
            found += self._run(own, Step(self._watermark, end, self._start, self._graph.history_ms))
            self._watermark = end
        found.sort(key=detection_order)
        return found

    def pending_until(self) -> int | None:
        """The watermark at which something may be told without a reading."""
        if self._start is None:
            return None
        if self._due is None:
            return None if self._is_begun() else self._start + 1
        return self._due + 1

    def advance_to(self, watermark: int) -> None:
        """Time advanced without readings; what is due by then has been processed. Tables that
        change then change at the watermark."""
        if self._watermark is not None:
            self._watermark = max(self._watermark, watermark)

    @property
    def repeats_within_ms(self) -> int:
        """Nothing is told twice."""
        return 0

    def still_lasts(self, causes: Collection[Cause]) -> bool:
        """Situations tell their end."""
        return False

    def take_undecided(self) -> list[Undecided]:
        """What is unknown neither begins nor ends a situation."""
        return []

    def suppressed_by(self, policy: str) -> int:
        """Beginnings that were not told because of `at most once per`."""
        return self._policies[policy].suppressed

    def count_only(self, counts: SuppressionFilter | None) -> None:
        """Restricts what is counted: a part of a history counts the situations it owns."""
        for one in self._policies.values():
            one.counts = counts

    def name_values(self, named: Mapping[str, NamedAtTurns]) -> None:
        """What the detections of each policy carry for texts; the mapping may change later."""
        for one in self._policies.values():
            one.named = named

    def open_by(self, policy: str) -> int:
        return self._policies[policy].open_count()

    def pending_by(self, policy: str) -> int:
        """Open situations of a policy that are told later."""
        return self._policies[policy].pending_count()

    def situations_of(self, policy: str) -> PolicySituations:
        """The situations of one plan, with their traces."""
        return self._policies[policy]

    def states_of(self, policy: str, ontology: Ontology) -> SituationStates:
        """What is open, pending and unknown at the watermark."""
        return current_states(self._policies[policy], ontology, self._watermark or 0)

    def continue_open(self, policy: str, began: Mapping[BindingsKey, int]) -> None:
        """Continues situations that a former version of a policy began, instead of those that this
        one has open.
        """
        self._policies[policy].continue_open(began)
        if self._policies[policy].is_due_now:
            self._due = self._watermark

    def leave(self, policy: str) -> None:
        """Ends one plan; the others continue."""
        del self.plans[policy], self._policies[policy]

    def snapshot(self) -> bytes:
        """All state; `take_over` in another process continues from it."""
        return pack_state(
            {
                "snapshot": _SNAPSHOT,
                "plans": {name: plan.version() for name, plan in self.plans.items()},
                "start": self._start,
                "watermark": self._watermark,
                "graph": self._graph.state(),
                "policies": {name: one.state() for name, one in self._policies.items()},
            }
        )

    def take_over(self, state: Any) -> None:
        """Restores a state of the same plans; raises Corrupt."""
        if not isinstance(state, dict) or state.get("snapshot") != _SNAPSHOT:
            raise Corrupt(
                "this is not a snapshot of situations of this version", code="policy.bad_snapshot"
            )
        own = {name: plan.version() for name, plan in self.plans.items()}
        if not own.items() <= state["plans"].items():
            raise Corrupt(
                "the snapshot is of other policies with situations",
                code="policy.other_plan",
                hint="start the policies anew, or restore those the snapshot was made with",
            )
        self._start, self._watermark = state["start"], state["watermark"]
        self._graph.restore(state["graph"])
        for name, one in self._policies.items():
            one.restore(state["policies"][name])
        self._due = self._watermark

    def restore(self, snapshot: bytes) -> None:
        self.take_over(unpack_state(snapshot))

    def _is_begun(self) -> bool:
        return self._graph.constant.is_begun

    def _run(self, readings: pa.RecordBatch, step: Step) -> list[Detection]:
        graph = self._graph
        graph.run(readings, step)
        if self.on_step is not None:
            self.on_step()
        found = [item for one in self._policies.values() for item in one.run(step)]
        dues = [graph.due(), *(one.due() for one in self._policies.values())]
        self._due = min((due for due in dues if due is not None), default=None)
        graph.commit(step)
        if graph.binding_row_count() > max(
            self.worth_dropping, self.worth_dropping_again * self._kept_rows
        ):
            graph.drop_rows(list(self._policies.values()))
            self._kept_rows = graph.binding_row_count()
        return found


def longest_step_ms(graph: SituationGraph) -> int:
    """How much time a step may take so that rows and times fit into one integer."""
    return _MOST_KEYS // (4 * graph.widest + 1_024) - graph.history_ms


def readings_since(readings: pa.RecordBatch, start: int) -> pa.RecordBatch:
    """Sorted readings without those before the start of their policies, which were not seen."""
    before = count_before(readings, start)
    return readings.slice(before) if before else readings


def count_before(readings: pa.RecordBatch, end: int) -> int:
    """The number of sorted readings before a time."""
    times = readings.column("time").to_numpy()
    return int(times.searchsorted(end))
