"""Matches under way: open until the absence they ask for is known, then waiting for mixed clauses.
[PO-6, PO-7]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rapport.policy.runners.operators.activations import Activations
from rapport.policy.runners.operators.decide import (
    NEVER,
    absence_for_some,
    absence_wait_ms,
    aliases_of,
    decided_at,
    matched_at,
)
from rapport.policy.runners.operators.finding import MatchFinder
from rapport.policy.runners.operators.members import FamilyMembers
from rapport.policy.runners.operators.mixed import MixedClauses
from rapport.policy.runners.operators.open_matches import OpenMatches
from rapport.policy.runners.operators.shapes import PlanShape
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.table import (
    Array,
    Columns,
    concatenate,
    count,
    take,
    with_blurs,
)
from rapport.policy.runners.operators.window import Window

MatchSink = Callable[[Columns, Array], None]
"""Takes matches that survived, with the times of their detections."""


class PendingMatches:
    """All matches of one operator that are not yet decided."""

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
    def has_late(self) -> bool:
        """Whether some may be decided after the time of their detection."""
        return self._mixed is not None or any(one.awaited for one in self._finders)

    def open_new(self) -> None:
        """Finds what new occurrences complete; it stays open until everything it depends on is
        known.
        """
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
        """Decides what is due; those with mixed clauses go on waiting for these."""
        for number in range(len(self._open)):
            self._close_due(number, watermark)
        if self._waiting is not None and self._mixed is not None:
            finished, waiting = self._mixed.resolve(self._waiting, watermark)
            self._waiting = waiting if count(waiting) else None
            self._decided(finished, finished["when"])

    def opened(self) -> Iterator[int]:
        """Where nothing else is awaited than the NOT clauses: a time that no open match opened
        before, for each combination that has some.
        """
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
        """Before this time no further detection can come: none of what is open is earlier."""
        times = [watermark]
        for own in self._open:
            least = own.least("when", "t0", self._absence_ms)
            if least is not None:
                times.append(least)
        if self._waiting is not None:
            times.append(int(self._waiting["when"].min()))
        return min(times)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        rows = {str(number): own.state() for number, own in enumerate(self._open) if own}
        return {"open": rows, "waiting": self._waiting}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave; the window has done so."""
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
        frame = self._without_refuted(frame)
        if not count(frame):
            return
        times = np.maximum(frame["when"], frame["t0"])
        if self._mixed is None:
            self._decided(frame, times)
            return
        terms = self._shape.combinations[number].terms
        waiting = self._mixed.admit(frame, terms, times)
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
