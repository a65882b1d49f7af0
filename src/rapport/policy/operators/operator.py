"""The operator: executes one plan on sorted batches of readings. [PO-6, PO-7, PO-13]

Occurrences enter the window; sets with a new occurrence are filtered to matches; a match stays open
until its absence is known, then waits for mixed clauses. Everything is decided in bulk by due time,
so batch boundaries do not affect the result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count as numbers
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided
from rapport.core.errors import Corrupt, Unsupported
from rapport.policy.ontology import PushSource
from rapport.policy.operators.absence import Activations
from rapport.policy.operators.base import BEGIN_OF_TIME, END_OF_TIME, PullData
from rapport.policy.operators.columns import (
    Array,
    Columns,
    concatenate,
    count,
    pack_state,
    take,
    unpack_state,
    with_blurs,
)
from rapport.policy.operators.detection_output import (
    DetectionReport,
    SuppressionFilter,
)
from rapport.policy.operators.guard_filter import GuardFilter, GuardMaker
from rapport.policy.operators.match_finder import (
    NEVER,
    MatchFinder,
    absence_in_family,
    absence_wait_ms,
    aliases_of,
    decided_at,
    matched_at,
)
from rapport.policy.operators.mixed_clauses import MixedClauses
from rapport.policy.operators.plan_shape import (
    PlanShape,
    check_supported,
    looks_ahead_only,
    memory_ms,
    plan_shape,
)
from rapport.policy.operators.shared_cache import SharedCache
from rapport.policy.operators.uncertainty import SourceSilence
from rapport.policy.operators.variants import FamilyMembers
from rapport.policy.operators.window import Window, renumbered
from rapport.policy.plan import Plan
from rapport.policy.situation_plan import NamedAtTurns


class OpenMatches:
    """Open matches of one combination, rows with a column `due`. Taking due ones costs their number
    and the logarithm of the batches, independent of the open matches."""

    def __init__(self) -> None:
        self._chunks: list[tuple[int, int, Columns]] = []
        """A heap of (first due time, tie-breaker, rows by due time)."""
        self._numbers = numbers()

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, frame: Columns) -> None:
        due = frame["due"]
        if len(due) > 1 and (due[1:] < due[:-1]).any():
            frame = take(frame, np.argsort(due, kind="stable"))
        self._push(frame)

    def pop_due(self, watermark: int) -> Columns | None:
        """Removes and returns what is due by the watermark; None if nothing is."""
        parts = []
        while self._chunks and self._chunks[0][0] <= watermark:
            _, _, frame = heapq.heappop(self._chunks)
            edge = int(np.searchsorted(frame["due"], watermark, "right"))
            parts.append(take(frame, slice(0, edge)))
            if edge < count(frame):
                self._push(take(frame, slice(edge, None)))
        return concatenate(parts) if parts else None

    def first_due(self) -> int | None:
        return self._chunks[0][0] if self._chunks else None

    def least(self, of: str, or_else: str, after_ms: int) -> int | None:
        """The minimum over all rows of max(`of`, `or_else` + `after_ms`)."""
        frames = [frame for _, _, frame in self._chunks]
        found = [np.maximum(one[of], one[or_else] + after_ms).min() for one in frames]
        return min(map(int, found), default=None)

    def state(self) -> Columns | None:
        frames = [frame for _, _, frame in sorted(self._chunks, key=lambda chunk: chunk[:2])]
        return concatenate(frames) if frames else None

    def _push(self, frame: Columns) -> None:
        first = int(frame["due"][0])
        heapq.heappush(self._chunks, (first, next(self._numbers), frame))


MatchSink = Callable[[Columns, Array], None]
"""Receives decided matches with the times of their detections."""


class PendingMatches:
    """All undecided matches of one operator."""

    def __init__(
        self,
        window: Window,
        shape: PlanShape,
        activations: Activations,
        members: FamilyMembers | None,
        shared: SharedCache,
        decided: MatchSink,
    ) -> None:
        self._window, self._shape, self._shared = window, shape, shared
        self._activations, self._members, self._decided = activations, members, decided
        self._mixed = MixedClauses(window, shape, activations) if shape.mixed else None
        self._absence_ms = max(
            (absence_wait_ms(window, clause) for clause in shape.absent), default=0
        )
        if window.varying is None:
            for clause in shape.absent:
                for one in shape.combinations:
                    activations.expect(clause, aliases_of(window, one))
        self._begin()

    def _begin(self) -> None:
        numbers = range(len(self._shape.combinations))
        self._finders = [MatchFinder(self._window, self._shape, n, self._shared) for n in numbers]
        self._open = [OpenMatches() for _ in numbers]
        self._waiting: Columns | None = None

    @property
    def may_decide_late(self) -> bool:
        """Whether some may be decided after the time of their detection."""
        return self._mixed is not None or any(one.awaited for one in self._finders)

    def open_new(self) -> None:
        """Opens the matches that new occurrences complete."""
        for finder, own in zip(self._finders, self._open, strict=True):
            frame = finder.new_matches()
            if frame is None:
                continue
            due = frame["t0"] + self._absence_ms
            for part in finder.awaited:
                due = np.maximum(due, decided_at(self._window, part, frame))
            frame["due"] = due
            own.add(frame)

    def decide(self, watermark: int) -> None:
        """Decides due matches; those with mixed clauses continue to wait."""
        for number in range(len(self._open)):
            self._close_due(number, watermark)
        if self._waiting is not None and self._mixed is not None:
            finished, waiting = self._mixed.resolve(self._waiting, watermark)
            self._waiting = waiting if count(waiting) else None
            self._decided(finished, finished["when"])

    def opened(self) -> Iterator[int]:
        """For each combination with open matches, a time before which none was opened; valid if
        only NOT clauses are awaited."""
        for own in self._open:
            due = own.first_due()
            if due is not None:
                yield due - self._absence_ms

    def dues(self) -> Iterator[int]:
        """When something is decided next without a reading."""
        for own in self._open:
            due = own.first_due()
            if due is not None:
                yield due
        if self._waiting is not None and self._mixed is not None:
            yield int(self._mixed.due(self._waiting).min())

    def settled_until(self, watermark: int) -> int:
        """No further detection can have a time before this."""
        times = [watermark]
        for own in self._open:
            least = own.least("when", "t0", self._absence_ms)
            if least is not None:
                times.append(least)
        if self._waiting is not None:
            times.append(int(self._waiting["when"].min()))
        return min(times)

    def state(self) -> dict[str, Any]:
        rows = {str(number): own.state() for number, own in enumerate(self._open) if own}
        return {"open": rows, "waiting": self._waiting}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state after the window."""
        self._begin()
        blurred = self._window.uncertainty_ms > 0
        for number, frame in state["open"].items():
            self._open[int(number)].add(with_blurs(frame, blurred))
        waiting = state["waiting"]
        self._waiting = None if waiting is None else with_blurs(waiting, blurred)

    def _close_due(self, number: int, watermark: int) -> None:
        frame = self._open[number].pop_due(watermark)
        if frame is None:
            return
        if self._finders[number].awaited:
            frame["when"] = matched_at(self._window, self._shape, number, frame)
            frame = take(frame, frame["when"] < NEVER)
        frame = self._without_refuted(frame, watermark)
        if not count(frame):
            return
        times = np.maximum(frame["when"], frame["t0"])
        if self._mixed is None:
            self._decided(frame, times)
            return
        terms = self._shape.combinations[number].terms
        waiting = self._mixed.admit(frame, terms, times)
        self._waiting = waiting if self._waiting is None else concatenate([self._waiting, waiting])

    def _without_refuted(self, frame: Columns, watermark: int) -> Columns:
        """The matches for which every NOT clause holds (in a family for some members), satisfied at
        t0 + its window."""
        for clause in self._shape.absent:
            bound = {name: column for name, column in frame.items() if name[0] == "@"}
            if self._window.varying is None:
                holds = self._activations.hold(clause, bound, frame["t0"], watermark)
            else:
                assert self._members is not None
                holds, some = absence_in_family(self._window, clause, bound, frame["t0"])
                frame = self._members.refute(frame, some)
            frame = take(frame, holds)
            at = frame["t0"] + absence_wait_ms(self._window, clause)
            frame["when"] = np.maximum(frame["when"], at)
        return frame


_SNAPSHOT = 3
SavedIdentities = Mapping[str, Sequence[str]]
"""By concept the identities with the codes 0, 1, 2, ..."""


class OperatorContext(NamedTuple):
    """Everything operators of a runner are created with."""

    pull: PullData
    silence: SourceSilence | None
    sources: Mapping[str, PushSource]
    counts: SuppressionFilter | None = None
    """Which detections suppressed by `at most once per` are counted; None: all."""
    shared: SharedCache | None = None
    """The shared cache; None: not shared."""
    named: Mapping[str, NamedAtTurns] = MappingProxyType({})
    """By policy with a situation, what its detections carry for texts; changes with the texts."""


def make_operator(
    plan: Plan, pull: PullData, *, sources: Mapping[str, PushSource] | None = None
) -> PlanOperator:
    """An operator for the plan that looks up instances in `pull`; raises Unsupported with all
    reasons. Without knowledge of silence no absence is in doubt.
    """
    if plan.guard is not None:
        raise Unsupported(
            f"'while' of policy {plan.policy!r}", "this runner", hint="run it in a node or replay"
        )
    refuse_unsupported(plan)
    return PlanOperator(plan, OperatorContext(pull, None, sources or {}), None)


def refuse_unsupported(plan: Plan) -> None:
    """Raises Unsupported with all reasons for a plan that operators cannot execute."""
    reasons = check_supported(plan)
    if reasons:
        raise Unsupported(f"policy {plan.policy!r} ({'; '.join(reasons)})", "the local runner")


class PlanOperator:
    """Executes one plan, or a family of plans; holds the window and the undecided matches.

    Pure and deterministic: events and time are arguments, batch boundaries do not affect the
    detections.
    """

    def __init__(
        self,
        plan: Plan,
        context: OperatorContext,
        began: int | None,
        *,
        members: FamilyMembers | None = None,
        version: str = "",
        saved: SavedIdentities | None = None,
        guard: GuardMaker | None = None,
    ) -> None:
        """`began`: the policy's start, from which silence is counted, default the first reading;
        `members`: the family, of which `plan` is the least restrictive; `version`: identifies its
        state, default the plan's; `saved`: `saved_identities` of the state to restore; `guard`:
        makes that of the plan."""
        self.plan, self._members = plan, members
        self._version = version or plan.version()
        self._shape: PlanShape = plan_shape(plan)
        varying = None if members is None else members.varying
        positive = positive_terms(self._shape)
        self._shared = shared = context.shared or SharedCache()
        self._window = Window(
            plan, positive, context.pull, context.sources, began, varying, shared, saved
        )
        self._activations = Activations(self._window, shared)
        self._report = DetectionReport(
            plan, self._shape, self._window, context.silence, members, context.counts
        )
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
        self._guard: GuardFilter | None = None
        if guard is not None:
            made = guard(self.repeats_within_ms)
            self._guard = GuardFilter(made, plan.policy, plan.version())
        if began is not None:  # silence counts from then on, even without a reading
            self._next_due = self._earliest_due(BEGIN_OF_TIME)

    def still_lasts(self, causes: Collection[Cause]) -> bool:
        return self._window.still_lasts(causes)

    def begin_at(self, time: int) -> None:
        """Sets the start of the guard, if there is none: the first reading of any stream."""
        if self._guard is not None:
            self._guard.begin_at(time)

    def process(self, readings: pa.RecordBatch, watermark: int) -> list[Detection]:
        """Takes readings sorted by (time, id), none before the previous watermark and all before
        this one; returns every detection with a time below `watermark`."""
        found: list[Detection] = []
        self._window.keep_deferred_from(self._absence_horizon())
        due = self._is_due(watermark)
        if len(readings) or (due and self._window.has_steps):
            self._window.take_in(readings, watermark)
            self._pending.open_new()
        if len(readings) or due:
            self._pending.decide(watermark)
            if self._guard is not None:
                self._report.keep_guarded(self._guard, readings, watermark)
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

    def suppressed_by(self, policy: str) -> int:
        return self._report.suppressed_by(policy)

    def release_member(self, policy: str) -> Any:
        """The throttle state of a plan for the operator that continues it; removes it here."""
        return self._report.release_member(policy)

    def admit_member(self, policy: str, reported: Any) -> None:
        """Continues a new member of the family from another operator's state."""
        self._report.admit(policy, reported)

    def take_undecided(self) -> list[Undecided]:
        """Detections since the last call that a silent source makes uncertain."""
        if self._guard is not None:
            return self._guard.take_undecided()
        return self._report.take_undecided()

    def pending_until(self) -> int | None:
        """The time at which something pending is decided without an event; None if nothing is."""
        return self._next_due

    def advance_to(self, watermark: int) -> None:
        """Time advanced to the watermark without events."""
        self._window.advance_to(watermark)
        if self._guard is not None:
            self._guard.advance_to(watermark)
        if self._watermark is not None:
            self._watermark = max(watermark, self._watermark)
            self._window.release_before(self._horizon(self._watermark))

    def snapshot(self) -> bytes:
        """All state; `restore` in another process continues from it."""
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
            | ({} if self._guard is None else {"guard": self._guard.state()})
        )

    def restore(self, snapshot: bytes) -> None:
        """Restores a snapshot; raises Corrupt if it is of another plan."""
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
        if self._guard is not None:
            self._guard.restore(state["guard"])
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
        held = [self._report.pending_until(watermark)]
        if self._guard is not None:
            held.append(self._guard.pending_until())
        dues += [due for due in held if due is not None]
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
