"""Interpretations of a site: `[interpretations.NAME]` in its files. [ME-7, ME-10]

Both places have the same form, so a table can be moved from one to the other unchanged. A table
with `types`, `mappings`, `rules`, `conversions`, `units` or a `parent` is of the typed form.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import files_matching, is_inside
from rapport.kernel.toml import Section, TomlFile
from rapport.mediation.declaring.files import (
    KINDS,
    Declarations,
    collect,
    read_file,
    typed_tables,
)
from rapport.mediation.declaring.interpretation_form import is_typed
from rapport.mediation.declaring.tree import CODES, Kind
from rapport.mediation.formats.named import format_named, read_format
from rapport.mediation.interpretation import ROOT, FormatChoice, Interpretation, Place
from rapport.mediation.rules import (
    TableColumns,
    read_conversions,
    read_identity,
    read_origin,
    read_time,
    read_values,
)

_KEYS = ("about", "type", "format", "time", "identity", "value", "relative_to", "convert")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", re.ASCII)
_SECTION = "interpretations"


def interpretations_from_site(
    file: TomlFile, directory: Path, tables: TableColumns | None = None
) -> tuple[dict[str, Interpretation], list[Problem]]:
    """All sound interpretations by name, and every fault; a faulty one refuses only itself.

    Args:
        file: The site file.
        directory: Of the site; the patterns in `[interpretations] files` stay inside it.
        tables: Tables of the site with their columns, to check names in look-ups; None leaves them
            unchecked.
    """
    found: dict[str, Interpretation] = {}
    problems: list[Problem] = []
    _collect(file, found, problems, tables)
    for path in _files(file.section(_SECTION), directory, problems):
        other, faults = _read(path, directory)
        if _kind(path) == "toml":  # faults of the others are told by `typed_from_site`
            problems.extend(faults)
        if other is None:
            continue
        _collect(other, found, problems, tables)
        if "files" in other.section(_SECTION).values:
            problems.append(
                other.section(_SECTION).problem(
                    "files", "interpretation.unknown_key", "only site.toml names further files"
                )
            )
    return found, problems


def typed_from_site(
    file: TomlFile, directory: Path, *, known: Collection[str] | None = None
) -> Declarations:
    """All interpretations of the typed form, from the site file and from those it names.

    `known` are the names of types that root has; see `read_declarations`. They are as the files
    say: `complete` adds what follows from units once root is known.
    """
    problems: list[Problem] = []
    files = [file]
    for path in _files(file.section(_SECTION), directory, []):
        other, faults = _read(path, directory)
        if _kind(path) != "toml":  # faults of TOML are told by `interpretations_from_site`
            problems.extend(faults)
        if other is not None:
            files.append(other)
    tables = [typed_tables(each) for each in files]
    problems += _declared_in_both_forms(files, tables)
    found = collect(tables, known=known)
    return msgspec.structs.replace(found, problems=(*problems, *found.problems))


def read_interpretation(
    name: str, section: Section, tables: TableColumns | None = None
) -> tuple[Interpretation | None, list[Problem]]:
    """One interpretation from its table; None when it has a fault."""
    problems: list[Problem] = []
    fields = Fields(section, problems, known=_KEYS, strict=True, codes=CODES)
    if not _NAME.fullmatch(name) or name in (ROOT, "files"):
        fields.fault(
            "",
            "interpretation.bad_name",
            f"{name[:60]!r} cannot name an interpretation",
            hint=f"use letters, digits, . _ / and -; {ROOT!r} is taken",
        )
    line, column = section.file.place_of(section.path)
    interpretation = Interpretation(
        name=name,
        about=fields.filled_text("about", ""),
        type=fields.filled_text("type", ""),
        format=read_format_choice(fields),
        time=read_time(fields),
        identity=read_identity(fields, tables),
        values=read_values(fields),
        origin=read_origin(fields, tables),
        conversions=read_conversions(fields),
        place=Place(section.file.name, line, column),
    )
    return (None if problems else interpretation), problems


def read_format_choice(fields: Fields) -> FormatChoice:
    """`format = "csv"`, or a table with the name and options; absent: JSON."""
    if not fields.has("format"):
        return FormatChoice()
    try:
        name, options = read_format(fields.section.values["format"])
        format_named(name, options)
    except InvalidInput as error:
        fields.report("format", error)
        return FormatChoice()
    return FormatChoice(name, options)


def _collect(
    file: TomlFile,
    found: dict[str, Interpretation],
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
        if is_typed(section.values):
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
    """A file that the site names, in whatever form, with its faults."""
    name = str(path.relative_to(directory.resolve()))
    try:
        if _kind(path) == "toml":
            return TomlFile.load(path, name=name), ()
        read = read_file(name, path.read_bytes(), _kind(path))
    except SiteError as error:
        return None, error.problems
    except OSError as error:
        message = f"cannot read {name}: {error.strerror}"
        return None, (Problem(file=name, code="site.unreadable", message=message),)
    return read.file, read.problems


def _kind(path: Path) -> Kind:
    return KINDS.get(path.suffix.lower(), "toml")


def _declared_in_both_forms(
    files: Sequence[TomlFile], typed: Sequence[Mapping[str, Section]]
) -> Iterator[Problem]:
    names = {name for tables in typed for name in tables}
    for file in files:
        for name, section in file.section(_SECTION).sections():
            if name in names and not is_typed(section.values):
                message = f"{name!r} is declared in the typed form, too"
                yield section.problem("", "interpretation.duplicate", message)


def _files(section: Section, directory: Path, problems: list[Problem]) -> list[Path]:
    """The files that the patterns name, sorted; leading outside or to nothing is a fault."""
    fields = Fields(section, problems, codes=CODES)
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
