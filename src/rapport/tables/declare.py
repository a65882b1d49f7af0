"""Tables as the site file declares them: where pull data lie and which columns give which
attribute. [PO-2]"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from rapport.core.errors import Problem, Unsupported, nearest_names
from rapport.core.schema import PARTS, AttributeType
from rapport.kernel.fields import Fields, suggest
from rapport.kernel.paths import is_file, is_inside
from rapport.kernel.toml import Section, TomlFile

Concepts = Mapping[str, Mapping[str, AttributeType]]

_KEYS = ("concept", "csv", "sql", "database", "key", "columns")
_LATER = {
    "xml": "export it as CSV",
    "http": "fetch it and save it as CSV",
}


class TableDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """One CSV file, or the result of a query. Without a concept it serves look-ups only."""

    name: str
    concept: str = ""
    csv: str = ""
    sql: str = ""
    """Instead of a file: a query of `database`."""
    database: str = ""
    """An SQLite file, or `env:NAME` or `file:PATH` with the address of a PostgreSQL database."""
    key: str
    further_keys: tuple[str, ...] = ()
    """Rows are told apart by these columns too, such as rates by the day from which they hold; a
    look-up then asks for the fields joined by `/`.
    """
    columns: dict[str, tuple[str, ...]] = {}
    """Of each attribute the columns that hold its parts."""


def tables_from_site(
    file: TomlFile, directory: Path, concepts: Concepts
) -> tuple[list[TableDeclaration], list[Problem]]:
    """The sound declarations in the order of the file, and everything wrong with the others."""
    found: list[TableDeclaration] = []
    problems: list[Problem] = []
    whole = file.section("tables")
    for key, value in whole.values.items():
        if not isinstance(value, dict):
            hint = f"write [tables.{key}]"
            problems.append(
                whole.problem(key, "site.wrong_type", f"{key!r} must be a table", hint=hint)
            )
    for name, section in whole.sections():
        before = len(problems)
        declaration = _declaration(name, section, directory, concepts, problems)
        faults = problems[before:]
        if declaration is not None and all(fault.severity != "error" for fault in faults):
            found.append(declaration)
    return found, problems


def _declaration(
    name: str, section: Section, directory: Path, concepts: Concepts, problems: list[Problem]
) -> TableDeclaration | None:
    fields = Fields(section, problems, known=(*_KEYS, *_LATER))
    for kind, hint in _LATER.items():
        if kind in section.values:
            error = Unsupported(f"a table from {kind.upper()}", "this version", hint=hint)
            fields.fault(kind, error.code, error.message, hint=hint)
            return None
    has_query = fields.has("sql") or fields.has("database")
    path = fields.text("csv", "") if has_query else fields.text("csv")
    database = fields.text("database", example='"people.sqlite"') if has_query else ""
    if path and has_query:
        message = "a table is a CSV file or a query, not both"
        fields.fault("csv", "tables.two_sources", message, hint="leave out 'csv', or 'sql'")
    elif path:
        _check_path(fields, path, directory)
    elif database and not database.startswith(("env:", "file:")):
        _check_database(fields, database, directory)
    concept = fields.text("concept", "")
    keys = fields.texts("key")
    return TableDeclaration(
        name=name,
        concept=concept,
        csv=path,
        sql=fields.text("sql", example='"SELECT id, status FROM persons"') if has_query else "",
        database=database,
        key=keys[0] if keys else "",
        further_keys=keys[1:],
        columns=_columns(fields, section, concept, concepts),
    )


def _check_database(fields: Fields, database: str, directory: Path) -> None:
    if database.startswith(("postgres://", "postgresql://")):
        message = "the address of a database is a secret"
        hint = 'write it into a file and name that: database = "file:people.dsn"'
        fields.fault("database", "settings.bare_secret", message, hint=hint)
    elif not is_file(directory / database):
        hint = "an SQLite file, relative to the site directory"
        fields.fault("database", "site.no_file", f"there is no file {database!r}", hint=hint)


def _check_path(fields: Fields, path: str, directory: Path) -> None:
    target = directory / path
    if not is_inside(target, directory) and not Path(path).is_absolute():
        message = f"{path!r} leads out of the site directory"
        fields.fault("csv", "site.outside", message, hint="write an absolute path if that is meant")
    elif not is_file(target):
        near = nearest_names(path, [found.name for found in directory.glob("*.csv")], limit=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else "the path is relative to the site directory"
        )
        fields.fault("csv", "site.no_file", f"there is no file {path!r}", hint=hint)


def _columns(
    fields: Fields, section: Section, concept: str, concepts: Concepts
) -> dict[str, tuple[str, ...]]:
    given = section.values.get("columns", {})
    if not isinstance(given, dict):
        fields.wrong("columns", "a table", 'columns = { status = "status" }')
        return {}
    if concept and concept not in concepts:
        message, hint = f"there is no concept {concept!r}", suggest(concept, concepts)
        fields.fault("concept", "tables.unknown_concept", message, hint=hint)
        return {}
    if not concept and given:
        hint = "add concept = ..., or leave 'columns' out of a table for look-ups"
        fields.fault("columns", "tables.no_concept", "'columns' needs a concept", hint=hint)
        return {}
    columns = Fields(section.section("columns"), fields.problems)
    found = {}
    for attribute in given:
        names = _one_attribute(columns, fields, attribute, concept, concepts)
        if names:
            found[attribute] = names
    return found


def _one_attribute(
    columns: Fields, fields: Fields, attribute: str, concept: str, concepts: Concepts
) -> tuple[str, ...]:
    names = columns.texts(attribute, ())
    if attribute not in concepts[concept]:
        message = f"the concept {concept!r} has no attribute {attribute!r}"
        hint = suggest(attribute, concepts[concept])
        fields.fault("columns", "tables.unknown_attribute", message, hint=hint)
        return ()
    kind = concepts[concept][attribute]
    if names and len(names) != len(PARTS[kind]):
        example = ", ".join(f'"{part}"' for part in PARTS[kind])
        shown = f"{attribute!r} is a {kind} of {len(PARTS[kind])} parts"
        message = f"{shown}, but {len(names)} columns are named"
        hint = f"such as {attribute} = [{example}]"
        fields.fault("columns", "tables.wrong_parts", message, hint=hint)
        return ()
    return names
