"""A bucket as one of Spark's stateful processors. Loaded where pyspark is. [PI-5, PI-10]"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.core.broadcast import _from_id
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from rapport.pipeline.errors import encoded_errors
from rapport.pipeline.streaming.buckets import StateEntry, StateMark
from rapport.pipeline.streaming.live_job import LiveJob
from rapport.pipeline.streaming.worker import BucketWorker, worker_for

_MARK_COLUMNS = "digest BINARY, entries BIGINT, given_bytes BIGINT, snapshot_bytes BIGINT"
_ENTRY_COLUMNS = "entry BIGINT, digest BINARY, piece BINARY"


class JobHandle:
    """The job as workers ask for it: it travels once to each process, not with every task.

    Unlike a broadcast itself this can be unpickled where broadcasts are not loaded: Spark makes a
    processor on the driver, too, to ask it for its state's columns.
    """

    def __init__(self, broadcast: Any, stamp: str) -> None:
        self._broadcast, self._stamp = broadcast, stamp

    def __reduce__(self) -> Any:
        _, (number,) = self._broadcast.__reduce__()  # says that who gets this needs it
        return JobHandle, (number, self._stamp)

    def __call__(self) -> BucketWorker:
        return worker_for(self._stamp, self._job)

    def _job(self) -> LiveJob:
        return _from_id(self._broadcast).value  # type: ignore[no-any-return]


class SparkBucketStore:
    """The state of one bucket in Spark's state store: a mark and a list of pieces."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._mark = handle.getValueState("mark", _MARK_COLUMNS)
        self._rows = handle.getListState("pieces", _ENTRY_COLUMNS)

    def mark(self) -> StateMark | None:
        """See Shelf."""
        kept = self._mark.get()
        if kept is None:
            return None
        digest, *numbers = kept
        return StateMark(bytes(digest), *numbers)

    def rows(self) -> Iterator[StateEntry]:
        """See Shelf."""
        for entry, digest, piece in self._rows.get():
            yield StateEntry(entry, bytes(digest), bytes(piece))

    def add(self, mark: StateMark, rows: Sequence[StateEntry]) -> None:
        """See Shelf. One by one: together they might be larger than one message may be."""
        for row in rows:
            self._rows.appendValue((row.entry, row.digest, row.piece))
        self._put_mark(mark)

    def renew(self, mark: StateMark, rows: Sequence[StateEntry]) -> None:
        """See Shelf."""
        self._rows.clear()
        self.add(mark, rows)

    def _put_mark(self, mark: StateMark) -> None:
        self._mark.update((mark.digest, mark.entries, mark.given_bytes, mark.snapshot_bytes))


class BucketProcessor(StatefulProcessor):  # type: ignore[misc]
    """Parcels of a bucket in, blocks of events out."""

    def __init__(self, working: Callable[[], BucketWorker]) -> None:
        """`working`: the job, as the worker has it."""
        self._working = working
        self._shelf: SparkBucketStore | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before anything else."""
        self._shelf = SparkBucketStore(handle)

    def handleInputRows(
        self, key: Any, rows: Iterator[SparkRow], timerValues: Any
    ) -> Iterator[SparkRow]:
        """The parcels of one batch."""
        assert self._shelf is not None, "init comes first"
        with encoded_errors():
            raw = (bytes(row["parcel"]) for row in rows)
            for channel, block in self._working().take(int(key[0]), raw, self._shelf):
                yield SparkRow(channel=channel, block=block)

    def close(self) -> None:
        """Nothing to give back."""
