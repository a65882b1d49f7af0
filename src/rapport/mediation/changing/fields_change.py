"""Interpretations of the fields form declared at run time, and all kinds of changes. [ME-6, ME-7]

What is said is the table of a file, so it is read and checked by the same reader: a change can be
pasted into a file, and a file sent as a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.toml import Section, TomlFile
from rapport.mediation.declare import read_interpretation
from rapport.mediation.declaring.interpretation_form import is_typed
from rapport.mediation.declaring.tree import MOST_DEPTH, is_too_deep
from rapport.mediation.interpretation import Interpretation, Place
from rapport.mediation.model.changes import Change
from rapport.mediation.rules import TableColumns


class DeclareFields(msgspec.Struct, frozen=True, tag="fields"):
    """An interpretation of the fields form, new or said anew; `said` is its table."""

    name: str
    said: dict[str, Any]


AnyChange = Change | DeclareFields
"""What the log keeps, of either form."""


def read_fields(
    change: DeclareFields, tables: TableColumns | None = None
) -> tuple[Interpretation | None, list[Problem]]:
    """The interpretation that is declared, or every fault of its table."""
    if is_typed(change.said):
        message = f"{change.name[:60]!r} has keys of the typed form"
        hint = 'declare it as such: {"type": "declare", "interpretation": ...}'
        return None, [Problem(code="interpretation.other_form", message=message, hint=hint)]
    if is_too_deep(change.said):
        message = f"tables and lists stand more than {MOST_DEPTH} levels deep"
        return None, [Problem(code="interpretation.too_deep", message=message)]
    found, problems = read_interpretation(change.name, _section(change), tables)
    told = [_named(change.name, each) for each in problems]
    return (None if found is None else msgspec.structs.replace(found, place=Place())), told


def other_form(name: str, found: str) -> Problem:
    """A name has one form as long as it is in force."""
    return Problem(
        code="interpretation.other_form",
        message=f"{name[:60]!r} is an interpretation of the {found} form",
        hint="remove it first, or take another name",
    )


def same_meaning(one: Mapping[str, Interpretation], other: Mapping[str, Interpretation]) -> bool:
    """Whether both say the same, wherever it stands."""
    if one.keys() != other.keys():
        return False
    return all(one[name].meaning() == other[name].meaning() for name in one)


def _section(change: DeclareFields) -> Section:
    return Section(TomlFile("", "", {}), ("interpretations", change.name), change.said)


def _named(name: str, problem: Problem) -> Problem:
    told = f"{name[:60]}: {problem.message}"
    return msgspec.structs.replace(problem, message=told, file="", line=0, column=0)
