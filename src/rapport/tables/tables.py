"""Pull data, loaded: instances of concepts for policies, look-ups for mediation. [PO-2]

Each change of a concept's instances is a version with the time from which it holds, so that a
back-test can join the roster of that time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rapport.core.errors import Problem, SiteError, UnknownName
from rapport.core.ids import content_id
from rapport.tables.cover import smallest_cover
from rapport.tables.csv_file import MAX_FAULTS, CsvFile, check_heading, read_csv
from rapport.tables.declare import Concepts, TableDeclaration
from rapport.tables.instances import Instances
from rapport.tables.joined import TypedTable, join
from rapport.tables.sql_query import read_query
from rapport.tables.values import empty_column, typed_column

BEGINNING_OF_TIME = -(2**62)


class Tables:
    """All tables of a site. Reading is free of I/O; a look-up and an instance cost O(1)."""

    def __init__(self, concepts: Concepts) -> None:
        self._concepts = concepts
        self._lookups: dict[str, _Lookup] = {}
        self._digests: dict[str, str] = {}
        self.versions: dict[str, list[tuple[int, Instances]]] = {}
        """Of each concept (valid from, instances), oldest first."""

    @staticmethod
    def load(
        directory: Path, declarations: Sequence[TableDeclaration], concepts: Concepts
    ) -> Tables:
        """Reads every table; raises SiteError with the faults of all files. 100,000 rows take under
        a second."""
        tables = Tables(concepts)
        problems: list[Problem] = []
        typed = [tables._read(directory, declared, problems) for declared in declarations]
        if problems:
            raise SiteError(problems)
        for concept in concepts:
            own = [table for table in typed if table is not None and table.concept == concept]
            if own:
                tables.add_version(BEGINNING_OF_TIME, _joined(concept, own, concepts))
        return tables

    def add_version(self, valid_from_ms: int, instances: Instances) -> None:
        """From `valid_from_ms` on these are the instances of their concept; times must rise."""
        self.versions.setdefault(instances.concept, []).append((valid_from_ms, instances))

    def instances(self, concept: str, at_ms: int | None = None) -> Instances:
        """The instances valid at a time, by default the newest; empty when no table gives any."""
        if concept not in self._concepts:
            raise UnknownName("concept", concept, list(self._concepts))
        for valid_from_ms, instances in reversed(self.versions.get(concept, [])):
            if at_ms is None or valid_from_ms <= at_ms:
                return instances
        columns = {name: empty_column(kind, 0) for name, kind in self._concepts[concept].items()}
        return Instances(concept, [], columns)

    def gives(self, concept: str, attribute: str) -> bool:
        """True when some table gives the attribute."""
        versions = self.versions.get(concept, [])
        return any(attribute in instances.columns for _from, instances in versions)

    def lookup(self, table: str, key: str, column: str) -> str | None:
        """The field of the row with this key; None when there is no such row or the field is empty.

        Raises UnknownName for a table or column that does not exist.
        """
        found = self._lookups.get(table)
        if found is None:
            raise UnknownName("table", table, list(self._lookups))
        return found.get(key, column)

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The fields of some columns in every row, top to bottom; raises UnknownName."""
        found = self._lookups.get(table)
        if found is None:
            raise UnknownName("table", table, list(self._lookups))
        return list(zip(*(found.column(name) for name in columns), strict=True))

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Every table with the headings of its columns."""
        return {name: found.headings() for name, found in self._lookups.items()}

    def version(self) -> str:
        """A name for exactly this content: changes when any file or declaration does."""
        return content_id(*(f"{name}={self._digests[name]}" for name in sorted(self._digests)))

    def _read(
        self, directory: Path, declared: TableDeclaration, problems: list[Problem]
    ) -> TypedTable | None:
        try:
            file = _read_file(directory, declared)
        except SiteError as error:
            problems.extend(error.problems)
            return None
        named = [declared.key, *declared.further_keys]
        named += [name for names in declared.columns.values() for name in names]
        missing = [fault for name in dict.fromkeys(named) if (fault := check_heading(file, name))]
        if missing:
            problems.extend(missing)
            return None
        parts = [file.column(name) for name in (declared.key, *declared.further_keys)]
        keys = parts[0] if len(parts) == 1 else ["/".join(row) for row in zip(*parts, strict=True)]
        problems.extend(_key_faults(file, declared.key, keys))
        self._lookups[declared.name] = _Lookup(declared.name, file, keys)
        self._digests[declared.name] = _digest(file, declared)
        if not declared.concept:
            return None
        columns = {
            attribute: typed_column(
                file, names, self._concepts[declared.concept][attribute], problems
            )
            for attribute, names in declared.columns.items()
        }
        return TypedTable(declared.name, declared.concept, keys, columns)


class _Lookup:
    """One table as text, by key; columns are cut out when first asked for."""

    def __init__(self, name: str, file: CsvFile, keys: list[str]) -> None:
        self.name, self.file = name, file
        self.rows = {key: row for row, key in enumerate(keys)}
        self.cut: dict[str, list[str]] = {}

    def get(self, key: str, column: str) -> str | None:
        fields = self.column(column)
        row = self.rows.get(key)
        return None if row is None else fields[row] or None

    def column(self, name: str) -> list[str]:
        if name not in self.cut:
            if name not in self.file.header:
                raise UnknownName(f"column of {self.name}", name, self.file.header)
            self.cut[name] = self.file.column(name)
        return self.cut[name]

    def headings(self) -> tuple[str, ...]:
        return tuple(self.file.header)


def _read_file(directory: Path, declared: TableDeclaration) -> CsvFile:
    if declared.csv:
        return read_csv(directory / declared.csv, name=declared.csv)
    name = f"[tables.{declared.name}]"
    return read_query(declared.database, declared.sql, directory, name=name)


def _joined(concept: str, tables: list[TypedTable], concepts: Concepts) -> Instances:
    chosen = smallest_cover({table.name: frozenset(table.columns) for table in tables})
    # A table without columns says which instances exist; it is always asked.
    used = [table for table in tables if table.name in chosen or not table.columns]
    return join(concept, used, concepts[concept])


def _key_faults(file: CsvFile, column: str, keys: list[str]) -> list[Problem]:
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
            message = f"the key {key[:40]!r} stands already in line {file.line_of(first[key])}"
            hint = "each instance has one row"
            faults.append(file.problem(row, column, "tables.duplicate_key", message, hint))
        first.setdefault(key, row)
    return faults


def _digest(file: CsvFile, declared: TableDeclaration) -> str:
    digest = hashlib.blake2b(msgspec.json.encode(declared), digest_size=16)
    digest.update(file.text.encode("utf-8"))
    return digest.hexdigest()
