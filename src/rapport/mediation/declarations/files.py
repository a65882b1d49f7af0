"""Reads files that declare interpretations, in TOML, YAML or XML. [ME-7, ME-10]

    read_declarations("us.toml", raw, "toml")    one file
    collect_declarations([...])                  tables of several files that may share parents
    complete_declarations(declarations, root)    adds what units and signatures imply

Nothing in a file is executed or fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from rapport.core.errors import Problem, SiteError
from rapport.core.json_objects import is_deeper
from rapport.kernel.toml import Section, TomlFile
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.declarations.placed_values import (
    MAX_FILE_BYTES,
    MAX_FILE_DEPTH,
    FileContent,
    FileKind,
    unreadable_file,
)
from rapport.mediation.declarations.python_classes import types_of_class
from rapport.mediation.declarations.typed_tables import (
    DeclaredInterpretation,
    InheritedNames,
    TypesOfClass,
    declared_parent,
    declared_type_names,
    is_typed_table,
    read_typed,
)
from rapport.mediation.declarations.xml_files import read_xml_file
from rapport.mediation.declarations.yaml_files import read_yaml_file
from rapport.mediation.interpretations.model import FormatChoice, Interpretation


def read_toml_file(name: str, raw: bytes) -> FileContent:
    """Reads a TOML file, or returns the syntax problem with its location."""
    try:
        file = TomlFile.parse(raw, name=name)
    except SiteError as error:
        return FileContent(None, error.problems)
    except ValueError as error:  # an integer with thousands of digits
        return unreadable_file(
            name, "", (0, 0), "site.bad_toml", str(error), "numbers are 64 bits wide"
        )
    return FileContent(file)


SECTION = "interpretations"
KINDS: Mapping[str, FileKind] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".xml": "xml"}
"""The form of a file by its suffix."""
MOST_PROBLEMS = 1_000
_MOST_PARENTS = 100
"""Maximum ancestors to resolve; names further up are left to later checks."""
_READERS = {"toml": read_toml_file, "yaml": read_yaml_file, "xml": read_xml_file}


class Declarations(msgspec.Struct, frozen=True, kw_only=True):
    """All valid declared interpretations, and every fault; a faulty one refuses only itself.
    They are as written: `complete_declarations` adds what units imply.
    """

    declared: dict[str, DeclaredInterpretation] = {}
    problems: tuple[Problem, ...] = ()
    faulty: dict[str, tuple[Problem, ...]] = {}
    """Interpretations that could not be read, with their errors."""

    @property
    def interpretations(self) -> dict[str, Interpretation]:
        return {name: each.interpretation for name, each in self.declared.items()}

    @property
    def formats(self) -> dict[str, FormatChoice]:
        return {name: each.format for name, each in self.declared.items() if each.format}


def read_declarations(
    name: str,
    text: bytes,
    kind: FileKind,
    *,
    known: Collection[str] | None = None,
    classes: Mapping[str, type] | None = None,
    fields_too: bool = False,
) -> Declarations:
    """Reads the typed interpretations of one file; never raises. `name`: of the file, for
    messages. `known`: type names of the canonical model and of other files; None: unknown names
    are left to later checks. `classes`: Python classes that `classes` (or
    `<type>package.Class</type>`) may name. `fields_too`: allows tables in the fields form
    besides, see `fields_tables`.
    """
    read = read_file(name, text, kind)
    if read.file is None:
        return Declarations(problems=read.problems)
    found = collect_declarations([typed_tables(read.file)], known=known, classes=classes)
    problems = (*read.problems, *_strange(read.file, fields_too), *found.problems)
    return msgspec.structs.replace(found, problems=_bounded(name, problems))


def read_file(name: str, text: bytes, kind: FileKind) -> FileContent:
    """The values of a file with their locations, or why it cannot be read."""
    if len(text) > MAX_FILE_BYTES:
        message = f"the file has {len(text)} bytes; {MAX_FILE_BYTES} are allowed"
        hint = "split it into several files"
        return unreadable_file(name, "", (0, 0), "interpretation.too_large", message, hint)
    return _READERS[kind](name, text)


def typed_tables(file: TomlFile) -> dict[str, Section]:
    """The tables in the typed form."""
    tables = file.section(SECTION).sections()
    return {name: each for name, each in tables if is_typed_table(each.values)}


def fields_tables(file: TomlFile) -> dict[str, Section]:
    """The tables in the fields form."""
    tables = file.section(SECTION).sections()
    return {name: each for name, each in tables if not is_typed_table(each.values)}


def collect_declarations(
    files: Iterable[Mapping[str, Section]],
    *,
    known: Collection[str] | None = None,
    classes: Mapping[str, type] | None = None,
) -> Declarations:
    """Reads the interpretations of several files, which may be parents of each other."""
    tables: dict[str, Section] = {}
    problems: list[Problem] = []
    for file in files:
        for name, section in file.items():
            if name in tables:
                problems.append(_duplicate(name, section, tables[name]))
            elif is_deeper(section.values, MAX_FILE_DEPTH):
                message = f"tables and lists are nested more than {MAX_FILE_DEPTH} levels deep"
                hint = "write it flatter"
                problems.append(section.problem("", "interpretation.too_deep", message, hint=hint))
            else:
                tables[name] = section
    given = classes or {}
    return _DeclarationReader(tables, known, lambda name: types_of_class(given[name])).all(problems)


class _DeclarationReader:
    """Reads parents before their children, whatever the order of the files."""

    def __init__(
        self,
        tables: Mapping[str, Section],
        known: Collection[str] | None,
        classes: TypesOfClass,
    ) -> None:
        self._tables, self._known, self._classes = tables, known, classes
        self._read: dict[str, tuple[DeclaredInterpretation, list[Problem]]] = {}
        self._begun: set[str] = set()

    def all(self, problems: list[Problem]) -> Declarations:
        """In the order of the files."""
        found: dict[str, DeclaredInterpretation] = {}
        faulty: dict[str, tuple[Problem, ...]] = {}
        for name in self._tables:
            declared, faults = self._one(name)
            problems += faults
            errors = tuple(each for each in faults if each.severity == "error")
            if errors:
                faulty[name] = errors
            else:
                found[name] = declared
        return Declarations(declared=found, problems=tuple(problems), faulty=faulty)

    def _one(self, name: str) -> tuple[DeclaredInterpretation, list[Problem]]:
        if name not in self._read:
            self._begun.add(name)
            conversions: dict[str, Conversion] = {}
            types: list[str] = []
            for above in reversed(self._above(name)):
                types += declared_type_names(self._tables[above].values)
                if above in self._begun and above not in self._read:
                    continue  # cyclic parents
                declared, _faults = self._one(above)
                types += [each.name for each in declared.interpretation.types]
                conversions |= {each.name: each for each in declared.interpretation.conversions}
            inherited = InheritedNames(
                types=types, conversions=conversions, known=self._known, classes=self._classes
            )
            self._read[name] = read_typed(name, self._tables[name], inherited)
        return self._read[name]

    def _above(self, name: str) -> list[str]:
        """Its ancestors among the tables, nearest first; cycles are cut."""
        found: list[str] = []
        above = declared_parent(name, self._tables[name].values)
        while above in self._tables and above not in (name, *found) and len(found) < _MOST_PARENTS:
            found.append(above)
            above = declared_parent(above, self._tables[above].values)
        return found


def _bounded(name: str, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Limits the number of problems; errors first."""
    if len(problems) <= MOST_PROBLEMS:
        return problems
    ordered = sorted(problems, key=lambda each: each.severity != "error")
    message = f"{len(problems) - MOST_PROBLEMS} more problems are not listed"
    last = Problem(file=name, code="interpretation.many_problems", message=message)
    return (*ordered[:MOST_PROBLEMS], last)


def _strange(file: TomlFile, fields_too: bool) -> list[Problem]:
    """Reports content other than typed interpretations."""
    whole = file.section()
    problems = [
        whole.problem(key, "interpretation.unknown_key", f"{key[:60]!r} has no meaning here")
        for key in whole.values
        if key != SECTION
    ]
    tables = file.section(SECTION)
    for name, value in tables.values.items():
        if not is_typed_table(value) and not (fields_too and isinstance(value, dict)):
            message = f"{name[:60]!r} is no typed interpretation"
            hint = "give it types, mappings, rules, conversions, units or a parent"
            problems.append(tables.problem(name, "interpretation.bad_value", message, hint=hint))
    return problems


def _duplicate(name: str, section: Section, other: Section) -> Problem:
    line, _column = other.file.place_of(other.path)
    message = f"{name!r} is declared already, in {other.file.name} line {line}"
    return section.problem("", "interpretation.duplicate", message)
