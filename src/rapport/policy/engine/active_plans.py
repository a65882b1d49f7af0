"""The plans that run in an engine, their shadows, and the state that is committed with the
position. [PO-7, PO-8, PO-9]

Pure except for the steady clock that measures cost: positions, readings and time are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided
from rapport.core.errors import Corrupt
from rapport.core.release import ReleaseDone
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.metrics import PolicyCounts, PolicyMeter
from rapport.policy.engine.shadows import ShadowDifference, Shadows, ShadowState
from rapport.policy.engine.stream_steps import PlanChange, PlansAt
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.local import LocalRunner


class EngineState(msgspec.Struct):
    """The state committed with the position in `events`.

    `detections` and `changes` are the positions reached in the channel `detections` and in the
    record of policy changes.
    """

    runner: bytes
    detections: int
    began: dict[str, int] = {}
    changes: int = 0
    shadows: dict[str, ShadowState] = {}
    stopped: list[str] = []
    """Policies that a detection stopped before the position at which that change is recorded."""
    unheard_since: int | None = None
    """Clock time from which silence counts while no reading has arrived."""
    overdue: list[Detection] = []
    """Detections of states that were found too late to act on them."""
    history: list[ReleaseDone] = []
    """Imported readings that wait for evaluation: those of silent imports, and the others."""
    resets: int = 0
    """Number of times that stream time was reset after a clock jump."""


def encode_state(state: EngineState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_state(raw: bytes) -> EngineState:
    """Decodes the output of `encode_state`; raises Corrupt."""
    try:
        return msgspec.msgpack.decode(raw, type=EngineState)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the state of the policy engine cannot be read: {error}", code="policy.bad_snapshot"
        ) from None


_log = get_logger(__name__)


class ActivePlans:
    """One runner for all policies and one for each shadow, all at the same watermark."""

    def __init__(
        self,
        plans: Iterable[Plan],
        pull: PullData,
        ontology: Ontology,
        *,
        lateness_ms: int,
        steady_ns: Callable[[], int],
        elsewhere: Container[str] = (),
    ) -> None:
        """`elsewhere`: policies that run on Spark and are skipped here."""
        self._elsewhere = elsewhere
        self._pull, self._ontology = pull, ontology
        self._lateness_ms, self._steady_ns = lateness_ms, steady_ns
        self.runner = self._runner_of(plans)
        self.shadows = Shadows()
        self.meter = PolicyMeter()
        self.began: dict[str, int] = {}
        """The watermark at which each policy was deployed."""
        self.left: list[ShadowDifference] = []
        """Differences of ended shadows that are not emitted yet."""

    # --- what changes ---

    def apply(self, change: PlanChange) -> None:
        """Deploys, withdraws, shadows or promotes as the change says."""
        policy, plan = change.policy, change.plan
        match change.act:
            case "deploy" if plan is not None:
                self.deploy(plan)
            case "withdraw":
                self.stop(policy)
            case "shadow" if plan is not None:
                self._start_shadow(plan)
            case "promote" if plan is not None:
                self._promote(plan)
            case "drop":
                self.end_shadow(policy)
            case _:
                pass

    def make_way(self, change: PlanChange) -> None:
        """Ends the plans that `apply` will end."""
        plan, running = change.plan, self.runner.policies()
        if change.act in ("shadow", "drop"):
            self.end_shadow(change.policy)
        elif plan is None or running.get(change.policy) != plan.version():
            self.stop(change.policy)

    def deploy(self, plan: Plan) -> None:
        """Starts a plan and replaces an older version; it sees readings from now on. Does nothing
        if this version runs already.
        """
        if plan.policy in self._elsewhere:
            return
        running = self.runner.policies()
        if running.get(plan.policy) == plan.version():
            return
        self.end_shadow(plan.policy)
        if plan.policy in running:
            self.runner.withdraw(plan.policy)
        self.runner.deploy(plan)
        self._note(plan)

    def withdraw(self, policy: str) -> None:
        """Stops a plan and drops its pending matches. Raises UnknownName."""
        self.runner.withdraw(policy)
        self.began.pop(policy, None)

    def stop(self, policy: str) -> None:
        """Stops a plan and its shadow if they run."""
        self.end_shadow(policy)
        if policy in self.runner.policies() or policy in self.runner.failed():
            self.withdraw(policy)

    def end_shadow(self, policy: str) -> LocalRunner | None:
        """Ends the shadow if there is one and returns its runner."""
        ended = self.shadows.end(policy)
        if ended is None:
            return None
        runner, left = ended
        self.left += left
        return runner

    def _note(self, plan: Plan) -> None:
        self.began[plan.policy] = self.runner.watermark
        self.meter.deployed(plan, self.runner.spent_ns.get(plan.policy, 0))

    def _start_shadow(self, plan: Plan) -> None:
        self.end_shadow(plan.policy)
        running = self._plan_of(plan.policy)
        if running is not None:
            # With the time and the readings that wait, but without what any policy knows.
            runner = self._runner_of([plan])
            runner.restore_known(self.runner.snapshot())
            self.shadows.start(running, plan, runner, self.runner.watermark)

    def _promote(self, plan: Plan) -> None:
        """Turns the shadow into the policy and keeps its pending matches."""
        began = self.runner.watermark
        shadow = self.end_shadow(plan.policy)
        self.deploy(plan)
        if shadow is not None and shadow.policies() == {plan.policy: plan.version()}:
            self.runner.adopt(shadow, ())
            self.began[plan.policy] = began

    def _plan_of(self, policy: str) -> Plan | None:
        return next((plan for plan in self.runner.plans() if plan.policy == policy), None)

    # --- what happens ---

    def feed(
        self, readings: pa.RecordBatch, received: npt.NDArray[np.int64] | None = None
    ) -> list[Detection]:
        self.meter.took(readings)
        self.shadows.feed(readings, received)
        return self.runner.feed(readings, received)

    def reset(self, clock_ms: int, skew_ms: int) -> list[Cause]:
        """Restarts time and all plans after the clock jumped back; returns the buffered readings
        that are too far ahead of the clock.
        """
        self.left += self.shadows.reset(clock_ms + skew_ms)
        self.began = dict.fromkeys(self.runner.policies(), clock_ms - self._lateness_ms)
        return self.runner.reset(clock_ms + skew_ms)

    def advance(self, time_ms: int) -> list[Detection]:
        self.shadows.advance(time_ms)
        return self.runner.advance(time_ms)

    def begin(self, time_ms: int) -> list[Detection]:
        """Starts all plans at a clock time, before any reading."""
        self.shadows.begin(time_ms)
        found = self.runner.begin(time_ms)
        self.began = dict.fromkeys(self.runner.policies(), time_ms - self._lateness_ms)
        return found

    def shortest_silence_ms(self) -> int | None:
        """The shortest silence that a plan waits for; None when no plan does."""
        runners = [self.runner, *self.shadows.runners().values()]
        found = [plan.shortest_silence_ms() for each in runners for plan in each.plans()]
        return min((one for one in found if one is not None), default=None)

    def pending_until(self) -> int | None:
        """The time at which the next pending match or difference is decided."""
        due = self.shadows.pending_until()
        own = self.runner.pending_until()
        return min([*due, own] if own is not None else due, default=None)

    def take_undecided(self) -> list[Undecided]:
        return self.runner.take_undecided()

    def differences(self, found: Sequence[Detection]) -> list[ShadowDifference]:
        """The differences between versions that are now certain."""
        left, self.left = self.left, []
        return [*left, *self.shadows.compare(found, self.runner.watermark)]

    def counts(self) -> dict[str, PolicyCounts]:
        return self.meter.counts(self.runner)

    def known_began(self) -> dict[str, int]:
        """The deployment watermark of each plan that did not see all readings."""
        return {name: at for name, at in self.began.items() if at > -END_OF_TIME}

    def adopt(self, runners: Iterable[LocalRunner], streams: Collection[str]) -> None:
        """Takes over the state of runners at the same watermark that saw more readings."""
        for runner in runners:
            self.runner.adopt(runner, streams)

    # --- other places ---

    def restore(self, at: PlansAt, state: EngineState | None) -> None:
        """Restores a commit, or the beginning."""
        before = self.runner
        plans = [plan for plan in at.plans if plan.policy not in self._elsewhere]
        self.runner, self.shadows = self._runner_of(plans), Shadows()
        self.runner.count_on(before)
        self.began, self.left = {}, []
        if state is None:
            return
        anew = self.runner.restore_known(state.runner)
        known = self.runner.policies().keys() - set(anew)
        self.began = {name: at for name, at in state.began.items() if name in known}
        self.began |= dict.fromkeys(anew, self.runner.watermark)
        if anew:
            _log.info("policies begin anew", policies=anew)
        for plan in at.shadows:
            self._start_shadow(plan)
        self.shadows.restore(state.shadows)

    def renew_pull(self, pull: PullData, ontology: Ontology) -> None:
        """Switches to other tables: makes every step anew and restores its state."""
        self._pull, self._ontology = pull, ontology
        self.runner = self._renewed(self.runner)
        self.shadows.exchange(
            {policy: self._renewed(one) for policy, one in self.shadows.runners().items()}
        )

    def _renewed(self, runner: LocalRunner) -> LocalRunner:
        fresh = self._runner_of([*runner.plans(), *runner.failed_plans()])
        fresh.restore_known(runner.snapshot())
        fresh.count_on(runner)
        return fresh

    def _runner_of(self, plans: Iterable[Plan]) -> LocalRunner:
        return LocalRunner(
            list(plans),
            self._pull,
            lateness_ms=self._lateness_ms,
            sources=self._ontology.sources,
            steady_ns=self._steady_ns,
        )
