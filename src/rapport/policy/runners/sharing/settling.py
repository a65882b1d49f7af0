"""Plans that were started at different times come together once they know the same. [PO-13]

A plan begins on its own, for it must not see earlier readings. When it has run longer than every
window, it may move into a family that lets through what it asks for. Where there is none, one is
begun without members; they move in when it has run long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rapport.policy.plan import Plan
from rapport.policy.runners.sharing.family import OperatorContext
from rapport.policy.runners.sharing.groups import PlanGroup, settled_after_ms, start_family
from rapport.policy.runners.sharing.slots import Slot, constant_of


class SettledGroups:
    """What became of groups: those that go on, and when to look again (None: nothing to do)."""

    def __init__(self, groups: Sequence[PlanGroup]) -> None:
        self.groups = list(groups)
        self.again: int | None = None

    def look_at(self, time: int) -> None:
        """Looks again no later than that."""
        self.again = time if self.again is None else min(self.again, time)


def settle_groups(
    groups: Sequence[PlanGroup], around: OperatorContext, watermark: int
) -> SettledGroups:
    """Moves what can be moved. All groups have taken what lies before the watermark, nothing else.

    Costs a look at the keys of every group; nothing is moved twice for one newcomer.
    """
    settled, kept = SettledGroups(groups), set[int]()
    for slot, together in _alike(groups):
        sample = _sample(together)
        length = settled_after_ms(sample, around)
        home = _home(together)
        if home is None or not _all_covered(home, together):
            home = _prepare(settled, slot, together, home, around, watermark, length)
        if home is not None:
            _move_in(settled, home, together, watermark, length)
            kept.add(id(home))
    settled.groups = [group for group in settled.groups if group.plans or id(group) in kept]
    return settled


def _alike(groups: Iterable[PlanGroup]) -> list[tuple[Slot, list[PlanGroup]]]:
    """Groups that may become one, each at one place: where most are."""
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
    """Where a family was begun first, then where most are."""
    return all(group.plans for group in item[1]), -len(item[1])


def _home(together: Sequence[PlanGroup]) -> PlanGroup | None:
    """The family that others move into: the one begun for that, else the largest."""
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
    around: OperatorContext,
    watermark: int,
    length: int,
) -> PlanGroup | None:
    """Begins a family for those that fit nowhere, when the first of them has settled."""
    if home is not None and not home.plans:
        return home  # one is under way; who it does not cover waits for the next
    oldest = min(group.began for group in together if group is not home)
    if oldest + length > watermark:
        settled.look_at(oldest + length)
        return home
    plans = [plan for group in together for plan in group.plans.values()]
    bounds = [constant_of(plan, slot) for plan in plans]
    begun = start_family(slot, plans[:1], around, None, watermark, bounds)
    begun.leave(plans[0].policy)
    settled.groups.append(begun)
    return begun


def _move_in(
    settled: SettledGroups,
    home: PlanGroup,
    together: Sequence[PlanGroup],
    watermark: int,
    length: int,
) -> None:
    assert home.family is not None
    was_begun = not home.plans
    for group in together:
        if group is home or not all(map(home.family.covers, group.plans.values())):
            continue
        ready = max(home.began, group.began) + length
        if ready > watermark:
            settled.look_at(ready)
        else:
            group.move(home)
    if was_begun and home.plans and not _all_covered(home, together):
        settled.look_at(watermark + 1)
