"""Interpretations in the files of a site: `[interpretations.NAME]` and the files it names. [ME-7,
ME-10, ME-12]

A table has the same form in `site.toml` and in a separate file. A table with `types`, `mappings`,
`rules`, `conversions`, `units` or `parent` is in the typed form, any other in the fields form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from rapport.core.errors import Problem, SiteError
from rapport.core.event import content_id
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import files_matching, is_inside
from rapport.kernel.toml import Section, TomlFile
from rapport.mediation.concepts import Concepts
from rapport.mediation.conversion.conversions import functions_of
from rapport.mediation.declarations.fields_tables import TableColumns, read_interpretation
from rapport.mediation.declarations.files import (
    KINDS,
    Declarations,
    collect_declarations,
    read_file,
    typed_tables,
)
from rapport.mediation.declarations.placed_values import FAULT_CODES
from rapport.mediation.declarations.typed_tables import is_typed_table
from rapport.mediation.interpretations.model import (
    FieldsInterpretation,
    FormatChoice,
    Interpretation,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations, activate

_SECTION = "interpretations"


def interpretations_from_site(
    file: TomlFile,
    directory: Path,
    tables: TableColumns | None = None,
    *,
    known: Collection[str] | None = None,
) -> tuple[dict[str, FieldsInterpretation], Declarations]:
    """All sound interpretations in the fields form by name; those in the typed form, with every
    fault of both. A faulty one refuses only itself.

    The typed ones are as written; `complete_declarations` adds what follows from units.

    Args:
        file: The site file.
        directory: Of the site; the patterns in `[interpretations] files` stay inside it.
        tables: Tables of the site with their columns, to check names in look-ups; None leaves them
            unchecked.
        known: Type names of the canonical model, see `read_declarations`.
    """
    found: dict[str, FieldsInterpretation] = {}
    problems: list[Problem] = []
    files = [file]
    _collect(file, found, problems, tables)
    for path in _files(file.section(_SECTION), directory, problems):
        other, faults = _read(path, directory)
        problems.extend(faults)
        if other is None:
            continue
        files.append(other)
        _collect(other, found, problems, tables)
        if "files" in other.section(_SECTION).values:
            problems.append(
                other.section(_SECTION).problem(
                    "files", "interpretation.unknown_key", "only site.toml names further files"
                )
            )
    typed = [typed_tables(each) for each in files]
    problems += _declared_in_both_forms(files, typed)
    declared = collect_declarations(typed, known=known)
    return found, msgspec.structs.replace(declared, problems=(*problems, *declared.problems))


def _collect(
    file: TomlFile,
    found: dict[str, FieldsInterpretation],
    problems: list[Problem],
    tables: TableColumns | None,
) -> None:
    whole = file.section(_SECTION)
    for key, value in whole.values.items():
        if not isinstance(value, dict) and key != "files":
            problems.append(
                whole.problem(
                    key,
                    "interpretation.bad_value",
                    f"{key!r} is no table of an interpretation",
                    hint="write [interpretations.NAME], or files = [...]",
                )
            )
    for name, section in whole.sections():
        if is_typed_table(section.values):
            continue
        interpretation, faults = read_interpretation(name, section, tables)
        problems.extend(faults)
        if name in found:
            other = found[name].place
            problems.append(
                section.problem(
                    "",
                    "interpretation.duplicate",
                    f"{name!r} is declared already, in {other.file} line {other.line}",
                )
            )
        elif interpretation is not None:
            found[name] = interpretation


def _read(path: Path, directory: Path) -> tuple[TomlFile | None, tuple[Problem, ...]]:
    """Reads a file named by the site, in any form, with its faults."""
    name = str(path.relative_to(directory.resolve()))
    kind = KINDS.get(path.suffix.lower(), "toml")
    try:
        if kind == "toml":
            return TomlFile.load(path, name=name), ()
        read = read_file(name, path.read_bytes(), kind)
    except SiteError as error:
        return None, error.problems
    except OSError as error:
        message = f"cannot read {name}: {error.strerror}"
        return None, (Problem(file=name, code="site.unreadable", message=message),)
    return read.file, read.problems


def _declared_in_both_forms(
    files: Sequence[TomlFile], typed: Sequence[Mapping[str, Section]]
) -> Iterator[Problem]:
    names = {name for tables in typed for name in tables}
    for file in files:
        for name, section in file.section(_SECTION).sections():
            if name in names and not is_typed_table(section.values):
                message = f"{name!r} is declared in the typed form, too"
                yield section.problem("", "interpretation.duplicate", message)


def _files(section: Section, directory: Path, problems: list[Problem]) -> list[Path]:
    """The files that match the patterns, sorted; a pattern outside the site or without a match
    is a fault.
    """
    fields = Fields(section, problems, codes=FAULT_CODES)
    home = directory.resolve()
    paths: set[Path] = set()
    for pattern in fields.texts("files", (), example='["*.interpretation.toml"]'):
        found = files_matching(home, pattern)
        matched = {path.resolve() for path in found if is_inside(path, home)}
        if not matched:
            fields.fault(
                "files",
                "interpretation.no_files",
                f"no file of the site matches {pattern[:80]!r}",
                hint="patterns are relative to the site and stay inside it",
            )
        paths |= matched
    return sorted(paths)


ProblemsByName = list[tuple[str, tuple[Problem, ...]]]
"""Problems with the name of their interpretation, in the order found."""


class SiteInterpretations(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All interpretations declared in files; a value. `said`: a digest of each interpretation
    as written, before anything is derived from units; it distinguishes a changed file from a
    changed ontology. `unread`: interpretations that could not be read, with the reasons.
    """

    fields: Mapping[str, FieldsInterpretation] = {}
    typed: Mapping[str, Interpretation] = {}
    formats: Mapping[str, FormatChoice] = {}
    concepts: Concepts = {}
    said: Mapping[str, str] = {}
    unread: Mapping[str, tuple[Problem, ...]] = {}
    tables: TableColumns | None = None
    """Tables of the site with their columns, to check changes against; None: unchecked."""

    @cached_property
    def functions(self) -> frozenset[str]:
        """Site functions that the files use. Changes may use only these: the right to
        change an interpretation must not grant the right to run arbitrary functions.
        """
        typed = (one for each in self.typed.values() for one in each.conversions)
        named = {name for conversion in typed for name in functions_of(conversion)}
        plain = (rule for each in self.fields.values() for rule in each.conversions)
        return frozenset(named | {rule.call for rule in plain})

    def activate(self) -> tuple[ActiveInterpretations, ProblemsByName]:
        """Checks everything together and returns the problems by name; unreadable ones are
        refused.
        """
        return activate(
            self.fields,
            self.typed.values(),
            concepts=self.concepts,
            formats=self.formats,
            unread=self.unread,
        )


def interpretation_digest(
    interpretation: Interpretation | FieldsInterpretation, *more: object
) -> str:
    """A short digest of an interpretation and its further parts."""
    return content_id(*(_text(part) for part in (interpretation, *more)))[:16]


def _text(part: object) -> str:
    return msgspec.json.encode(part, order="deterministic").decode()
