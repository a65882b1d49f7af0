"""Parquet files that are whole or not there. [PI-3]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rapport.core.errors import StoreUnavailable
from rapport.kernel.files import atomic_replacement, sync_path

ROW_GROUP = 65_536
"""Rows of a Parquet row group, which readers decode at once."""


def export_readings(batches: Iterable[pa.RecordBatch], path: Path, schema: pa.Schema) -> int:
    """Writes readings (or any record batches of one schema) to one Parquet file, whole or not at
    all.

    Returns the number of rows; keeps about one row group in memory, however small the batches are.
    """
    rows = 0
    with replaced_file(path) as temporary:
        # Numbers that hardly repeat gain nothing from a dictionary and lose a third of the speed.
        words = [field.name for field in schema if pa.types.is_string(field.type)]
        with pq.ParquetWriter(temporary, schema, compression="zstd", use_dictionary=words) as file:
            for table in _row_groups(batches, schema):
                file.write_table(table, row_group_size=ROW_GROUP)
                rows += table.num_rows
    return rows


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; on success it replaces `path`, durably and atomically.

    Hidden and with another extension meanwhile, so that no reader of the lake sees it; removed
    after an error.
    """
    try:
        make_directory(path.parent)
        with atomic_replacement(path) as temporary:
            yield temporary
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {path}: {error.strerror or error}", code="lake.unavailable"
        ) from error


def make_directory(path: Path) -> None:
    """Makes the directory and every missing parent, each one durable in its parent."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_path(path.parent)


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in tables of about a row group; at least one table, so that the file has a
    schema."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    yield pa.Table.from_batches(waiting, schema)
