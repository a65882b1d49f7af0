"""A table that was read and checked: rows by key, typed columns for its concept, and pairs for
functions that are looked up. [PO-2]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from rapport.core.errors import Problem, SiteError, UnknownName
from rapport.kernel.config_fields import suggest
from rapport.tables.declaration import Concepts, PairDeclaration, TableDeclaration
from rapport.tables.instances import TypedTable
from rapport.tables.rows import (
    MAX_FAULTS,
    RowFile,
    check_heading,
    content_digest,
    numbers,
    typed_column,
)


class LoadedTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one source; never changed, only replaced."""

    declared: TableDeclaration
    file: RowFile
    lookup: KeyedRows
    typed: TypedTable | None
    digest: str
    """Identifies content and declaration."""
    tag: str = ""
    """The ETag of the rows."""


class KeyedRows:
    """One table as text, by key; columns are extracted when first needed."""

    def __init__(self, name: str, file: RowFile, keys: list[str]) -> None:
        self._name, self._file = name, file
        self._rows: dict[str, int] = {}
        for row, key in enumerate(keys):
            self._rows.setdefault(key, row)
        self._cut: dict[str, list[str]] = {}

    def get(self, key: str, column: str) -> str | None:
        """The field of the row with this key; None when there is no such row or it is empty."""
        fields = self.column(column)
        row = self._rows.get(key)
        return None if row is None else fields[row] or None

    def column(self, name: str) -> list[str]:
        """The fields of a column; raises UnknownName."""
        if name not in self._cut:
            if name not in self._file.header:
                raise UnknownName(f"column of {self._name}", name, self._file.header)
            self._cut[name] = self._file.column(name)
        return self._cut[name]

    def headings(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._file.header)


def load_table(
    declared: TableDeclaration,
    file: RowFile,
    concepts: Concepts,
    *,
    repeating: bool = False,
    tag: str = "",
) -> LoadedTable:
    """Checks and types what a source gave; raises SiteError with all faults. 100,000 rows take
    under a second.

    Args:
        repeating: rows may have the same key: it serves pairs, which are checked by themselves.
    """
    missing = [fault for name in declared.fields if (fault := check_heading(file, name))]
    if missing:
        raise SiteError(missing)
    parts = [file.column(name) for name in (declared.key, *declared.further_keys)]
    keys = parts[0] if len(parts) == 1 else ["/".join(row) for row in zip(*parts, strict=True)]
    problems: list[Problem] = [] if repeating else _key_faults(file, declared.key, keys)
    typed = _typed(declared, file, keys, concepts, problems)
    if problems:
        raise SiteError(problems)
    return LoadedTable(
        declared=declared,
        file=file,
        lookup=KeyedRows(declared.name, file, keys),
        typed=typed,
        digest=content_digest(declared.content(), file.digest.encode()),
        tag=tag,
    )


def reload_table(
    former: LoadedTable, file: RowFile, concepts: Concepts, *, repeating: bool, tag: str
) -> LoadedTable:
    """Loads new rows of a table; raises SiteError, also when former columns are missing: look-ups
    in them would find nothing.
    """
    gone = [name for name in former.file.header if name not in file.header]
    if gone and file.fixed_headings:
        raise SiteError([_gone(file, name) for name in gone])
    file.add_headings([name for name in gone if name not in former.declared.fields])
    return load_table(former.declared, file, concepts, repeating=repeating, tag=tag)


def _typed(
    declared: TableDeclaration,
    file: RowFile,
    keys: list[str],
    concepts: Concepts,
    problems: list[Problem],
) -> TypedTable | None:
    if not declared.concept:
        return None
    kinds = concepts[declared.concept]
    columns = {
        attribute: typed_column(
            file,
            names,
            kinds[attribute],
            problems,
            decimal=declared.decimal,
            forms=declared.areas.get(attribute),
        )
        for attribute, names in declared.columns.items()
    }
    return TypedTable(declared.name, declared.concept, keys, columns)


def _gone(file: RowFile, column: str) -> Problem:
    return Problem(
        file=file.name,
        code="tables.schema_changed",
        message=f"the column {column!r} is gone",
        hint="the old rows stay; bring the column back, or change the site and reload it",
    )


def _key_faults(file: RowFile, column: str, keys: Sequence[str]) -> list[Problem]:
    faults: list[Problem] = []
    if len(set(keys)) == len(keys) and "" not in keys:
        return faults
    first: dict[str, int] = {}
    for row, key in enumerate(keys):
        if len(faults) >= MAX_FAULTS:
            break
        if not key:
            hint = "give the row a key or leave it out"
            faults.append(file.problem(row, column, "tables.empty_key", "the key is empty", hint))
        elif key in first:
            message = f"the key {key[:40]!r} stands already in {file.shown(first[key])}"
            hint = "each instance has one row"
            faults.append(file.problem(row, column, "tables.duplicate_key", message, hint))
        first.setdefault(key, row)
    return faults


Pairs = Mapping[tuple[str, ...], float]


def read_pairs(declared: PairDeclaration, tables: Mapping[str, LoadedTable]) -> Pairs:
    """The numbers by their keys, both orders of a symmetric one; raises SiteError with places.

    A row without a number is ignored. Two rows for the same keys are refused, and so are (a, b) and
    (b, a) with different numbers of a symmetric function.
    """
    table = tables.get(declared.table)
    if table is None:
        raise SiteError([_no_table(declared, tables)])
    file = table.file
    named = (*declared.keys, declared.value)
    missing = [fault for name in named if (fault := check_heading(file, name))]
    if missing:
        raise SiteError(missing)
    problems: list[Problem] = []
    values = numbers(file, declared.value, problems, decimal=table.declared.decimal)
    keys = list(zip(*(file.column(name) for name in declared.keys), strict=True))
    pairs = _collected(declared, file, keys, values.tolist(), problems)
    if problems:
        raise SiteError(problems)
    return MappingProxyType(pairs)


def _collected(
    declared: PairDeclaration,
    file: RowFile,
    keys: list[tuple[str, ...]],
    values: list[float],
    problems: list[Problem],
) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    rows: dict[tuple[str, ...], int] = {}
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        fault = _key_fault(declared, file, row, key, rows)
        contrary = rows.get(key[::-1]) if declared.symmetric else None
        if fault is None and contrary is not None and _differ(values[contrary], value):
            fault = _contrary(declared, file, row, contrary)
        if fault is not None:
            if len(problems) >= MAX_FAULTS:
                break
            problems.append(fault)
            continue
        rows[key] = row
        if not math.isnan(value):
            found[key] = value
            if declared.symmetric:
                found[key[::-1]] = value
    return found


def _key_fault(
    declared: PairDeclaration,
    file: RowFile,
    row: int,
    key: tuple[str, ...],
    rows: Mapping[tuple[str, ...], int],
) -> Problem | None:
    if "" in key:
        column = declared.keys[key.index("")]
        hint = "give the row all its keys or leave it out"
        return file.problem(row, column, "tables.empty_key", "the key is empty", hint)
    if key in rows:
        shown = " and ".join(repr(part[:40]) for part in key)
        message = f"{shown} stand already in {file.shown(rows[key])}"
        hint = f"{declared.function} has one number for them"
        return file.problem(row, declared.keys[0], "tables.duplicate_pair", message, hint)
    return None


def _differ(one: float, other: float) -> bool:
    return one != other and not (math.isnan(one) or math.isnan(other))


def _contrary(declared: PairDeclaration, file: RowFile, row: int, other: int) -> Problem:
    message = f"{declared.value!r} differs from that of the other order in {file.shown(other)}"
    hint = "leave one of the rows out, or say symmetric = false"
    return file.problem(row, declared.value, "tables.contrary_pair", message, hint)


def _no_table(declared: PairDeclaration, tables: Mapping[str, LoadedTable]) -> Problem:
    return Problem(
        file=f"[functions.{declared.function}]",
        code="tables.unknown_table",
        message=f"there is no table {declared.table!r}",
        hint=suggest(declared.table, tables),
    )
