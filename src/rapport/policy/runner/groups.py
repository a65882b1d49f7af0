"""Groups of plans: an operator with the plan or family it runs, its saved form, and the merging of
groups that were started at different times. [PO-8, PO-13]

A new plan runs separately, because it must not see earlier readings. After it has run longer than
every window, it can join a family that covers its constant. If there is none, an empty family is
started and joined once it has run long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rapport.core.errors import Problem
from rapport.policy.operators.base import BEGIN_OF_TIME
from rapport.policy.operators.columns import unpack_state
from rapport.policy.operators.operator import (
    PlanOperator,
    SavedIdentities,
    positive_terms,
    saved_identities,
)
from rapport.policy.operators.plan_shape import (
    longest_window_ms,
    memory_ms,
    plan_shape,
    uncertainty_ms,
)
from rapport.policy.plan import CorrelationTerm, LastingTerm, Plan, SilentTerm
from rapport.policy.runner.families import (
    OperatorContext,
    PlanFamily,
    Slot,
    constant_of,
    family_key,
    slots_of,
)


class SavedGroup(msgspec.Struct):
    """The plans of one operator with their versions, and its state."""

    plans: dict[str, str]
    state: bytes
    began: int
    slot: Slot | None = None
    bounds: list[str | float] = []


class FailedPlan(msgspec.Struct, frozen=True):
    """A stopped plan and the reason."""

    version: str
    problem: Problem


class PlanGroup:
    """An operator, its plans, and when it began."""

    def __init__(
        self, operator: PlanOperator, plans: dict[str, Plan], family: PlanFamily | None, began: int
    ) -> None:
        self.operator, self.plans, self.family, self.began = operator, plans, family, began
        self.spent_ns = 0
        """Time spent since the last change of plans."""
        self.wanted = self.computed = 0
        """Steps requested and computed since then."""
        self._keys: dict[bytes, Slot] | None = None
        plan = operator.plan
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
            home.family.admit([plan])
            home.operator.admit_member(policy, reported)
            home.plans[policy] = plan
        self.plans = {}


def start_alone(
    plan: Plan,
    context: OperatorContext,
    since: int | None,
    began: int,
    saved: SavedIdentities | None = None,
) -> PlanGroup:
    """Starts a single plan. `since`: the start of silence; `began`: the current watermark; `saved`:
    identities of the state to restore."""
    operator = PlanOperator(
        plan,
        context.pull,
        context.silence,
        context.sources,
        since,
        counts=context.counts,
        shared=context.shared,
        saved=saved,
    )
    return PlanGroup(operator, {plan.policy: plan}, None, began)


def start_family(
    slot: Slot,
    plans: Sequence[Plan],
    context: OperatorContext,
    since: int | None,
    began: int,
    bounds: Sequence[str | float] = (),
    saved: SavedIdentities | None = None,
) -> PlanGroup:
    family = PlanFamily(slot, plans, context, since, bounds, saved)
    return PlanGroup(family.operator, {plan.policy: plan for plan in plans}, family, began)


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


class SettledGroups:
    """The remaining groups, and when to check again (None: nothing to do)."""

    def __init__(self, groups: Sequence[PlanGroup]) -> None:
        self.groups = list(groups)
        self.again: int | None = None

    def look_at(self, time: int) -> None:
        """Checks again no later than that."""
        self.again = time if self.again is None else min(self.again, time)


def settle_groups(
    groups: Sequence[PlanGroup], context: OperatorContext, watermark: int
) -> SettledGroups:
    """Moves groups into families. All groups have processed everything before the watermark.

    Costs a look at the keys of every group.
    """
    settled, kept = SettledGroups(groups), set[int]()
    for slot, together in _alike(groups):
        sample = _sample(together)
        length = settled_after_ms(sample, context)
        home = _home(together)
        if home is None or not _all_covered(home, together):
            home = _prepare(settled, slot, together, home, context, watermark, length)
        if home is not None:
            _move_in(settled, home, together, watermark, length)
            kept.add(id(home))
    settled.groups = [group for group in settled.groups if group.plans or id(group) in kept]
    return settled


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


def _prepare(
    settled: SettledGroups,
    slot: Slot,
    together: Sequence[PlanGroup],
    home: PlanGroup | None,
    context: OperatorContext,
    watermark: int,
    length: int,
) -> PlanGroup | None:
    """Starts a family for groups that no family covers, once the first of them has settled."""
    if home is not None and not home.plans:
        return home  # one was started; plans it does not cover wait for the next
    oldest = min(group.began for group in together if group is not home)
    if oldest + length > watermark:
        settled.look_at(oldest + length)
        return home
    plans = [plan for group in together for plan in group.plans.values()]
    bounds = [constant_of(plan, slot) for plan in plans]
    started = start_family(slot, plans[:1], context, None, watermark, bounds)
    started.leave(plans[0].policy)
    settled.groups.append(started)
    return started


def _move_in(
    settled: SettledGroups,
    home: PlanGroup,
    together: Sequence[PlanGroup],
    watermark: int,
    length: int,
) -> None:
    assert home.family is not None
    was_empty = not home.plans
    for group in together:
        if group is home or not all(map(home.family.covers, group.plans.values())):
            continue
        ready = max(home.began, group.began) + length
        if ready > watermark:
            settled.look_at(ready)
        else:
            group.move(home)
    if was_empty and home.plans and not _all_covered(home, together):
        settled.look_at(watermark + 1)


def saved_group(group: PlanGroup, versions: Mapping[str, str]) -> SavedGroup:
    own = {name: versions[name] for name in group.plans}
    saved = SavedGroup(own, group.operator.snapshot(), group.began)
    if group.family is not None:
        saved.slot, saved.bounds = group.family.slot, group.family.bounds
    return saved


def restored_group(
    saved: SavedGroup,
    plans: list[Plan],
    context: OperatorContext,
    since: int | None,
    watermark: int,
) -> PlanGroup:
    """Restores some plans of a group. `since`: the start of silence if it began before the first
    reading."""
    began = saved.began if saved.began > BEGIN_OF_TIME else since
    state = unpack_state(saved.state)
    ids = saved_identities(state)
    if saved.slot is None:
        group = start_alone(plans[0], context, began, saved.began, ids)
    else:
        bounds = saved.bounds
        group = start_family(saved.slot, plans, context, began, saved.began, bounds, ids)
    group.operator.take_over(state, watermark)
    return group
