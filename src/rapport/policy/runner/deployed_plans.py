"""All plans of a runner: deployed, grouped, measured, saved, and stopped when they fail. [PO-7,
PO-8, PO-13, PO-14, PO-15]

A group is an operator with the plan or family it runs. A new plan runs separately, because it must
not see earlier readings. After it has run longer than every window, it can join a family that
covers its constant. If there is none, an empty family is started and joined once it has run long
enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Corrupt, Problem
from rapport.kernel.telemetry import get_logger
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import BEGIN_OF_TIME, END_OF_TIME, PullData
from rapport.policy.operators.columns import unpack_state
from rapport.policy.operators.operator import (
    OperatorContext,
    PlanOperator,
    SavedIdentities,
    make_operator,
    positive_terms,
    refuse_unsupported,
    saved_identities,
)
from rapport.policy.operators.plan_shape import (
    longest_window_ms,
    looked_up,
    memory_ms,
    plan_shape,
    uncertainty_ms,
)
from rapport.policy.operators.shared_cache import SharedCache, StepCounts
from rapport.policy.plan import CorrelationTerm, LastingTerm, Plan, PolicyPlan, SilentTerm
from rapport.policy.runner.families import (
    PlanFamily,
    Slot,
    constant_of,
    family_key,
    slots_of,
)
from rapport.policy.runner.situation_group import SituationGroup, looked_up_functions
from rapport.policy.situation_plan import SituationPlan
from rapport.policy.situations.current_states import SituationStates
from rapport.policy.situations.guard_truth import guard_maker
from rapport.policy.situations.situation_operator import BindingsKey, SituationOperator


class SavedGroup(msgspec.Struct):
    """The plans of one operator with their versions, and its state."""

    plans: dict[str, str]
    state: bytes
    began: int
    slot: Slot | None = None
    bounds: list[str | float] = []


class SituationCounts(NamedTuple):
    """Of one policy, the situations that are open, and those that are told later."""

    open: int
    pending: int


class FailedPlan(msgspec.Struct, frozen=True):
    """A stopped plan and the reason."""

    version: str
    problem: Problem


class PlanGroup:
    """An operator, the plan or family it runs, and when it began."""

    def __init__(
        self,
        slot: Slot | None,
        plans: Sequence[Plan],
        context: OperatorContext,
        since: int | None,
        began: int,
        bounds: Sequence[str | float] = (),
        saved: SavedIdentities | None = None,
    ) -> None:
        """`slot`: in which the plans of a family differ, None for a single plan; `since`: the start
        of silence; `began`: the current watermark; `bounds`: further constants that the family
        covers; `saved`: identities of the state to restore."""
        self.plans, self.began = {plan.policy: plan for plan in plans}, began
        self.family: PlanFamily | None = None
        if slot is None:
            [plan] = plans
            self.operator = PlanOperator(
                plan,
                context,
                since,
                saved=saved,
                guard=guard_maker(plan, context.pull, context.sources, since),
            )
        else:
            self.family = PlanFamily(slot, plans, context, since, bounds, saved)
            self.operator = self.family.operator
        self.spent_ns = 0
        """Time spent since the last change of plans."""
        self.wanted = self.computed = 0
        """Steps requested and computed since then."""
        self._keys: dict[bytes, Slot] | None = None
        plan = self.operator.plan
        has_steps = any(isinstance(term, LastingTerm | SilentTerm) for term in plan.terms)
        self._streams = None if has_steps else frozenset(plan.streams())

    def reads_any(self, streams: frozenset[str]) -> bool:
        """Whether readings of these streams matter; for plans with durations and silences
        all do."""
        return self._streams is None or not self._streams.isdisjoint(streams)

    def keys(self) -> dict[bytes, Slot]:
        """The keys under which other groups can be merged with this one, with their slots."""
        if self._keys is None:
            family = self.family
            sample = family.sample if family is not None else next(iter(self.plans.values()))
            slots = (family.slot,) if family is not None else slots_of(sample)
            self._keys = {}
            if slots and converges(sample):
                self._keys = {family_key(sample, slot): slot for slot in slots}
        return self._keys

    def leave(self, policy: str) -> None:
        """Ends one plan; the others continue."""
        if self.family is not None:
            self.operator.release_member(policy)
            self.family.leave(policy)
        del self.plans[policy]

    def move(self, home: PlanGroup) -> None:
        """Moves all plans to a family with the same knowledge."""
        assert home.family is not None
        for policy, plan in list(self.plans.items()):
            reported = self.operator.release_member(policy)
            home.family.admit(plan)
            home.operator.admit_member(policy, reported)
            home.plans[policy] = plan
        self.plans = {}


def gather_families(plans: Sequence[Plan]) -> list[tuple[Slot | None, list[Plan]]]:
    """Groups plans that begin together into families, the largest first."""
    by_key: dict[bytes, dict[str, Plan]] = {}
    slots: dict[bytes, Slot] = {}
    for plan in plans:
        for slot in slots_of(plan) if len(plans) > 1 else ():
            key = family_key(plan, slot)
            slots[key] = slot
            by_key.setdefault(key, {})[plan.policy] = plan
    left = {plan.policy: plan for plan in plans}
    found: list[tuple[Slot | None, list[Plan]]] = []
    for key, own in sorted(by_key.items(), key=lambda item: -len(item[1])):
        together = [plan for name, plan in own.items() if name in left]
        if len(together) > 1:
            found.append((slots[key], together))
            left = {name: plan for name, plan in left.items() if name not in own}
    return [*found, *((None, [plan]) for plan in left.values())]


def converges(plan: Plan) -> bool:
    """Whether the operator's memory depends only on the recent past, so that a later start
    converges to it. False for consumed events, durations and silences."""
    positive = positive_terms(plan_shape(plan))
    return not any(
        isinstance(term, LastingTerm | SilentTerm)
        or (isinstance(term, CorrelationTerm) and number in positive)
        for number, term in enumerate(plan.terms)
    )


def settled_after_ms(plan: Plan, context: OperatorContext) -> int:
    """How long an operator must run to have the memory of an earlier one."""
    unsure = uncertainty_ms(plan, context.sources)
    return 2 * memory_ms(plan, unsure, mixed=True) + 4 * longest_window_ms(plan)


class GroupMerge:
    """Moves groups into families. All groups have processed everything before the watermark.

    Costs a look at the keys of every group.
    """

    def __init__(
        self, groups: Sequence[PlanGroup], context: OperatorContext, watermark: int
    ) -> None:
        self._context, self._watermark = context, watermark
        self.groups = list(groups)
        """The remaining groups."""
        self.again: int | None = None
        """When to check again; None: nothing to do."""
        homes: set[int] = set()
        for slot, together in _alike(groups):
            length = settled_after_ms(_sample(together), context)
            home = _home(together)
            if home is None or not _all_covered(home, together):
                home = self._prepare(slot, together, home, length)
            if home is not None:
                self._move_in(home, together, length)
                homes.add(id(home))
        self.groups = [group for group in self.groups if group.plans or id(group) in homes]

    def _check_at(self, time: int) -> None:
        """Checks again no later than that."""
        self.again = time if self.again is None else min(self.again, time)

    def _prepare(
        self, slot: Slot, together: Sequence[PlanGroup], home: PlanGroup | None, length: int
    ) -> PlanGroup | None:
        """Starts a family for groups that no family covers, once the first of them has settled."""
        if home is not None and not home.plans:
            return home  # one was started; plans it does not cover wait for the next
        oldest = min(group.began for group in together if group is not home)
        if oldest + length > self._watermark:
            self._check_at(oldest + length)
            return home
        plans = [plan for group in together for plan in group.plans.values()]
        bounds = [constant_of(plan, slot) for plan in plans]
        started = PlanGroup(slot, plans[:1], self._context, None, self._watermark, bounds)
        started.leave(plans[0].policy)
        self.groups.append(started)
        return started

    def _move_in(self, home: PlanGroup, together: Sequence[PlanGroup], length: int) -> None:
        assert home.family is not None
        was_empty = not home.plans
        for group in together:
            if group is home or not all(map(home.family.covers, group.plans.values())):
                continue
            ready = max(home.began, group.began) + length
            if ready > self._watermark:
                self._check_at(ready)
            else:
                group.move(home)
        if was_empty and home.plans and not _all_covered(home, together):
            self._check_at(self._watermark + 1)


def _alike(groups: Iterable[PlanGroup]) -> list[tuple[Slot, list[PlanGroup]]]:
    """Groups that may be merged, each in the largest set."""
    by_key: dict[bytes, list[PlanGroup]] = {}
    slots: dict[bytes, Slot] = {}
    for group in groups:
        for key, slot in group.keys().items():
            by_key.setdefault(key, []).append(group)
            slots[key] = slot
    taken: set[int] = set()
    found = []
    for key, own in sorted(by_key.items(), key=_by_progress):
        free = [group for group in own if id(group) not in taken]
        if len(free) > 1:
            taken |= {id(group) for group in free}
            found.append((slots[key], free))
    return found


def _by_progress(item: tuple[bytes, list[PlanGroup]]) -> tuple[bool, int]:
    """Sets with a started family first, then the largest."""
    return all(group.plans for group in item[1]), -len(item[1])


def _home(together: Sequence[PlanGroup]) -> PlanGroup | None:
    """The family that others join: a started empty one, else the largest."""
    families = [group for group in together if group.family is not None]
    return max(families, key=lambda one: (not one.plans, len(one.plans)), default=None)


def _all_covered(home: PlanGroup, together: Sequence[PlanGroup]) -> bool:
    assert home.family is not None
    covers = home.family.covers
    return all(covers(plan) for group in together for plan in group.plans.values())


def _sample(together: Sequence[PlanGroup]) -> Plan:
    return next(plan for group in together for plan in group.plans.values())


AnyGroup = PlanGroup | SituationGroup


def check_plan(
    plan: PolicyPlan, pull: PullData, sources: Mapping[str, PushSource] | None = None
) -> None:
    """Raises what making the operator of a plan raises: Unsupported with all reasons, UnknownName
    for a missing table, and errors of functions of the site."""
    known = sources or {}
    if isinstance(plan, SituationPlan):
        SituationOperator([plan], pull, known, None)
        return
    make_operator(msgspec.structs.replace(plan, guard=None), pull, sources=known)
    make_guard = guard_maker(plan, pull, known, None)
    if make_guard is not None:
        make_guard(0)


def saved_group(group: AnyGroup, versions: Mapping[str, str]) -> SavedGroup:
    own = {name: versions[name] for name in group.plans}
    saved = SavedGroup(own, group.operator.snapshot(), group.began)
    if group.family is not None:
        saved.slot, saved.bounds = group.family.slot, group.family.bounds
    return saved


def restored_group(
    saved: SavedGroup,
    plans: Sequence[PolicyPlan],
    context: OperatorContext,
    since: int | None,
    watermark: int,
) -> AnyGroup:
    """Restores some plans of a group. `since`: the start of silence if it began before the first
    reading."""
    began = saved.began if saved.began > BEGIN_OF_TIME else since
    situations = [plan for plan in plans if isinstance(plan, SituationPlan)]
    if situations:
        found = SituationGroup(situations, context, began, saved.began)
        found.take_over(saved.state)
        return found
    state = unpack_state(saved.state)
    ids = saved_identities(state)
    own = [plan for plan in plans if isinstance(plan, Plan)]
    group = PlanGroup(saved.slot, own, context, began, saved.began, saved.bounds, ids)
    group.operator.take_over(state, watermark)
    return group


Output = TypeVar("Output", Detection, Undecided)
_log = get_logger(__name__)
_FEW = 16
"""Below this many rows Python is faster than a call into Arrow."""
# Not pa.array, which would load pandas (half a second) at import.
_NO_READINGS = pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64())], names=["time"])


class PolicyCosts:
    """Time and steps by policy. The cost of a group is divided equally among its plans; each counts
    all steps as requested."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}
        self.steps: dict[str, StepCounts] = {}

    def settle(self, groups: Iterable[AnyGroup]) -> None:
        """Adds the costs of groups; call before their plans change."""
        for group in groups:
            if group.plans:
                self._take_time(group)
                self._take_steps(group)

    def _take_time(self, group: AnyGroup) -> None:
        share = group.spent_ns // len(group.plans)
        for name in group.plans if share else ():
            self.spent_ns[name] = self.spent_ns.get(name, 0) + share
            group.spent_ns -= share

    def _take_steps(self, group: AnyGroup) -> None:
        share = group.computed / len(group.plans)
        for name in group.plans if group.wanted else ():
            before = self.steps.get(name, StepCounts())
            self.steps[name] = StepCounts(before.wanted + group.wanted, before.computed + share)
        group.wanted = group.computed = 0


RecentOutput = dict[str, dict[str, int]]
"""By policy the ids of emitted results, and the watermark until which they may be found again."""


class OutputDedupe:
    """Suppresses results that were emitted before.

    Different occurrences may give equal results. With awaited parts or uncertain clocks they may be
    decided in different batches. Ids are kept as long as a repetition is possible.
    """

    def __init__(self) -> None:
        self._emitted: RecentOutput = {}

    def unseen(self, found: list[Output], reach_ms: int) -> list[Output]:
        """The results that were not emitted before, in order. `reach_ms`: how long after its time a
        result may be found again."""
        return [item for item in found if self._is_new(item, item.time + reach_ms)]

    def forget_before(self, policies: Iterable[str], watermark: int) -> None:
        """Drops ids that cannot be found again.

        Ids are roughly in order of time; one behind a later one is dropped with it.
        """
        for policy in policies:
            own = self._emitted.get(policy, {})
            over: list[str] = []
            for id, until in own.items():
                if until >= watermark:
                    break
                over.append(id)
            for id in over:
                del own[id]
            if not own:
                self._emitted.pop(policy, None)

    def forget(self, policy: str) -> None:
        """The policy was stopped: its results are new from now on."""
        self._emitted.pop(policy, None)

    def state(self, watermark: int) -> RecentOutput:
        self.forget_before(list(self._emitted), watermark)
        return {policy: dict(own) for policy, own in self._emitted.items()}

    def take_over(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Adds the emitted results of another runner."""
        self._emitted |= {policy: dict(own) for policy, own in state.items()}

    def _is_new(self, item: Detection | Undecided, until: int) -> bool:
        own, id = self._emitted.setdefault(item.policy, {}), item.id()
        if id in own:
            return False
        own[id] = until
        return True


class DeployedPlans:
    """Groups of plans at the same watermark.

    A plan whose operator raises is stopped with the reason; the others continue. Members of a
    failed family restart one by one, and those that raise again are stopped.
    """

    def __init__(
        self, context: OperatorContext, since: int | None, clock: Callable[[], int]
    ) -> None:
        """`since`: the start of silence for plans that begin before the first reading."""
        self._shared = SharedCache()
        self._context = context._replace(shared=self._shared)
        self._since, self._clock = since, clock
        self.plans: dict[str, PolicyPlan] = {}
        """Running plans by policy; a plan either runs or has failed."""
        self.versions: dict[str, str] = {}
        self.failed: dict[str, FailedPlan] = {}
        self.failed_plans: dict[str, PolicyPlan] = {}
        self._groups: list[AnyGroup] = []
        self._unbuilt: dict[str, PolicyPlan] = {}
        """Plans that begin with the next reading, as families if possible."""
        self._settle_at: int | None = None
        self._continued: dict[str, dict[BindingsKey, int]] = {}
        """Open situations of policies that begin with the next reading."""
        self._costs = PolicyCosts()
        self._undecided: list[Undecided] = []
        self.given = OutputDedupe()

    # --- deployment ---

    def deploy(self, plan: PolicyPlan, watermark: int) -> None:
        """Starts a plan; raises Unsupported with all reasons, UnknownName for a missing table."""
        if isinstance(plan, SituationPlan):
            functions = sorted(looked_up_functions(plan.conditions()))
        else:
            refuse_unsupported(plan)
            functions = sorted(looked_up(plan) | looked_up_functions(plan.conditions()))
        for function in functions:
            self._context.pull.pairs(function)
        self.failed.pop(plan.policy, None)
        self.failed_plans.pop(plan.policy, None)
        self.plans[plan.policy], self.versions[plan.policy] = plan, plan.version()
        self._unbuilt[plan.policy] = plan
        if watermark > BEGIN_OF_TIME:
            self._build(watermark)

    def withdraw(self, policy: str) -> None:
        """Stops a plan, or forgets a failed one."""
        self.given.forget(policy)
        if self.failed.pop(policy, None) is not None:
            del self.failed_plans[policy]
            return
        del self.plans[policy], self.versions[policy]
        if self._unbuilt.pop(policy, None) is None:
            self._leave(policy)

    def _leave(self, policy: str) -> None:
        group = self._group_of(policy)
        self._costs.settle([group])
        group.leave(policy)
        if not group.plans:
            self._groups.remove(group)

    def _group_of(self, policy: str) -> AnyGroup:
        return next(group for group in self._groups if policy in group.plans)

    def _build(self, watermark: int) -> None:
        """Starts plans deployed since the last time."""
        plans, self._unbuilt = list(self._unbuilt.values()), {}
        for slot, own in gather_families([plan for plan in plans if isinstance(plan, Plan)]):
            self._start(slot, own, watermark)
        situations = [plan for plan in plans if isinstance(plan, SituationPlan)]
        if situations:
            self._start_situations(situations, watermark)
        self._settle_at = watermark

    def still_lasts(self, detection: Detection) -> bool:
        """Whether the states of a detection still hold."""
        plan = self.plans.get(detection.policy)
        if not isinstance(plan, Plan) or not plan.is_lasting():
            return False
        if plan.version() != detection.version:
            return False
        if detection.policy in self._unbuilt:
            return False
        return self._group_of(detection.policy).operator.still_lasts(detection.causes)

    def begin(self, watermark: int) -> None:
        """Starts all plans at this watermark."""
        self._costs.settle(self._groups)
        self._groups, self._unbuilt = [], dict(self.plans)
        self._build(watermark)

    def reset(self) -> None:
        """All plans restart with the next reading; failed ones stay stopped."""
        self._costs.settle(self._groups)
        self._shared.clear()  # dropped groups live until they are collected; nobody joins them
        self._groups, self._unbuilt = [], dict(self.plans)
        self._settle_at = None
        self.given = OutputDedupe()

    def _start(self, slot: Slot | None, plans: Sequence[Plan], watermark: int) -> None:
        since = watermark if watermark > BEGIN_OF_TIME else self._since
        if slot is not None:
            try:
                group = PlanGroup(slot, plans, self._context, since, watermark)
            except Exception as error:  # each plan alone may work with these tables
                _log.warning("policies run one by one", reason=str(error), policies=len(plans))
            else:
                self._groups.append(group)
                return
        for plan in plans:
            try:
                self._groups.append(PlanGroup(None, [plan], self._context, since, watermark))
            except Exception as error:  # a function of the site may raise on its tables
                self._fail(plan, error)

    def _start_situations(self, plans: Sequence[SituationPlan], watermark: int) -> None:
        """Starts plans with situations together, or one by one if that raises."""
        since = watermark if watermark > BEGIN_OF_TIME else self._since
        try:
            group = SituationGroup(plans, self._context, since, watermark)
            self._hand_over([group])
            self._groups.append(group)
        except Exception as error:  # a function of the site may raise on its tables
            if len(plans) == 1:
                self._fail(plans[0], error)
                return
            _log.warning("policies run one by one", reason=str(error), policies=len(plans))
            for plan in plans:
                self._start_situations([plan], watermark)

    def _fail(self, plan: PolicyPlan, error: Exception) -> None:
        """Stops a plan because something it uses raised."""
        problem = Problem(
            code="policy.failed",
            message=f"policy {plan.policy!r} failed: {type(error).__name__}: {error}",
            hint="correct the function or the table it uses, then resume or replace the policy",
        )
        _log.error("policy stopped after an error", policy=plan.policy, reason=problem.message)
        self._stop(plan, FailedPlan(plan.version(), problem))

    def _stop(self, plan: PolicyPlan, reason: FailedPlan) -> None:
        name = plan.policy
        self.failed[name], self.failed_plans[name] = reason, plan
        del self.plans[name], self.versions[name]

    # --- batches ---

    def process(self, ready: pa.RecordBatch | None, watermark: int) -> list[Detection]:
        """Processes readings before the watermark (None: no reading); returns detections in output
        order."""
        if self._unbuilt:
            self._build(BEGIN_OF_TIME)
        found: list[list[Detection]] = []
        streams = _streams_of(ready)
        if ready is not None and len(ready):
            first = int(ready.column("time")[0].as_py())
            for group in self._groups:
                group.operator.begin_at(first)
        for group in list(self._groups):
            taken = ready if group.reads_any(streams) else None
            own = self._process_group(group, taken, watermark)
            if own:
                found.append(own)
        self._shared.end_batch()
        if self._settle_at is not None and self._settle_at <= watermark < END_OF_TIME:
            self._settle(watermark)
        return _merged(found)

    def _process_group(
        self, group: AnyGroup, ready: pa.RecordBatch | None, watermark: int
    ) -> list[Detection]:
        began_ns, operator, shared = self._clock(), group.operator, self._shared
        wanted, computed = shared.wanted, shared.computed
        try:
            if ready is None and not _is_due(operator.pending_until(), watermark):
                return []
            found = operator.process(_NO_READINGS if ready is None else ready, watermark)
            undecided = operator.take_undecided()
        except Exception as error:  # a function of the site may raise anything
            return self._without(group, error, ready, watermark)
        finally:
            group.spent_ns += self._clock() - began_ns
            group.wanted += shared.wanted - wanted
            group.computed += shared.computed - computed
        reach_ms = operator.repeats_within_ms
        if reach_ms and (found or undecided):
            found = self.given.unseen(found, reach_ms)
            undecided = self.given.unseen(undecided, reach_ms)
            self.given.forget_before(group.plans, watermark)
        self._undecided += undecided
        return found

    def _without(
        self, group: AnyGroup, error: Exception, ready: pa.RecordBatch | None, watermark: int
    ) -> list[Detection]:
        """Continues without a failed group, or with its members one by one."""
        self._costs.settle([group])
        self._groups.remove(group)
        plans: list[PolicyPlan] = list(group.plans.values())
        if len(plans) == 1 and group.family is None:
            self._fail(plans[0], error)
            return []
        _log.warning("policies restart one by one", reason=str(error), policies=len(plans))
        before = len(self._groups)
        for plan in plans:
            if isinstance(plan, SituationPlan):
                self._start_situations([plan], watermark)
        self._start(None, [plan for plan in plans if isinstance(plan, Plan)], watermark)
        started = self._groups[before:]
        return _merged([self._process_group(each, ready, watermark) for each in started])

    def _settle(self, watermark: int) -> None:
        self._costs.settle(self._groups)
        own = [group for group in self._groups if isinstance(group, PlanGroup)]
        others = [group for group in self._groups if isinstance(group, SituationGroup)]
        merged = GroupMerge(own, self._context, watermark)
        self._groups, self._settle_at = [*merged.groups, *others], merged.again

    def pending_until(self) -> int | None:
        """The watermark at which something is decided without a reading."""
        times = [group.operator.pending_until() for group in self._groups]
        return min((time for time in times if time is not None), default=None)

    def take_undecided(self) -> list[Undecided]:
        """Uncertain detections since the last call."""
        taken, self._undecided = self._undecided, []
        return taken

    # --- costs ---

    def suppressed(self) -> dict[str, int]:
        """Suppressed detections by policy."""
        found = dict.fromkeys(self.plans, 0)
        for group in self._groups:
            found |= {name: group.operator.suppressed_by(name) for name in group.plans}
        return found

    def situation_states(self, policy: str, ontology: Ontology) -> SituationStates | None:
        """What is open, pending and unknown; None for a policy without a running situation."""
        for group in self._groups:
            if isinstance(group, SituationGroup) and policy in group.plans:
                return group.operator.states_of(policy, ontology)
        plan = self._unbuilt.get(policy)
        if not isinstance(plan, SituationPlan):
            return None
        return SituationStates(policy=policy, time=0, open=0, pending=0, unknown=0)

    def continue_open(self, policy: str, began: Mapping[BindingsKey, int]) -> None:
        """Continues situations that a former version of a policy began, at its first step."""
        self._continued[policy] = dict(began)
        self._hand_over(self._groups)

    def _hand_over(self, groups: Iterable[AnyGroup]) -> None:
        for group in groups:
            if isinstance(group, SituationGroup):
                for name in self._continued.keys() & group.plans.keys():
                    group.operator.continue_open(name, self._continued.pop(name))

    @property
    def has_situations(self) -> bool:
        return any(isinstance(plan, SituationPlan) for plan in self.plans.values())

    def situations(self) -> dict[str, SituationCounts]:
        """The open and pending situations by policy."""
        return {
            name: SituationCounts(group.operator.open_by(name), group.operator.pending_by(name))
            for group in self._groups
            if isinstance(group, SituationGroup)
            for name in group.plans
        }

    @property
    def costs(self) -> PolicyCosts:
        self._costs.settle(self._groups)
        return self._costs

    @costs.setter
    def costs(self, costs: PolicyCosts) -> None:
        self._costs = costs

    # --- snapshots ---

    def state(self, watermark: int) -> list[SavedGroup]:
        """The state of all groups. All advance to the watermark first, so that shared parts are
        saved equally."""
        if self._unbuilt:
            self._build(BEGIN_OF_TIME)
        for group in self._groups:
            group.operator.advance_to(watermark)
        versions = self.versions
        return [saved_group(group, versions) for group in self._groups if group.plans]

    def restore(
        self, saved: Iterable[SavedGroup], failed: Mapping[str, FailedPlan], watermark: int
    ) -> list[str]:
        """Restores unchanged plans; all others begin at the watermark. Returns those, sorted. A
        plan that raises on the current tables is stopped."""
        self._groups, self._unbuilt, self._settle_at = [], {}, watermark
        known: set[str] = set()
        for name, reason in failed.items():
            if self.versions.get(name) == reason.version:
                self._stop(self.plans[name], reason)
        for group in saved:
            same = [name for name, own in group.plans.items() if self.versions.get(name) == own]
            if same and self._go_on(group, same, watermark):
                known |= set(same)
        self._unbuilt = {name: plan for name, plan in self.plans.items() if name not in known}
        anew = sorted(self._unbuilt)
        if watermark > BEGIN_OF_TIME:
            self._build(watermark)
        return anew

    def _go_on(self, saved: SavedGroup, names: Iterable[str], watermark: int) -> bool:
        """Restores some plans of a group; False if that raises: they restart, and are stopped if
        they raise again. Raises Corrupt for an unreadable state."""
        plans = [self.plans[name] for name in names]
        try:
            self._groups.append(self._restored(saved, plans, watermark))
        except Corrupt:
            raise
        except Exception as error:  # a function of the site may raise on changed tables
            _log.warning("policies cannot be restored", reason=str(error), policies=len(plans))
            return False
        return True

    def _restored(self, saved: SavedGroup, plans: Sequence[PolicyPlan], watermark: int) -> AnyGroup:
        return restored_group(saved, plans, self._context, self._since, watermark)

    def adopt(self, other: DeployedPlans, watermark: int) -> None:
        """Continues from another instance at the same watermark; raises Corrupt if its plans
        differ."""
        for saved in other.state(watermark):
            if any(self.versions.get(name) != own for name, own in saved.plans.items()):
                raise Corrupt("these are other policies", code="policy.other_plan")
            plans = [self.plans[name] for name in saved.plans]
            for plan in plans:
                if self._unbuilt.pop(plan.policy, None) is None:
                    self._leave(plan.policy)
            # Their memory may differ from that of others, so they settle from here on.
            saved.began = watermark
            self._groups.append(self._restored(saved, plans, watermark))
            self._settle_at = watermark
        self.given.take_over(other.given.state(watermark))


def _streams_of(ready: pa.RecordBatch | None) -> frozenset[str]:
    if ready is None:
        return frozenset()
    streams = ready.column("stream")
    return frozenset((streams if len(streams) < _FEW else streams.unique()).to_pylist())


def _is_due(due: int | None, watermark: int) -> bool:
    return due is not None and due <= watermark


def _merged(found: list[list[Detection]]) -> list[Detection]:
    """Merges lists in output order with disjoint policies."""
    if len(found) < 2:
        return found[0] if found else []
    return sorted((item for own in found for item in own), key=_output_order)


def _output_order(detection: Detection) -> tuple[int, bool, str]:
    """Ends before beginnings; those of one policy are in order."""
    return (detection.time, detection.began is None, detection.policy)
