"""Reads a table of people (CSV) for the directory. Pure. [CO-3, CN-9]

The header names the columns: `name`, settings of `[peers.NAME]` (`addresses`, `language`, `zone`,
`quiet`, `delivery`), `groups`, and `mail` for mail addresses. Cells with several values divide them
by `;` or `|`. Comma, semicolon or tab divide the columns, whichever the header has most.
A row with a fault is reported and harms no other.
"""

from __future__ import annotations

import csv
import io
from typing import Any, Literal

import msgspec

from rapport.core.errors import InvalidInput, Problem, suggest

MOST_PEOPLE = 10_000
_CODE = "people.bad_table"
_WORDS = {
    word: column
    for column, words in {
        "name": ("name", "person"),
        "mail": ("mail", "email", "e-mail"),
        "addresses": ("addresses", "address", "adresse", "adressen"),
        "language": ("language", "sprache"),
        "zone": ("zone", "zeitzone"),
        "quiet": ("quiet", "quiet hours", "ruhezeit", "ruhezeiten"),
        "delivery": ("delivery",),
        "groups": ("groups", "group", "gruppe", "gruppen"),
    }.items()
    for word in words
}
"""Headers and the columns that they mean."""
_SINGLE = ("language", "zone", "delivery")

ImportOutcome = Literal["added", "changed", "unchanged", "refused"]


class PersonRow(msgspec.Struct, frozen=True, kw_only=True):
    line: int
    name: str
    settings: dict[str, Any]
    groups: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class ImportedPerson(msgspec.Struct, frozen=True, kw_only=True):
    """What an import does with one row."""

    line: int
    name: str
    outcome: ImportOutcome
    settings: dict[str, Any]
    groups: list[str]
    problems: list[Problem] = []


class PeopleImport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import does, row by row."""

    people: list[ImportedPerson]
    new_groups: list[str] = []
    """Groups that it adds."""
    applied: bool = False


def read_people_table(body: bytes) -> list[PersonRow]:
    """The rows of a table; raises InvalidInput for a table that cannot be read at all."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(
            "the table is not UTF-8", code=_CODE, hint='save it as "CSV UTF-8"'
        ) from None
    header = text.lstrip().partition("\n")[0]
    divider = max(",;\t", key=header.count)
    try:
        lines = list(csv.reader(io.StringIO(text.lstrip()), delimiter=divider))
    except csv.Error as error:
        raise InvalidInput(f"the table cannot be read: {error}", code=_CODE) from None
    columns = _columns(lines[0] if lines else [])
    rows = [(number, cells) for number, cells in enumerate(lines[1:], 2) if any(cells)]
    if len(rows) > MOST_PEOPLE:
        raise InvalidInput(f"the table has more than {MOST_PEOPLE} rows", code=_CODE)
    seen: dict[str, int] = {}
    return [_row(number, columns, cells, seen) for number, cells in rows]


def _columns(header: list[str]) -> list[str]:
    names = [" ".join(name.lower().split()) for name in header]
    columns = [_WORDS.get(name, "") for name in names]
    for name, column in zip(names, columns, strict=True):
        if name and not column:
            hint = suggest(name, list(_WORDS)) or f"columns are: {', '.join(sorted(_WORDS))}"
            raise InvalidInput(f"the column {name[:40]!r} is not known", code=_CODE, hint=hint)
    if "name" not in columns:
        raise InvalidInput(
            'the table has no column "name"',
            code=_CODE,
            hint="its first line names the columns, such as: name,mail,language,groups",
        )
    return columns


def _row(number: int, columns: list[str], cells: list[str], seen: dict[str, int]) -> PersonRow:
    settings, groups, addresses = dict[str, Any](), list[str](), list[str]()
    name, problems = "", list[Problem]()
    if len(cells) > len(columns):
        problems.append(_problem(number, "the row has more cells than the header"))
    for column, cell in zip(columns, cells, strict=False):
        cell = cell.strip()
        if not cell or not column:
            continue
        if column == "name":
            name = cell
        elif column in _SINGLE:
            settings[column] = cell
        elif column == "groups":
            groups += _values(cell)
        elif column == "quiet":
            settings["quiet"] = _values(cell)
        elif column == "addresses":
            addresses += _values(cell)
        else:
            addresses += [f"{column}:{value}" for value in _values(cell)]
    if addresses:
        settings["addresses"] = list(dict.fromkeys(addresses))
    if name in seen:
        problems.append(_problem(number, f"{name!r} stands in line {seen[name]} already"))
    seen.setdefault(name, number)
    return PersonRow(
        line=number,
        name=name,
        settings=settings,
        groups=tuple(dict.fromkeys(groups)),
        problems=tuple(problems),
    )


def _values(cell: str) -> list[str]:
    return [part.strip() for part in cell.replace("|", ";").split(";") if part.strip()]


def _problem(line: int, message: str) -> Problem:
    return Problem(line=line, code=_CODE, message=message)
