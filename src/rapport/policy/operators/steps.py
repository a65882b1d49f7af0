"""Steps: terms whose occurrences depend on time as well as on readings (durations and silences),
shared by plans. [PO-3, PO-6, PO-13]

Plans share a step if their terms are equal up to names and both have the same past: neither has
seen a reading and they count from the same time, or both restored the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import Columns, concatenate, take
from rapport.policy.operators.durations import DurationStep
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.shared_cache import SharedCache, is_shareable, renamed, sides_of
from rapport.policy.operators.silences import SilenceStep
from rapport.policy.plan import LastingTerm, SilentTerm


class OccurrenceStep(Protocol):
    """Finds the occurrences of one term; batch boundaries do not affect them."""

    def take(self, readings: pa.RecordBatch, watermark: int) -> Columns:
        """Takes readings of any stream sorted by (time, id), then advances time to the watermark.
        Returns every new occurrence that ends before it, in order of end.

        Columns: `first`, `second` (codes), `end`, `start` (int64), `causes` (tuples of (time, id),
        of any number and age), and, if a source declares one, `uncertainty` (int64, the largest of
        the causes).

        A batch without readings may contain the column `time` only.
        """

    def pending_until(self) -> int | None:
        """The earliest time at which an occurrence may arise without a reading, if the watermark
        passes it; None if nothing is pending."""

    def advance_to(self, watermark: int) -> None:
        """Time advanced to the watermark without readings."""

    def lasted(self) -> list[tuple[Cause, ...]]:
        """The causes of states that were reported and still hold."""

    def state(self) -> Any:
        """Plain values and arrays, for `pack_state`."""

    def restore(self, state: Any) -> None: ...


Make = Callable[[], OccurrenceStep]


class SharedStep:
    """A step and its readers. Costs one execution per batch, and a note per reader if it has a
    result."""

    def __init__(self, step: OccurrenceStep) -> None:
        self.step, self.readers = step, WeakSet[SharedStepReader]()
        self.nothing: Columns | None = None
        self._batch: tuple[pa.RecordBatch, int] | None = None
        self._error: Exception | None = None

    @property
    def is_unused(self) -> bool:
        """True until a batch arrives after creation or restore."""
        return self._batch is None

    def restore(self, state: Any) -> None:
        self.step.restore(state)

    def process(self, readings: pa.RecordBatch, watermark: int, shared: SharedCache) -> None:
        """Processes a batch unless another reader has. An error is raised for every reader."""
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
    """One operator's view of a shared step; see OccurrenceStep."""

    def __init__(self, key: Hashable, make: Make, shared: SharedCache) -> None:
        """`key`: everything the step depends on besides readings; None: not shared."""
        self._key, self._make, self._shared = key, make, shared
        self.waiting: list[Columns] = []
        """Results that this operator has not taken yet."""
        self._common: SharedStep = self._join()

    def take(self, readings: pa.RecordBatch, watermark: int) -> Columns:
        self._common.process(readings, watermark, self._shared)
        found, self.waiting = self.waiting, []
        assert self._common.nothing is not None
        return concatenate(found) if found else self._common.nothing

    def pending_until(self) -> int | None:
        return self._common.step.pending_until()

    def advance_to(self, watermark: int) -> None:
        self._common.step.advance_to(watermark)

    def lasted(self) -> list[tuple[Cause, ...]]:
        return self._common.step.lasted()

    def state(self) -> Any:
        """The full state, so that each plan can continue without the others."""
        return self._common.step.state()

    def restore(self, state: Any) -> None:
        """Restores a state, shared with other operators that restore the same."""
        self._common.readers.discard(self)
        self.waiting = []
        self._common = self._join(state)

    def _join(self, state: Any = None) -> SharedStep:
        common = self._shared.join(self._key, lambda: SharedStep(self._make()), state)
        common.readers.add(self)
        return common


def make_step(
    term: LastingTerm | SilentTerm,
    identities: Mapping[str, Identities],
    pull: PullData,
    sources: Mapping[str, PushSource],
    began: int | None = None,
    shared: SharedCache | None = None,
) -> OccurrenceStep:
    """A step that has seen no reading.

    Args:
        began: the policy's start, from which silence counts; None: the first reading it takes.
        shared: the cache shared with operators that may have the same step.
    """
    key = _key(term, identities, began) if is_shareable(term) else None
    return SharedStepReader(
        key, partial(_make, term, identities, pull, sources, began), shared or SharedCache()
    )


def _key(
    term: LastingTerm | SilentTerm, identities: Mapping[str, Identities], began: int | None
) -> Hashable:
    """Everything it depends on besides readings and sources."""
    concepts = sorted({side.concept for side in sides_of(term)})
    since = began if isinstance(term, SilentTerm) else None
    return (SharedStepReader, renamed([term])[0], tuple(identities[one] for one in concepts), since)


def _make(
    term: LastingTerm | SilentTerm,
    identities: Mapping[str, Identities],
    pull: PullData,
    sources: Mapping[str, PushSource],
    began: int | None,
) -> OccurrenceStep:
    if isinstance(term, SilentTerm):
        return SilenceStep(term, identities[term.first.concept], sources, began)
    return DurationStep(term, identities, pull, sources)
