"""A group of plans with situations that began together, run by one operator. [SI-11]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rapport.policy.operators.columns import unpack_state
from rapport.policy.operators.operator import OperatorContext
from rapport.policy.situation_plan import Condition, FunctionValue, SituationPlan, condition_nodes
from rapport.policy.situations.situation_operator import SituationOperator


class SituationGroup:
    """An operator, the plans it runs, and when it began; see PlanGroup."""

    family = None

    def __init__(
        self,
        plans: Sequence[SituationPlan],
        context: OperatorContext,
        since: int | None,
        began: int,
    ) -> None:
        """`since`: the start of the policies; None: the first reading of the record."""
        self.plans, self.began = {plan.policy: plan for plan in plans}, began
        self.operator = SituationOperator(plans, context.pull, context.sources, since)
        self.operator.count_only(context.counts)
        self.operator.name_values(context.named)
        self.spent_ns = 0
        self.wanted = self.computed = 0
        self._streams = self.operator.streams()

    def reads_any(self, streams: frozenset[str]) -> bool:
        """Whether readings of these streams matter."""
        return not self._streams.isdisjoint(streams)

    def leave(self, policy: str) -> None:
        """Ends one plan; the others continue."""
        self.operator.leave(policy)
        del self.plans[policy]

    def take_over(self, state: bytes) -> None:
        """Continues from a saved state, which may be that of more plans; raises Corrupt."""
        self.operator.take_over(unpack_state(state))


def looked_up_functions(conditions: Iterable[Condition]) -> set[str]:
    """The functions of the site that are looked up in tables."""
    return {
        node.function
        for node in condition_nodes(conditions)
        if isinstance(node, FunctionValue) and node.looked_up
    }
