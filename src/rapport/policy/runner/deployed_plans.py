"""What each policy of a runner cost: time, and steps it wanted and had computed. [PO-13, PO-14]

What was given out a moment ago, so that it is not given out once more. Pure. [PO-7, PO-15]

Different occurrences may say the same: equal time, bindings and causes. Most often they are decided
together. Where something is awaited, one may be known when its time has come and another only when
no uncertain clock can change it any more: the same detection is then found in two batches.

Which plans a runner has: those that run, and those that were set aside because they failed.
[PO-8]

All plans of a runner as they run: groups that are started, joined, saved, and set aside when
they fail. [PO-8, PO-13]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Corrupt, Problem, Unsupported
from rapport.kernel.telemetry import get_logger
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.plan_shape import check_supported
from rapport.policy.operators.predicates import looked_up
from rapport.policy.operators.sharing import SharedCache, StepCounts
from rapport.policy.plan import Plan
from rapport.policy.runner.families import OperatorContext, Slot
from rapport.policy.runner.groups import (
    BEGIN_OF_TIME,
    FailedPlan,
    PlanGroup,
    SavedGroup,
    gather_families,
    restored_group,
    saved_group,
    settle_groups,
    start_alone,
    start_family,
)


class PolicyCosts:
    """By policy. What a group costs is shared equally among its plans; each of them wanted all its
    steps, as it would alone.
    """

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}
        self.steps: dict[str, StepCounts] = {}

    def settle(self, groups: Iterable[PlanGroup]) -> None:
        """Takes over what groups cost so far; to be called before their plans change."""
        for group in groups:
            if group.plans:
                self._take_time(group)
                self._take_steps(group)

    def _take_time(self, group: PlanGroup) -> None:
        share = group.spent_ns // len(group.plans)
        for name in group.plans if share else ():
            self.spent_ns[name] = self.spent_ns.get(name, 0) + share
            group.spent_ns -= share

    def _take_steps(self, group: PlanGroup) -> None:
        share = group.computed / len(group.plans)
        for name in group.plans if group.wanted else ():
            before = self.steps.get(name, StepCounts())
            self.steps[name] = StepCounts(before.wanted + group.wanted, before.computed + share)
        group.wanted = group.computed = 0


Output = TypeVar("Output", Detection, Undecided)

RecentOutput = dict[str, dict[str, int]]
"""By policy the ids of what was given out, and the watermark until which it may be found again."""


class OutputDedupe:
    """Remembers the ids of the policies of which something may be found twice, each for as long as
    it may; a look costs what is new and what is forgotten.
    """

    def __init__(self) -> None:
        self._given: RecentOutput = {}

    def news(self, found: list[Output], reach_ms: int) -> list[Output]:
        """What was not given out before, in the same order. `reach_ms`: how long after its time
        something may be found again.
        """
        return [item for item in found if self._is_news(item, item.time + reach_ms)]

    def forget_before(self, policies: Iterable[str], watermark: int) -> None:
        """What cannot be found again: everything before the watermark was decided and looked at.

        The oldest stand first, or nearly so; what stands behind a later one goes with it.
        """
        for policy in policies:
            own = self._given.get(policy, {})
            over: list[str] = []
            for id, until in own.items():
                if until >= watermark:
                    break
                over.append(id)
            for id in over:
                del own[id]
            if not own:
                self._given.pop(policy, None)

    def forget(self, policy: str) -> None:
        """It was stopped: what it gives out from now on is new."""
        self._given.pop(policy, None)

    def state(self, watermark: int) -> RecentOutput:
        """What `take_over` takes."""
        self.forget_before(list(self._given), watermark)
        return {policy: dict(own) for policy, own in self._given.items()}

    def take_over(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Goes on with what others gave out of these policies."""
        self._given |= {policy: dict(own) for policy, own in state.items()}

    def _is_news(self, item: Detection | Undecided, until: int) -> bool:
        own, id = self._given.setdefault(item.policy, {}), item.id()
        if id in own:
            return False
        own[id] = until
        return True


_log = get_logger(__name__)


class PlanRegistry:
    """Plans by policy; each runs or has failed, never both."""

    def __init__(self) -> None:
        self.running: dict[str, Plan] = {}
        self.versions: dict[str, str] = {}
        """Of those that run."""
        self.failed: dict[str, FailedPlan] = {}
        self.failed_plans: dict[str, Plan] = {}

    def add(self, plan: Plan) -> None:
        """One that runs, perhaps after it failed."""
        self.failed.pop(plan.policy, None)
        self.failed_plans.pop(plan.policy, None)
        self.running[plan.policy], self.versions[plan.policy] = plan, plan.version()

    def remove(self, policy: str) -> bool:
        """Forgets a plan; whether it ran."""
        if self.failed.pop(policy, None) is not None:
            del self.failed_plans[policy]
            return False
        del self.running[policy], self.versions[policy]
        return True

    def set_aside(self, plan: Plan, error: Exception) -> None:
        """It runs no more, for something it uses raised."""
        name = plan.policy
        problem = Problem(
            code="policy.failed",
            message=f"policy {name!r} failed: {type(error).__name__}: {error}",
            hint="correct the function or the table it uses, then resume or replace the policy",
        )
        _log.error("policy set aside", policy=name, reason=problem.message)
        self.keep_aside(plan, FailedPlan(plan.version(), problem))

    def keep_aside(self, plan: Plan, reason: FailedPlan) -> None:
        """It runs no more, for a reason told before."""
        name = plan.policy
        self.failed[name], self.failed_plans[name] = reason, plan
        del self.running[name], self.versions[name]


_time_and_policy = attrgetter("time", "policy")
_FEW = 16
"""Below this many rows Python is faster than a call into Arrow."""
# Not pa.array: it would load pandas (half a second) as soon as a node is imported.
_NO_READINGS = pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64())], names=["time"])


class DeployedPlans:
    """Groups of plans that all stand at the same watermark.

    A plan whose operator raises is set aside with the reason; the others go on. Where it is a
    family, its members begin anew on their own, and those that raise again are set aside.
    """

    def __init__(
        self, around: OperatorContext, since: int | None, clock: Callable[[], int]
    ) -> None:
        """`since`: from when silence counts for plans that begin before the first reading."""
        self._shared = SharedCache()
        self._around = around._replace(shared=self._shared)
        self._since, self._clock = since, clock
        self._known = PlanRegistry()
        self._groups: list[PlanGroup] = []
        self._unbuilt: dict[str, Plan] = {}
        """Begin with the first reading, as families where they can."""
        self._settle_at: int | None = None
        self._costs = PolicyCosts()
        self._undecided: list[Undecided] = []
        self.given = OutputDedupe()

    # --- which plans ---

    def __contains__(self, policy: object) -> bool:
        return policy in self._known.running

    def plans(self) -> list[Plan]:
        """Those that run."""
        return list(self._known.running.values())

    def versions(self) -> dict[str, str]:
        """Names and versions of those that run."""
        return dict(self._known.versions)

    @property
    def failed(self) -> dict[str, FailedPlan]:
        """Those that were set aside, and why."""
        return self._known.failed

    @property
    def failed_plans(self) -> dict[str, Plan]:
        """The plans of those."""
        return self._known.failed_plans

    def deploy(self, plan: Plan, watermark: int) -> None:
        """Starts a plan; raises Unsupported with all reasons, UnknownName for what no table has."""
        reasons = check_supported(plan)
        if reasons:
            raise Unsupported(f"policy {plan.policy!r} ({'; '.join(reasons)})", "the local runner")
        for function in looked_up(plan):
            self._around.pull.pairs(function)
        self._known.add(plan)
        self._unbuilt[plan.policy] = plan
        if watermark > BEGIN_OF_TIME:
            self._build(watermark)

    def withdraw(self, policy: str) -> None:
        """Stops a plan and forgets what it was waiting for, or why it failed."""
        self.given.forget(policy)
        if self._known.remove(policy) and self._unbuilt.pop(policy, None) is None:
            self._leave(policy)

    def _leave(self, policy: str) -> None:
        group = self._group_of(policy)
        self._costs.settle([group])
        group.leave(policy)
        if not group.plans:
            self._groups.remove(group)

    def _group_of(self, policy: str) -> PlanGroup:
        return next(group for group in self._groups if policy in group.plans)

    def _build(self, watermark: int) -> None:
        """Starts what was deployed since the last time."""
        plans, self._unbuilt = list(self._unbuilt.values()), {}
        for slot, own in gather_families(plans):
            self._start(slot, own, watermark)
        self._settle_at = watermark

    def still_lasts(self, detection: Detection) -> bool:
        """Whether the states that a detection reported are still true."""
        plan = self._known.running.get(detection.policy)
        if plan is None or not plan.is_lasting() or plan.version() != detection.version:
            return False
        if detection.policy in self._unbuilt:
            return False
        return self._group_of(detection.policy).operator.still_lasts(detection.causes)

    def begin(self, watermark: int) -> None:
        """Starts all plans here; none has seen anything."""
        self._costs.settle(self._groups)
        self._groups, self._unbuilt = [], dict(self._known.running)
        self._build(watermark)

    def reset(self) -> None:
        """All plans begin anew with the next reading; those that failed stay set aside."""
        self._costs.settle(self._groups)
        self._groups, self._unbuilt = [], dict(self._known.running)
        self._settle_at = None
        self.given = OutputDedupe()

    def _start(self, slot: Slot | None, plans: Sequence[Plan], watermark: int) -> None:
        since = watermark if watermark > BEGIN_OF_TIME else self._since
        if slot is not None:
            try:
                group = start_family(slot, plans, self._around, since, watermark)
            except Exception as error:  # whatever the tables hold: maybe each alone can be run
                _log.warning("policies run one by one", reason=str(error), policies=len(plans))
            else:
                self._groups.append(group)
                return
        for plan in plans:
            try:
                self._groups.append(start_alone(plan, self._around, since, watermark))
            except Exception as error:  # a site's own function, looking at its tables
                self._known.set_aside(plan, error)

    # --- what happens ---

    def process(self, ready: pa.RecordBatch | None, watermark: int) -> list[Detection]:
        """Takes what lies before the watermark (None: no reading), in the order of the output."""
        if self._unbuilt:
            self._build(BEGIN_OF_TIME)
        found: list[list[Detection]] = []
        streams = _streams_of(ready)
        for group in list(self._groups):
            taken = ready if group.is_concerned(streams) else None
            own = self._process_group(group, taken, watermark)
            if own:
                found.append(own)
        self._shared.forget_batch()
        if self._settle_at is not None and self._settle_at <= watermark < END_OF_TIME:
            self._settle(watermark)
        return _merged(found)

    def _process_group(
        self, group: PlanGroup, ready: pa.RecordBatch | None, watermark: int
    ) -> list[Detection]:
        began_ns, operator, shared = self._clock(), group.operator, self._shared
        wanted, computed = shared.wanted, shared.computed
        try:
            if ready is None and not _is_due(operator.pending_until(), watermark):
                return []
            found = operator.process(_NO_READINGS if ready is None else ready, watermark)
            undecided = operator.take_undecided()
        except Exception as error:  # whatever a site's own function raises, it is one policy's
            return self._without(group, error, ready, watermark)
        finally:
            group.spent_ns += self._clock() - began_ns
            group.wanted += shared.wanted - wanted
            group.computed += shared.computed - computed
        reach_ms = operator.repeats_within_ms
        if reach_ms and (found or undecided):
            found = self.given.news(found, reach_ms)
            undecided = self.given.news(undecided, reach_ms)
            self.given.forget_before(group.plans, watermark)
        self._undecided += undecided
        return found

    def _without(
        self, group: PlanGroup, error: Exception, ready: pa.RecordBatch | None, watermark: int
    ) -> list[Detection]:
        """Goes on without a group that failed, or with its members one by one."""
        self._costs.settle([group])
        self._groups.remove(group)
        plans = list(group.plans.values())
        if group.family is None:
            self._known.set_aside(plans[0], error)
            return []
        _log.warning("policies begin anew one by one", reason=str(error), policies=len(plans))
        before = len(self._groups)
        self._start(None, plans, watermark)
        started = self._groups[before:]
        return _merged([self._process_group(each, ready, watermark) for each in started])

    def _settle(self, watermark: int) -> None:
        self._costs.settle(self._groups)
        settled = settle_groups(self._groups, self._around, watermark)
        self._groups, self._settle_at = settled.groups, settled.again

    def pending_until(self) -> int | None:
        """The watermark at which something will be decided without a reading."""
        times = [group.operator.pending_until() for group in self._groups]
        return min((time for time in times if time is not None), default=None)

    def take_undecided(self) -> list[Undecided]:
        """What silent sources left open since the last call."""
        taken, self._undecided = self._undecided, []
        return taken

    # --- what they cost and left out ---

    def suppressed(self) -> dict[str, int]:
        """By policy, because of `at most once per`."""
        found = dict.fromkeys(self._known.running, 0)
        for group in self._groups:
            found |= {name: group.operator.suppressed_by(name) for name in group.plans}
        return found

    @property
    def costs(self) -> PolicyCosts:
        """Of each policy so far."""
        self._costs.settle(self._groups)
        return self._costs

    @costs.setter
    def costs(self, costs: PolicyCosts) -> None:
        self._costs = costs

    # --- other places ---

    def state(self, watermark: int) -> list[SavedGroup]:
        """What `restore` takes. All stand at the watermark before the first is saved, so that what
        several have in common is saved alike by each.
        """
        if self._unbuilt:
            self._build(BEGIN_OF_TIME)
        for group in self._groups:
            group.operator.stand_at(watermark)
        versions = self._known.versions
        return [saved_group(group, versions) for group in self._groups if group.plans]

    def restore(
        self, saved: Iterable[SavedGroup], failed: Mapping[str, FailedPlan], watermark: int
    ) -> list[str]:
        """Goes on with what was saved of plans that have not changed; all others begin at the
        watermark. Returns those, sorted. Who raises when it looks at the tables is set aside.
        """
        self._groups, self._unbuilt, self._settle_at = [], {}, watermark
        known: set[str] = set()
        for name, reason in failed.items():
            if self._known.versions.get(name) == reason.version:
                self._known.keep_aside(self._known.running[name], reason)
        for group in saved:
            same = [
                name for name, own in group.plans.items() if self._known.versions.get(name) == own
            ]
            if same and self._go_on(group, same, watermark):
                known |= set(same)
        self._unbuilt = {
            name: plan for name, plan in self._known.running.items() if name not in known
        }
        anew = sorted(self._unbuilt)
        if watermark > BEGIN_OF_TIME:
            self._build(watermark)
        return anew

    def _go_on(self, saved: SavedGroup, names: Iterable[str], watermark: int) -> bool:
        """Starts what was saved of some plans; False when that raises: they begin anew, and who
        raises again is set aside. Raises Corrupt for what cannot be read.
        """
        plans = [self._known.running[name] for name in names]
        try:
            self._groups.append(self._restored(saved, plans, watermark))
        except Corrupt:
            raise
        except Exception as error:  # a site's own function, looking at tables that changed
            _log.warning("policies cannot go on", reason=str(error), policies=len(plans))
            return False
        return True

    def _restored(self, saved: SavedGroup, plans: list[Plan], watermark: int) -> PlanGroup:
        return restored_group(saved, plans, self._around, self._since, watermark)

    def adopt(self, other: DeployedPlans, watermark: int) -> None:
        """Goes on with what others know that stand at the same watermark; raises Corrupt when they
        are no plans of these.
        """
        for saved in other.state(watermark):
            if any(self._known.versions.get(name) != own for name, own in saved.plans.items()):
                raise Corrupt("these are other policies", code="policy.other_plan")
            plans = [self._known.running[name] for name in saved.plans]
            for plan in plans:
                if self._unbuilt.pop(plan.policy, None) is None:
                    self._leave(plan.policy)
            # What they know may differ from what others know: they settle from here.
            saved.began = watermark
            self._groups.append(self._restored(saved, plans, watermark))
            self._settle_at = watermark
        self.given.take_over(other.given.state(watermark))


def _streams_of(ready: pa.RecordBatch | None) -> frozenset[str]:
    """The streams that readings are of."""
    if ready is None:
        return frozenset()
    streams = ready.column("stream")
    return frozenset((streams if len(streams) < _FEW else streams.unique()).to_pylist())


def _is_due(due: int | None, watermark: int) -> bool:
    return due is not None and due <= watermark


def _merged(found: list[list[Detection]]) -> list[Detection]:
    """Lists in the order of the output as one, each with all there is of its policies."""
    if len(found) < 2:
        return found[0] if found else []
    return sorted((item for own in found for item in own), key=_time_and_policy)
