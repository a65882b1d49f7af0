"""What a worker does for silver: reads files of bronze, decodes them, writes prepared files. [PI-3]

No Spark in here: a task in, what became of it out, so it is tested without a session and can run in
the driver. Writing the same task twice gives the same files, so Spark may repeat it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.channel.export.parquet_files import ROW_GROUP, make_directory
from rapport.core.errors import Problem
from rapport.kernel.files import atomic_replacement
from rapport.pipeline.lake.bronze_files import FileFault, bronze_rows
from rapport.pipeline.lake.places import DETECTED, QUARANTINED, day_numbers, file_name
from rapport.pipeline.lake.silver_ids import (
    Keys,
    detection_keys,
    quarantine_keys,
    reading_keys,
    save,
)
from rapport.pipeline.lake.silver_rows import Correction, Decoded, decode_events, quarantined_rows
from rapport.policy.ontology import Ontology


class PartTask(msgspec.Struct, frozen=True, kw_only=True):
    """Files to read, and where to write what they become."""

    number: int
    files: list[str]
    after: int
    upto: int
    folder: str
    """Prepared files go here; nobody else writes into it."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared file of one table and day, and beside it the keys of its rows."""

    table: str
    """A stream, `quarantined`, or `detected`."""
    day: int
    path: str
    rows: int
    first: int
    last: int
    corrections: int = 0
    """Rows that stand in for others."""

    @property
    def keys_path(self) -> Path:
        """Keys of the rows' identities, in their order."""
        return Path(f"{self.path}.keys")


class Spoiled(msgspec.Struct, frozen=True):
    """A file that could not be read, and why; nothing of it was taken."""

    file: str
    code: str
    message: str
    hint: str


class PartDone(msgspec.Struct, kw_only=True):
    """What became of a task."""

    parts: list[Part] = []
    spoiled: list[Spoiled] = []
    corrections: list[Correction] = []
    positions: int = 0
    """Different positions that were read."""
    received: int = -(2**63)


def run_part(task: PartTask, ontology: Ontology, conflicts: Mapping[str, Problem]) -> PartDone:
    """Reads, decodes, writes. `conflicts` names streams whose table has other columns: all their
    readings are held back.
    """
    done, found = PartDone(), _Found()
    seen: list[pa.Array] = []
    for file in task.files:
        try:
            rows = list(bronze_rows(Path(file), task.after, task.upto))
        except FileFault as fault:
            done.spoiled.append(Spoiled(file, fault.code, fault.message, fault.hint))
            continue
        for batch in rows:
            seen.append(batch["position"])
            done.received = max(done.received, pc.max(batch["received"]).as_py() or -(2**63))
            for stream, own in _by_type(batch):
                found.take(stream, _decoded(own, stream, ontology, conflicts))
    done.positions = len(pc.unique(pa.chunked_array(seen, pa.int64())))
    done.corrections = found.corrections
    done.parts = list(found.write(Path(task.folder)))
    return done


class _Found:
    """Rows by table, until they are written."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {}
        self.corrections: list[Correction] = []

    def take(self, stream: str, decoded: Decoded) -> None:
        self.corrections += decoded.corrections
        for name, table in ((stream, decoded.readings), (QUARANTINED, decoded.rejected)):
            if table.num_rows:
                self._tables.setdefault(name, []).append(table)

    def write(self, folder: Path) -> Iterator[Part]:
        make_directory(folder)
        for number, (name, tables) in enumerate(sorted(self._tables.items())):
            yield from write_parts_of(name, pa.concat_tables(tables), folder / f"{number:04d}")


def write_parts_of(name: str, table: pa.Table, folder: Path) -> Iterator[Part]:
    """Writes rows of one table, a file per day: that of event time, of what was held back that of
    receiving. In the order of positions.
    """
    make_directory(folder)
    table = table.sort_by("position")
    by = "received" if name == QUARANTINED else "time"
    days = day_numbers(table[by].to_numpy())
    for day in np.unique(days).tolist():
        rows = table.filter(pa.array(days == day)) if len(days) else table
        first, last = rows["position"][0].as_py(), rows["position"][-1].as_py()
        path = folder / f"{day}-{file_name(first, last)}"
        part = Part(table=name, day=day, path=str(path), rows=0, first=first, last=last)
        yield write_part(part, rows)


def write_part(part: Part, rows: pa.Table) -> Part:
    """Writes a part's rows and their keys, also in the place of what it had; counts them."""
    write_file(rows, Path(part.path))
    save(part.keys_path, _keys(part.table, rows))
    is_marked = "corrects" in rows.schema.names
    corrections = rows.num_rows - rows["corrects"].null_count if is_marked else 0
    return msgspec.structs.replace(part, rows=rows.num_rows, corrections=corrections)


def write_file(rows: pa.Table, path: Path) -> None:
    """Writes a prepared file, whole when it appears: Spark may have a task done twice at once."""
    words = repeating_columns(rows.schema)
    with atomic_replacement(path) as temporary:
        pq.write_table(
            rows, temporary, compression="zstd", use_dictionary=words, row_group_size=ROW_GROUP
        )


def repeating_columns(schema: pa.Schema) -> list[str]:
    """The columns worth a dictionary: words that repeat. Ids and numbers hardly do, and their files
    would be twice as large.
    """
    return [
        field.name
        for field in schema
        if field.name != "id"
        and (pa.types.is_string(field.type) or pa.types.is_dictionary(field.type))
    ]


def _keys(name: str, rows: pa.Table) -> Keys:
    if name == QUARANTINED:
        return quarantine_keys(rows["source"], rows["id"], rows["reason"])
    if name == DETECTED:
        return detection_keys(rows["id"])
    return reading_keys(rows["event_source"], rows["id"])


def _by_type(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    kinds = pc.unique(batch["type"]).to_pylist()
    if len(kinds) == 1:
        yield kinds[0], batch
        return
    for kind in kinds:
        yield kind, batch.filter(pc.equal(batch["type"], kind))


def _decoded(
    rows: pa.RecordBatch, stream: str, ontology: Ontology, conflicts: Mapping[str, Problem]
) -> Decoded:
    if stream not in conflicts:
        return decode_events(rows, stream, ontology)
    held = quarantined_rows(rows, [conflicts[stream]] * rows.num_rows)
    return Decoded(readings=pa.table({}), rejected=held, corrections=[])
