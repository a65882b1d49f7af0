"""Readings of a recorded file that later rows of it correct: they are left out of a replay. [ME-16,
PO-8]

A node's readings, written out, carry `corrects` where one stands in for another: a field of a JSON
line, a column of CSV or Parquet. Files without it are read once, as ever.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rapport.core.release import CORRECTS, Corrections

_LONGEST_LINE = 1 << 22
_MARK = f'"{CORRECTS}"'.encode()
_READ = msgspec.json.Decoder(dict[str, Any])
Pair = tuple[Any, Any]
"""Id of a row and what it corrects; empty for most."""


def without_corrected(
    batches: Iterator[pa.RecordBatch], path: Path, id_field: str
) -> Iterator[pa.RecordBatch]:
    """The rows (with a column `id`) that stand. A file that has corrections is read twice; the rest
    costs a look at its heading, or at the bytes of its lines.
    """
    gone = superseded_in(path, id_field)
    if not gone:
        yield from batches
        return
    ids = pa.array(sorted(gone), pa.string())
    for rows in batches:
        yield rows.filter(pc.invert(pc.is_in(rows.column("id"), ids)))


def superseded_in(paths: Path | Sequence[Path], id_field: str) -> frozenset[str]:
    """Ids of the rows that another row of the file stands in for; of several files of one source,
    in their order, also a row of a later one. What cannot be read is passed over: whoever reads
    the rows tells of it.
    """
    corrections = Corrections()
    for path in [paths] if isinstance(paths, Path) else paths:
        pairs = _PAIRS.get(path.suffix.lower())
        for id, original in pairs(path, id_field) if pairs is not None else ():
            if id not in (None, "") and original not in (None, ""):
                corrections.note("", str(id), str(original))
    return frozenset(corrections.superseded())


def _in_json(path: Path, id_field: str) -> Iterator[Pair]:
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
            if _MARK not in line:
                continue
            try:
                found = _READ.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            yield found.get(id_field), found.get(CORRECTS)


def _in_csv(path: Path, id_field: str) -> Iterator[Pair]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.reader(file)
        heading = next(rows, [])
        if CORRECTS not in heading or id_field not in heading:
            return
        id_place, place = heading.index(id_field), heading.index(CORRECTS)
        try:
            for row in rows:
                if len(row) == len(heading):
                    yield row[id_place], row[place]
        except csv.Error:
            return  # told with its line by who reads the rows


def _in_parquet(path: Path, id_field: str) -> Iterator[Pair]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if not {CORRECTS, id_field} <= set(file.schema_arrow.names):
                return
            for rows in file.iter_batches(columns=[id_field, CORRECTS]):
                marked = rows.filter(rows.column(CORRECTS).is_valid())
                columns = (marked.column(name).to_pylist() for name in (id_field, CORRECTS))
                yield from zip(*columns, strict=True)
    except pa.ArrowInvalid:
        return  # not a Parquet file: told by who reads the rows


_PAIRS: dict[str, Callable[[Path, str], Iterator[Pair]]] = {
    ".csv": _in_csv,
    ".jsonl": _in_json,
    ".ndjson": _in_json,
    ".parquet": _in_parquet,
}
