"""A bucket as a stateful processor of Spark. A module of its own because it needs pyspark. [PI-5,
PI-10]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from rapport.pipeline.errors import encoded_errors
from rapport.pipeline.streaming.buckets import StateEntry, StateMark
from rapport.pipeline.streaming.worker import OUTPUT, JobHandle

_MARK_COLUMNS = "digest BINARY, entries BIGINT, given_bytes BIGINT, snapshot_bytes BIGINT"
_ENTRY_COLUMNS = "entry BIGINT, digest BINARY, piece BINARY"


class SparkBucketStore:
    """The state of one bucket in Spark's state store: a mark and a list of entries."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._mark = handle.getValueState("mark", _MARK_COLUMNS)
        self._entries = handle.getListState("pieces", _ENTRY_COLUMNS)

    def mark(self) -> StateMark | None:
        kept = self._mark.get()
        if kept is None:
            return None
        digest, *numbers = kept
        return StateMark(bytes(digest), *numbers)

    def entries(self) -> Iterator[StateEntry]:
        for entry, digest, piece in self._entries.get():
            yield StateEntry(entry, bytes(digest), bytes(piece))

    def add(self, mark: StateMark, entries: Sequence[StateEntry]) -> None:
        """See BucketStore. One by one: together they might exceed the size of a message."""
        for one in entries:
            self._entries.appendValue((one.entry, one.digest, one.piece))
        self._mark.update((mark.digest, mark.entries, mark.given_bytes, mark.snapshot_bytes))

    def replace(self, mark: StateMark, entries: Sequence[StateEntry]) -> None:
        self._entries.clear()
        self.add(mark, entries)


class BucketProcessor(StatefulProcessor):  # type: ignore[misc]
    """Batches of a bucket in, rows of OUTPUT out."""

    def __init__(self, job: JobHandle) -> None:
        self._job = job
        self._store: SparkBucketStore | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before anything else."""
        self._store = SparkBucketStore(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield from (SparkRow(**row) for row in self._output(key, (row["parcel"] for row in rows)))

    def _output(self, key: Any, raw: Iterable[Any]) -> Iterator[dict[str, Any]]:
        assert self._store is not None, "init comes first"
        with encoded_errors():
            yield from self._job.worker().take(int(key[0]), map(bytes, raw), self._store)

    def close(self) -> None:
        """Nothing to release."""


class PandasBucketProcessor(BucketProcessor):
    """The same for Spark 4.0, whose processors get and give pandas frames."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        import pandas as pd  # type: ignore[import-untyped]

        raw = (parcel for frame in rows for parcel in frame["parcel"])
        yield pd.DataFrame(list(self._output(key, raw)))


def bucket_rows(batches: GroupedData, job: JobHandle) -> DataFrame:
    """Runs the buckets: batches by bucket to rows of OUTPUT."""
    how = {"outputStructType": OUTPUT, "outputMode": "append", "timeMode": "none"}
    if hasattr(batches, "transformWithState"):
        return batches.transformWithState(statefulProcessor=BucketProcessor(job), **how)
    return batches.transformWithStateInPandas(statefulProcessor=PandasBucketProcessor(job), **how)
