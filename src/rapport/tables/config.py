"""Tables in the site file: where their rows are read from and which columns give which attribute.
[PO-2]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rapport.core.errors import Problem, did_you_mean
from rapport.core.schema import AREAS, PARTS
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.toml import Section, TomlFile
from rapport.tables.context_source import parse_context_query
from rapport.tables.datasources_xml import LISTING_KEY, tables_in_listing
from rapport.tables.declaration import (
    AREA_PARTS,
    DEFAULT_RECORD_ROWS,
    DEFAULT_TIMEOUT_MS,
    AreaColumns,
    Concepts,
    TableDeclaration,
)
from rapport.tables.rows import MOST_ROWS
from rapport.tables.sources import is_reference, looks_secret
from rapport.tables.xml_source import check_xpath

KEYS_OF_KINDS = (
    "csv",
    "sql",
    "database",
    "xml",
    "xpath",
    "namespaces",
    "url",
    "rows",
    "headers",
    "timeout",
    "context",
    "ids",
    "ids_from",
    "values",
)
CONTEXT_KEY = "id"
"""Default heading of the key of a table of context."""
CONTEXT_LIFETIME_MS = 5_000
CONTEXT_TIMEOUT_MS = 2_000
_LONGEST_TIMEOUT_MS = 300_000
_LONGEST_CONTEXT_MS = 60_000

SourceKeys = Mapping[str, object]


def read_kind(fields: Fields, directory: Path) -> SourceKeys | None:
    """The keys of a declaration for its kind of source; None, and a fault, for two kinds."""
    kinds = [
        ("csv", fields.has("csv"), _csv),
        ("sql", fields.has("sql") or fields.has("database"), _sql),
        ("xml", fields.has("xml") or fields.has("xpath"), _xml),
        ("url", fields.has("url"), _url),
        ("context", fields.has("context"), _context),
    ]
    named = [(name, read) for name, given, read in kinds if given]
    if len(named) > 1:
        first, second = named[0][0], named[1][0]
        message = f"a table has one source, not both {first!r} and {second!r}"
        fields.fault(first, "tables.two_sources", message, hint=f"leave out {first!r}")
        return None
    read: Callable[[Fields, Path], SourceKeys | None] = named[0][1] if named else _csv
    return read(fields, directory)


def _csv(fields: Fields, directory: Path) -> SourceKeys:
    path = fields.text("csv", example='"rooms.csv"')
    if path:
        check_path(fields, "csv", path, directory)
    return {"csv": path}


def _sql(fields: Fields, directory: Path) -> SourceKeys:
    database = fields.text("database", example='"people.sqlite"')
    if database and not is_reference(database):
        _check_database(fields, database, directory)
    query = fields.text("sql", example='"SELECT id, status FROM persons"')
    return {"sql": query, "database": database}


def _xml(fields: Fields, directory: Path) -> SourceKeys:
    path = fields.text("xml", example='"plan.xml"')
    if path:
        check_path(fields, "xml", path, directory)
    namespaces = _texts_by_name(fields, "namespaces", '{ p = "http://..." }')
    xpath = fields.filled_text("xpath", example='"/floorplan/room"')
    paths = {"xpath": [xpath] if xpath else [], "key": list(_given_texts(fields, "key"))}
    columns = fields.section.section("columns")
    paths["columns"] = [
        text
        for given in columns.values.values()
        for value in (given.values() if isinstance(given, dict) else [given])
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str)
    ]
    for key, texts in paths.items():
        for text in texts:
            if fault := check_xpath(text, namespaces):
                message = f"{text[:60]!r}: {fault.message}"
                fields.fault(key, fault.code, message, hint=fault.hint)
    return {"xml": path, "xpath": xpath, "namespaces": namespaces}


def _url(fields: Fields, _directory: Path) -> SourceKeys:
    url = fields.filled_text("url", example='"https://roster.example/people"')
    if url and not is_reference(url):
        _check_url(fields, url)
    headers = _texts_by_name(fields, "headers", '{ Authorization = "Bearer env:ROSTER_TOKEN" }')
    for name, value in headers.items():
        if looks_secret(name) and not is_reference(value.split(" ")[-1]):
            message = f"the header {name!r} is a secret"
            hint = f'name where it is: headers = {{ {name} = "env:NAME" }}, also "Bearer env:NAME"'
            fields.fault("headers", "settings.bare_secret", message, hint=hint)
    timeout_ms = fields.duration_ms("timeout", DEFAULT_TIMEOUT_MS, least=1)
    if timeout_ms > _LONGEST_TIMEOUT_MS:
        message = "the longest timeout of a source is 5 minutes"
        fields.fault("timeout", "site.out_of_range", message, hint='such as timeout = "10s"')
    return {
        "url": url,
        "rows": fields.text("rows", "", example='"data.items"'),
        "headers": headers,
        "timeout_ms": timeout_ms,
    }


def _context(fields: Fields, _directory: Path) -> SourceKeys:
    query = fields.filled_text("context", example='"room status"')
    if query and parse_context_query(query) is None:
        fields.wrong("context", "a type of entity and a scope", 'context = "room status"')
    named, listed = fields.has("ids_from"), fields.has("ids")
    if named == listed:
        message = "a table of context needs either ids or ids_from"
        hint = 'write ids = ["r1", "r2"], or ids_from = "rooms" for the keys of that table'
        fields.fault("ids" if listed else "context", "tables.no_ids", message, hint=hint)
    timeout_ms = fields.duration_ms("timeout", CONTEXT_TIMEOUT_MS, least=1)
    if timeout_ms > _LONGEST_CONTEXT_MS:
        message = "the longest timeout of a broker is a minute"
        fields.fault("timeout", "site.out_of_range", message, hint='such as timeout = "2s"')
    return {
        "context": query,
        "ids": fields.texts("ids", (), example='["r1", "r2"]'),
        "ids_from": fields.text("ids_from", "", example='"rooms"'),
        "values": fields.texts("values", (), example='["locked"]'),
        "timeout_ms": timeout_ms,
    }


def check_path(fields: Fields, key: str, path: str, directory: Path) -> None:
    """Adds a fault unless the file exists, inside the site or with an absolute path."""
    target = directory / path
    if not is_inside(target, directory) and not Path(path).is_absolute():
        message = f"{path!r} leads out of the site directory"
        fields.fault(key, "site.outside", message, hint="write an absolute path if that is meant")
    elif not is_file(target):
        names = [found.name for found in directory.glob(f"*.{key}")]
        hint = did_you_mean(path, names, "the path is relative to the site directory")
        fields.fault(key, "site.no_file", f"there is no file {path!r}", hint=hint)


def _check_database(fields: Fields, database: str, directory: Path) -> None:
    if database.startswith(("postgres://", "postgresql://")):
        message = "the address of a database is a secret"
        hint = 'write it into a file and name that: database = "file:people.dsn"'
        fields.fault("database", "settings.bare_secret", message, hint=hint)
    elif not is_file(directory / database):
        hint = "an SQLite file, relative to the site directory"
        fields.fault("database", "site.no_file", f"there is no file {database!r}", hint=hint)


def _check_url(fields: Fields, url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable, parts = False, urlsplit("")
    if not usable or any(c.isspace() for c in url):
        message = f"{url[:60]!r} is no address of the web"
        fields.fault("url", "tables.bad_address", message, hint='such as "https://host/people"')
    elif parts.username or parts.password:
        message = "the address holds a password"
        hint = 'write the address into a file and name that: url = "file:people.url"'
        fields.fault("url", "settings.bare_secret", message, hint=hint)


def _texts_by_name(fields: Fields, key: str, example: str) -> dict[str, str]:
    inner = fields.table(key, None, example)
    if inner is None:
        return {}
    return {name: inner.text(name, "") for name in inner.section.values}


def _given_texts(fields: Fields, key: str) -> tuple[str, ...]:
    """The texts of a key; values of other types have a fault where the key is read."""
    value = fields.section.values.get(key)
    texts = value if isinstance(value, list) else [value]
    return tuple(text for text in texts if isinstance(text, str))


_AREA_EXAMPLE = '{ circle = ["x", "y", "radius"] }'
_KEYS = ("concept", "key", "columns", "decimal", "lifetime", "record_rows", *KEYS_OF_KINDS)


def tables_from_site(
    file: TomlFile, directory: Path, concepts: Concepts
) -> tuple[list[TableDeclaration], list[Problem]]:
    """The valid declarations in the order of the file, then those of the XML file it names; and the
    problems of the others.
    """
    found: list[TableDeclaration] = []
    problems: list[Problem] = []
    whole = file.section("tables")
    for key, value in whole.values.items():
        if not isinstance(value, dict) and key != LISTING_KEY:
            hint = f"write [tables.{key}]"
            problems.append(
                whole.problem(key, "site.wrong_type", f"{key!r} must be a table", hint=hint)
            )
    for name, section in whole.sections():
        if declaration := _declaration(name, section, directory, concepts, problems):
            found.append(declaration)
    if LISTING_KEY in whole.values:
        found += _listed(whole, directory, concepts, problems)
    return _with_known_ids(found, whole, problems), problems


def _with_known_ids(
    found: list[TableDeclaration], whole: Section, problems: list[Problem]
) -> list[TableDeclaration]:
    """Removes tables of context whose `ids_from` is no declared table with rows of its own, and
    adds a problem for each.
    """
    known = {one.name for one in found if not one.context}
    lost = [one for one in found if one.ids_from and one.ids_from not in known]
    for one in lost:
        message = f"there is no table {one.ids_from!r} with rows of its own"
        hint = suggest(one.ids_from, known)
        section = whole.section(one.name)
        problems.append(section.problem("ids_from", "tables.unknown_table", message, hint=hint))
    return [one for one in found if one not in lost]


def _listed(
    whole: Section, directory: Path, concepts: Concepts, problems: list[Problem]
) -> list[TableDeclaration]:
    path = Fields(whole, problems).filled_text(LISTING_KEY, "", example='"datasources.xml"')
    if not path:
        return []
    listed, faults = tables_in_listing(directory / path, path, concepts)
    problems += faults
    found = []
    for table in listed:
        section = Section(TomlFile(path, "", {}), ("tables", table.name), table.values)
        declaration = _declaration(table.name, section, directory, concepts, problems)
        if table.name in whole.values:
            message = f"the table {table.name!r} is declared here and in {path}"
            problems.append(whole.problem(table.name, "tables.declared_twice", message))
        elif declaration is not None:
            found.append(msgspec.structs.replace(declaration, login=table.login))
    return found


def _declaration(
    name: str, section: Section, directory: Path, concepts: Concepts, problems: list[Problem]
) -> TableDeclaration | None:
    """None after an error."""
    before = len(problems)
    fields = Fields(section, problems, known=_KEYS)
    kind = read_kind(fields, directory)
    if kind is None:
        return None
    concept = fields.text("concept", "")
    of_context = fields.has("context")
    keys = fields.texts("key", (CONTEXT_KEY,) if of_context else None)
    given: dict[str, Any] = dict(kind)
    columns, areas = _columns(fields, section, concept, concepts)
    declaration = TableDeclaration(
        name=name,
        concept=concept,
        key=keys[0] if keys else "",
        further_keys=keys[1:],
        columns=columns,
        areas=areas,
        decimal=fields.choice("decimal", (".", ","), "."),
        lifetime_ms=fields.duration_ms(
            "lifetime", CONTEXT_LIFETIME_MS if of_context else 0, least=1
        ),
        record_rows=fields.number("record_rows", DEFAULT_RECORD_ROWS, low=0, high=MOST_ROWS),
        **given,
    )
    is_faulty = any(fault.severity == "error" for fault in problems[before:])
    return None if is_faulty else declaration


def _columns(
    fields: Fields, section: Section, concept: str, concepts: Concepts
) -> tuple[dict[str, tuple[str, ...]], dict[str, AreaColumns]]:
    """The columns of each attribute, and of areas by form."""
    given = section.values.get("columns", {})
    if not isinstance(given, dict):
        fields.wrong("columns", "a table", 'columns = { status = "status" }')
        return {}, {}
    if concept and concept not in concepts:
        message, hint = f"there is no concept {concept!r}", suggest(concept, concepts)
        fields.fault("concept", "tables.unknown_concept", message, hint=hint)
        return {}, {}
    if not concept and given:
        hint = "add concept = ..., or leave 'columns' out of a table for look-ups"
        fields.fault("columns", "tables.no_concept", "'columns' needs a concept", hint=hint)
        return {}, {}
    columns = Fields(section.section("columns"), fields.problems)
    found: dict[str, tuple[str, ...]] = {}
    areas: dict[str, AreaColumns] = {}
    for attribute in given:
        if concepts[concept].get(attribute) in AREAS:
            forms = _area_columns(columns, attribute)
            if forms:
                areas[attribute] = forms
                found[attribute] = tuple(name for names in forms.values() for name in names)
            continue
        names = _one_attribute(columns, fields, attribute, concept, concepts)
        if names:
            found[attribute] = names
    return found, areas


def _area_columns(columns: Fields, attribute: str) -> AreaColumns:
    """`"outline"`, or columns by form: `{ circle = ["x", "y", "r"] }`; empty with a fault."""
    if not isinstance(columns.section.values.get(attribute), dict):
        names = columns.texts(attribute, ())
        if len(names) > 1:
            message = f"{attribute!r} is an area, and {len(names)} columns do not say of which form"
            form = next((one for one, all_ in AREA_PARTS.items() if len(all_) == len(names)), "")
            shown = ", ".join(f'"{name}"' for name in names)
            example = f"{{ {form} = [{shown}] }}" if form else _AREA_EXAMPLE
            hint = f"such as {attribute} = {example}"
            columns.fault(attribute, "tables.wrong_parts", message, hint=hint)
            return {}
        return {"polygon": names} if names else {}
    inner = columns.table(attribute, tuple(AREA_PARTS), _AREA_EXAMPLE)
    found: AreaColumns = {}
    if inner is None:
        return found
    for form, parts in AREA_PARTS.items():
        names = inner.texts(form, ())
        if names and len(names) != len(parts):
            example = ", ".join(f'"{part}"' for part in parts)
            message = f"a {form} has {len(parts)} columns, but {len(names)} are named"
            hint = f"such as {form} = [{example}]"
            inner.fault(form, "tables.wrong_parts", message, hint=hint)
            return {}
        if names:
            found[form] = names
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
    if len(names) not in (0, 1, len(PARTS[kind])):
        example = ", ".join(f'"{part}"' for part in PARTS[kind])
        shown = f"{attribute!r} is a {kind} of {len(PARTS[kind])} parts"
        message = f"{shown}, but {len(names)} columns are named"
        hint = f"such as {attribute} = [{example}]"
        fields.fault("columns", "tables.wrong_parts", message, hint=hint)
        return ()
    return names
