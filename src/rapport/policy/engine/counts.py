"""What each policy read, found and cost since the start. [PO-9]"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Detection, Undecided
from rapport.policy.operators.sharing import StepCounts
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner


class PolicyCounts(msgspec.Struct, frozen=True):
    """Of one policy, since the node started.

    `read`: readings of its streams. `errors`: commands of its actions that could not be carried
    out, and its own failure. `cost_ms`: time spent on it. `steps_wanted`: steps of batches that it
    would have computed alone; `steps_computed`: those that had to be, of shared ones its part.
    """

    read: int = 0
    detections: int = 0
    undecided: int = 0
    suppressed: int = 0
    errors: int = 0
    cost_ms: float = 0.0
    steps_wanted: int = 0
    steps_computed: float = 0.0


class PolicyMeter:
    """Counts by policy; those of a policy that was deleted go with it."""

    def __init__(self) -> None:
        self._streams: dict[str, int] = {}
        self._read_before: dict[str, dict[str, int]] = {}
        self._counts: dict[str, list[int]] = {}
        self._spent_before: dict[str, int] = {}

    def deployed(self, plan: Plan, spent_ns: int) -> None:
        """A policy reads from now on; `spent_ns` is what the runner says it cost before."""
        self._read_before[plan.policy] = dict(self._streams)
        self._counts[plan.policy] = [0, 0, 0]
        self._spent_before[plan.policy] = spent_ns

    def took(self, readings: pa.RecordBatch) -> None:
        """Readings were fed. One pass over the batch, however many policies there are."""
        if not len(readings):
            return
        for row in pc.value_counts(readings.column("stream")).to_pylist():
            stream = row["values"]
            self._streams[stream] = self._streams.get(stream, 0) + row["counts"]

    def found(self, found: Iterable[Detection], undecided: Iterable[Undecided]) -> None:
        """What became certain, and what stays open."""
        for detection in found:
            self._of(detection.policy)[0] += 1
        for unsure in undecided:
            self._of(unsure.policy)[1] += 1

    def failed(self, policy: str) -> None:
        """An action of the policy could not be carried out."""
        self._of(policy)[2] += 1

    def counts(self, runner: LocalRunner) -> dict[str, PolicyCounts]:
        """By name, of the policies that run, or did until they failed."""
        suppressed, failed, steps = runner.suppressed(), runner.failed(), runner.steps
        spent_ns, none = runner.spent_ns, StepCounts()
        counted = (
            self._counted(plan, spent_ns, suppressed.get(plan.policy, 0), plan.policy in failed)
            for plan in (*runner.plans(), *runner.failed_plans())
        )
        return {name: _with_steps(own, steps.get(name, none)) for name, own in counted}

    def _counted(
        self, plan: Plan, spent_ns: dict[str, int], suppressed: int, has_failed: bool
    ) -> tuple[str, PolicyCounts]:
        name = plan.policy
        before = self._read_before.get(name, {})
        read = sum(self._streams.get(one, 0) - before.get(one, 0) for one in plan.streams())
        detections, undecided, errors = self._of(name)
        spent = spent_ns.get(name, 0) - self._spent_before.get(name, 0)
        return name, PolicyCounts(
            read=read,
            detections=detections,
            undecided=undecided,
            suppressed=suppressed,
            errors=errors + has_failed,
            cost_ms=round(spent / 1e6, 3),
        )

    def _of(self, policy: str) -> list[int]:
        return self._counts.setdefault(policy, [0, 0, 0])


def _with_steps(counts: PolicyCounts, steps: StepCounts) -> PolicyCounts:
    wanted, computed = steps
    return msgspec.structs.replace(counts, steps_wanted=wanted, steps_computed=round(computed, 2))
