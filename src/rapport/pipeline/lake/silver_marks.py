"""Rows whose state changes after they were written: late, corrected, set aside. [PI-3, ME-16]

A verdict may come in a later run than its reading. Only the files that hold such rows are written
again, each under its own name, so that a reader sees the old file or the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.pipeline.lake.silver_duplicates import read_columns
from rapport.pipeline.lake.silver_findings import LATE_REASON, Verdict
from rapport.pipeline.lake.silver_rows import CORRECTED, COUNTED, LATE

Group = tuple[str, str]
"""Source and id of a reading, and all that stand in for it."""

_ASKED = ("time", "id", "event_source", "corrects", "position", "status")


class _Row(msgspec.Struct, frozen=True):
    path: Path
    row: int
    time: int
    id: str
    source: str
    corrects: str | None
    position: int
    status: str

    @property
    def group(self) -> Group:
        return (self.source, self.corrects or self.id)


class Marked(msgspec.Struct, kw_only=True):
    """What is to change: of each file the new state and reason of some rows, and rows that go."""

    states: dict[Path, dict[int, tuple[str, str]]] = {}
    gone: dict[Path, set[int]] = {}
    met: set[Verdict] = set()
    """Verdicts whose reading was found."""

    def files(self) -> set[Path]:
        """The files to write again."""
        return self.states.keys() | self.gone.keys()

    def count(self, status: str) -> int:
        """How many rows get this state."""
        return sum(
            1
            for rows in self.states.values()
            for state, _reason in rows.values()
            if state == status
        )


def find_marks(
    files: Iterable[Path], verdicts: Sequence[Verdict], groups: Iterable[Group]
) -> Marked:
    """Looks in files of silver for the readings that verdicts and corrections are about.

    Of a group of corrections the newest stands. Late is said by time and id alone, as the engine
    says it: where two sources share both, both are marked.
    """
    wanted = set(groups)
    ids = {verdict.id for verdict in verdicts} | {original for _source, original in wanted}
    rows = [row for path in files for row in _rows(path, ids)]
    marked = Marked()
    _mark_late_and_aside(rows, verdicts, marked)
    _mark_corrected(rows, wanted, marked)
    return marked


def with_marks(path: Path, marked: Marked) -> pa.Table:
    """The rows of a file with their new states, without those that go; raises FileFault."""
    table = read_columns(path)
    for column, part in (("status", 0), ("reason", 1)):
        values = table[column].to_pylist()
        for row, state in marked.states.get(path, {}).items():
            values[row] = state[part]
        place = table.schema.names.index(column)
        table = table.set_column(place, table.schema.field(place), pa.array(values, pa.string()))
    kept = np.ones(table.num_rows, np.bool_)
    kept[list(marked.gone.get(path, ()))] = False
    return table.filter(pa.array(kept))


def _rows(path: Path, ids: set[str]) -> list[_Row]:
    table = read_columns(path, _ASKED)
    asked = pa.array(sorted(ids), pa.string())
    hit = pc.or_(pc.is_in(table["id"], asked), pc.is_in(table["corrects"], asked))
    places = np.flatnonzero(hit.to_numpy(zero_copy_only=False))
    found = table.take(pa.array(places)).select(list(_ASKED))
    columns = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return [_Row(path, int(row), *values) for row, values in zip(places, columns, strict=True)]


def _mark_late_and_aside(rows: Sequence[_Row], verdicts: Sequence[Verdict], marked: Marked) -> None:
    late = {(one.time, one.id): one for one in verdicts if one.kind == "late"}
    aside = {(one.source, one.id): one for one in verdicts if one.kind == "aside"}
    for row in rows:
        if (row.source, row.id) in aside:
            marked.gone.setdefault(row.path, set()).add(row.row)
            marked.met.add(aside[row.source, row.id])
        elif (row.time, row.id) in late:
            marked.met.add(late[row.time, row.id])
            if row.status == COUNTED:
                marked.states.setdefault(row.path, {})[row.row] = (LATE, LATE_REASON)


def _mark_corrected(rows: Sequence[_Row], groups: set[Group], marked: Marked) -> None:
    members: dict[Group, list[_Row]] = {}
    for row in rows:
        if row.group in groups:
            members.setdefault(row.group, []).append(row)
    for own in members.values():
        standing = max(own, key=lambda row: row.position)
        for row in own:
            if row is not standing and row.status != CORRECTED:
                # What stands in for it may itself be corrected later; the group's newest counts.
                reason = f"corrected by {standing.id}"
                marked.states.setdefault(row.path, {})[row.row] = (CORRECTED, reason)
