"""The correlation terms of a plan: the recent events of both sides, and what was used up. [PO-6,
PO-7, PO-13]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from rapport.policy.plan import CorrelationTerm, Plan
from rapport.policy.runners.operators.asked_side import DeferredSide, EventQuery
from rapport.policy.runners.operators.common_pairs import SharedPairs, SharedPairsReader
from rapport.policy.runners.operators.consume import Correlator
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.later_streams import DeferredStreams
from rapport.policy.runners.operators.leaves import IdentityFilters
from rapport.policy.runners.operators.predicate import Predicate, is_of_tables_alone
from rapport.policy.runners.operators.reaches import pair_window_ms
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.side_events import SideEvents
from rapport.policy.runners.operators.table import Columns, Table, with_blurs
from rapport.policy.runners.operators.term_sides import renamed


class Correlations:
    """Events by term and side; pairs are made as they complete where events are used up, once for
    all plans that know the same, and on the spot under a NOT (`absence.py`).
    """

    def __init__(
        self, plan: Plan, leaves: IdentityFilters, later: DeferredStreams, shared: SharedCache
    ) -> None:
        self._plan, self._leaves, self._later, self._shared = plan, leaves, later, shared
        self._windows: dict[int, int] = {}
        self._asked: dict[tuple[int, int], DeferredSide] = {}
        """Of the terms that only stand under a NOT."""
        self._sides: dict[tuple[int, int], SideEvents] = {}
        """Of those among them that cannot be decided later."""
        self._pairs: dict[int, SharedPairsReader] = {}
        """Of the others."""

    def add(
        self,
        number: int,
        term: CorrelationTerm,
        predicate: Predicate,
        around: Hashable,
        *,
        uses_up: bool,
    ) -> None:
        """Keeps the events of a term; `around`: what tells its rows from those of other plans."""
        window_ms = self._windows[number] = pair_window_ms(self._plan, term)
        if not uses_up:
            for place in (0, 1):
                if is_of_tables_alone(term):
                    self._asked[number, place] = self._asked_side(term, place, predicate)
                else:  # what the site's own tables say may change
                    self._sides[number, place] = self._side(term, place, predicate)
            return
        key: Hashable = None
        if is_of_tables_alone(term):
            [blank], _ = renamed([replace(term, window_ms=window_ms)])
            key = (SharedPairs, blank, self._plan.consumption, around)
        make = partial(self._make_pairs, term, predicate, window_ms)
        self._pairs[number] = SharedPairsReader(key, make, self._shared)

    def _side(self, term: CorrelationTerm, place: int, predicate: Predicate) -> SideEvents:
        side = (term.first, term.second)[place]
        return SideEvents(side, self._leaves.of(side), predicate.reach, self._shared)

    def _asked_side(self, term: CorrelationTerm, place: int, predicate: Predicate) -> DeferredSide:
        side = (term.first, term.second)[place]
        reader = self._later.of(side.stream or "")
        return DeferredSide(reader, self._leaves.of(side), predicate.reach)

    def _make_pairs(
        self, term: CorrelationTerm, predicate: Predicate, window_ms: int
    ) -> SharedPairs:
        correlator = Correlator(term, predicate, window_ms, self._plan.consumption)
        first, second = (self._side(term, place, predicate) for place in (0, 1))
        return SharedPairs(first, second, correlator)

    def common(self, term: int) -> SharedPairs:
        """The pairs of a term whose events are used up."""
        return self._pairs[term].common

    def window_ms(self, term: int) -> int:
        """How close the two events of a pair must be."""
        return self._windows[term]

    def side(self, term: int, place: int) -> Table | None:
        """Events of the first (0) or second (1) side of a term; None before the first one."""
        return self._events(term, place).table

    def asked_side(self, term: int, place: int, asked: EventQuery) -> Table | None:
        """The same of a term under a NOT: at least the events asked for."""
        own = self._asked.get((term, place))
        return self.side(term, place) if own is None else own.asked(asked)

    def _events(self, term: int, place: int) -> SideEvents:
        pairs = self._pairs.get(term)
        return self._sides[term, place] if pairs is None else pairs.common.sides[place]

    def settle(self) -> None:
        """What came before the batch is old."""
        for side in self._sides.values():
            if side.table is not None:
                side.table.settle()
        for pairs in self._pairs.values():
            pairs.turn_to_batch()

    def take(self, stream: str, rows: StreamRows, first: int) -> None:
        """Adds the events of a stream; `first`: the ordinal of the batch's first event."""
        for pairs in self._pairs.values():
            pairs.take(stream, rows, first)
        for side in self._sides.values():
            if side.stream == stream:
                side.add(rows, first)

    def completed(self) -> Iterator[tuple[int, Columns]]:
        """Terms with the occurrences that the new events complete, using them up."""
        for number, pairs in self._pairs.items():
            found = pairs.completed()
            if found is not None:
                yield number, found

    def done_before(self, time: int) -> None:
        """What came before a time is not looked at any more, others may."""
        for pairs in self._pairs.values():
            pairs.done_before(time)

    def trim(self, before: int, *, at_once: bool) -> None:
        """Forgets events before a time; unless `at_once`, only where it is worth the work."""
        for side in self._sides.values():
            side.trim(before, at_once=at_once)
        for asked in self._asked.values():
            asked.trim(before)
        for pairs in self._pairs.values():
            pairs.done_before(before)
            pairs.common.trim(at_once=at_once)

    def state(self) -> dict[str, Any]:
        """What `restore` takes; whole, so that each plan can go on without the others."""
        tables = {key: side.table for key, side in self._sides.items()}
        for number, pairs in self._pairs.items():
            tables |= {(number, place): pairs.common.sides[place].table for place in (0, 1)}
        saved = {key: None if own is None else own.columns for key, own in tables.items()}
        saved |= {key: asked.state() for key, asked in self._asked.items()}
        return {
            "sides": {
                f"{term}.{place}": columns
                for (term, place), columns in saved.items()
                if columns is not None
            },
            "used": {
                str(number): pairs.common.correlator.state()
                for number, pairs in self._pairs.items()
            },
        }

    def restore(self, state: dict[str, Any], *, blurred: bool) -> None:
        """Takes over what `state` gave."""

        def saved(number: int, place: int) -> Columns | None:
            columns = state["sides"].get(f"{number}.{place}")
            return None if columns is None else with_blurs(columns, blurred)

        for (number, place), side in self._sides.items():
            columns = saved(number, place)
            side.table = None if columns is None else Table(columns)
        for (number, place), asked in self._asked.items():
            asked.restore(saved(number, place))
        for number, pairs in self._pairs.items():
            sides = [saved(number, place) for place in (0, 1)]
            pairs.restore({"sides": sides, "used": state["used"][str(number)]})
