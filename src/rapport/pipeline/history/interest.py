"""Which rows plans need, and which of their buckets. [PI-5]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.pipeline.history.files import Series
from rapport.pipeline.history.keys import EVERY, NOBODY, Buckets, Key, Router
from rapport.pipeline.history.reading_filter import RowFilter, row_filter
from rapport.pipeline.history.rows import KEY, SOURCE, STREAM, Codes, Texts
from rapport.pipeline.history.tables import Pull, first_of, is_changing
from rapport.policy.ontology import PushSource
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import Plan, PolicyPlan

Mask = npt.NDArray[np.bool_]


class Needs(msgspec.Struct, frozen=True):
    """The readings that plans need."""

    streams: frozenset[str]
    sources: frozenset[str]
    """All readings of these, whatever the stream: their silence matters."""

    @staticmethod
    def of(plans: Sequence[PolicyPlan], sources: Mapping[str, PushSource]) -> Needs:
        """What some plans need together."""
        streams = {stream for plan in plans for stream in plan.streams()}
        judged = (plan for plan in plans if isinstance(plan, Plan))
        watched = {name for plan in judged for name in watched_sources(plan, sources)}
        return Needs(frozenset(streams), frozenset(watched))

    def wants(self, series: Series) -> bool:
        """Whether a series may have some of them."""
        if not self.streams:
            return False
        if not series.stream or series.stream in self.streams:
            return True
        return bool(self.sources) and (bool(series.source_column) or series.source in self.sources)


class Interest:
    """The rows that plans which run together need, by stream, source, identity and value."""

    def __init__(
        self,
        plans: Sequence[PolicyPlan],
        keys: Sequence[Key],
        buckets: int,
        pull: Pull,
        sources: Mapping[str, PushSource],
        codes: Codes,
    ) -> None:
        """`keys`: by which the plans are divided into `buckets`; none: they are not."""
        self.needs = Needs.of(plans, sources)
        self._codes = codes
        self._router = Router(keys, first_of(pull), buckets) if keys else None
        self._plans, self._pull, self._sources = plans, pull, sources

    @cached_property
    def _filter(self) -> RowFilter | None:
        if is_changing(self._pull):
            return None
        return row_filter(self._plans, first_of(self._pull), self._sources)

    def wanted(self, rows: pa.RecordBatch) -> Mask:
        """The rows that some plan needs."""
        wanted = np.zeros(len(rows), np.bool_)
        for stream, mask in self._by_stream(rows):
            wanted[mask] = self._matters(stream, rows, mask)
        if self.needs.sources:
            wanted |= self._of_watched(rows)
        return wanted

    def buckets(self, rows: pa.RecordBatch, *, with_watched: bool = True) -> Buckets:
        """The bucket of each row, or EVERY, or NOBODY. Readings of watched sources go to every
        bucket, because each judges their silence; operators of a bucket take the others only.
        """
        found: Buckets = np.full(len(rows), NOBODY, np.int32)
        if self._router is None:
            found[:] = EVERY
            return found
        keys = rows.column(KEY).to_numpy()
        for stream, mask in self._by_stream(rows):
            places = self._router.places(stream, self._codes.keys.known)
            if places is not None:
                found[mask] = places[keys[mask]]
        if with_watched and self.needs.sources:
            found[self._of_watched(rows)] = EVERY
        return found

    def for_operators(self, rows: pa.RecordBatch, bucket: int) -> Mask | None:
        """Of the rows of a bucket those for its operators; None: all."""
        if self._router is None or not self.needs.sources:
            return None
        own = self.buckets(rows, with_watched=False)
        return np.asarray((own == bucket) | (own == EVERY), np.bool_)

    def _by_stream(self, rows: pa.RecordBatch) -> list[tuple[str, Mask]]:
        streams = rows.column(STREAM).to_numpy()
        named = ((self._codes.streams.known[code], code) for code in np.unique(streams).tolist())
        return [(name, streams == code) for name, code in named if name in self.needs.streams]

    def _matters(self, stream: str, rows: pa.RecordBatch, mask: Mask) -> Mask:
        """Which of the rows of a stream may have a part in a detection."""
        keys = rows.column(KEY).to_numpy()[mask]
        if self._filter is None:
            return np.ones(len(keys), np.bool_)

        def part(name: str) -> npt.NDArray[Any]:
            column = rows.column(f"{stream}.{name}").to_numpy(zero_copy_only=False)
            values: npt.NDArray[Any] = column[mask]
            return values

        return self._filter.wanted(stream, self._codes.keys.known, keys, part)

    def _of_watched(self, rows: pa.RecordBatch) -> Mask:
        return _is_one_of(rows.column(SOURCE), self._codes.sources, self.needs.sources)


def _is_one_of(column: pa.Array, texts: Texts, wanted: frozenset[str]) -> Mask:
    known = np.fromiter((name in wanted for name in texts.known), np.bool_, len(texts.known))
    found: Mask = known[column.to_numpy()]
    return found
