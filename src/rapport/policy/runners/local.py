"""The runner inside the node: puts readings in event-time order and drives the operators. [PO-7,
PO-8]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause, Detection, Undecided, detection_order, each_once
from rapport.core.errors import Corrupt, DuplicateName, UnknownName
from rapport.policy.ontology import PushSource
from rapport.policy.plan import Plan
from rapport.policy.runners.base import END_OF_TIME, Operator, PullData
from rapport.policy.runners.local_state import (
    SNAPSHOT,
    Saved,
    pack_buffer,
    read_saved,
    unpack_buffer,
)
from rapport.policy.runners.operators import make_operator
from rapport.policy.runners.silence import Silence

_BEGIN_OF_TIME = -END_OF_TIME
_MANY_TIES = 4
# Not pa.array: it would load pandas (half a second) as soon as a node is imported.
_NO_READINGS = pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64())], names=["time"])
_EVENT_ORDER = [(name, "ascending") for name in ("time", "id", "stream", "key")]


class LocalRunner:
    """Plans fed with readings in arrival order; holds the reorder buffer and one operator per plan.

    The watermark is the largest time seen minus the lateness. A reading strictly older than the
    watermark at its arrival is late: counted, kept in `late_readings` until taken, otherwise left
    out. Readings strictly below the watermark are handed to the operators in order of (time, id by
    code points).

    Of `sources` matter the periods: absence that depends on one that was silent is undecided, kept
    until `take_undecided`; and how far their clocks may be wrong, and when their values are stale.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        pull: PullData,
        *,
        lateness_ms: int,
        sources: Mapping[str, PushSource] | None = None,
        began: int | None = None,
        steady_ns: Callable[[], int] | None = None,
    ) -> None:
        """`began`: where readings before that time exist but are not fed here; see Silence.
        `steady_ns`: a clock to measure what each policy costs; without it nothing is measured.
        """
        self._steady_ns = steady_ns or _no_clock
        self.spent_ns: dict[str, int] = {}
        self._pull, self._lateness = pull, lateness_ms
        self._sources = sources or {}
        self._silence, self._began = Silence(self._sources, began=began), began
        self._undecided: list[Undecided] = []
        self._operators: dict[str, Operator] = {}
        self._latest = self._watermark = _BEGIN_OF_TIME
        self._buffer: list[pa.RecordBatch] = []
        self._oldest = END_OF_TIME
        self.late = 0
        self.late_readings: list[Cause] = []
        for plan in plans:
            self.deploy(plan)

    @property
    def watermark(self) -> int:
        """Everything before this time has been handed to the operators."""
        return self._watermark

    @property
    def latest(self) -> int:
        """The largest time seen, of a reading or by `advance`."""
        return self._latest

    def renewed(self) -> LocalRunner:
        """A runner with the same plans that has seen nothing yet."""
        return LocalRunner(
            self.plans(),
            self._pull,
            lateness_ms=self._lateness,
            sources=self._sources,
            steady_ns=self._steady_ns,
        )

    def plans(self) -> list[Plan]:
        """The plans running."""
        return [operator.plan for operator in self._operators.values()]

    def policies(self) -> dict[str, str]:
        """Names and versions of the plans running."""
        return {name: operator.plan.version() for name, operator in self._operators.items()}

    def suppressed(self) -> dict[str, int]:
        """Detections that each policy left out so far because of `at most once per`."""
        return {name: operator.suppressed() for name, operator in self._operators.items()}

    def deploy(self, plan: Plan) -> None:
        """Starts a plan; it sees readings that are handed on from now. Raises DuplicateName,
        Unsupported.
        """
        if plan.policy in self._operators:
            raise DuplicateName(f"policy {plan.policy!r} is running already")
        self._operators[plan.policy] = self._start(plan)

    def _start(self, plan: Plan) -> Operator:
        """The plan as it begins now: silence counts from here, or from the first reading."""
        is_running = self._watermark > _BEGIN_OF_TIME
        return make_operator(
            plan,
            self._pull,
            self._silence,
            sources=self._sources,
            began=self._watermark if is_running else self._began,
        )

    def withdraw(self, policy: str) -> None:
        """Stops a plan and forgets what it was waiting for. Raises UnknownName."""
        if policy not in self._operators:
            raise UnknownName("running policy", policy, list(self._operators))
        del self._operators[policy]

    def feed(self, readings: pa.RecordBatch) -> list[Detection]:
        """Takes readings as they arrived; returns what became certain."""
        if not len(readings):
            return []
        times = readings.column("time").to_numpy()
        latest = np.maximum.accumulate(times)
        np.maximum(latest, self._latest, out=latest)
        late = times < latest - self._lateness
        if late.any():
            self._note_late(readings, late)
            readings = readings.filter(pa.array(~late))
            times = times[~late]
        self._latest = int(latest[-1])
        if len(readings):
            self._buffer.append(readings)
            self._oldest = min(self._oldest, int(times.min()))
        return self._release(self._latest - self._lateness)

    def advance(self, time_ms: int) -> list[Detection]:
        """Moves time on without a reading: nothing before `time_ms - lateness` will come any
        more.
        """
        if time_ms > self._latest:
            self._latest = time_ms
        return self._release(self._latest - self._lateness)

    def finish(self) -> list[Detection]:
        """Lets time run on until everything pending is decided (the end of a recorded stream)."""
        self._latest = max(self._latest, END_OF_TIME)
        return self._release(END_OF_TIME)

    def pending_until(self) -> int | None:
        """The time that `advance` must reach for something pending to be decided; None when nothing
        is.
        """
        times = [operator.pending_until() for operator in self._operators.values()]
        due = [time for time in times if time is not None]
        if self._buffer:
            due.append(self._oldest + 1)
        return min(due) + self._lateness if due else None

    def take_late(self) -> list[Cause]:
        """The late readings since the last call."""
        taken, self.late_readings = self.late_readings, []
        return taken

    def take_undecided(self) -> list[Undecided]:
        """What would have been detected since the last call, had a source not been silent."""
        taken, self._undecided = self._undecided, []
        return each_once(taken) if len(taken) > 1 else taken

    def snapshot(self) -> bytes:
        """All state: reorder buffer, watermark, operators."""
        saved = Saved(
            SNAPSHOT,
            self._lateness,
            self._latest,
            self._watermark,
            self.late,
            pack_buffer(self._buffer),
            {name: operator.snapshot() for name, operator in self._operators.items()},
            self.policies(),
            self._silence.state(),
        )
        return msgspec.msgpack.encode(saved)

    def restore(self, snapshot: bytes) -> None:
        """Takes over a snapshot made with the same plans; raises Corrupt otherwise."""
        saved = read_saved(snapshot)
        periods = {name: state.period_ms for name, state in saved.silence.items()}
        same_plans = saved.plans == self.policies() and periods == self._silence.periods()
        if not same_plans or saved.lateness_ms != self._lateness:
            raise Corrupt(
                "the snapshot was made with other policies, periods or another lateness",
                code="policy.other_plan",
                hint="start anew, or with the policies the snapshot was made with",
            )
        self._take_over(saved, list(self._operators))

    def restore_known(self, snapshot: bytes) -> list[str]:
        """Takes over what fits: time, buffer, and the policies that have not changed; returns the
        others.

        For a node that starts again after its site changed: new and changed policies begin where
        the unchanged ones stand.
        """
        saved = read_saved(snapshot)
        now = self.policies()
        known = [name for name in now if saved.plans.get(name) == now[name]]
        self._take_over(saved, known)
        return sorted(set(now) - set(known))

    def adopt(self, other: LocalRunner, streams: Collection[str]) -> None:
        """Goes on with what another runner knows that stands at the same watermark and has seen
        more: its policies, and the sources of these streams. Raises Corrupt when policies differ.
        """
        for name, operator in other._operators.items():
            self._operators[name].restore(operator.snapshot())
        self._silence.adopt(other._silence, streams)

    def drop_waiting(self, ids: Collection[str]) -> None:
        """Forgets readings that wait for their turn, by id."""
        if ids and self._buffer:
            rest = [_without(batch, ids) for batch in self._buffer]
            self._buffer = [batch for batch in rest if len(batch)]
            self._note_oldest()

    def _take_over(self, saved: Saved, policies: list[str]) -> None:
        self._latest, self._watermark, self.late = saved.latest, saved.watermark, saved.late
        for name, operator in list(self._operators.items()):
            if name in policies:
                operator.restore(saved.operators[name])
            else:
                self._operators[name] = self._start(operator.plan)
        self._silence.restore(saved.silence, saved.watermark)
        self._buffer = unpack_buffer(saved.buffer)
        self._note_oldest()

    def _note_oldest(self) -> None:
        times = [int(pc.min(batch.column("time")).as_py()) for batch in self._buffer]
        self._oldest = min(times, default=END_OF_TIME)

    def _note_late(self, readings: pa.RecordBatch, late: npt.NDArray[np.bool_]) -> None:
        chosen = readings.filter(pa.array(late))
        times, ids = chosen.column("time").to_pylist(), chosen.column("id").to_pylist()
        self.late += len(chosen)
        self.late_readings += zip(times, ids, strict=True)

    def _release(self, watermark: int) -> list[Detection]:
        """Hands on what lies below the watermark."""
        if watermark <= self._watermark:
            return []
        self._watermark = watermark
        ready: pa.RecordBatch | None = None
        if self._oldest < watermark:
            ready = self._take_ready(watermark)
            self._silence.take(ready)
        found: list[Detection] = []
        began_ns = self._steady_ns()
        for name, operator in self._operators.items():
            if ready is not None:
                found += operator.process(ready, watermark)
            else:
                found += _decide_due(operator, watermark)
            self._undecided += operator.take_undecided()
            ended_ns = self._steady_ns()
            self.spent_ns[name] = self.spent_ns.get(name, 0) + ended_ns - began_ns
            began_ns = ended_ns
        return sorted(found, key=detection_order) if len(self._operators) > 1 else found

    def _take_ready(self, watermark: int) -> pa.RecordBatch:
        whole = self._buffer[0] if len(self._buffer) == 1 else pa.concat_batches(self._buffer)
        times = whole.column("time").to_numpy()
        ready = times < watermark
        count = int(np.count_nonzero(ready))
        if count == len(times):
            self._buffer, self._oldest = [], END_OF_TIME
            return in_event_order(whole)
        self._oldest = int(times[~ready].min())
        if ready[:count].all():  # in order, as most often: no copying
            self._buffer = [whole.slice(count)]
            return in_event_order(whole.slice(0, count))
        self._buffer = [whole.filter(pa.array(~ready))]
        return in_event_order(whole.filter(pa.array(ready)))


def in_event_order(readings: pa.RecordBatch) -> pa.RecordBatch:
    """Readings sorted by time, equal times by id (code points), then stream and key.

    Almost sorted times cost almost nothing; ids are only looked at where times are equal.
    """
    times = readings.column("time").to_numpy()
    order = None
    if (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times = times[order]
    ties = np.flatnonzero(times[1:] == times[:-1])
    if len(ties) * _MANY_TIES > len(times):
        return readings.take(pc.sort_indices(readings, sort_keys=_EVENT_ORDER))
    if len(ties):
        order = np.arange(len(times)) if order is None else order
        _sort_ties(readings, order, ties)
    return readings if order is None else readings.take(pa.array(order))


def _sort_ties(readings: pa.RecordBatch, order: npt.NDArray[Any], ties: npt.NDArray[Any]) -> None:
    """Sorts the runs of equal times in place; `ties` are the places whose successor has the same
    time. Runs stay where they are, so all of them are sorted in one go.
    """
    places = np.union1d(ties, ties + 1)
    rows = order[places]
    tied = readings.take(pa.array(rows))
    order[places] = rows[pc.sort_indices(tied, sort_keys=_EVENT_ORDER).to_numpy()]


def _no_clock() -> int:
    return 0


def _without(readings: pa.RecordBatch, ids: Collection[str]) -> pa.RecordBatch:
    known = pc.is_in(readings.column("id"), value_set=pa.array(sorted(ids), pa.string()))
    return readings.filter(pc.invert(known))


def _decide_due(operator: Operator, watermark: int) -> list[Detection]:
    due = operator.pending_until()
    if due is None or due > watermark:
        return []
    return operator.process(_NO_READINGS, watermark)
