"""Files that declare typed interpretations, in any of the three forms. [ME-7, ME-10]

    read_declarations("us.toml", raw, "toml")       one file
    collect([...])                                   tables of several files that may share parents
    complete(declarations, root)                     what units and signatures leave unsaid

Nothing a file says is executed or fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.toml import Section, TomlFile
from rapport.mediation.declaring.classes import types_of_class
from rapport.mediation.declaring.interpretation_form import (
    Declared,
    Inherited,
    TypesOfClass,
    is_typed,
    parent_said,
    read_typed,
    types_said,
)
from rapport.mediation.declaring.toml_form import read_toml, with_places
from rapport.mediation.declaring.tree import (
    MOST_BYTES,
    MOST_DEPTH,
    Kind,
    PlacedFile,
    Read,
    is_too_deep,
    refused,
)
from rapport.mediation.declaring.xml_form import read_xml
from rapport.mediation.declaring.yaml_form import read_yaml
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.model.conversions import Conversion
from rapport.mediation.model.interpretation import Interpretation

SECTION = "interpretations"
KINDS: Mapping[str, Kind] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".xml": "xml"}
"""The form of a file by the end of its name."""
MOST_PROBLEMS = 1_000
_MOST_PARENTS = 100
"""Above one interpretation; names of those further up are left for later checks."""
_READERS = {"toml": read_toml, "yaml": read_yaml, "xml": read_xml}


class Declarations(msgspec.Struct, frozen=True, kw_only=True):
    """All sound interpretations that were declared, and every fault; a faulty one refuses only
    itself. They are as the files say: `complete` adds what follows from units.
    """

    declared: dict[str, Declared] = {}
    problems: tuple[Problem, ...] = ()
    faulty: dict[str, tuple[Problem, ...]] = {}
    """Those that could not be read, with their errors."""

    @property
    def interpretations(self) -> dict[str, Interpretation]:
        """By name."""
        return {name: each.interpretation for name, each in self.declared.items()}

    @property
    def abouts(self) -> dict[str, str]:
        """A sentence for people, where there is one."""
        return {name: each.about for name, each in self.declared.items() if each.about}

    @property
    def formats(self) -> dict[str, FormatChoice]:
        """How events are written, where it is said."""
        return {name: each.format for name, each in self.declared.items() if each.format}


def read_declarations(
    name: str,
    text: bytes,
    kind: Kind,
    *,
    known: Collection[str] | None = None,
    classes: Mapping[str, type] | None = None,
    fields_too: bool = False,
) -> Declarations:
    """The interpretations of the typed form in one file; never raises.

    Args:
        name: Of the file, for messages.
        known: Names of types that root and interpretations of other files have. None: unknown
            type names are left for the checks that come when parents are known.
        classes: Python classes that `classes` (or `<type>package.Class</type>`) may name.
        fields_too: The file may declare some of the fields form besides; see `fields_tables`.
    """
    read = read_file(name, text, kind)
    if read.file is None:
        return Declarations(problems=read.problems)
    found = collect([typed_tables(read.file)], known=known, classes=classes)
    problems = (*read.problems, *_strange(read.file, fields_too), *found.problems)
    return msgspec.structs.replace(found, problems=_bounded(name, problems))


def read_file(name: str, text: bytes, kind: Kind) -> Read:
    """The values of a file with their places, or why there are none."""
    if len(text) > MOST_BYTES:
        message = f"the file has {len(text)} bytes; {MOST_BYTES} are allowed"
        hint = "split it into several files"
        return refused(name, "", (0, 0), "interpretation.too_large", message, hint)
    return _READERS[kind](name, text)


def typed_tables(file: TomlFile) -> dict[str, Section]:
    """The tables of the typed form in a file; those of the fields form are left out."""
    placed = file if isinstance(file, PlacedFile) else with_places(file)
    return {
        name: section
        for name, section in placed.section(SECTION).sections()
        if is_typed(section.values)
    }


def fields_tables(file: TomlFile) -> dict[str, Section]:
    """The tables of the fields form in a file."""
    placed = file if isinstance(file, PlacedFile) else with_places(file)
    return {
        name: section
        for name, section in placed.section(SECTION).sections()
        if not is_typed(section.values)
    }


def collect(
    files: Iterable[Mapping[str, Section]],
    *,
    known: Collection[str] | None = None,
    classes: Mapping[str, type] | None = None,
) -> Declarations:
    """The interpretations of several files, which may be parents of each other."""
    tables: dict[str, Section] = {}
    problems: list[Problem] = []
    for file in files:
        for name, section in file.items():
            if name in tables:
                problems.append(_duplicate(name, section, tables[name]))
            elif is_too_deep(section.values):
                message = f"tables and lists stand more than {MOST_DEPTH} levels deep"
                hint = "write it flatter"
                problems.append(section.problem("", "interpretation.too_deep", message, hint=hint))
            else:
                tables[name] = section
    given = classes or {}
    return _Reader(tables, known, lambda name: types_of_class(given[name])).all(problems)


class _Reader:
    """Reads parents before their children, whatever the order of the files."""

    def __init__(
        self,
        tables: Mapping[str, Section],
        known: Collection[str] | None,
        classes: TypesOfClass,
    ) -> None:
        self._tables, self._known, self._classes = tables, known, classes
        self._read: dict[str, tuple[Declared, list[Problem]]] = {}
        self._begun: set[str] = set()

    def all(self, problems: list[Problem]) -> Declarations:
        """In the order of the files."""
        found: dict[str, Declared] = {}
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

    def _one(self, name: str) -> tuple[Declared, list[Problem]]:
        if name not in self._read:
            self._begun.add(name)
            conversions: dict[str, Conversion] = {}
            types: list[str] = []
            for above in reversed(self._above(name)):
                types += types_said(self._tables[above].values)
                if above in self._begun and above not in self._read:
                    continue  # parents that go in circles
                declared, _faults = self._one(above)
                types += [each.name for each in declared.interpretation.types]
                conversions |= {each.name: each for each in declared.interpretation.conversions}
            inherited = Inherited(
                types=types, conversions=conversions, known=self._known, classes=self._classes
            )
            self._read[name] = read_typed(name, self._tables[name], inherited)
        return self._read[name]

    def _above(self, name: str) -> list[str]:
        """Its parents among the tables, nearest first; parents that go in circles are cut."""
        found: list[str] = []
        above = parent_said(name, self._tables[name].values)
        while above in self._tables and above not in (name, *found) and len(found) < _MOST_PARENTS:
            found.append(above)
            above = parent_said(above, self._tables[above].values)
        return found


def _bounded(name: str, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """As many as somebody may want to read; errors first, so that none is hidden by warnings."""
    if len(problems) <= MOST_PROBLEMS:
        return problems
    ordered = sorted(problems, key=lambda each: each.severity != "error")
    message = f"{len(problems) - MOST_PROBLEMS} more problems are not listed"
    last = Problem(file=name, code="interpretation.many_problems", message=message)
    return (*ordered[:MOST_PROBLEMS], last)


def _strange(file: TomlFile, fields_too: bool) -> list[Problem]:
    """What a file of declarations holds besides typed interpretations."""
    whole = file.section()
    problems = [
        whole.problem(key, "interpretation.unknown_key", f"{key[:60]!r} has no meaning here")
        for key in whole.values
        if key != SECTION
    ]
    tables = file.section(SECTION)
    for name, value in tables.values.items():
        if not is_typed(value) and not (fields_too and isinstance(value, dict)):
            message = f"{name[:60]!r} is no typed interpretation"
            hint = "give it types, mappings, rules, conversions, units or a parent"
            problems.append(tables.problem(name, "interpretation.bad_value", message, hint=hint))
    return problems


def _duplicate(name: str, section: Section, other: Section) -> Problem:
    line, _column = other.file.place_of(other.path)
    message = f"{name!r} is declared already, in {other.file.name} line {line}"
    return section.problem("", "interpretation.duplicate", message)
