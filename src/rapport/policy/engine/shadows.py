"""Versions that run beside the running ones: a runner and a comparison each. [PO-9]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.detection import Detection
from rapport.core.errors import Problem
from rapport.policy.life.shadow import ShadowComparison, ShadowDifference, ShadowState, ShadowTally
from rapport.policy.plan import Plan
from rapport.policy.runners.local import LocalRunner


class Shadow:
    """One version in the shadow of the running one; sees the same readings in the same order."""

    def __init__(self, runner: LocalRunner, comparison: ShadowComparison) -> None:
        self.runner, self.comparison = runner, comparison
        self.found: list[Detection] = []

    def difference_due(self) -> int | None:
        """The time that must be reached for the next difference to be certain; None when nothing
        but the comparison is missing.
        """
        due = self.comparison.due()
        if due is None or due <= self.runner.watermark:
            return None
        return due + self.runner.lateness_ms


class Shadows:
    """All of them, by policy; fed and moved on with the running ones."""

    def __init__(self) -> None:
        self._shadows: dict[str, Shadow] = {}

    def __contains__(self, policy: str) -> bool:
        return policy in self._shadows

    def start(self, running: Plan, plan: Plan, runner: LocalRunner, watermark: int) -> None:
        """`runner` stands where the running one does and has the new version's plan alone, which
        may have failed already.
        """
        self._shadows[plan.policy] = Shadow(runner, ShadowComparison(running, plan, watermark))

    def feed(self, readings: pa.RecordBatch, received: npt.NDArray[np.int64] | None) -> None:
        """Readings as they arrived."""
        for shadow in self._shadows.values():
            shadow.found += shadow.runner.feed(readings, received)
            shadow.runner.take_late()

    def advance(self, time_ms: int) -> None:
        """Time moved on without a reading."""
        for shadow in self._shadows.values():
            shadow.found += shadow.runner.advance(time_ms)

    def begin(self, time_ms: int) -> None:
        """The start of all was at a time, without a reading."""
        for shadow in self._shadows.values():
            shadow.found += shadow.runner.begin(time_ms)

    def reset(self, newest_ms: int) -> list[ShadowDifference]:
        """Time begins anew; gives the differences that were left."""
        left: list[ShadowDifference] = []
        for shadow in self._shadows.values():
            left += shadow.comparison.reset()
            shadow.runner.reset(newest_ms)
        return left

    def pending_until(self) -> list[int]:
        """The times at which something pending would be decided, or a difference be certain."""
        times = [shadow.runner.pending_until() for shadow in self._shadows.values()]
        times += [shadow.difference_due() for shadow in self._shadows.values()]
        return [time for time in times if time is not None]

    def compare(self, running: Sequence[Detection], watermark: int) -> list[ShadowDifference]:
        """What became certain to differ, given what the running versions found."""
        differences: list[ShadowDifference] = []
        for policy, shadow in self._shadows.items():
            own = [found for found in running if found.policy == policy]
            found, shadow.found = shadow.found, []
            shadow.runner.take_undecided()
            differences += shadow.comparison.take(own, found, watermark)
        return differences

    def end(self, policy: str) -> tuple[LocalRunner, list[ShadowDifference]] | None:
        """Ends one; gives its runner and the differences that were left."""
        shadow = self._shadows.pop(policy, None)
        return None if shadow is None else (shadow.runner, shadow.comparison.end())

    def tallies(self) -> dict[str, ShadowTally]:
        """By policy what both and only one found."""
        return {policy: shadow.comparison.tally for policy, shadow in self._shadows.items()}

    def failed(self) -> dict[str, Problem]:
        """By policy why the version in its shadow finds nothing any more."""
        return {
            policy: Problem(
                code="policy.shadow_failed",
                message=f"in the shadow: {problem.message}",
                hint="correct the function or the table, drop the shadow, then bring it again",
            )
            for policy, shadow in self._shadows.items()
            for problem in shadow.runner.failed().values()
        }

    def saved(self) -> dict[str, ShadowState]:
        """Everything, for a restart."""
        return {
            policy: shadow.comparison.saved(shadow.runner.snapshot())
            for policy, shadow in self._shadows.items()
        }

    def restore(self, saved: Mapping[str, ShadowState]) -> None:
        """Goes on where both versions are the ones that were compared; the others compare anew."""
        for policy, shadow in self._shadows.items():
            known = saved.get(policy)
            if known is not None and known.versions == shadow.comparison.versions:
                shadow.runner.restore_known(known.runner)
                shadow.comparison.restore(known)

    def runners(self) -> dict[str, LocalRunner]:
        """The runner of each."""
        return {policy: shadow.runner for policy, shadow in self._shadows.items()}

    def exchange(self, runners: Mapping[str, LocalRunner]) -> None:
        """Goes on with other runners that stand in the same place."""
        for policy, runner in runners.items():
            self._shadows[policy].runner = runner
