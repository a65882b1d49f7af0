"""What a term must do whose occurrences depend on time as well as on readings: durations and
silence. [PO-3, PO-6]

`steps.py` makes them: `make_step(term, identities, pull, sources, began, shared)`. `identities` are
those of the window by concept, so codes mean the same everywhere; `began` is the policy's start,
None where that is the first reading.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.runners.operators.table import Columns


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
