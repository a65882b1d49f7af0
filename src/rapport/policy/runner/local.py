"""The runner inside the node: sorts readings by event time, runs the deployed plans, and saves and
restores everything. [PO-7, PO-8, PO-13]"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause, Detection, Undecided, unique_undecided
from rapport.core.errors import Corrupt, DuplicateName, Problem, UnknownName
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import BEGIN_OF_TIME, END_OF_TIME, PullData
from rapport.policy.operators.operator import OperatorContext
from rapport.policy.operators.shared_cache import StepCounts
from rapport.policy.operators.uncertainty import SilenceState, SourceSilence
from rapport.policy.plan import PolicyPlan
from rapport.policy.runner.deployed_plans import (
    DeployedPlans,
    FailedPlan,
    RecentOutput,
    SavedGroup,
    SituationCounts,
)
from rapport.policy.situation_plan import NamedAtTurns
from rapport.policy.situations.current_states import SituationStates
from rapport.policy.situations.situation_operator import BindingsKey

_MANY_TIES = 4
_ORDERING = ["time", "id", "stream", "key"]
_EVENT_ORDER = [(name, "ascending") for name in _ORDERING]
SNAPSHOT = 4
"""The version of snapshots; others are rejected."""


class ReorderBuffer:
    """Readings that older ones may still precede; `oldest` is their smallest time."""

    def __init__(self, batches: list[pa.RecordBatch] | None = None) -> None:
        self.batches = batches or []
        self.oldest = END_OF_TIME
        self._note_oldest()

    def __bool__(self) -> bool:
        return bool(self.batches)

    def add(self, readings: pa.RecordBatch, earliest: int) -> None:
        """`earliest`: the smallest time of the readings."""
        self.batches.append(readings)
        self.oldest = min(self.oldest, earliest)

    def take_ready(self, watermark: int) -> pa.RecordBatch:
        """Removes and returns readings below the watermark, in event order."""
        whole = self.batches[0] if len(self.batches) == 1 else pa.concat_batches(self.batches)
        times = whole.column("time").to_numpy()
        ready = times < watermark
        count = int(np.count_nonzero(ready))
        if count == len(times):
            self.batches, self.oldest = [], END_OF_TIME
            return in_event_order(whole)
        self.oldest = int(times[~ready].min())
        if ready[:count].all():  # usually in order: no copying
            self.batches = [whole.slice(count)]
            return in_event_order(whole.slice(0, count))
        self.batches = [whole.filter(pa.array(~ready))]
        return in_event_order(whole.filter(pa.array(ready)))

    def take_after(self, newest_ms: int) -> list[Cause]:
        """Removes and returns readings later than a time."""
        dropped: list[Cause] = []
        rest: list[pa.RecordBatch] = []
        for batch in self.batches:
            is_after = pc.greater(batch.column("time"), newest_ms)
            later = batch.filter(is_after)
            times, ids = later.column("time").to_pylist(), later.column("id").to_pylist()
            dropped += zip(times, ids, strict=True)
            rest.append(batch.filter(pc.invert(is_after)))
        self.batches = [batch for batch in rest if len(batch)]
        self._note_oldest()
        return dropped

    def drop(self, ids: Collection[str]) -> None:
        if ids and self.batches:
            rest = [_without(batch, ids) for batch in self.batches]
            self.batches = [batch for batch in rest if len(batch)]
            self._note_oldest()

    def _note_oldest(self) -> None:
        times = [int(pc.min(batch.column("time")).as_py()) for batch in self.batches]
        self.oldest = min(times, default=END_OF_TIME)


def in_event_order(readings: pa.RecordBatch) -> pa.RecordBatch:
    """Readings sorted by time, then id (code points), stream and key.

    Nearly sorted times cost little; ids are compared only for equal times, and sorted readings are
    not copied.
    """
    times = readings.column("time").to_numpy()
    order = None
    if (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times = times[order]
    ties = times[1:] == times[:-1]
    count = np.count_nonzero(ties)
    if count * _MANY_TIES > len(times):
        return readings.take(pc.sort_indices(readings, sort_keys=_EVENT_ORDER))
    if count:
        order = _with_sorted_ties(readings, order, ties)
    return readings if order is None else readings.take(pa.array(order))


def _with_sorted_ties(
    readings: pa.RecordBatch, order: npt.NDArray[Any] | None, ties: npt.NDArray[np.bool_]
) -> npt.NDArray[Any] | None:
    """The order with runs of equal times sorted, None for the existing order; `ties`: the next
    reading has the same time. All runs are sorted at once."""
    tied = np.zeros(len(ties) + 1, np.bool_)
    tied[:-1] = ties
    tied[1:] |= ties
    places = np.flatnonzero(tied)
    rows = places if order is None else order[places]
    keys = readings.select(_ORDERING).take(pa.array(rows))
    by_key = pc.sort_indices(keys, sort_keys=_EVENT_ORDER).to_numpy()
    if order is None:
        if (by_key[1:] > by_key[:-1]).all():
            return None
        order = np.arange(len(tied))
    order[places] = rows[by_key]
    return order


def _without(readings: pa.RecordBatch, ids: Collection[str]) -> pa.RecordBatch:
    known = pc.is_in(readings.column("id"), value_set=pa.array(sorted(ids), pa.string()))
    return readings.filter(pc.invert(known))


class RunnerSnapshot(msgspec.Struct):
    """A snapshot of the runner, without pickle: reading it runs no code."""

    snapshot: int
    lateness_ms: int
    latest: int
    watermark: int
    late: int
    buffer: bytes
    groups: list[SavedGroup]
    plans: dict[str, str]
    silence: dict[str, SilenceState] = {}
    failed: dict[str, FailedPlan] = {}
    given: RecentOutput = {}
    """Missing in older snapshots."""
    newest: int = BEGIN_OF_TIME
    """Missing in older snapshots."""


def pack_buffer(batches: list[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack_buffer(raw: bytes) -> list[pa.RecordBatch]:
    """Raises Corrupt."""
    if not raw:
        return []
    try:
        return list(pa.ipc.open_stream(raw))
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"a snapshot cannot be read: {error}", code="policy.bad_snapshot") from None


def read_snapshot(snapshot: bytes) -> RunnerSnapshot:
    """Decodes a snapshot; raises Corrupt if it is invalid or has another version."""
    try:
        saved = msgspec.msgpack.decode(snapshot, type=RunnerSnapshot)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(f"a snapshot cannot be read: {error}", code="policy.bad_snapshot") from None
    if saved.snapshot != SNAPSHOT:
        raise Corrupt(
            f"snapshots of version {saved.snapshot} cannot be read", code="policy.bad_snapshot"
        )
    return saved


class LateCount(NamedTuple):
    """Late readings of one source, and the largest delay."""

    readings: int = 0
    behind_ms: int = 0


class LocalRunner:
    """Runs plans on readings in arrival order, with a reorder buffer.

    The watermark is the largest time seen minus the lateness, and live never later than the node's
    clock minus the lateness: a reading ahead of the clock waits. A reading older than the watermark
    at its arrival is late: counted, kept in `late_readings` until taken, and otherwise dropped.
    Readings below the watermark go to the operators in order of (time, id by code points).

    Plans that differ in at most one constant run as one where that is exact. A plan that fails is
    stopped, see `failed`.

    Relevant of `sources`: periods (absence that depends on a silent source is undecided, kept until
    `take_undecided`), clock uncertainty, and when values become stale.
    """

    def __init__(
        self,
        plans: Sequence[PolicyPlan],
        pull: PullData,
        *,
        lateness_ms: int,
        sources: Mapping[str, PushSource] | None = None,
        began: int | None = None,
        steady_ns: Callable[[], int] | None = None,
    ) -> None:
        """`began`: if earlier readings exist that are not fed here; see SourceSilence. `steady_ns`:
        a clock to measure costs; None: not measured."""
        self._steady_ns = steady_ns or _no_clock
        self._pull, self._lateness = pull, lateness_ms
        self._sources = sources or {}
        self._silence = SourceSilence(self._sources, began=began)
        self._named: dict[str, NamedAtTurns] = {}
        context = OperatorContext(pull, self._silence, self._sources, named=self._named)
        self._running = DeployedPlans(context, began, self._steady_ns)
        self._undecided: list[Undecided] = []
        self._latest = self._watermark = BEGIN_OF_TIME
        self.newest = BEGIN_OF_TIME
        """The largest time of a reading that was not late."""
        self._waiting = ReorderBuffer()
        self.late = 0
        self.late_readings: list[Cause] = []
        self._late_by_source: dict[str, LateCount] = {}
        for plan in plans:
            self.deploy(plan)

    @property
    def watermark(self) -> int:
        """Everything before this time has been processed."""
        return self._watermark

    @property
    def lateness_ms(self) -> int:
        """How far the watermark is behind the largest time seen."""
        return self._lateness

    @property
    def latest(self) -> int:
        """The largest time of a reading or of `advance`."""
        return self._latest

    @property
    def spent_ns(self) -> dict[str, int]:
        """Time spent by policy; in a family an equal share."""
        return self._running.costs.spent_ns

    @property
    def steps(self) -> dict[str, StepCounts]:
        """Requested and computed steps by policy; in a family an equal share."""
        return self._running.costs.steps

    def count_on(self, other: LocalRunner) -> None:
        """Continues the costs of another runner."""
        self._running.costs = other._running.costs

    def renewed(self) -> LocalRunner:
        """A new runner with the same plans."""
        return LocalRunner(
            [*self.plans(), *self.failed_plans()],
            self._pull,
            lateness_ms=self._lateness,
            sources=self._sources,
            steady_ns=self._steady_ns,
        )

    def plans(self) -> list[PolicyPlan]:
        return list(self._running.plans.values())

    def policies(self) -> dict[str, str]:
        """Versions of running plans by policy."""
        return dict(self._running.versions)

    def failed(self) -> dict[str, Problem]:
        """Stopped policies with the reason, because something they use raised; they run again when
        deployed again."""
        return {name: failed.problem for name, failed in self._running.failed.items()}

    def failed_plans(self) -> list[PolicyPlan]:
        return list(self._running.failed_plans.values())

    def suppressed(self) -> dict[str, int]:
        """Detections by policy that `at most once per` suppressed."""
        return self._running.suppressed()

    def deploy(self, plan: PolicyPlan) -> None:
        """Starts a plan; it sees readings processed from now on. Raises DuplicateName, Unsupported,
        UnknownName."""
        if plan.policy in self._running.plans:
            raise DuplicateName(f"policy {plan.policy!r} is running already")
        self._running.deploy(plan, self._watermark)

    def withdraw(self, policy: str) -> None:
        """Stops a plan, or forgets a failed one. Raises UnknownName."""
        if policy not in self._running.plans and policy not in self._running.failed:
            raise UnknownName("running policy", policy, list(self.policies()))
        self._running.withdraw(policy)

    def still_lasts(self, detection: Detection) -> bool:
        """Whether the state of a detection of `C for D` alone still holds, as far as was read."""
        return self._running.still_lasts(detection)

    def feed(
        self, readings: pa.RecordBatch, received: npt.NDArray[np.int64] | None = None
    ) -> list[Detection]:
        """Takes readings in arrival order; returns new detections.

        `received`: arrival times by the node's clock, which no reading can move time beyond. None:
        no reading is ahead of its arrival, or they are recorded.
        """
        if not len(readings):
            return []
        times = readings.column("time").to_numpy()
        latest = np.maximum.accumulate(times if received is None else np.minimum(times, received))
        np.maximum(latest, self._latest, out=latest)
        late = times < latest - self._lateness
        if late.any():
            self._note_late(readings, late, latest - times)
            readings = readings.filter(pa.array(~late))
            times = times[~late]
        self._latest = int(latest[-1])
        if len(readings):
            self.newest = max(self.newest, int(times.max()))
            self._waiting.add(readings, int(times.min()))
        return self._release(self._latest - self._lateness)

    def advance(self, time_ms: int) -> list[Detection]:
        """Advances time without a reading: nothing before `time_ms - lateness` will come."""
        if time_ms > self._latest:
            self._latest = time_ms
        return self._release(self._latest - self._lateness)

    def begin(self, time_ms: int) -> list[Detection]:
        """Sets the start of all plans, from which silence counts, by the clock, if no reading was
        fed; otherwise it is the first reading."""
        self._running.begin(time_ms - self._lateness)
        if time_ms > self._latest:
            return self.advance(time_ms)
        return self._running.process(None, self._watermark)

    def reset(self, newest_ms: int) -> list[Cause]:
        """Restarts time and all plans with the next reading, for a clock that jumped back. Waiting
        readings stay, except those later than `newest_ms`, which are returned. Failed plans stay
        stopped."""
        dropped = self._waiting.take_after(newest_ms)
        self._latest = self._watermark = BEGIN_OF_TIME
        self._silence.restore({}, BEGIN_OF_TIME)
        self._running.reset()
        return dropped

    def finish(self, until_ms: int | None = None) -> list[Detection]:
        """Decides everything pending (the end of a recorded stream). For situations recorded time
        ends with the last reading, or with `until_ms` if that is later."""
        found: list[Detection] = []
        last = self.newest if until_ms is None else max(self.newest, until_ms)
        if last > BEGIN_OF_TIME and self.has_situations:
            found += self._release(last + 1)
        self._latest = max(self._latest, END_OF_TIME)
        return found + self._release(END_OF_TIME)

    @property
    def has_situations(self) -> bool:
        return self._running.has_situations

    def situation_states(self, policy: str, ontology: Ontology) -> SituationStates | None:
        """What is open, pending and unknown; None for a policy without a running situation."""
        return self._running.situation_states(policy, ontology)

    def continue_open(self, policy: str, began: Mapping[BindingsKey, int]) -> None:
        """Continues situations that a former version of a policy began: they are open from its
        start, and end when this version says so.
        """
        self._running.continue_open(policy, began)

    def name_values(self, named: Mapping[str, NamedAtTurns]) -> None:
        """What the beginnings and ends of situations carry for texts, by policy; for plans deployed
        later too.
        """
        self._named.clear()
        self._named.update(named)

    def situations(self) -> dict[str, SituationCounts]:
        """The open and pending situations by policy."""
        return self._running.situations()

    def pending_until(self) -> int | None:
        """The time that `advance` must reach to decide something pending; None if nothing is."""
        pending = self._running.pending_until()
        due = [] if pending is None else [pending]
        if self._waiting:
            due.append(self._waiting.oldest + 1)
        return min(due) + self._lateness if due else None

    def take_late(self) -> list[Cause]:
        """The late readings since the last call."""
        taken, self.late_readings = self.late_readings, []
        return taken

    def take_late_by_source(self) -> dict[str, LateCount]:
        """Late readings by source since the last call."""
        taken, self._late_by_source = self._late_by_source, {}
        return taken

    def take_undecided(self) -> list[Undecided]:
        """Detections since the last call that a silent source makes uncertain."""
        taken = self._running.take_undecided()
        return unique_undecided(taken) if len(taken) > 1 else taken

    def snapshot(self) -> bytes:
        """All state: reorder buffer, watermark, operators."""
        groups = self._running.state(self._watermark)
        saved = RunnerSnapshot(
            SNAPSHOT,
            self._lateness,
            self._latest,
            self._watermark,
            self.late,
            pack_buffer(self._waiting.batches),
            groups,
            self.policies(),
            self._silence.states,
            self._running.failed,
            self._running.given.state(self._watermark),
            self.newest,
        )
        return msgspec.msgpack.encode(saved)

    def restore(self, snapshot: bytes) -> None:
        """Restores a snapshot of the same plans; raises Corrupt otherwise."""
        saved = read_snapshot(snapshot)
        periods = {name: state.period_ms for name, state in saved.silence.items()}
        plans = saved.plans | {name: failed.version for name, failed in saved.failed.items()}
        same_plans = plans == self.policies() and periods == self._silence.periods()
        if not same_plans or saved.lateness_ms != self._lateness:
            raise Corrupt(
                "the snapshot was made with other policies, periods or another lateness",
                code="policy.other_plan",
                hint="start anew, or with the policies the snapshot was made with",
            )
        self._take_over(saved)

    def restore_known(self, snapshot: bytes) -> list[str]:
        """Restores time, buffer and unchanged policies; returns the others.

        For a node that restarts after its site changed: new and changed policies begin where the
        unchanged ones are. Failed ones stay stopped.
        """
        return self._take_over(read_snapshot(snapshot))

    def adopt(self, other: LocalRunner, streams: Collection[str]) -> None:
        """Continues from another runner at the same watermark that has seen more: its policies, and
        the sources of these streams. Raises Corrupt if policies differ."""
        self._running.adopt(other._running, self._watermark)
        self._silence.adopt(other._silence, streams)

    def drop_waiting(self, ids: Collection[str]) -> None:
        """Drops waiting readings by id."""
        self._waiting.drop(ids)

    def _take_over(self, saved: RunnerSnapshot) -> list[str]:
        """Restores a snapshot; returns the policies that begin there."""
        self._latest, self._watermark, self.late = saved.latest, saved.watermark, saved.late
        self.newest = saved.newest
        anew = self._running.restore(saved.groups, saved.failed, saved.watermark)
        self._running.given.take_over(saved.given)
        self._silence.restore(saved.silence, saved.watermark)
        self._waiting = ReorderBuffer(unpack_buffer(saved.buffer))
        return anew

    def _note_late(
        self,
        readings: pa.RecordBatch,
        late: npt.NDArray[np.bool_],
        behind_ms: npt.NDArray[np.int64],
    ) -> None:
        chosen = readings.filter(pa.array(late))
        times, ids = chosen.column("time").to_pylist(), chosen.column("id").to_pylist()
        self.late += len(chosen)
        self.late_readings += zip(times, ids, strict=True)
        sources = chosen.column("source").to_pylist()
        for source, behind in zip(sources, behind_ms[late].tolist(), strict=True):
            count, most = self._late_by_source.get(source, LateCount())
            self._late_by_source[source] = LateCount(count + 1, max(most, behind))

    def _release(self, watermark: int) -> list[Detection]:
        """Processes everything below the watermark."""
        if watermark <= self._watermark:
            return []
        self._watermark = watermark
        ready: pa.RecordBatch | None = None
        if self._waiting.oldest < watermark:
            ready = self._waiting.take_ready(watermark)
            if self._silence.streams:
                self._silence.take(ready)
        return self._running.process(ready, watermark)


def _no_clock() -> int:
    return 0
