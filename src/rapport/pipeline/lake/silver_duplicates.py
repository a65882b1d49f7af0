"""Each event once in silver, whatever came twice: in one run, or years apart. [PI-3]

Keys say what may be a repetition (`silver_ids.py`); the files say whether it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.pipeline.lake.bronze_files import bad_file
from rapport.pipeline.lake.places import (
    DETECTED,
    QUARANTINED,
    data_files,
    day_folder,
    stream_folders,
    table_folder,
)
from rapport.pipeline.lake.silver_ids import IdIndex
from rapport.pipeline.lake.silver_parts import Part, write_part

Identity = tuple[str, ...]


class _Suspect(NamedTuple):
    position: int
    part: int
    row: int
    identity: Identity


def drop_repeated(parts: Sequence[Part], index: IdIndex, lake: Path) -> tuple[list[Part], int]:
    """The parts without rows that silver has already, or that an earlier row of them is; and how
    many rows that were. Of several the one with the smallest position stays.
    """
    if not parts:
        return [], 0
    keys = [np.load(part.keys_path) for part in parts]
    starts = np.cumsum([0, *(len(own) for own in keys)])
    flat = np.concatenate(keys)
    known, days = index.days_of(flat)
    doubtful = np.union1d(_repeated(flat), known)
    if not len(doubtful):
        return list(parts), 0
    owners = np.searchsorted(starts, doubtful, "right") - 1
    suspects = [
        one
        for owner in np.unique(owners).tolist()
        for one in _suspects(parts[owner], owner, doubtful[owners == owner] - starts[owner])
    ]
    kinds = {parts[owner].table for owner in owners.tolist()}
    ids = {one.identity for one in suspects}
    seen = set(_in_lake(lake, kinds, set(days.tolist()), ids))
    dropped: dict[int, list[int]] = {}
    for one in sorted(suspects):
        if one.identity in seen:
            dropped.setdefault(one.part, []).append(one.row)
        seen.add(one.identity)
    kept = [_without(part, dropped.get(number, [])) for number, part in enumerate(parts)]
    return [part for part in kept if part.rows], sum(map(len, dropped.values()))


def identity_columns(table: str) -> tuple[str, ...]:
    """The columns that tell a row of the table from all others."""
    if table == DETECTED:
        return ("id",)
    return ("id", "source", "reason") if table == QUARANTINED else ("id", "event_source")


def read_columns(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Columns of a file of silver, None is all; raises FileFault. To leave it out would cost
    exactness.
    """
    chosen = None if columns is None else list(columns)
    try:
        return pq.read_table(path, columns=chosen, partitioning=None)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError) as error:
        raise bad_file(path, error) from None


def _repeated(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Numbers of keys that occur more than once."""
    order = np.argsort(keys, kind="stable")
    same = keys[order][1:] == keys[order][:-1]
    again = np.concatenate(([False], same)) | np.concatenate((same, [False]))
    return np.sort(order[again]) if len(keys) else np.empty(0, np.int64)


def _suspects(part: Part, number: int, rows: npt.NDArray[np.int64]) -> list[_Suspect]:
    names = identity_columns(part.table)
    table = read_columns(Path(part.path), [*names, "position"]).take(pa.array(rows))
    identities = zip(*(table[name].to_pylist() for name in names), strict=True)
    places = zip(table["position"].to_pylist(), rows.tolist(), identities, strict=True)
    return [
        _Suspect(position, number, row, (_kind(part.table), *identity))
        for position, row, identity in places
    ]


def _kind(table: str) -> str:
    """All streams share their identities: an event is a reading of one of them."""
    return table if table in (DETECTED, QUARANTINED) else "reading"


def _in_lake(
    lake: Path, tables: Iterable[str], days: set[int], wanted: set[Identity]
) -> Iterable[Identity]:
    """Those of the wanted identities that files of these days hold."""
    ids = pa.array({identity[1] for identity in wanted}, pa.string())
    for kind in {_kind(table) for table in tables}:
        folders = stream_folders(lake) if kind == "reading" else [table_folder(lake, kind)]
        names = identity_columns(kind)
        for folder in folders:
            for path in (path for day in days for path in data_files(day_folder(folder, day))):
                rows = read_columns(path, names)
                rows = rows.filter(pc.is_in(rows["id"], ids))
                found = zip(*(rows[name].to_pylist() for name in names), strict=True)
                yield from ((kind, *identity) for identity in found)


def _without(part: Part, rows: Sequence[int]) -> Part:
    if not rows:
        return part
    table = pq.read_table(part.path, partitioning=None)
    kept = np.ones(table.num_rows, np.bool_)
    kept[list(rows)] = False
    return write_part(part, table.filter(pa.array(kept)))
