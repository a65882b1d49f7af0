"""Which plans a runner has: those that run, and those that were set aside because they failed.
[PO-8]
"""

from __future__ import annotations

from rapport.core.errors import Problem
from rapport.kernel.telemetry import get_logger
from rapport.policy.plan import Plan
from rapport.policy.runners.sharing.saved import FailedPlan

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
