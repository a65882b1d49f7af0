"""A guess in the fields form: one interpretation for each column of numbers, since each reading of
that form is of one attribute. Pure. [ME-10, ME-11, ME-13]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rapport.mediation.guessing.columns import Column, Path
from rapport.mediation.guessing.guess import Guess, ValueGuess
from rapport.mediation.guessing.sample import TEXT_FORMATS
from rapport.mediation.guessing.toml_text import UNSURE, header, line, slug, toml_of

_SEE_ABOVE = ("see the top of the file",)


def fields_form(guess: Guess, name: str) -> Iterator[str]:
    """The lines of all interpretations; `name` is that of the source."""
    names = interpretation_names(guess, name)
    for value in guess.values:
        yield header("interpretations", names[value.column.path])
        yield f"about = {toml_of(value.column.name)}"
        yield format_line(guess)
        yield _time(guess)
        yield _identity(guess)
        yield _value(guess, value)
        yield ""


def interpretation_names(guess: Guess, name: str) -> dict[Path, str]:
    """One name for each value, no two alike."""
    found: dict[Path, str] = {}
    for number, value in enumerate(guess.values, start=1):
        path = value.column.path
        wanted = f"{base_name(name)}/{slug('-'.join(path)) or f'column-{number}'}"
        found[path] = wanted if wanted not in found.values() else f"{wanted}-{number}"
    return found


def base_name(name: str) -> str:
    """What an interpretation may be called that is named after a source."""
    base = slug(name) or "source"
    return f"{base}-feed" if base in ("root", "files") else base


def format_line(guess: Guess) -> str:
    """How the data are written."""
    format: Any = {"name": guess.format, **guess.options} if guess.options else guess.format
    return line("format", format, guess.because, _SEE_ABOVE if guess.doubts else ())


def seen_in(column: Column) -> str:
    """What its numbers are, and how many are missing."""
    missing = column.rows - column.filled
    without = f", {missing} of {column.rows} rows without" if missing else ""
    return f"{column.low:g} to {column.high:g}{without}"


def _time(guess: Guess) -> str:
    if guess.timed:
        return "# time: the data say it in the way of the format"
    if guess.time is None:
        return f"# {UNSURE} no column looks like a time; without one the time of arrival counts"
    rule: dict[str, Any] = {"field": _field(guess.time.field), "format": guess.time.format}
    if guess.time.zone:
        rule["zone"] = guess.time.zone
    return line("time", rule, guess.time.because, guess.time.doubts)


def _identity(guess: Guess) -> str:
    if guess.key is None:
        return f'# {UNSURE} whom is it about? identity = {{ field = "..." }}'
    return line("identity", {"field": _field(guess.key.field)}, guess.key.because, guess.key.doubts)


def _value(guess: Guess, value: ValueGuess) -> str:
    column, unit = value.column, value.unit
    rule: dict[str, Any] = {"field": _field(column.path)}
    if unit.unit:
        rule["unit"] = unit.unit
    if column.is_text and guess.format not in TEXT_FORMATS:
        rule["decimal"] = guess.marks.decimal
    if unit.sure:
        return line("value", rule, f"{seen_in(column)}; {unit.because}")
    doubt = f"{unit.because}; readings are held until the unit is declared"
    return line("value", rule, seen_in(column), (doubt,))


def _field(path: Path) -> Any:
    return path[0] if len(path) == 1 else list(path)
