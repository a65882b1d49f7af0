"""The operator: one plan executing on sorted batches of readings. [PO-6, PO-7]

Occurrences go into the window; sets of them with a new one are sieved to matches; a match whose
absence is not yet known stays open until it is due. Everything is decided in bulk by due time, so
the result does not depend on how the stream was cut into batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Corrupt, Unsupported
from rapport.policy.ontology import PushSource
from rapport.policy.plan import Plan
from rapport.policy.runners.base import END_OF_TIME, Operator, PullData
from rapport.policy.runners.operators.activations import Activations
from rapport.policy.runners.operators.decide import (
    NEVER,
    absence_for_some,
    absence_wait_ms,
    aliases_of,
    decided_at,
    is_awaited,
    latest_end,
    matched_at,
)
from rapport.policy.runners.operators.join import new_rows
from rapport.policy.runners.operators.members import Members
from rapport.policy.runners.operators.mixed import MixedClauses
from rapport.policy.runners.operators.open_matches import OpenMatches
from rapport.policy.runners.operators.reaches import memory_ms
from rapport.policy.runners.operators.report import Report
from rapport.policy.runners.operators.shapes import Shape, shape_of
from rapport.policy.runners.operators.shared_report import SharedReport
from rapport.policy.runners.operators.shared_steps import SharedSteps
from rapport.policy.runners.operators.state import pack, unpack
from rapport.policy.runners.operators.support import check_supported
from rapport.policy.runners.operators.table import (
    Columns,
    concatenate,
    count,
    take,
    with_blurs,
)
from rapport.policy.runners.operators.throttle import Counts
from rapport.policy.runners.operators.window import Window
from rapport.policy.runners.silence import Silence

_SNAPSHOT = 3
Numbered = Mapping[str, Sequence[str]]
"""By concept the identities that have the codes 0, 1, 2, ..."""


def make_operator(
    plan: Plan,
    pull: PullData,
    silence: Silence | None = None,
    *,
    sources: Mapping[str, PushSource] | None = None,
    began: int | None = None,
) -> Operator:
    """An operator for the plan, looking instances up in `pull`; raises Unsupported with all
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
    """One plan, executing; holds its window, and the matches that are not yet decided."""

    def __init__(
        self,
        plan: Plan,
        pull: PullData,
        silence: Silence | None,
        sources: Mapping[str, PushSource],
        began: int | None,
        *,
        members: Members | None = None,
        version: str = "",
        counts: Counts | None = None,
        shared: SharedSteps | None = None,
        saved: Numbered | None = None,
    ) -> None:
        """`members`: of the family for which this is executed, `plan` being the one that lets most
        through; `version`: what tells its state from others, the plan's if not given;
        `counts`: which of the detections left out are counted here, all if not given;
        `shared`: with whom it shares steps; `saved`: `numbered` of the state it will take over.
        """
        self.plan, self._members = plan, members
        self._version = version or plan.version()
        self._shape: Shape = shape_of(plan)
        varying = None if members is None else members.varying
        positive = positive_terms(self._shape)
        shared = shared or SharedSteps()
        self._window = Window(plan, positive, pull, sources, began, varying, shared, saved)
        self._activations = Activations(self._window, shared)
        self._mixed = (
            MixedClauses(self._window, self._shape, self._activations)
            if self._shape.mixed
            else None
        )
        self._absence_ms = max(
            (absence_wait_ms(self._window, clause) for clause in self._shape.absent), default=0
        )
        self._awaited = [
            [part for part in self._shape.parts_around(number) if is_awaited(self._window, part)]
            for number in range(len(self._shape.combinations))
        ]
        self._report: Report | SharedReport
        """What was found; of a family by member."""
        if members is None:
            self._report = Report(plan, self._shape, self._window, silence, counts)
        else:
            self._report = SharedReport(plan, self._shape, self._window, silence, members, counts)
        if varying is None:
            for clause in self._shape.absent:
                for one in self._shape.combinations:
                    self._activations.expect(clause, aliases_of(self._window, one))
        self._open = [OpenMatches() for _ in self._shape.combinations]
        self._waiting: Columns | None = None
        self._next_due: int | None = None
        self._watermark: int | None = None
        self._trimmed = -END_OF_TIME
        self._memory_ms = memory_ms(
            plan, self._window.uncertainty_ms, mixed=bool(self._shape.mixed)
        )
        if began is not None:  # silence is awaited from then on, whether a reading comes or not
            self._next_due = self._earliest_due(-END_OF_TIME)

    def process(self, readings: pa.RecordBatch, watermark: int) -> list[Detection]:
        found: list[Detection] = []
        self._activations.turn_to(watermark)
        due = self._is_due(watermark)
        if len(readings) or (due and self._window.has_steps):
            self._window.take_in(readings, watermark)
            for number in range(len(self._shape.combinations)):
                self._open_matches(number)
        if len(readings) or due:
            for number in range(len(self._open)):
                self._close_due(number, watermark)
            if self._waiting is not None:
                self._resolve_mixed(watermark)
            settled = self._settled_until(watermark) if self._report.holds_back else watermark
            found = self._report.release(settled)
            self._next_due = self._earliest_due(watermark)
            self._trim(watermark)
        self._watermark = watermark
        return found

    def suppressed(self) -> int:
        return self._report.suppressed

    def suppressed_by(self, policy: str) -> int:
        """Of one plan of a family."""
        if isinstance(self._report, SharedReport):
            return self._report.suppressed_by(policy)
        return self._report.suppressed

    def hand_over(self, policy: str) -> Any:
        """What a plan reported lately, for the operator that goes on with it; here it is over."""
        if isinstance(self._report, SharedReport):
            return self._report.forget(policy)
        return self._report.state()

    def go_on(self, policy: str, reported: Any) -> None:
        """Goes on with a new member of the family where another operator stopped."""
        if isinstance(self._report, SharedReport):
            self._report.admit(policy, reported)

    def take_undecided(self) -> list[Undecided]:
        return self._report.take_undecided()

    def pending_until(self) -> int | None:
        return self._next_due

    def snapshot(self) -> bytes:
        if self._watermark is not None:
            self._window.trim(self._horizon(self._watermark), at_once=True)
        return pack(
            {
                "snapshot": _SNAPSHOT,
                "plan": self._version,
                "window": self._window.state(),
                "open": {str(number): own.state() for number, own in enumerate(self._open) if own},
                "waiting": self._waiting,
                "watermark": self._watermark,
                "report": self._report.state(),
            }
        )

    def restore(self, snapshot: bytes) -> None:
        self.take_over(unpack(snapshot))

    def take_over(self, state: Any, watermark: int = END_OF_TIME) -> None:
        """Goes on with the state that a snapshot holds; raises Corrupt. `watermark`: from there on
        it sees what others see.
        """
        self._activations.stand_alone_before(watermark)
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
        self._window.restore(state["window"])
        blurred = self._window.uncertainty_ms > 0
        self._open = [OpenMatches() for _ in self._shape.combinations]
        for number, frame in state["open"].items():
            self._open[int(number)].add(with_blurs(frame, blurred))
        waiting, self._watermark = state["waiting"], state["watermark"]
        self._waiting = None if waiting is None else with_blurs(waiting, blurred)
        self._report.restore(state["report"])
        begin = -END_OF_TIME
        self._next_due = self._earliest_due(begin if self._watermark is None else self._watermark)

    def _trim(self, watermark: int) -> None:
        """Forgets what no window reaches any more; not at each reading, for looking costs too."""
        if watermark - self._trimmed >= self.plan.window_ms // 4:
            self._trimmed = watermark
            self._window.trim(self._horizon(watermark))

    def _horizon(self, watermark: int) -> int:
        return watermark - self._memory_ms

    def _is_due(self, watermark: int) -> bool:
        return self._next_due is not None and self._next_due <= watermark

    def _earliest_due(self, watermark: int) -> int | None:
        """When something is decided next without a reading."""
        dues = [due for own in self._open if (due := own.first_due()) is not None]
        if self._waiting is not None and self._mixed is not None:
            dues.append(int(self._mixed.due(self._waiting).min()))
        steps = self._window.pending_until() if self._window.has_steps else None
        if steps is not None:
            dues.append(steps + 1)
        held = self._report.pending_until(watermark)
        if held is not None:
            dues.append(held)
        return min(dues, default=None)

    def _settled_until(self, watermark: int) -> int:
        """Before this time no further detection can come: none of what is open is earlier."""
        times = [watermark]
        for own in self._open:
            least = own.least("when", "t0", self._absence_ms)
            if least is not None:
                times.append(least)
        if self._waiting is not None:
            times.append(int(self._waiting["when"].min()))
        return min(times)

    def _open_matches(self, number: int) -> None:
        """Finds what new occurrences complete; it stays open until everything it depends on is
        known.
        """
        combination = self._shape.combinations[number]
        frame = new_rows(self._window, combination)
        if frame is None:
            return
        awaited = self._awaited[number]
        when = matched_at(self._window, self._shape, number, frame, assume_absence=bool(awaited))
        chosen = when < NEVER
        frame, when = take(frame, chosen), when[chosen]
        if not count(frame):
            return
        t0 = latest_end(self._window, combination, frame)
        due = t0 + self._absence_ms
        for part in awaited:
            due = np.maximum(due, decided_at(self._window, part, frame))
        frame |= {"t0": t0, "when": when, "due": due}
        self._open[number].add(frame)

    def _close_due(self, number: int, watermark: int) -> None:
        """Decides the matches that are due; those with mixed clauses go on waiting for these."""
        frame = self._open[number].pop_due(watermark)
        if frame is None:
            return
        if self._awaited[number]:
            frame["when"] = matched_at(self._window, self._shape, number, frame)
            frame = take(frame, frame["when"] < NEVER)
        frame = self._without_refuted(frame)
        if not count(frame):
            return
        if self._mixed is None:
            self._report.take(frame, np.maximum(frame["when"], frame["t0"]))
            return
        terms = self._shape.combinations[number].terms
        waiting = self._mixed.admit(frame, terms, np.maximum(frame["when"], frame["t0"]))
        self._waiting = waiting if self._waiting is None else concatenate([self._waiting, waiting])

    def _without_refuted(self, frame: Columns) -> Columns:
        """The matches for which every NOT clause holds, satisfied at t0 + its window; in a family
        for some of it.
        """
        for clause in self._shape.absent:
            bound = {name: column for name, column in frame.items() if name[0] == "@"}
            if self._window.varying is None:
                holds = self._activations.hold(clause, bound, frame["t0"])
            else:
                assert self._members is not None
                holds, some = absence_for_some(self._window, clause, bound, frame["t0"])
                frame = self._members.refute(frame, some)
            frame = take(frame, holds)
            at = frame["t0"] + absence_wait_ms(self._window, clause)
            frame["when"] = np.maximum(frame["when"], at)
        return frame

    def _resolve_mixed(self, watermark: int) -> None:
        assert self._mixed is not None
        assert self._waiting is not None
        finished, waiting = self._mixed.resolve(self._waiting, watermark)
        self._waiting = waiting if count(waiting) else None
        self._report.take(finished, finished["when"])


def numbered(state: Any) -> Numbered:
    """The identities by whose codes the state of an operator speaks; none if it is no state."""
    window = state.get("window") if isinstance(state, dict) else None
    known = window.get("identities") if isinstance(window, dict) else None
    return known if isinstance(known, dict) else {}


def positive_terms(shape: Shape) -> frozenset[int]:
    """Terms that stand positive somewhere: their correlations use events up."""
    parts = [part for clause in (*shape.positive, *shape.mixed) for part in clause.parts]
    return frozenset(term for part in parts for term in part.needs())
