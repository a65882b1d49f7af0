"""Tables as the site file declares them: where pull data lie and which columns give which
attribute. [PO-2]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rapport.core.errors import Problem
from rapport.core.schema import PARTS
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.toml import Section, TomlFile
from rapport.tables.declaration import (
    DEFAULT_RECORD_ROWS,
    Concepts,
    PairDeclaration,
    TableDeclaration,
)
from rapport.tables.declare_kinds import (
    CONTEXT_KEY,
    CONTEXT_LIFETIME_MS,
    KEYS_OF_KINDS,
    read_kind,
)
from rapport.tables.listing import LISTING_KEY, tables_in_listing
from rapport.tables.row_file import MOST_ROWS

__all__ = ["Concepts", "PairDeclaration", "TableDeclaration", "tables_from_site"]

_KEYS = ("concept", "key", "columns", "decimal", "lifetime", "record_rows", *KEYS_OF_KINDS)


def tables_from_site(
    file: TomlFile, directory: Path, concepts: Concepts
) -> tuple[list[TableDeclaration], list[Problem]]:
    """The sound declarations in the order of the file, then those of the listing it names, and
    everything wrong with the others."""
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
        before = len(problems)
        declaration = _declaration(name, section, directory, concepts, problems)
        faults = problems[before:]
        if declaration is not None and all(fault.severity != "error" for fault in faults):
            found.append(declaration)
    if LISTING_KEY in whole.values:
        found += _listed(whole, directory, concepts, problems)
    return _with_known_ids(found, whole, problems), problems


def _with_known_ids(
    found: list[TableDeclaration], whole: Section, problems: list[Problem]
) -> list[TableDeclaration]:
    """Without tables of context that ask for the keys of a table which nobody declares, or which is
    asked for itself; each has its problem.
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
    listed, faults = tables_in_listing(directory / path, path, directory, concepts)
    problems += faults
    found = []
    for table in listed:
        if table.name in whole.values:
            message = f"the table {table.name!r} is declared here and in {path}"
            problems.append(whole.problem(table.name, "tables.declared_twice", message))
        else:
            found.append(table)
    return found


def _declaration(
    name: str, section: Section, directory: Path, concepts: Concepts, problems: list[Problem]
) -> TableDeclaration | None:
    fields = Fields(section, problems, known=_KEYS)
    kind = read_kind(fields, directory)
    if kind is None:
        return None
    concept = fields.text("concept", "")
    of_context = fields.has("context")
    keys = fields.texts("key", (CONTEXT_KEY,) if of_context else None)
    given: dict[str, Any] = dict(kind)
    return TableDeclaration(
        name=name,
        concept=concept,
        key=keys[0] if keys else "",
        further_keys=keys[1:],
        columns=_columns(fields, section, concept, concepts),
        decimal=fields.choice("decimal", (".", ","), "."),
        lifetime_ms=fields.duration_ms(
            "lifetime", CONTEXT_LIFETIME_MS if of_context else 0, least=1
        ),
        record_rows=fields.number("record_rows", DEFAULT_RECORD_ROWS, low=0, high=MOST_ROWS),
        **given,
    )


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
    if len(names) not in (0, 1, len(PARTS[kind])):
        example = ", ".join(f'"{part}"' for part in PARTS[kind])
        shown = f"{attribute!r} is a {kind} of {len(PARTS[kind])} parts"
        message = f"{shown}, but {len(names)} columns are named"
        hint = f"such as {attribute} = [{example}]"
        fields.fault("columns", "tables.wrong_parts", message, hint=hint)
        return ()
    return names
