"""What somebody decides about a guess: identity, time, zone, units, columns to leave out; and what
is still to be decided before a source can be written. Pure. [CN-6, ME-13]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.times import zone_named
from rapport.mediation.guessing.columns import Column
from rapport.mediation.guessing.guess import (
    Guess,
    KeyGuess,
    TimeGuess,
    UnitGuess,
    ValueGuess,
    guess_time,
    guess_unit,
    is_value,
    uses_of,
)
from rapport.units.quantities import unit_named

SAID = "as you said"
QuestionKind = Literal["identity", "zone", "unit"]


class SourceChoices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody says; empty fields leave the guess as it is. Columns are named by their path,
    joined by points.
    """

    key: str = ""
    """The column that identifies the thing of a row."""
    thing: str = ""
    """The identity of all rows, where no column has one."""
    time: str = ""
    """The column with the time."""
    zone: str = ""
    """Of local times."""
    units: dict[str, str] = {}
    """By column; empty: the column is left out."""
    concept: str = ""
    """What the rows are about: a concept of the site, or a new one."""


NOTHING_SAID = SourceChoices()


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the data do not say."""

    kind: QuestionKind
    column: str = ""
    because: str
    likely: str = ""
    """The answer to take without another one; empty: there is none."""
    answers: tuple[str, ...] = ()
    """Possible answers, if they are few."""
    must: bool = True
    """Without an answer no source can be written; else the column is left out."""


def settle(guess: Guess, choices: SourceChoices, likely: SourceChoices = NOTHING_SAID) -> Guess:
    """The guess with what was said; where nothing was said, units and zone are taken from what is
    `likely`, and stay doubtful. Raises UnknownName for a column or a unit that does not exist,
    InvalidInput for a column that cannot be what it is said to be.
    """
    columns = {column.name: column for column in guess.columns}
    for name in (choices.key, choices.time, *choices.units):
        if name and name not in columns:
            raise UnknownName("column", name[:100], tuple(columns), code="source.unknown_column")
    time = _time(guess, choices, columns)
    if time is not None and likely.zone and is_local(time):
        doubt = f"nobody said the zone: {likely.zone} is assumed"
        doubts = (*_without_zone(time.doubts), doubt)
        time = msgspec.structs.replace(time, zone=likely.zone, doubts=doubts)
    key = guess.key
    if choices.thing:
        key = None
    elif choices.key:
        column = columns[choices.key]
        if column.kind not in ("text", "number"):
            raise InvalidInput(
                f"{choices.key[:100]!r} cannot identify a thing: its values are no names",
                code="source.bad_key",
                hint="name a column of texts or whole numbers",
            )
        key = KeyGuess(column.path, SAID)
    taken = {*(time.columns if time else ()), *([key.field] if key else ())}
    values = tuple(
        ValueGuess(column, _unit(column, choices.units, likely.units))
        for column in guess.columns
        if is_value(column)
        and column.path not in taken
        and choices.units.get(column.name, "?") != ""
    )
    return msgspec.structs.replace(
        guess,
        time=time,
        key=key,
        values=values,
        uses=uses_of(guess.columns, time, key, values),
        thing=choices.thing,
    )


def questions_about(guess: Guess) -> Iterator[Question]:
    """What the data do not say, most needed first."""
    if guess.key is None and not guess.thing:
        yield Question(
            kind="identity",
            because="no column identifies the thing that a row describes",
            answers=tuple(one.name for one in guess.columns if one.kind == "text"),
        )
    elif guess.key is not None and guess.key.others:
        names = [".".join(path) for path in (guess.key.field, *guess.key.others)]
        yield Question(
            kind="identity",
            because="several columns may identify the thing that a row describes",
            likely=names[0],
            answers=tuple(names),
        )
    if guess.time is not None and is_local(guess.time):
        yield Question(
            kind="zone",
            column=guess.time.columns[0][-1],
            because="its times say no zone",
            likely="UTC",
        )
    known = any(value.unit.unit for value in guess.values)
    for value in guess.values:
        unit = value.unit
        if not unit.unit and (unit.likely or not known):
            yield Question(
                kind="unit",
                column=value.column.name,
                because=unit.because,
                likely=unit.likely,
                must=not known,
            )


def likely_answers(questions: Iterable[Question]) -> SourceChoices:
    """The likely answers for units and zone."""
    answered = [one for one in questions if one.likely]
    return SourceChoices(
        units={one.column: one.likely for one in answered if one.kind == "unit"},
        zone=next((one.likely for one in answered if one.kind == "zone"), ""),
    )


def is_local(time: TimeGuess) -> bool:
    """Whether its values need a zone that nobody has said."""
    return not time.zone and any(doubt.startswith("the zone") for doubt in time.doubts)


def without_unknown_units(guess: Guess) -> Guess:
    """Only columns whose unit is known; others would be quarantined."""
    values = tuple(value for value in guess.values if value.unit.unit)
    uses = uses_of(guess.columns, guess.time, guess.key, values)
    return msgspec.structs.replace(guess, values=values, uses=uses)


def _time(guess: Guess, choices: SourceChoices, columns: Mapping[str, Column]) -> TimeGuess | None:
    time = guess.time
    if choices.time and (time is None or (columns[choices.time].path,) != time.columns):
        time = guess_time([columns[choices.time]], joins=False)
        if time is None:
            raise InvalidInput(
                f"{choices.time[:100]!r} has no times in a notation that is known",
                code="source.bad_time",
                hint="such as 2026-03-02T09:14:05Z, 02.03.2026 09:14 or seconds since 1970",
            )
    if time is None or not choices.zone:
        return time
    zone_named(choices.zone)
    if not is_local(time):
        return time
    doubts = _without_zone(time.doubts)
    return msgspec.structs.replace(time, zone=choices.zone, doubts=doubts)


def _without_zone(doubts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(doubt for doubt in doubts if not doubt.startswith("the zone"))


def _unit(column: Column, units: Mapping[str, str], likely: Mapping[str, str]) -> UnitGuess:
    if given := units.get(column.name, ""):
        return UnitGuess(unit_named(given).symbol, SAID, True)
    found = guess_unit(column)
    assumed = likely.get(column.name, "")
    if found.unit or not assumed:
        return found
    return UnitGuess(unit_named(assumed).symbol, f"{found.because}: {assumed} is assumed", False)
