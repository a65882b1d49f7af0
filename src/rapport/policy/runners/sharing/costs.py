"""What each policy of a runner cost: time, and steps it wanted and had computed. [PO-13, PO-14]"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.policy.runners.operators.shared_steps import StepCounts
from rapport.policy.runners.sharing.groups import PlanGroup


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
