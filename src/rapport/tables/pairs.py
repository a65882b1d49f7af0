"""Functions of the site that are looked up: a number by one or two texts. [PO-2]"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from rapport.core.errors import Problem, SiteError
from rapport.kernel.config_fields import suggest
from rapport.tables.declaration import PairDeclaration
from rapport.tables.loaded import LoadedTable
from rapport.tables.row_file import MAX_FAULTS, RowFile, check_heading
from rapport.tables.values import numbers

Pairs = Mapping[tuple[str, ...], float]


def read_pairs(declared: PairDeclaration, tables: Mapping[str, LoadedTable]) -> Pairs:
    """The numbers by their keys, both orders of a symmetric one; raises SiteError with places.

    A row without a number says nothing. Two rows for the same keys are refused, and so are
    (a, b) and (b, a) with different numbers of a symmetric function.
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
