"""The operator: one plan executing on sorted batches of readings. [PO-6, PO-7]

Occurrences go into the window; sets of them with a new one are sieved to matches; a match whose
absence is not yet known stays open until it is due. Everything is decided in bulk by due time, so
the result does not depend on how the stream was cut into batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rapport.core.detection import Detection, Undecided, detection_order, each_once
from rapport.core.errors import Corrupt, Unsupported
from rapport.policy.plan import Plan, Sequence
from rapport.policy.runners.base import END_OF_TIME, Operator, PullData
from rapport.policy.runners.operators.decide import (
    NEVER,
    absence_holds,
    absence_waits,
    latest_end,
    matched_at,
)
from rapport.policy.runners.operators.doubt import make_doubt
from rapport.policy.runners.operators.join import new_rows
from rapport.policy.runners.operators.mixed import MixedClauses
from rapport.policy.runners.operators.shapes import Shape, shape_of
from rapport.policy.runners.operators.state import pack, unpack
from rapport.policy.runners.operators.support import check_supported
from rapport.policy.runners.operators.table import Array, Columns, concatenate, count, take
from rapport.policy.runners.operators.window import Window
from rapport.policy.runners.silence import Silence

_SNAPSHOT = 2


def make_operator(plan: Plan, pull: PullData, silence: Silence | None = None) -> Operator:
    """An operator for the plan, looking instances up in `pull`; raises Unsupported with all
    reasons.

    `silence` must have taken the same readings before the operator processes them; without it no
    absence is in doubt.
    """
    reasons = check_supported(plan)
    if reasons:
        raise Unsupported(f"policy {plan.policy!r} ({'; '.join(reasons)})", "the local runner")
    return PlanOperator(plan, pull, silence)


class PlanOperator:
    """One plan, executing; holds its window, and the matches that are not yet decided."""

    def __init__(self, plan: Plan, pull: PullData, silence: Silence | None = None) -> None:
        self.plan = plan
        self._version = plan.version()
        self._shape: Shape = shape_of(plan)
        self._window = Window(plan, _positive_terms(self._shape), pull)
        self._mixed = MixedClauses(self._window, self._shape) if self._shape.mixed else None
        self._absence_waits = any(
            absence_waits(self._window, clause) for clause in self._shape.absent
        )
        self._deferred = [
            self._shape.waits_after_first(number) for number in range(len(self._shape.combinations))
        ]
        self._doubt = make_doubt(plan, self._shape, silence)
        self._undecided: list[Undecided] = []
        self._open: dict[int, Columns] = {}
        self._waiting: Columns | None = None
        self._next_due: int | None = None
        self._watermark: int | None = None
        self._trimmed = -END_OF_TIME
        self._keep_windows = _windows_to_keep(plan, bool(self._shape.mixed))

    def process(self, readings: pa.RecordBatch, watermark: int) -> list[Detection]:
        found: list[Detection] = []
        if len(readings):
            self._window.take_in(readings)
            for number in range(len(self._shape.combinations)):
                self._open_matches(number)
        if len(readings) or self._is_due(watermark):
            for number in list(self._open):
                found += self._close_due(number, watermark)
            if self._waiting is not None:
                found += self._resolve_mixed(watermark)
            self._next_due = self._earliest_due()
            self._trim(watermark)
        self._watermark = watermark
        return _once(found) if len(found) > 1 else found

    def take_undecided(self) -> list[Undecided]:
        taken, self._undecided = self._undecided, []
        return each_once(taken) if len(taken) > 1 else taken

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
                "open": {str(number): frame for number, frame in self._open.items()},
                "waiting": self._waiting,
                "watermark": self._watermark,
            }
        )

    def restore(self, snapshot: bytes) -> None:
        state: Any = unpack(snapshot)
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
        self._open = {int(number): frame for number, frame in state["open"].items()}
        self._waiting, self._watermark = state["waiting"], state["watermark"]
        self._next_due = self._earliest_due()

    def _trim(self, watermark: int) -> None:
        """Forgets what no window reaches any more; not at each reading, for looking costs too."""
        if watermark - self._trimmed >= self.plan.window_ms // 4:
            self._trimmed = watermark
            self._window.trim(self._horizon(watermark))

    def _horizon(self, watermark: int) -> int:
        return watermark - self._keep_windows * self.plan.window_ms

    def _is_due(self, watermark: int) -> bool:
        return self._next_due is not None and self._next_due <= watermark

    def _earliest_due(self) -> int | None:
        dues = [int(frame["due"].min()) for frame in self._open.values()]
        if self._waiting is not None and self._mixed is not None:
            dues.append(int(self._mixed.due(self._waiting).min()))
        return min(dues, default=None)

    def _open_matches(self, number: int) -> None:
        """Finds what new occurrences complete; it stays open until everything it depends on is
        known.
        """
        combination = self._shape.combinations[number]
        frame = new_rows(self._window, combination)
        if frame is None:
            return
        deferred = self._deferred[number]
        when = matched_at(self._window, self._shape, number, frame, assume_absence=bool(deferred))
        chosen = when < NEVER
        frame, when = take(frame, chosen), when[chosen]
        if not count(frame):
            return
        t0 = latest_end(self._window, combination, frame)
        due = t0 + (self.plan.window_ms if self._absence_waits else 0)
        for term in deferred:
            if f"end{term}" in frame:
                due = np.maximum(due, frame[f"end{term}"] + self.plan.window_ms)
        frame |= {"t0": t0, "when": when, "due": due}
        self._open[number] = (
            concatenate([self._open[number], frame]) if number in self._open else frame
        )

    def _close_due(self, number: int, watermark: int) -> list[Detection]:
        """Decides the matches that are due; those with mixed clauses go on waiting for these."""
        frame = self._open[number]
        due = frame["due"] <= watermark
        if not due.any():
            return []
        if due.all():
            del self._open[number]
        else:
            self._open[number] = take(frame, ~due)
            frame = take(frame, due)
        if self._deferred[number]:
            frame["when"] = matched_at(self._window, self._shape, number, frame)
            frame = take(frame, frame["when"] < NEVER)
        frame = self._without_refuted(frame)
        if not count(frame):
            return []
        if self._mixed is None:
            return self._detections(frame, np.maximum(frame["when"], frame["t0"]))
        terms = self._shape.combinations[number].terms
        waiting = self._mixed.admit(frame, terms, np.maximum(frame["when"], frame["t0"]))
        self._waiting = waiting if self._waiting is None else concatenate([self._waiting, waiting])
        return []

    def _without_refuted(self, frame: Columns) -> Columns:
        """The matches for which every NOT clause holds, satisfied at t0 + window."""
        for clause in self._shape.absent:
            bound = {name: column for name, column in frame.items() if name[0] == "@"}
            frame = take(frame, absence_holds(self._window, clause, bound, frame["t0"]))
            waits = absence_waits(self._window, clause)
            at = frame["t0"] + (self.plan.window_ms if waits else 0)
            frame["when"] = np.maximum(frame["when"], at)
        return frame

    def _resolve_mixed(self, watermark: int) -> list[Detection]:
        assert self._mixed is not None
        assert self._waiting is not None
        finished, waiting = self._mixed.resolve(self._waiting, watermark)
        self._waiting = waiting if count(waiting) else None
        return self._detections(finished, finished["when"])

    def _detections(self, frame: Columns, times: Array) -> list[Detection]:
        if not len(times):
            return []
        bindings = self._bindings(frame)
        names = [name for name in frame if name.startswith(("event", "other"))]
        ordinals = np.column_stack([frame[name] for name in names])
        causes = self._window.events.causes(ordinals[ordinals >= 0])
        found = [
            Detection(
                policy=self.plan.policy,
                time=time,
                bindings=bound,
                causes=tuple(sorted(causes[event] for event in set(events) if event >= 0)),
                version=self._version,
            )
            for time, bound, events in zip(times.tolist(), bindings, ordinals.tolist(), strict=True)
        ]
        return self._certain(found, frame)

    def _certain(self, found: list[Detection], frame: Columns) -> list[Detection]:
        """What no silent source makes doubtful; the rest is kept as undecided."""
        if self._doubt is None:
            return found
        doubts = self._doubt.silent(found, frame)
        self._undecided += [
            Undecided.of(item, silent) for item, silent in zip(found, doubts, strict=True) if silent
        ]
        return [item for item, silent in zip(found, doubts, strict=True) if not silent]

    def _bindings(self, frame: Columns) -> list[dict[str, str]]:
        """Aliases and ids of each row; -1 stands for an alias the row does not have."""
        aliases = sorted(name for name in frame if name[0] == "@")
        columns = []
        for name in aliases:
            ids = self._window.identities[self._window.alias_concept(name[1:])].ids
            codes = frame[name].tolist()
            columns.append([ids[code] if code >= 0 else None for code in codes])
        return [
            {name[1:]: id for name, id in zip(aliases, row, strict=True) if id is not None}
            for row in zip(*columns, strict=True)
        ]


def _once(found: list[Detection]) -> list[Detection]:
    """Each detection once, in the order of the output: different occurrences may say the same."""
    unique = {(item.time, tuple(item.bindings.items()), item.causes): item for item in found}
    return sorted(unique.values(), key=detection_order)


def _positive_terms(shape: Shape) -> frozenset[int]:
    """Terms that stand positive somewhere: their correlations use events up."""
    parts = [part for clause in (*shape.positive, *shape.mixed) for part in clause.parts]
    return frozenset(term for part in parts for term in part.needs())


def _windows_to_keep(plan: Plan, mixed: bool) -> int:
    """How many windows before the watermark something may still matter.

    An open match began its wait less than a window ago, and what it rests on ended less than a
    window before. Each followed-by reaches one window further back, with its earlier event another,
    and waits one longer.
    """
    if any(isinstance(child, Sequence) for clause in plan.clauses for child in clause.children):
        return 6
    return 2 if mixed else 1
