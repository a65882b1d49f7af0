"""What a term must do whose occurrences depend on time as well as on readings: durations and
silence. [PO-3, PO-6]

`steps.py` makes them: `make_step(term, identities, pull, sources, began, shared)`. `identities` are
those of the window by concept, so codes mean the same everywhere; `began` is the policy's start,
None where that is the first reading.

Steps with memory that several plans have in common: executed once, read by each. [PO-6, PO-13]

Two plans have a step in common when its term says the same under other names and when both know
the same past: either both have seen nothing yet and count from the same time, or both took over
the same state. From then on every reading concerns both, so they never part.

Makes the step of a term whose occurrences depend on time as well as on readings. [PO-3, PO-6]
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol
from weakref import WeakSet

import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import Columns, concatenate, pack_state, take
from rapport.policy.operators.durations import DurationStep
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.sharing import SharedCache, is_shareable, renamed, sides_of
from rapport.policy.operators.silences import SilenceStep
from rapport.policy.plan import LastingTerm, SilentTerm


class OccurrenceStep(Protocol):
    """Finds the occurrences of one term; deterministic however the stream is cut."""

    def take(self, readings: pa.RecordBatch, watermark: int) -> Columns:
        """Takes readings sorted by (time, id), of any stream, then lets time run up to the
        watermark. Returns every occurrence not yet given that ends before it, in order of end.

        Columns: `first`, `second` (codes), `end`, `start` (int64), `causes` (objects: tuples of
        (time, id), perhaps empty, of any age), and, where a source of the term's streams declares
        one, `uncertainty` (int64: the largest of the causes' sources).

        Without readings the batch may lack every column but `time`.
        """

    def pending_until(self) -> int | None:
        """The earliest time at which it may give an occurrence without a reading: the watermark
        must be greater than that. None when nothing is pending.
        """

    def stand_at(self, watermark: int) -> None:
        """Time went on to the watermark and brought nothing."""

    def lasted(self) -> list[tuple[Cause, ...]]:
        """The readings by which each state became true that was reported and is still true."""

    def state(self) -> Any:
        """Plain values and arrays, as `state.py` packs them."""

    def restore(self, state: Any) -> None:
        """Takes over what `state` gave."""


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


def make_step(
    term: LastingTerm | SilentTerm,
    identities: Mapping[str, Identities],
    pull: PullData,
    sources: Mapping[str, PushSource],
    began: int | None = None,
    shared: SharedCache | None = None,
) -> OccurrenceStep:
    """A step that has seen nothing yet.

    Args:
        began: the policy's start, from which silence counts; None: the first reading it takes.
        shared: with whom it is shared, if they have the same.
    """
    key = _key(term, identities, began) if is_shareable(term) else None
    return SharedStepReader(
        key, partial(_make, term, identities, pull, sources, began), shared or SharedCache()
    )


def _key(
    term: LastingTerm | SilentTerm, identities: Mapping[str, Identities], began: int | None
) -> Hashable:
    """What it depends on besides readings and the sources of the site."""
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
