"""The operator: executes one plan on sorted batches of readings. [PO-6, PO-7]

Occurrences enter the window; sets with a new occurrence are filtered to matches; a match stays open
until its absence is known. Everything is decided in bulk by due time, so batch boundaries do not
affect the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided
from rapport.core.errors import Corrupt, Unsupported
from rapport.policy.ontology import PushSource
from rapport.policy.operators.absence import Activations
from rapport.policy.operators.base import BEGIN_OF_TIME, END_OF_TIME, Operator, PullData
from rapport.policy.operators.columns import pack_state, unpack_state
from rapport.policy.operators.detection_output import (
    DetectionReport,
    FamilyReport,
    PlanReport,
    SuppressionFilter,
)
from rapport.policy.operators.events import renumbered
from rapport.policy.operators.pending_matches import PendingMatches
from rapport.policy.operators.plan_shape import (
    PlanShape,
    check_supported,
    looks_ahead_only,
    memory_ms,
    plan_shape,
)
from rapport.policy.operators.sharing import SharedCache
from rapport.policy.operators.uncertainty import SourceSilence
from rapport.policy.operators.variants import FamilyMembers
from rapport.policy.operators.window import Window
from rapport.policy.plan import Plan

_SNAPSHOT = 3
SavedIdentities = Mapping[str, Sequence[str]]
"""By concept the identities with the codes 0, 1, 2, ..."""


def make_operator(
    plan: Plan,
    pull: PullData,
    silence: SourceSilence | None = None,
    *,
    sources: Mapping[str, PushSource] | None = None,
    began: int | None = None,
) -> Operator:
    """An operator for the plan that looks up instances in `pull`; raises Unsupported with all
    reasons.

    Args:
        silence: must have taken the same readings before the operator processes them; without it no
            absence is in doubt.
        sources: those of the site; how far their clocks may be wrong and when their last value is
            stale matters.
        began: the policy's start, from which silence is counted; None: the first reading.
    """
    reasons = check_supported(plan)
    if reasons:
        raise Unsupported(f"policy {plan.policy!r} ({'; '.join(reasons)})", "the local runner")
    return PlanOperator(plan, pull, silence, sources or {}, began)


class PlanOperator:
    """Executes one plan, or a family of plans; holds the window and the undecided matches."""

    def __init__(
        self,
        plan: Plan,
        pull: PullData,
        silence: SourceSilence | None,
        sources: Mapping[str, PushSource],
        began: int | None,
        *,
        members: FamilyMembers | None = None,
        version: str = "",
        counts: SuppressionFilter | None = None,
        shared: SharedCache | None = None,
        saved: SavedIdentities | None = None,
    ) -> None:
        """`members`: the family, of which `plan` is the least restrictive; `version`: identifies
        its state, default the plan's; `counts`: which suppressed detections are counted, default
        all; `shared`: the cache shared with other operators; `saved`: `saved_identities` of the
        state to restore."""
        self.plan, self._members = plan, members
        self._version = version or plan.version()
        self._shape: PlanShape = plan_shape(plan)
        varying = None if members is None else members.varying
        positive = positive_terms(self._shape)
        self._shared = shared = shared or SharedCache()
        self._window = Window(plan, positive, pull, sources, began, varying, shared, saved)
        self._activations = Activations(self._window, shared)
        self._report: DetectionReport
        if members is None:
            self._report = PlanReport(plan, self._shape, self._window, silence, counts)
        else:
            self._report = FamilyReport(plan, self._shape, self._window, silence, members, counts)
        self._pending = PendingMatches(
            self._window, self._shape, self._activations, members, shared, self._report.take
        )
        self._next_due: int | None = None
        self._watermark: int | None = None
        self._trimmed = BEGIN_OF_TIME
        self._memory_ms = memory_ms(
            plan, self._window.uncertainty_ms, mixed=bool(self._shape.mixed)
        )
        self._looks_ahead = looks_ahead_only(plan, mixed=bool(self._shape.mixed))
        if began is not None:  # silence counts from then on, even without a reading
            self._next_due = self._earliest_due(BEGIN_OF_TIME)

    def still_lasts(self, causes: Collection[Cause]) -> bool:
        return self._window.still_lasts(causes)

    def process(self, readings: pa.RecordBatch, watermark: int) -> list[Detection]:
        found: list[Detection] = []
        self._window.keep_deferred_from(self._absence_horizon())
        self._activations.begin_batch(watermark)
        due = self._is_due(watermark)
        if len(readings) or (due and self._window.has_steps):
            self._window.take_in(readings, watermark)
            self._pending.open_new()
        if len(readings) or due:
            self._pending.decide(watermark)
            holds_back = self._report.holds_back
            settled = self._pending.settled_until(watermark) if holds_back else watermark
            found = self._report.release(settled)
            self._next_due = self._earliest_due(watermark)
            self._trim(watermark)
        self._watermark = watermark
        return found

    @property
    def repeats_within_ms(self) -> int:
        """How long after its time an emitted detection may be found again; 0: never. Only awaited
        parts are decided after their time, and their basis is remembered."""
        return self._memory_ms if self._pending.may_decide_late else 0

    def suppressed(self) -> int:
        return self._report.suppressed

    def suppressed_by(self, policy: str) -> int:
        return self._report.suppressed_by(policy)

    def release_member(self, policy: str) -> Any:
        """The throttle state of a plan for the operator that continues it; removes it here."""
        return self._report.release_member(policy)

    def admit_member(self, policy: str, reported: Any) -> None:
        """Continues a new member of the family from another operator's state."""
        self._report.admit(policy, reported)

    def take_undecided(self) -> list[Undecided]:
        return self._report.take_undecided()

    def pending_until(self) -> int | None:
        return self._next_due

    def advance_to(self, watermark: int) -> None:
        """Time advanced to the watermark without events."""
        self._window.advance_to(watermark)
        if self._watermark is not None:
            self._watermark = max(watermark, self._watermark)
            self._window.release_before(self._horizon(self._watermark))

    def snapshot(self) -> bytes:
        self._window.keep_deferred_from(self._absence_horizon())
        if self._watermark is not None:
            self._window.trim(self._horizon(self._watermark), at_once=True)
        return pack_state(
            {
                "snapshot": _SNAPSHOT,
                "plan": self._version,
                "window": self._window.state(),
                "watermark": self._watermark,
                "report": self._report.state(),
            }
            | self._pending.state()
        )

    def restore(self, snapshot: bytes) -> None:
        self.take_over(unpack_state(snapshot))

    def take_over(self, state: Any, watermark: int = END_OF_TIME) -> None:
        """Restores a state; raises Corrupt. From `watermark` on it sees the same events
        as others."""
        self._activations.bypass_cache_before(watermark)
        if not isinstance(state, dict) or state.get("snapshot") != _SNAPSHOT:
            raise Corrupt(
                "this is not a snapshot of an operator of this version", code="policy.bad_snapshot"
            )
        if state["plan"] != self._version:
            raise Corrupt(
                f"the snapshot is of another version of policy {self.plan.policy!r}",
                code="policy.other_plan",
                hint="start the policy anew, or restore the policy the snapshot was made with",
            )
        next_ordinal = state["window"]["events"]["next"]
        state = renumbered(state, self._shared.reserve_ordinals(next_ordinal))
        self._window.restore(state["window"])
        self._pending.restore(state)
        self._watermark = state["watermark"]
        self._report.restore(state["report"])
        begin = BEGIN_OF_TIME
        self._next_due = self._earliest_due(begin if self._watermark is None else self._watermark)

    def _trim(self, watermark: int) -> None:
        """Drops what no window reaches; not at every reading, since it has a cost."""
        if watermark - self._trimmed >= self.plan.window_ms // 4:
            self._trimmed = watermark
            self._window.trim(self._horizon(watermark))

    def _horizon(self, watermark: int) -> int:
        return watermark - self._memory_ms

    def _absence_horizon(self) -> int:
        """The time before which no open or future match queries absence."""
        if self._watermark is None:
            return BEGIN_OF_TIME
        if not self._looks_ahead:
            return self._horizon(self._watermark)
        return min([self._watermark, *self._pending.opened()])

    def _is_due(self, watermark: int) -> bool:
        return self._next_due is not None and self._next_due <= watermark

    def _earliest_due(self, watermark: int) -> int | None:
        """When something is decided next without a reading."""
        dues = list(self._pending.dues())
        steps = self._window.pending_until() if self._window.has_steps else None
        if steps is not None:
            dues.append(steps + 1)
        held = self._report.pending_until(watermark)
        if held is not None:
            dues.append(held)
        return min(dues, default=None)


def saved_identities(state: Any) -> SavedIdentities:
    """The identities whose codes a state uses; empty for anything else."""
    window = state.get("window") if isinstance(state, dict) else None
    known = window.get("identities") if isinstance(window, dict) else None
    return known if isinstance(known, dict) else {}


def positive_terms(shape: PlanShape) -> frozenset[int]:
    """Terms with a positive occurrence: their correlations consume events."""
    parts = [part for clause in (*shape.positive, *shape.mixed) for part in clause.parts]
    return frozenset(term for part in parts for term in part.needs())
