"""Pairs of events that several plans have in common: used up once, read by each. [PO-6, PO-13]

What was used up depends on everything that came before. So two plans have it in common when their
terms say the same under other names and both know the same past: either neither has seen an event
of the term's streams, or both took over the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any

from rapport.policy.runners.operators.consume import Correlator
from rapport.policy.runners.operators.horizons import Horizons
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.side_events import SideEvents
from rapport.policy.runners.operators.state import pack_state
from rapport.policy.runners.operators.table import Columns, Table

_MANY_USED = 10_000


class SharedPairs:
    """The recent events of both sides of a correlation, what was used up of them, and those who
    read what they complete. Costs one walk per batch, however many read.
    """

    def __init__(self, first: SideEvents, second: SideEvents, correlator: Correlator) -> None:
        self.sides, self.correlator = (first, second), correlator
        self.readers = Horizons()
        self.is_as_made = True
        """Whether no event came since it was made, or took over a state."""
        self._batch = -1
        self._taken: set[str] = set()
        self._found: Columns | None = None
        self._is_walked = False
        self._error: Exception | None = None
        self._marked = 0

    def turn_to(self, batch: int) -> None:
        """Goes on to a batch, unless another reader has: what came before it is old."""
        if batch != self._batch:
            self._batch, self._found, self._is_walked = batch, None, False
            self._taken.clear()
            for side in self.sides:
                if side.table is not None:
                    side.table.settle()

    def take(self, stream: str, rows: StreamRows, first: int, shared: SharedCache) -> None:
        """Adds the batch's events of a stream, unless another reader has brought them."""
        sides = [side for side in self.sides if side.stream == stream]
        if stream in self._taken:
            shared.wanted += len(sides)
        elif sides:
            self._taken.add(stream)
            self.is_as_made = False
            for side in sides:
                side.add(rows, first)

    def completed(self, shared: SharedCache) -> Columns | None:
        """The occurrences that the batch's events complete, using them up; None when it has none.
        What fails, fails for all.
        """
        if self._error is not None:
            raise self._error
        first, second = self.sides[0].table, self.sides[1].table
        if first is None or second is None:
            return None
        if first.first_new == len(first) and second.first_new == len(second):
            return None
        shared.wanted += 1
        if not self._is_walked:
            self._is_walked = True
            shared.computed += 1
            self._walk(first, second)
        return self._found

    def trim(self, *, at_once: bool) -> None:
        """Forgets what every reader has done with; unless `at_once`, only where it is worth it."""
        before = self.readers.passed(at_once=at_once)
        if before is None:
            return
        for side in self.sides:
            side.trim(before, at_once=at_once)
        if at_once or self.correlator.size() > 2 * self._marked + _MANY_USED:
            self.correlator.trim(before)
            self._marked = max(self.correlator.size(), self._marked)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        tables = [side.table for side in self.sides]
        return {
            "sides": [None if table is None else table.columns for table in tables],
            "used": self.correlator.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        for side, saved in zip(self.sides, state["sides"], strict=True):
            side.table = None if saved is None else Table(saved)
        self.correlator.restore(state["used"])

    def _walk(self, first: Table, second: Table) -> None:
        try:
            self._found = self.correlator.pairs(first, second)
        except Exception as error:
            self._error = error
            raise
        for column in self._found.values():
            column.flags.writeable = False


class SharedPairsReader:
    """Common pairs as one operator sees them."""

    def __init__(self, key: Hashable, make: Callable[[], SharedPairs], shared: SharedCache) -> None:
        """`key`: what they depend on besides readings; None: they are nobody else's."""
        self._key, self._make, self._shared = key, make, shared
        self.common = self._found_or_made(key)
        self._horizon = self.common.readers.add()

    def turn_to_batch(self) -> None:
        """What came before the batch is old."""
        self.common.turn_to(self._shared.batch)

    def take(self, stream: str, rows: StreamRows, first: int) -> None:
        """Adds the batch's events of a stream."""
        self.common.take(stream, rows, first, self._shared)

    def completed(self) -> Columns | None:
        """The occurrences that the batch's events complete."""
        return self.common.completed(self._shared)

    def done_before(self, time: int) -> None:
        """This operator has done with what came before a time."""
        self.common.readers.move(self._horizon, time)

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave, together with others that take over the same."""
        key = None if self._key is None else (self._key, blake2b(pack_state(state)).digest())
        self.common = self._found_or_made(key, state)
        self._horizon = self.common.readers.add()

    def _found_or_made(self, key: Hashable, state: dict[str, Any] | None = None) -> SharedPairs:
        common: SharedPairs | None = None if key is None else self._shared.kept(key)
        if common is None or not common.is_as_made:
            common = self._make()
            if state is not None:
                common.restore(state)
            if key is not None:
                self._shared.keep_instead(key, common)
        return common
