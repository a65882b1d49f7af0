"""The plans that run in an engine, their shadows, and the state that is committed with the
position. [PO-7, PO-8, PO-9]

Pure except for the steady clock that measures cost: positions, readings and time are arguments.

A shadow is a new version of a policy that runs beside the active one; their detections are
compared. Two detections are equal when time and bindings are; situations are compared by episodes
(`shadow_episodes.py`). Detections of the active version that rest on readings from before the
shadow started do not count, nor do detections before the shadow has seen enough readings to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.detection import Cause, Detection
from rapport.core.errors import Corrupt, Problem
from rapport.core.release import ReleaseDone
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.metrics import PolicyMeter
from rapport.policy.engine.open_situations import (
    BindingsKey,
    OpenSituation,
    OpenSituations,
    bindings_key,
)
from rapport.policy.engine.shadow_episodes import (
    ComparedVersions,
    EpisodeComparison,
    EpisodeState,
    FoundBy,
    ShadowDifference,
    ShadowResult,
    ShadowTally,
    ShadowTurn,
)
from rapport.policy.engine.stream_steps import PlanChange, PlansAt
from rapport.policy.engine.value_record import NeededBy, ValueRecord
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.operators.plan_shape import longest_window_ms
from rapport.policy.plan import Plan, PolicyPlan, longest_duration_ms
from rapport.policy.runner.local import LocalRunner
from rapport.policy.situation_plan import SituationPlan, longest_look_back_ms
from rapport.policy.situations.current_states import SituationStates

_RUNNING, _SHADOW, _BOTH = 1, 2, 3
_Key = tuple[int, tuple[tuple[str, str], ...]]


class _Situation(msgspec.Struct, array_like=True):
    """A situation, the versions that found it, and its causes."""

    time: int
    bindings: dict[str, str]
    by: int
    causes: tuple[Cause, ...]


class ShadowState(msgspec.Struct):
    """The saved state of a comparison and of the shadow's runner."""

    versions: ComparedVersions
    began: int
    judged_from: int
    tally: ShadowTally
    open: list[_Situation]
    runner: bytes = b""
    episodes: EpisodeState | None = None
    """Of a comparison of situations."""


def is_state(plan: PolicyPlan) -> bool:
    """Whether its detections are about something that lasts."""
    return isinstance(plan, SituationPlan) or plan.is_lasting()


def _aliases_of(plan: PolicyPlan | None) -> dict[str, str] | None:
    """The aliases of a situation with their concepts; None without a situation."""
    if not isinstance(plan, SituationPlan):
        return None
    return {bound.alias: bound.concept for bound in plan.aliases}


def longest_memory(plan: Plan) -> int:
    """How long a reading may matter to the plan: its longest window, state or silence."""
    return max(longest_window_ms(plan), longest_duration_ms(plan))


class ShadowComparison:
    """Matches the detections of two versions; keeps those that the other version may still find."""

    def __init__(self, running: Plan, shadow: Plan, began: int) -> None:
        """`began`: the watermark at which the shadow started; it saw no reading before."""
        self.versions = ComparedVersions(running.policy, running.version(), shadow.version())
        self._grace = max(longest_window_ms(running), longest_window_ms(shadow))
        self._began = began
        self._judged_from = began + max(longest_memory(running), longest_memory(shadow))
        self._open: dict[_Key, _Situation] = {}
        self.tally = ShadowTally()

    def take(
        self, running: Iterable[Detection], shadow: Iterable[Detection], watermark: int
    ) -> list[ShadowDifference]:
        """Adds detections of both versions; returns the differences that are certain at the
        watermark, in order of time.
        """
        self._note(running, _RUNNING)
        self._note(shadow, _SHADOW)
        return list(self._settled(watermark - self._grace))

    def due(self) -> int | None:
        """The watermark at which the next difference is certain; None when there is none."""
        alone = [key[0] for key, seen in self._open.items() if seen.by != _BOTH]
        return min(alone) + self._grace + 1 if alone else None

    def end(self) -> list[ShadowDifference]:
        """Returns the remaining differences; both versions have decided the same readings."""
        return list(self._settled(None))

    def reset(self) -> list[ShadowDifference]:
        """Restarts the comparison with the next reading; returns the remaining differences."""
        self._began = self._judged_from = -END_OF_TIME
        return self.end()

    def state(self) -> ShadowState:
        return ShadowState(
            versions=self.versions,
            began=self._began,
            judged_from=self._judged_from,
            tally=self.tally,
            open=list(self._open.values()),
        )

    def restore(self, saved: ShadowState) -> None:
        self._began, self._judged_from = saved.began, saved.judged_from
        self.tally = saved.tally
        self._open = {_key(seen.time, seen.bindings): seen for seen in saved.open}

    def _note(self, found: Iterable[Detection], by: int) -> None:
        for detection in found:
            if not self._counts(detection):
                continue
            key = _key(detection.time, detection.bindings)
            seen = self._open.get(key)
            if seen is None:
                seen = _Situation(detection.time, detection.bindings, by, detection.causes)
                self._open[key] = seen
            seen.by |= by

    def _counts(self, detection: Detection) -> bool:
        is_seen = all(time >= self._began for time, _ in detection.causes)
        return is_seen and detection.time >= self._judged_from

    def _settled(self, before: int | None) -> Iterator[ShadowDifference]:
        due = sorted(key for key in self._open if before is None or key[0] < before)
        for key in due:
            seen = self._open.pop(key)
            self._count(seen.by)
            if seen.by != _BOTH:
                yield self._difference(seen)

    def _count(self, by: int) -> None:
        self.tally = self.tally.with_one(
            None if by == _BOTH else "running" if by == _RUNNING else "shadow"
        )

    def _difference(self, seen: _Situation) -> ShadowDifference:
        return ShadowDifference(
            policy=self.versions.policy,
            found_by="running" if seen.by == _RUNNING else "shadow",
            time=seen.time,
            bindings=seen.bindings,
            causes=seen.causes,
            running=self.versions.running,
            shadow=self.versions.shadow,
        )


def _key(time: int, bindings: dict[str, str]) -> _Key:
    return time, tuple(sorted(bindings.items()))


class Shadow:
    """One shadow: its runner, fed with the same readings in the same order, and the comparison."""

    def __init__(
        self, runner: LocalRunner, comparison: ShadowComparison | EpisodeComparison
    ) -> None:
        self.runner, self.comparison = runner, comparison
        self.found: list[Detection] = []

    def pending_until(self) -> list[int]:
        """The times at which pending matches are decided and the next difference is certain."""
        due = self.comparison.due()
        times = [self.runner.pending_until()]
        if due is not None and due > self.runner.watermark:
            times.append(due + self.runner.lateness_ms)
        return [time for time in times if time is not None]

    def compare(self, running: Iterable[Detection], watermark: int) -> list[ShadowResult]:
        """The differences that are now certain, given the detections of the active version; of a
        situation also its beginnings and ends.
        """
        found, self.found = self.found, []
        self.runner.take_undecided()
        is_situation = any(isinstance(plan, SituationPlan) for plan in self.runner.plans())
        turns = [ShadowTurn(found=one) for one in found if is_situation]
        return [*turns, *self.comparison.take(running, found, watermark)]

    def problems(self) -> list[Problem]:
        """Why the shadow failed."""
        return [
            Problem(
                code="policy.shadow_failed",
                message=f"in the shadow: {problem.message}",
                hint="correct the function or the table, drop the shadow, then bring it again",
            )
            for problem in self.runner.failed().values()
        ]

    def state(self) -> ShadowState:
        comparison = self.comparison
        if isinstance(comparison, ShadowComparison):
            return msgspec.structs.replace(comparison.state(), runner=self.runner.snapshot())
        episodes = comparison.state()
        return ShadowState(
            versions=comparison.versions,
            began=episodes.began,
            judged_from=episodes.judged_from,
            tally=comparison.tally,
            open=[],
            runner=self.runner.snapshot(),
            episodes=episodes,
        )

    def restore(self, state: ShadowState) -> None:
        """Restores a comparison of the same two versions."""
        self.runner.restore_known(state.runner)
        if isinstance(self.comparison, ShadowComparison):
            self.comparison.restore(state)
        elif state.episodes is not None:
            self.comparison.restore(state.episodes)
            self.comparison.tally = state.tally


_log = get_logger(__name__)


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
    open: list[OpenSituation] = []
    named: dict[str, bytes] = {}
    """The readings of streams that texts name."""


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


class ActivePlans:
    """One runner for all policies and one for each shadow, all at the same watermark."""

    def __init__(
        self,
        plans: Iterable[PolicyPlan],
        pull: PullData,
        ontology: Ontology,
        *,
        lateness_ms: int,
        steady_ns: Callable[[], int],
        elsewhere: Container[str] = (),
        values: ValueRecord | None = None,
    ) -> None:
        """`elsewhere`: policies that run on Spark and are skipped here; `values`: keeps the
        readings that texts name."""
        self._elsewhere = elsewhere
        self._pull, self._ontology = pull, ontology
        self._lateness_ms, self._steady_ns = lateness_ms, steady_ns
        self.runner = self._runner_of(plans)
        self._shadows: dict[str, Shadow] = {}
        self.meter = PolicyMeter()
        self.began: dict[str, int] = {}
        """The watermark at which each policy was deployed."""
        self.left: list[ShadowResult] = []
        """Differences of ended shadows that are not emitted yet."""
        self.situations = OpenSituations()
        self._ends: list[Detection] = []
        """Ends of situations whose policy does not run any more, not emitted yet."""
        self.values = values or ValueRecord()
        self._valued: dict[str, str] | None = None
        """The versions whose named values are kept."""

    # --- plans ---

    def apply(self, change: PlanChange) -> None:
        """Deploys, withdraws, shadows or promotes as the change says."""
        policy, plan = change.policy, change.plan
        match change.act:
            case "deploy" if plan is not None:
                self.deploy(plan)
            case "withdraw":
                self.stop(policy, change.why)
            case "shadow" if plan is not None:
                self._start_shadow(plan)
            case "promote" if plan is not None:
                self._promote(plan)
            case "drop":
                self.end_shadow(policy)
            case _:
                pass

    def end_replaced(self, change: PlanChange) -> None:
        """Ends the plans that `apply` will end."""
        plan, running = change.plan, self.runner.policies()
        if change.act in ("shadow", "drop"):
            self.end_shadow(change.policy)
        elif plan is None:
            self.stop(change.policy, change.why)
        elif running.get(change.policy) != plan.version():
            self._withdraw_for(plan)

    def deploy(self, plan: PolicyPlan) -> None:
        """Starts a plan and replaces an older version; it sees readings from now on. Does nothing
        if this version runs already.
        """
        if plan.policy in self._elsewhere:
            return
        running = self.runner.policies()
        if running.get(plan.policy) == plan.version():
            return
        self._withdraw_for(plan)
        self.runner.deploy(plan)
        self._continue_situations([plan.policy])
        self.began[plan.policy] = self.runner.watermark
        self.meter.deployed(plan, self.runner.spent_ns.get(plan.policy, 0))

    def _continue_situations(self, policies: Iterable[str]) -> None:
        """Tells policies that began anew what is open."""
        for policy in policies:
            began = self._open_since(policy)
            if began:
                self.runner.continue_open(policy, began)

    def _withdraw_for(self, plan: PolicyPlan) -> None:
        """Stops what runs in the place of a plan. Its open situations stay open if the plan has a
        situation of the same aliases, and end otherwise.
        """
        policy = plan.policy
        plans = (*self.runner.plans(), *self.runner.failed_plans())
        before = next((one for one in plans if one.policy == policy), None)
        if before is not None and _aliases_of(plan) != _aliases_of(before):
            self._end_situations(policy, "the policy was replaced by one about other things")
        self.end_shadow(policy)
        if before is not None:
            self.runner.withdraw(policy)

    def withdraw(self, policy: str, why: str = "") -> None:
        """Stops a plan, drops its pending matches and ends its open situations, with the reason.
        Raises UnknownName.
        """
        self._end_situations(policy, why or "the policy was stopped")
        self.runner.withdraw(policy)
        self.began.pop(policy, None)

    def stop(self, policy: str, why: str = "") -> None:
        """Stops a plan and its shadow if they run."""
        self.end_shadow(policy)
        if policy in self.runner.policies() or policy in self.runner.failed():
            self.withdraw(policy, why)

    def _end_situations(self, policy: str, reason: str) -> None:
        version = self.runner.policies().get(policy, "")
        self._ends += self.situations.end(policy, version, reason, self.runner.watermark)

    @property
    def has_ends(self) -> bool:
        """Whether situations ended because their policy was stopped."""
        return bool(self._ends)

    def new_ends(self) -> list[Detection]:
        """The ends of situations whose policy was stopped, since the last call."""
        taken, self._ends = self._ends, []
        return self.values.with_values(taken, self._pull, self._ontology.sources)

    def still_lasts(self, detection: Detection) -> bool:
        """Whether what a detection of a state is about still holds, as far as was read."""
        if detection.policy in self.situation_plans():
            known = self.situations.find(detection.policy, detection.bindings)
            return known is not None and known.began == detection.time
        return self.runner.still_lasts(detection)

    def situation_plans(self) -> dict[str, SituationPlan]:
        """The running policies with a situation."""
        plans = (*self.runner.plans(), *self.runner.failed_plans())
        return {plan.policy: plan for plan in plans if isinstance(plan, SituationPlan)}

    def situation_states(self, policy: str) -> SituationStates | None:
        """What is open, pending and unknown; None for a policy that has no situation or does not
        run.
        """
        return self.runner.situation_states(policy, self._ontology)

    def new_results(self, found: Sequence[Detection]) -> list[Detection]:
        """The detections that were not emitted, with the values that texts name."""
        new = self.situations.continued(found, self.situation_plans()) if found else []
        return self.values.with_values(new, self._pull, self._ontology.sources)

    def emitted(self, found: Sequence[Detection]) -> None:
        """Notes beginnings and ends that were emitted."""
        if found:
            self.situations.note(found, self.situation_plans())

    def end_shadow(self, policy: str) -> LocalRunner | None:
        """Ends the shadow if there is one and returns its runner."""
        shadow = self._shadows.pop(policy, None)
        if shadow is None:
            return None
        self.left += shadow.comparison.end()
        return shadow.runner

    def _start_shadow(self, plan: PolicyPlan, saved: ShadowState | None = None) -> None:
        """Starts a shadow, or continues the saved one of the same two versions. A situation goes on
        with what is open, as if its version had replaced the active one.
        """
        self.end_shadow(plan.policy)
        running = next((one for one in self.runner.plans() if one.policy == plan.policy), None)
        if running is None:
            return
        # With time and buffered readings, but without the state of any policy.
        runner = self._runner_of([plan])
        runner.restore_known(self.runner.snapshot())
        shadow = Shadow(runner, self._comparison(running, plan))
        self._shadows[plan.policy] = shadow
        if saved is not None and saved.versions == shadow.comparison.versions:
            shadow.restore(saved)
        elif _aliases_of(plan) is not None and _aliases_of(plan) == _aliases_of(running):
            runner.continue_open(plan.policy, self._open_since(plan.policy))

    def _comparison(
        self, running: PolicyPlan, shadow: PolicyPlan
    ) -> ShadowComparison | EpisodeComparison:
        began = self.runner.watermark
        if isinstance(running, Plan) and isinstance(shadow, Plan):
            return ShadowComparison(running, shadow, began)
        sides: dict[FoundBy, PolicyPlan] = {"running": running, "shadow": shadow}
        conditions = [plan for plan in sides.values() if isinstance(plan, Plan)]
        return EpisodeComparison(
            ComparedVersions(running.policy, running.version(), shadow.version()),
            began,
            memory_ms=max(
                longest_look_back_ms(plan)
                if isinstance(plan, SituationPlan)
                else longest_memory(plan)
                for plan in sides.values()
            ),
            grace_ms=max(map(longest_window_ms, conditions), default=0),
            lasting=[by for by, plan in sides.items() if isinstance(plan, SituationPlan)],
            carried=self.situations.of(running.policy),
            is_continued=_aliases_of(shadow) == _aliases_of(running),
        )

    def _open_since(self, policy: str) -> dict[BindingsKey, int]:
        """When what is open began, by bindings."""
        return {bindings_key(one.bindings): one.began for one in self.situations.of(policy)}

    def _promote(self, plan: PolicyPlan) -> None:
        """Turns the shadow into the policy and keeps its pending matches. What is open stays open
        if it is so in the shadow and ends otherwise; what only the shadow has begins.
        """
        began = self.runner.watermark
        shadow = self.end_shadow(plan.policy)
        self.deploy(plan)
        if shadow is not None and shadow.policies() == {plan.policy: plan.version()}:
            self.runner.adopt(shadow, ())
            self.began[plan.policy] = began
            if isinstance(plan, SituationPlan):
                self.runner.continue_open(plan.policy, self._open_since(plan.policy))

    # --- readings and time ---

    def feed(
        self, readings: pa.RecordBatch, received: npt.NDArray[np.int64] | None = None
    ) -> list[Detection]:
        self.meter.took(readings)
        for shadow in self._shadows.values():
            shadow.found += shadow.runner.feed(readings, received)
            shadow.runner.take_late()
        self._keep_values()
        watermark = self.runner.watermark
        found = self.runner.feed(readings, received)
        self.values.take(readings, self.runner.late_readings, watermark)
        return found

    def _keep_values(self) -> None:
        """Keeps the readings that texts of the running versions name."""
        versions = self.runner.policies()
        if versions != self._valued:
            self._valued = versions
            plans = [plan for plan in self.runner.plans() if isinstance(plan, Plan)]
            reach_ms = max(map(longest_memory, plans), default=0)
            self.values.use_policies(versions, reach_ms + self._lateness_ms)
            self.runner.name_values(self.values.at_turns(versions))

    def use_texts(self, needed: NeededBy) -> None:
        """Texts of actions were changed."""
        self.values.needed, self._valued = needed, None

    def reset(self, clock_ms: int, skew_ms: int) -> list[Cause]:
        """Restarts time and all plans after the clock jumped back; returns the buffered readings
        that are too far ahead of the clock.
        """
        for shadow in self._shadows.values():
            self.left += shadow.comparison.reset()
            shadow.runner.reset(clock_ms + skew_ms)
        self.began = dict.fromkeys(self.runner.policies(), clock_ms - self._lateness_ms)
        dropped = self.runner.reset(clock_ms + skew_ms)
        self._continue_situations(self.runner.policies())
        return dropped

    def advance(self, time_ms: int) -> list[Detection]:
        self._keep_values()
        for shadow in self._shadows.values():
            shadow.found += shadow.runner.advance(time_ms)
        return self.runner.advance(time_ms)

    def begin(self, time_ms: int) -> list[Detection]:
        """Starts all plans at a clock time, before any reading."""
        for shadow in self._shadows.values():
            shadow.found += shadow.runner.begin(time_ms)
        self._keep_values()
        found = self.runner.begin(time_ms)
        self.began = dict.fromkeys(self.runner.policies(), time_ms - self._lateness_ms)
        return found

    def shortest_silence_ms(self) -> int | None:
        """The shortest silence that a plan waits for; None when no plan does."""
        runners = [self.runner, *(shadow.runner for shadow in self._shadows.values())]
        plans = [plan for each in runners for plan in each.plans() if isinstance(plan, Plan)]
        found = [plan.shortest_silence_ms() for plan in plans]
        return min((one for one in found if one is not None), default=None)

    def pending_until(self) -> int | None:
        """The time at which the next pending match or difference is decided."""
        due = [time for shadow in self._shadows.values() for time in shadow.pending_until()]
        own = self.runner.pending_until()
        return min([*due, own] if own is not None else due, default=None)

    def differences(self, found: Sequence[Detection]) -> list[ShadowResult]:
        """The differences between versions that are now certain, and the beginnings and ends of
        situations in the shadow.
        """
        differences, self.left = self.left, []
        for policy, shadow in self._shadows.items():
            own = [one for one in found if one.policy == policy]
            differences += shadow.compare(own, self.runner.watermark)
        return differences

    def shadow_tallies(self) -> dict[str, ShadowTally]:
        return {policy: shadow.comparison.tally for policy, shadow in self._shadows.items()}

    def shadow_problems(self) -> dict[str, Problem]:
        """By policy, the reason its shadow failed."""
        return {name: one for name, each in self._shadows.items() for one in each.problems()}

    def shadow_situations(self, policy: str) -> SituationStates | None:
        """What is open, pending and unknown of the shadow; None without a shadow that has a
        situation.
        """
        shadow = self._shadows.get(policy)
        return shadow.runner.situation_states(policy, self._ontology) if shadow else None

    def shadow_states(self) -> dict[str, ShadowState]:
        return {policy: shadow.state() for policy, shadow in self._shadows.items()}

    def known_began(self) -> dict[str, int]:
        """The deployment watermark of each plan that did not see all readings."""
        return {name: at for name, at in self.began.items() if at > -END_OF_TIME}

    def adopt(self, runners: Iterable[LocalRunner], streams: Collection[str]) -> None:
        """Takes over the state of runners at the same watermark that saw more readings."""
        for runner in runners:
            self.runner.adopt(runner, streams)

    # --- state and tables ---

    def restore(self, at: PlansAt, state: EngineState | None) -> None:
        """Restores a commit, or the beginning."""
        before = self.runner
        plans = [plan for plan in at.plans if plan.policy not in self._elsewhere]
        self.runner, self._shadows = self._runner_of(plans), {}
        self.runner.count_on(before)
        self.began, self.left, self._ends = {}, [], []
        self.situations = OpenSituations(state.open if state is not None else ())
        self._valued = None
        self.values.restore(state.named if state is not None else {})
        if state is None:
            return
        anew = self.runner.restore_known(state.runner)
        known = self.runner.policies().keys() - set(anew)
        self.began = {name: at for name, at in state.began.items() if name in known}
        self.began |= dict.fromkeys(anew, self.runner.watermark)
        self._continue_situations(anew)
        if anew:
            _log.info("policies begin anew", policies=anew)
        for plan in at.shadows:
            self._start_shadow(plan, state.shadows.get(plan.policy))

    def renew_pull(self, pull: PullData, ontology: Ontology) -> None:
        """Switches to other tables: makes every step anew and restores its state."""
        self._pull, self._ontology = pull, ontology
        self.runner, self._valued = self._renewed(self.runner), None
        for shadow in self._shadows.values():
            shadow.runner = self._renewed(shadow.runner)

    def _renewed(self, runner: LocalRunner) -> LocalRunner:
        fresh = self._runner_of([*runner.plans(), *runner.failed_plans()])
        fresh.restore_known(runner.snapshot())
        fresh.count_on(runner)
        return fresh

    def _runner_of(self, plans: Iterable[PolicyPlan]) -> LocalRunner:
        return LocalRunner(
            list(plans),
            self._pull,
            lateness_ms=self._lateness_ms,
            sources=self._ontology.sources,
            steady_ns=self._steady_ns,
        )
