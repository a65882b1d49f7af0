"""Files of the lake: whole or not at all, and where each event belongs. [CH-16, PI-3]

Layout: `bronze/channel=<name>/day=<received>/type=<type>/<first>-<last>.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rapport.core.errors import StoreUnavailable
from rapport.core.event import StoredEvent
from rapport.core.event_columns import ENVELOPE, envelope_table
from rapport.core.ids import content_id
from rapport.core.times import format_time
from rapport.kernel.files import atomic_replacement, sync_path

BRONZE = "bronze"
ROW_GROUP = 65_536
"""Rows of a Parquet row group, which readers decode at once."""

_WORD = pa.dictionary(pa.int32(), pa.string())
_MAX_NAME_BYTES = 200

# Dictionary columns have the type that pandas gives directories of the same name.
BRONZE_SCHEMA = pa.schema(
    [
        pa.field("channel", _WORD, nullable=False),
        *(field.with_type(_WORD) if field.name == "type" else field for field in ENVELOPE),
    ]
)


def write_parts(
    directory: Path, channel: str, first: int, last: int, stored: Sequence[StoredEvent]
) -> int:
    """Writes the events that a channel holds at positions `first` to `last`, one file per day and
    type; files of the same positions are replaced. Returns how many.
    """
    parts: dict[tuple[str, str], list[StoredEvent]] = {}
    for item in stored:
        # The day of arrival: monotonic, whatever time a source claims.
        parts.setdefault((format_time(item.received)[:10], item.event.type), []).append(item)
    for (day, kind), rows in parts.items():
        folder = directory / BRONZE / partition_name("channel", channel)
        folder = folder / partition_name("day", day) / partition_name("type", kind)
        with replaced_file(folder / f"{first:020d}-{last:020d}.parquet") as temporary:
            pq.write_table(_bronze_table(channel, rows), temporary, compression="zstd")
    return len(parts)


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


def partition_name(column: str, value: str) -> str:
    """The name of a partition's directory: special characters percent-encoded, over-long values
    cut.

    >>> partition_name("type", "person.position"), partition_name("type", "a/b=c")
    ('type=person.position', 'type=a%2Fb%3Dc')
    """
    # Letters beyond ASCII stay unchanged: Spark decodes each %XX as one character, not as UTF-8.
    text = "".join(
        letter
        if letter.isalnum() or letter in "-._~ " or ord(letter) > 127
        else f"%{ord(letter):02X}"
        for letter in value
    )
    if len(text.encode()) > _MAX_NAME_BYTES:
        # File systems stop at 255 bytes; the column in the file has the whole value.
        text = (
            text.encode()[: _MAX_NAME_BYTES - 40].decode(errors="ignore") + "~" + content_id(value)
        )
    return f"{column}={text}"


def _bronze_table(channel: str, rows: Sequence[StoredEvent]) -> pa.Table:
    columns = envelope_table(rows)
    names = pa.array([channel] * len(rows), pa.string())
    arrays = [names, *columns.columns]
    return pa.Table.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, BRONZE_SCHEMA, strict=True)],
        schema=BRONZE_SCHEMA,
    )


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
