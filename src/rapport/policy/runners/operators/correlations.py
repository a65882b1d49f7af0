"""The correlation terms of a plan: the recent events of both sides, and what was used up. [PO-6,
PO-7]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rapport.policy.plan import CorrelationTerm, Plan
from rapport.policy.runners.base import END_OF_TIME
from rapport.policy.runners.operators.consume import Correlator
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.later_rows import LaterRows
from rapport.policy.runners.operators.leaves import Leaves
from rapport.policy.runners.operators.predicate import Predicate, is_of_tables_alone
from rapport.policy.runners.operators.reaches import pair_window_ms
from rapport.policy.runners.operators.shared_steps import SharedSteps
from rapport.policy.runners.operators.side_events import SideEvents
from rapport.policy.runners.operators.table import Columns, Table, with_blurs

_MANY_USED = 10_000


class Correlations:
    """Events by term and side; pairs are made as they complete where events are used up, and on
    the spot under a NOT (`absence.py`).
    """

    def __init__(self, plan: Plan, leaves: Leaves, shared: SharedSteps) -> None:
        self._plan, self._leaves, self._shared = plan, leaves, shared
        self._windows: dict[int, int] = {}
        self._sides: dict[tuple[int, int], SideEvents] = {}
        self._correlators: dict[int, Correlator] = {}
        self._at_once: set[int] = set()
        self._marked = 0

    def add(
        self, number: int, term: CorrelationTerm, predicate: Predicate, *, uses_up: bool
    ) -> None:
        """Keeps the events of a term."""
        self._windows[number] = pair_window_ms(self._plan, term)
        for place, side in enumerate((term.first, term.second)):
            leaf = self._leaves.of(side)
            self._sides[number, place] = SideEvents(side, leaf, predicate.reach, self._shared)
        if not is_of_tables_alone(term):  # what the site's own tables say may change
            self._at_once.add(number)
        if uses_up:
            self._correlators[number] = Correlator(
                term, predicate, self._windows[number], self._plan.consumption
            )

    def window_ms(self, term: int) -> int:
        """How close the two events of a pair must be."""
        return self._windows[term]

    def side(self, term: int, place: int) -> Table | None:
        """Events of the first (0) or second (1) side of a term; None before the first one."""
        return self._sides[term, place].table

    def asked_side(self, term: int, place: int, before: int) -> Table | None:
        """The same of a term under a NOT: all events before a time."""
        return self._sides[term, place].asked(before)

    def tables(self) -> list[Table]:
        """All events."""
        return [side.table for side in self._sides.values() if side.table is not None]

    def take(self, stream: str, rows: StreamRows, first: int) -> None:
        """Adds the events of a stream; `first`: the ordinal of the batch's first event."""
        for (number, _), side in self._sides.items():
            if side.stream == stream:
                if number in self._correlators or number in self._at_once:
                    side.add(rows, first)
                else:
                    side.add_later(rows, first)

    def completed(self) -> Iterator[tuple[int, Columns]]:
        """Terms with the occurrences that the new events complete, using them up."""
        for number, correlator in self._correlators.items():
            first, second = self.side(number, 0), self.side(number, 1)
            if first is None or second is None:
                continue
            if first.first_new < len(first) or second.first_new < len(second):
                yield number, correlator.pairs(first, second)

    def trim(self, before: int, *, at_once: bool) -> None:
        """Forgets events before a time; unless `at_once`, only where it is worth the work."""
        for side in self._sides.values():
            side.trim(before, at_once=at_once)
        for correlator in self._correlators.values():
            if at_once or correlator.size() > 2 * self._marked + _MANY_USED:
                correlator.trim(before)
                self._marked = max(correlator.size(), self._marked)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        for side in self._sides.values():
            side.asked(END_OF_TIME)
        return {
            "sides": {
                f"{term}.{place}": side.table.columns
                for (term, place), side in self._sides.items()
                if side.table is not None
            },
            "used": {
                str(number): correlator.state() for number, correlator in self._correlators.items()
            },
        }

    def restore(self, state: dict[str, Any], *, blurred: bool) -> None:
        """Takes over what `state` gave."""
        for (number, place), side in self._sides.items():
            saved = state["sides"].get(f"{number}.{place}")
            side.later = LaterRows(side.stream)
            side.table = None if saved is None else Table(with_blurs(saved, blurred))
        for key, used in state["used"].items():
            self._correlators[int(key)].restore(used)
