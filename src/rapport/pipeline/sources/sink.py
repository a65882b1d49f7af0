"""The sink `rapport`: rows appended to a channel exactly once. [PI-2]

Tasks append their rows themselves; what tells Spark that they are done is two numbers. There is
nothing to take back when a batch is aborted: it will be written again, and ids decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from rapport.core.errors import Unsupported
from rapport.pipeline.sources.appending import Target, append_rows, check_columns
from rapport.pipeline.sources.faults import told
from rapport.pipeline.sources.options import SinkOptions
from rapport.pipeline.sources.place import place_of

_QUERY, _EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class Done(WriterCommitMessage):  # type: ignore[misc]
    """What one task did."""

    rows: int
    known: int


class ChannelWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Rows of a batch."""

    def __init__(self, options: SinkOptions, columns: Sequence[str], overwrite: bool) -> None:
        _check_written(columns, overwrite)
        self._target, self._token = target_of(options), options.batch_token

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Appends the rows of a task."""
        token = f"{self._token}/{_context().partitionId()}" if self._token else ""
        return _append(self._target, iterator, token)


class ChannelStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Rows of a stream's micro-batches."""

    def __init__(self, options: SinkOptions, columns: Sequence[str], overwrite: bool) -> None:
        _check_written(columns, overwrite)
        self._target = target_of(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Appends the rows of a task; those without an id are named by query, epoch, partition and
        number, which are the same when the epoch is written again.
        """
        context = _context()
        query, epoch = context.getLocalProperty(_QUERY), context.getLocalProperty(_EPOCH)
        return _append(self._target, iterator, f"{query}/{epoch}/{context.partitionId()}")


def target_of(options: SinkOptions) -> Target:
    """The channel that the options name."""
    return Target(place_of(options.place), options.channel, options.place.patience_ms)


def _check_written(columns: Sequence[str], overwrite: bool) -> None:
    if overwrite:
        raise Unsupported("overwriting", "a channel", hint="use the mode append")
    check_columns(columns)


def _append(target: Target, batches: Iterator[pa.RecordBatch], token: str) -> Done:
    with told():
        written = append_rows(target, batches, token=token)
    return Done(written.rows, written.known)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a sink writes in a task of Spark"
    return context
