"""What the policy engine commits with its cursor, and what it tells others of itself. [PO-7, PO-8,
PO-9]

The plans of an engine as they run now: the runner, shadows, and what each of them counts. [PO-8,
PO-9]

Pure but for the steady clock that measures cost: places, readings and time are arguments.
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
    """What is committed with the cursor.

    `detections` and `changes` are how far that channel and the record of changes of policies went
    then.
    """

    runner: bytes
    detections: int
    began: dict[str, int] = {}
    changes: int = 0
    shadows: dict[str, ShadowState] = {}
    stopped: list[str] = []
    """Policies that a detection stopped before the place where that is on record."""
    unheard_since: int | None = None
    """By the clock: since when silence counts where nothing was ever heard."""
    overdue: list[Detection] = []
    """Detections of lasting states that were found too late to act on them."""
    history: list[ReleaseDone] = []
    """Readings imported as history that wait to be evaluated: of silent imports, of others."""
    resets: int = 0
    """How often time began anew because the clock had jumped."""


def encode_state(state: EngineState) -> bytes:
    """As it is committed."""
    return msgspec.msgpack.encode(state)


def decode_state(raw: bytes) -> EngineState:
    """What `encode_state` wrote; raises Corrupt."""
    try:
        return msgspec.msgpack.decode(raw, type=EngineState)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the state of the policy engine cannot be read: {error}", code="policy.bad_snapshot"
        ) from None


_log = get_logger(__name__)


class ActivePlans:
    """What runs: one runner for all policies, one for each shadow, all at the same watermark."""

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
        """`elsewhere`: policies that run on Spark; here they are passed over."""
        self._elsewhere = elsewhere
        self._pull, self._ontology = pull, ontology
        self._lateness_ms, self._steady_ns = lateness_ms, steady_ns
        self.runner = self._runner_of(plans)
        self.shadows = Shadows()
        self.meter = PolicyMeter()
        self.began: dict[str, int] = {}
        """The watermark at which each was deployed."""
        self.left: list[ShadowDifference] = []
        """What shadows that were ended still had to tell."""

    # --- what changes ---

    def apply(self, change: PlanChange) -> None:
        """From now on other plans run."""
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
        """Ends what `apply` will end."""
        plan, running = change.plan, self.runner.policies()
        if change.act in ("shadow", "drop"):
            self.end_shadow(change.policy)
        elif plan is None or running.get(change.policy) != plan.version():
            self.stop(change.policy)

    def deploy(self, plan: Plan) -> None:
        """Starts a plan, in the place of an older version if there is one; it sees what comes from
        now on. One that runs already goes on.
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
        """Stops a plan; what it waited for is forgotten. Raises UnknownName."""
        self.runner.withdraw(policy)
        self.began.pop(policy, None)

    def stop(self, policy: str) -> None:
        """The same with its shadow, whether it runs or not."""
        self.end_shadow(policy)
        if policy in self.runner.policies() or policy in self.runner.failed():
            self.withdraw(policy)

    def end_shadow(self, policy: str) -> LocalRunner | None:
        """Ends a shadow, if there is one; gives its runner."""
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
        """The shadow goes on as the policy: nothing that it waits for is lost."""
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
        """Takes readings as they arrived; see `LocalRunner.feed`."""
        self.meter.took(readings)
        self.shadows.feed(readings, received)
        return self.runner.feed(readings, received)

    def reset(self, clock_ms: int, skew_ms: int) -> list[Cause]:
        """Time and all plans begin anew, the clock having jumped back to a time; gives the readings
        that waited and are too far ahead of it.
        """
        self.left += self.shadows.reset(clock_ms + skew_ms)
        self.began = dict.fromkeys(self.runner.policies(), clock_ms - self._lateness_ms)
        return self.runner.reset(clock_ms + skew_ms)

    def advance(self, time_ms: int) -> list[Detection]:
        """Moves time on without a reading."""
        self.shadows.advance(time_ms)
        return self.runner.advance(time_ms)

    def begin(self, time_ms: int) -> list[Detection]:
        """The start of all plans was at a time, by the clock, though there was no reading."""
        self.shadows.begin(time_ms)
        found = self.runner.begin(time_ms)
        self.began = dict.fromkeys(self.runner.policies(), time_ms - self._lateness_ms)
        return found

    def shortest_silence_ms(self) -> int | None:
        """Of the silences that plans look for; None when no plan does."""
        runners = [self.runner, *self.shadows.runners().values()]
        found = [plan.shortest_silence_ms() for each in runners for plan in each.plans()]
        return min((one for one in found if one is not None), default=None)

    def pending_until(self) -> int | None:
        """The time that must be reached for something pending to be decided."""
        due = self.shadows.pending_until()
        own = self.runner.pending_until()
        return min([*due, own] if own is not None else due, default=None)

    def take_undecided(self) -> list[Undecided]:
        """What silent sources left open since the last call."""
        return self.runner.take_undecided()

    def differences(self, found: Sequence[Detection]) -> list[ShadowDifference]:
        """What is now certain to be found by one version only."""
        left, self.left = self.left, []
        return [*left, *self.shadows.compare(found, self.runner.watermark)]

    def counts(self) -> dict[str, PolicyCounts]:
        """By policy."""
        return self.meter.counts(self.runner)

    def known_began(self) -> dict[str, int]:
        """Since when plans are deployed that did not see all."""
        return {name: at for name, at in self.began.items() if at > -END_OF_TIME}

    def adopt(self, runners: Iterable[LocalRunner], streams: Collection[str]) -> None:
        """Goes on with what runners know that stand at the same watermark and saw more."""
        for runner in runners:
            self.runner.adopt(runner, streams)

    # --- other places ---

    def restore(self, at: PlansAt, state: EngineState | None) -> None:
        """Goes to where a commit stands, or to the beginning."""
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
        """Goes on with other tables: every step is made anew and given what it knew."""
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
