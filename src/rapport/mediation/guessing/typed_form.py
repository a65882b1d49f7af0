"""A guess in the typed form: one interpretation for all columns of a row. Pure. [ME-10, ME-11,
ME-13]

    types.Row       the columns that are taken, each with its unit
    conversions     how the time is written, and numbers that come as text where they need not
    mappings        which attribute of the concept each column becomes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rapport.mediation.concepts import KEY, TIME, TIME_TYPE
from rapport.mediation.guessing.columns import Column
from rapport.mediation.guessing.fields_form import base_name, format_line, seen_in
from rapport.mediation.guessing.guess import Guess, ValueGuess
from rapport.mediation.guessing.matching import Becoming, Match, shown_matches
from rapport.mediation.guessing.sample import TEXT_FORMATS
from rapport.mediation.guessing.toml_text import (
    UNSURE,
    comment,
    header,
    idle_line,
    line,
    open_line,
    toml_of,
)
from rapport.mediation.model.notations import EPOCH_MILLISECONDS, EPOCH_SECONDS
from rapport.mediation.model.patterns import Item, Pattern
from rapport.mediation.model.types import TAG
from rapport.units.quantities import unit_named

_NO_ATTRIBUTES = ("extends", "kind", "attributes")
"""Keys of a type that say something else; a row that has such columns names them one level down."""
_EPOCHS = (EPOCH_SECONDS, EPOCH_MILLISECONDS)
_MOST_EXACT = 1e15
"""Whole numbers that are names are written out up to here."""


class Rename(NamedTuple):
    """A line of the mapping: a column, what it becomes, and how it is written in the file."""

    old: str
    new: str
    text: str


def can_be_typed(guess: Guess) -> bool:
    """There are several columns of numbers, and all that is taken stands at the top of a row: a
    mapping takes nothing out of an object that may be missing.
    """
    paths = [value.column.path for value in guess.values]
    paths += [each.field for each in (guess.time, guess.key) if each is not None]
    key = _column(guess, guess.key.field) if guess.key else None
    can_name = key is None or not _is_number(guess, key) or abs(key.high) < _MOST_EXACT
    flat = all(len(path) == 1 and path[0] not in ("", TAG) for path in paths)
    return len(guess.values) > 1 and flat and can_name


def typed_form(guess: Guess, becoming: Becoming, name: str, file: str) -> Iterator[str]:
    """The lines of the interpretation; `name` is that of the source."""
    own = ("interpretations", base_name(name))
    row = "Row" if becoming.concept != "Row" else "FileRow"
    yield header(*own)
    yield f"about = {toml_of(f'rows of {file}')}"
    yield format_line(guess)
    yield ""
    yield from _row(guess, becoming, (*own, "types", row))
    conversions = [*_conversions(guess, becoming)]
    if conversions:
        yield from ("", header(*own, "conversions"), *conversions)
    for value in _texts(guess, becoming):
        yield from _rule(value, row, own)
    yield ""
    yield from _mapping(guess, becoming, row, own)
    yield ""


def _row(guess: Guess, becoming: Becoming, path: tuple[str, ...]) -> Iterator[str]:
    names = [column.path[-1] for column in guess.columns]
    yield header(*path, *(("attributes",) if set(names) & set(_NO_ATTRIBUTES) else ()))
    if guess.key is not None:
        kind = "number" if _is_number(guess, _column(guess, guess.key.field)) else "text"
        yield line(guess.key.field[0], kind, guess.key.because, guess.key.doubts)
    if guess.time is not None:
        yield line(guess.time.field[0], _time_kind(guess), guess.time.because)
    for value, match in shown_matches(becoming, guess.values):
        yield _column_line(guess, value, match)


def _column_line(guess: Guess, value: ValueGuess, match: Match) -> str:
    column, unit = value.column, value.unit
    name, because = column.path[0], f"{seen_in(column)}; {unit.because}"
    if not unit.unit:
        there = f"; root has {match.unit}" if match.unit else ""
        return open_line(name, _typed(column, unit.likely or "..."), f"{because}{there}")
    kind = unit_named(unit.unit).symbol
    if not match.taken and match.fits:
        return open_line(name, _typed(column, kind), f"{because}; {match.because}")
    if not match.taken:
        return idle_line(name, _typed(column, kind), because)
    return line(name, _typed(column, "text" if _is_text(guess, column) else kind), because)


def _typed(column: Column, kind: str) -> Any:
    return kind if column.filled == column.rows else {"type": kind, "optional": True}


def _conversions(guess: Guess, becoming: Becoming) -> Iterator[str]:
    if guess.time is not None:
        yield line("when", _when(guess), guess.time.because, guess.time.doubts)
    if guess.key is not None and _is_number(guess, _column(guess, guess.key.field)):
        how = {"from": "number", "to": "text", "write-number": {"decimal": "point"}}
        yield line("name", how, "names are texts in root")
    for value in _texts(guess, becoming):
        yield line(
            f"read {value.column.name}",
            _reading(guess, value, becoming.matches[value.column.path]),
            f"the numbers come as text, such as {value.column.examples[0]!r}",
        )


def _when(guess: Guess) -> dict[str, Any]:
    assert guess.time is not None
    how: dict[str, Any] = {"format": guess.time.format}
    if guess.time.zone:
        how["zone"] = guess.time.zone
    parse = {"from": _parsed(guess), "to": TIME_TYPE.name, "parse-time": how}
    if _parsed(guess) == _time_kind(guess):
        return parse
    first = {"from": "text", "to": "number", "parse-number": {"decimal": guess.marks.decimal}}
    return {"from": "text", "to": TIME_TYPE.name, "chain": [first, parse]}


def _parsed(guess: Guess) -> str:
    """What the conversion of the time takes."""
    return "number" if guess.time is not None and guess.time.format in _EPOCHS else "text"


def _time_kind(guess: Guess) -> str:
    """The type of the column. Where a format knows only texts, declared numbers are read."""
    column = _column(guess, guess.time.field) if guess.time is not None else None
    return "text" if column is not None and _is_text(guess, column) else _parsed(guess)


def _reading(guess: Guess, value: ValueGuess, match: Match) -> dict[str, Any]:
    """Text to a number in the unit of root."""
    own = unit_named(value.unit.unit).symbol
    read = {"from": "text", "to": own, "parse-number": {"decimal": guess.marks.decimal}}
    if own == match.unit:
        return read
    return {"from": "text", "to": match.unit, "chain": [read, {"units": [own, match.unit]}]}


def _rule(value: ValueGuess, row: str, own: tuple[str, ...]) -> Iterator[str]:
    yield from ("", f"[{header(*own, 'rules')}]")
    yield f"match = {toml_of(str(Pattern((Item('', row), Item(value.column.path[0], '')))))}"
    yield f"convert = {toml_of(f'read {value.column.name}')}"
    yield 'direction = "in"'


def _mapping(guess: Guess, becoming: Becoming, row: str, own: tuple[str, ...]) -> Iterator[str]:
    yield f"[{header(*own, 'mappings')}]"
    yield f"from = {toml_of(row)}"
    if becoming.known:
        yield line("to", becoming.concept, "most columns fit this concept of the site")
    else:
        text = f"{UNSURE} a concept proposed below, for you to name"
        yield f"to = {toml_of(becoming.concept)}  {comment(text)}"
    yield 'direction = "in"'
    yield 'drop = ["*"]'
    if guess.key is None:
        yield comment(
            f'{UNSURE} whom is it about? Add the column, as "text", to {row} and below, as '
            'COLUMN = "key"; or, where all rows are about one thing: '
            'create = { key = { type = "text", value = "..." } }'
        )
    if guess.timed:
        yield "# time: the data say it in the way of the format"
    elif guess.time is None:
        yield comment(f"{UNSURE} no column looks like a time; the time of arrival counts")
    yield ""
    yield header(*own, "mappings", "rename")
    renames = [*_key_and_time(guess), *_values(guess, becoming)]
    # A column makes room for what gets its name: steps are done one after the other.
    old = {each.old for each in renames}
    yield from (each.text for each in sorted(renames, key=lambda each: each.new in old))


def _key_and_time(guess: Guess) -> Iterator[Rename]:
    for found, name in ((guess.key, KEY), (guess.time, TIME)):
        if found is not None and found.field[0] != name:
            text = line(found.field[0], name, found.because)
            yield Rename(found.field[0], name, text)


def _values(guess: Guess, becoming: Becoming) -> Iterator[Rename]:
    for value, match in shown_matches(becoming, guess.values):
        name, new = value.column.path[0], match.attribute
        if match.taken and name == new:
            yield Rename("", "", comment(f"{name} keeps its name: sure: {match.because}"))
        elif match.taken and match.sure:
            yield Rename(name, new, line(name, new, match.because))
        elif match.taken:
            place = f"{becoming.concept}.{new}"
            yield Rename(name, new, line(name, new, place, (match.because,)))
        elif not match.fits or value.unit.unit:
            yield Rename("", "", idle_line(name, new, match.because))
        elif name != new:
            yield Rename("", "", idle_line(name, new, "once its unit is said"))


def _texts(guess: Guess, becoming: Becoming) -> list[ValueGuess]:
    """Columns whose numbers come as text though the format knows numbers."""
    return [
        value
        for value, match in shown_matches(becoming, guess.values)
        if match.taken and _is_text(guess, value.column)
    ]


def _column(guess: Guess, path: tuple[str, ...]) -> Column | None:
    return next((column for column in guess.columns if column.path == path), None)


def _is_number(guess: Guess, column: Column | None) -> bool:
    """Its values are numbers of JSON."""
    return (
        column is not None
        and column.kind == "number"
        and not column.is_text
        and guess.format not in TEXT_FORMATS
    )


def _is_text(guess: Guess, column: Column) -> bool:
    return column.is_text and guess.format not in TEXT_FORMATS
