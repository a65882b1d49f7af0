"""Steps with memory that several plans have in common: executed once, read by each. [PO-6, PO-13]

Two plans have a step in common when its term says the same under other names and when both know
the same past: either both have seen nothing yet and count from the same time, or both took over
the same state. From then on every reading concerns both, so they never part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.state import pack_state
from rapport.policy.runners.operators.step import OccurrenceStep
from rapport.policy.runners.operators.table import Columns, concatenate, take

Make = Callable[[], OccurrenceStep]


class SharedStep:
    """A step, and those who read what it gives. Costs one execution per batch, and a note for
    every reader when it gives something.
    """

    def __init__(self, step: OccurrenceStep) -> None:
        self.step, self.readers = step, WeakSet[SharedStepReader]()
        self.nothing: Columns | None = None
        self._batch: tuple[pa.RecordBatch, int] | None = None
        self._error: Exception | None = None

    @property
    def is_as_made(self) -> bool:
        """Whether it has taken nothing since it was made, or took over a state."""
        return self._batch is None

    def go_on(self, readings: pa.RecordBatch, watermark: int, shared: SharedCache) -> None:
        """Takes a batch, unless another reader has brought it. What fails, fails for all."""
        if self._error is not None:
            raise self._error
        shared.wanted += 1
        batch = self._batch
        if batch is not None and batch[0] is readings and batch[1] == watermark:
            return
        self._batch = readings, watermark
        shared.computed += 1
        try:
            found = self.step.take(readings, watermark)
        except Exception as error:
            self._error = error
            raise
        for column in found.values():
            column.flags.writeable = False
        self.nothing = take(found, slice(0, 0))
        if len(found["end"]):
            for reader in self.readers:
                reader.waiting.append(found)


class SharedStepReader:
    """A common step as one operator sees it."""

    def __init__(self, key: Hashable, make: Make, shared: SharedCache) -> None:
        """`key`: what the step depends on besides readings; None: it is nobody else's."""
        self._key, self._make, self._shared = key, make, shared
        self.waiting: list[Columns] = []
        """Given, and not yet taken by this operator."""
        self._common = self._join(self._key)

    def take(self, readings: pa.RecordBatch, watermark: int) -> Columns:
        """See OccurrenceStep."""
        self._common.go_on(readings, watermark, self._shared)
        found, self.waiting = self.waiting, []
        assert self._common.nothing is not None
        return concatenate(found) if found else self._common.nothing

    def pending_until(self) -> int | None:
        """See OccurrenceStep."""
        return self._common.step.pending_until()

    def stand_at(self, watermark: int) -> None:
        """See OccurrenceStep; for all who have it in common."""
        self._common.step.stand_at(watermark)

    def lasted(self) -> list[tuple[Cause, ...]]:
        """See OccurrenceStep."""
        return self._common.step.lasted()

    def state(self) -> Any:
        """See OccurrenceStep: whole, so that each plan can go on without the others."""
        return self._common.step.state()

    def restore(self, state: Any) -> None:
        """Takes over what `state` gave, together with others that take over the same."""
        self._common.readers.discard(self)
        self.waiting = []
        key = None if self._key is None else (self._key, blake2b(pack_state(state)).digest())
        self._common = self._join(key, state)

    def _join(self, key: Hashable, state: Any = None) -> SharedStep:
        known = None if key is None else self._shared.kept(key)
        common: SharedStep
        if known is not None and known.is_as_made:
            common = known
        else:
            common = SharedStep(self._make())
            if state is not None:
                common.step.restore(state)
            if key is not None:
                self._shared.keep_instead(key, common)
        common.readers.add(self)
        return common
