"""What a channel of the node tells about readings, written in portions: memory does not grow with
how much a step finds. [PI-3]

Portions are prepared files like any other: they are put in place with the step, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from rapport.pipeline.lake.silver_findings import Findings, Verdict
from rapport.pipeline.lake.silver_parts import Part, write_parts_of

PIECE_ROWS = 2_000
"""Rows that are taken apart at once: each is some Python objects for as long, about 2 kB."""
PORTION_BYTES = 8 * 1024 * 1024
"""Of rows that wait to be written: some 20,000. Smaller ones make more files to be compacted."""


class FileTold(msgspec.Struct, kw_only=True):
    """What one file of bronze told, beside rows."""

    rows: int = 0
    received: int = -(2**63)
    verdicts: list[Verdict] = []


class Portions:
    """The rows of one table, written whenever a portion is full."""

    def __init__(
        self, table: str, read: Callable[[pa.RecordBatch], Findings], folder: Callable[[], Path]
    ) -> None:
        """`folder` gives one of its own for each portion."""
        self._table, self._read, self._folder = table, read, folder
        self._parts: list[Part] = []
        self._waiting: list[pa.Table] = []

    def take(self, batches: Iterable[pa.RecordBatch]) -> FileTold:
        """Takes the rows of one file; of one that cannot be read to its end nothing is taken: what
        was prepared of it is left lying. Raises what `batches` raises.
        """
        told, parts, waiting = FileTold(), list[Part](), list[pa.Table]()
        for piece in _pieces(batches):
            told.rows += piece.num_rows
            told.received = max(told.received, *piece["received"].to_pylist())
            findings = self._read(piece)
            told.verdicts += findings.verdicts
            waiting.append(findings.table)
            if _is_full(waiting):
                parts += self._written(waiting)
                waiting = []
        self._parts += parts
        self._waiting += waiting  # files may be small: what is left of several is one portion
        if _is_full(self._waiting):
            self._write_waiting()
        return told

    def finish(self) -> list[Part]:
        """Writes what is left; gives all that was written."""
        self._write_waiting()
        return self._parts

    def _write_waiting(self) -> None:
        self._parts += self._written(self._waiting)
        self._waiting = []

    def _written(self, tables: list[pa.Table]) -> list[Part]:
        if not any(table.num_rows for table in tables):
            return []
        return list(write_parts_of(self._table, pa.concat_tables(tables), self._folder()))


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, PIECE_ROWS):
            yield batch.slice(start, PIECE_ROWS)


def _is_full(tables: list[pa.Table]) -> bool:
    size: int = sum(table.nbytes for table in tables)
    return size >= PORTION_BYTES
