"""Which rows the plans of a task want to see. [PI-5]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.pipeline.history.files import Series
from rapport.pipeline.history.keys import EVERY, Router
from rapport.pipeline.history.layout import Task
from rapport.pipeline.history.native.choose import row_filter
from rapport.pipeline.history.rows import KEY, SOURCE, STREAM, Codes
from rapport.pipeline.history.switching import Pull, first_of, is_changing
from rapport.pipeline.history.texts import Texts
from rapport.policy.ontology import PushSource
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import Plan

Mask = npt.NDArray[np.bool_]


class Needs(msgspec.Struct, frozen=True):
    """The readings that plans want to see."""

    streams: frozenset[str]
    sources: frozenset[str]
    """All readings of these, whatever the stream: their silence matters."""

    @staticmethod
    def of(plans: Sequence[Plan], sources: Mapping[str, PushSource]) -> Needs:
        """What some plans want together."""
        streams = {stream for plan in plans for stream in plan.streams()}
        watched = {name for plan in plans for name in watched_sources(plan, sources)}
        return Needs(frozenset(streams), frozenset(watched))

    def wants(self, series: Series) -> bool:
        """Whether a series may have some of them."""
        if not self.streams:
            return False
        if not series.stream or series.stream in self.streams:
            return True
        return bool(self.sources) and (bool(series.source_column) or series.source in self.sources)


class Interest:
    """The rows that one task wants, by stream, source, identity, value and bucket."""

    def __init__(
        self,
        plans: Sequence[Plan],
        task: Task,
        pull: Pull,
        sources: Mapping[str, PushSource],
        codes: Codes,
    ) -> None:
        self.needs = Needs.of(plans, sources)
        self._codes, self._bucket = codes, task.bucket
        first = first_of(pull)
        self._router = Router(task.keys, first, task.buckets) if task.keys else None
        filtered = plans and not is_changing(pull)
        self._filter = row_filter(plans, first, sources) if filtered else None

    def wanted(self, rows: pa.RecordBatch) -> Mask:
        """The rows that are worth sorting."""
        wanted = np.zeros(len(rows), np.bool_)
        streams = rows.column(STREAM).to_numpy()
        for code in np.unique(streams).tolist():
            stream = self._codes.streams.known[code]
            if stream in self.needs.streams:
                mask = streams == code
                wanted[mask] = self._matters(stream, rows, mask)
        if self.needs.sources:
            wanted |= _is_one_of(rows.column(SOURCE), self._codes.sources, self.needs.sources)
        return wanted

    def _matters(self, stream: str, rows: pa.RecordBatch, mask: Mask) -> Mask:
        """Which of the rows of a stream may have a part in a detection of the bucket."""
        keys = rows.column(KEY).to_numpy()[mask]
        found = np.ones(len(keys), np.bool_)
        if self._router is not None and not self.needs.sources:
            found = self._has_bucket(stream, keys, self._router)
        if self._filter is not None:

            def part(name: str) -> npt.NDArray[Any]:
                column = rows.column(f"{stream}.{name}").to_numpy(zero_copy_only=False)
                values: npt.NDArray[Any] = column[mask]
                return values

            found &= self._filter.wanted(stream, self._codes.keys.known, keys, part)
        return found

    def _has_bucket(self, stream: str, keys: npt.NDArray[np.int32], router: Router) -> Mask:
        places = router.places(stream, self._codes.keys.known)
        if places is None:
            return np.zeros(len(keys), np.bool_)
        own = places[keys]
        return np.asarray((own == self._bucket) | (own == EVERY), np.bool_)

    def own(self, rows: pa.RecordBatch) -> Mask | None:
        """Of the rows wanted those for the operators: where sources are watched, who keeps watch
        hears more than they do. None: all.
        """
        if self._router is None or not self.needs.sources:
            return None
        found = np.zeros(len(rows), np.bool_)
        streams, keys = rows.column(STREAM).to_numpy(), rows.column(KEY).to_numpy()
        for code in np.unique(streams).tolist():
            mask = streams == code
            stream = self._codes.streams.known[code]
            found[mask] = self._has_bucket(stream, keys[mask], self._router)
        return found


def _is_one_of(column: pa.Array, texts: Texts, wanted: frozenset[str]) -> Mask:
    known = np.fromiter((name in wanted for name in texts.known), np.bool_, len(texts.known))
    found: Mask = known[column.to_numpy()]
    return found
