"""Guesses the time column and its notation. Pure. [ME-13]"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from rapport.mediation.guessing.columns import Column, ColumnPathName

_DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y%m%d")
_CLOCKS = (
    *("%H:%M:%S.%f", "%H:%M:%S", "%H:%M", "%H%M UTC", "%H%M GMT", "%H:%M UTC", "%H%M%S", "%H%M"),
)
_WHOLE = tuple(f"{day}{gap}{clock}" for day in _DATES for gap in (" ", "T") for clock in _CLOCKS)
_OFFSETS = tuple(f"{pattern}%z" for pattern in _WHOLE if pattern.endswith(("%M", "%S", "%f")))
_WORDS = re.compile(
    r"time|date|data|hora|hour|zeit|datum|observed|when|^ts$|^t$|epoch|moment", re.IGNORECASE
)
_UTC = re.compile(r"(?<![A-Za-z])(utc|gmt|zulu)(?![A-Za-z])", re.IGNORECASE)
_DIGITS = re.compile(r"\d+", re.ASCII)
_FIRST_S, _LAST_S = 946_684_800, 4_102_444_800  # 2000 to 2100
_LOOKED_AT = 300
_JOINED = ("time", "date_time", "joined_time")
"""Names for a joined date and time; the first unused one."""


class TimeGuess(msgspec.Struct, frozen=True, kw_only=True):
    """Field and format as in `[interpretations.NAME] time`."""

    field: ColumnPathName
    format: str
    zone: str = ""
    because: str
    doubts: tuple[str, ...] = ()
    join: str = ""
    """A template that joins two columns; empty: a single column."""
    columns: tuple[ColumnPathName, ...] = ()
    """The columns in use."""


def guess_time(columns: Sequence[Column], *, joins: bool) -> TimeGuess | None:
    """The best guess; None if no column looks like a time. `joins`: date and time of day may be
    joined.
    """
    ordered = sorted(columns, key=lambda column: not _WORDS.search(column.path[-1]))
    for column in ordered:
        if whole := _whole(column):
            return whole
    days = [
        (column, found) for column in ordered if (found := matching_patterns(_DATES, column.values))
    ]
    if not days:
        return None
    day, patterns = days[0]
    clock = _clock(ordered, day) if joins else None
    if clock is None:
        return _of_day(day, patterns)
    taken = {column.path[0] for column in columns}
    name = next((name for name in _JOINED if name not in taken), _JOINED[-1])
    return _joined(name, day, patterns, *clock)


def matching_patterns(patterns: Sequence[str], values: Sequence[Any]) -> list[str]:
    """The patterns that all values match; none for other values than texts."""
    looked_at = values[:_LOOKED_AT]
    if not looked_at or not all(isinstance(value, str) for value in looked_at):
        return []
    return [
        pattern for pattern in patterns if all(_is_written(value, pattern) for value in looked_at)
    ]


def _whole(column: Column) -> TimeGuess | None:
    """A column with date and time of day."""
    return _epoch(column) or _iso(column) or _pattern(column)


def _epoch(column: Column) -> TimeGuess | None:
    if column.kind != "number" or not _WORDS.search(column.path[-1]):
        return None
    for name, scale in (("epoch_s", 1), ("epoch_ms", 1_000)):
        if _FIRST_S * scale <= column.low <= column.high <= _LAST_S * scale:
            return TimeGuess(
                field=column.path,
                format=name,
                because=f"all numbers are times from 2000 to 2100 as {name}",
                columns=(column.path,),
            )
    return None


def _iso(column: Column) -> TimeGuess | None:
    moments = []
    for value in column.values[:_LOOKED_AT]:
        if not isinstance(value, str) or len(value) < len("2026-01-01T00"):
            return None
        try:
            moments.append(datetime.fromisoformat(value.strip()))
        except ValueError:
            return None
    if not moments:
        return None
    if all(moment.tzinfo is not None for moment in moments):
        because = "all values are ISO 8601 with an offset from UTC"
        return TimeGuess(
            field=column.path, format="iso8601", because=because, columns=(column.path,)
        )
    zone, doubts = _zone(column)
    return TimeGuess(
        field=column.path,
        format="iso8601",
        zone=zone,
        because="all values are ISO 8601",
        doubts=doubts,
        columns=(column.path,),
    )


def _pattern(column: Column) -> TimeGuess | None:
    if offset := matching_patterns(_OFFSETS, column.values):
        because = f"all values are {offset[0]}"
        return TimeGuess(
            field=column.path, format=offset[0], because=because, columns=(column.path,)
        )
    found = matching_patterns(_WHOLE, column.values)
    if not found:
        return None
    zone, doubts = _zone(column)
    return TimeGuess(
        field=column.path,
        format=found[0],
        zone=zone,
        because=f"all values are {found[0]}",
        doubts=(*_either_way(found), *doubts),
        columns=(column.path,),
    )


def _clock(columns: Sequence[Column], day: Column) -> tuple[Column, str, bool] | None:
    """A column with times of day, its pattern, and whether it needs padding with zeros."""
    for column in columns:
        if column is day or not _WORDS.search(column.path[-1]) or len(column.path) > 1:
            continue
        if found := matching_patterns(_CLOCKS, column.values):
            return column, found[0], False
        padded = [str(value).zfill(4) for value in column.values]
        if column.whole and column.is_text and matching_patterns(("%H%M",), padded):
            return column, "%H%M", True
    return None


def _joined(
    name: str, day: Column, patterns: list[str], clock: Column, pattern: str, padded: bool
) -> TimeGuess:
    zone, doubts = _zone(day, clock, pattern=pattern)
    width = ":04" if padded else ""
    whole = f"{patterns[0]} {pattern}"
    return TimeGuess(
        field=(name,),
        format=whole,
        zone=zone,
        because=f"{day.name!r} and {clock.name!r} are {whole}",
        doubts=(*_either_way(patterns), *doubts),
        join=f"{{{day.path[-1]}}} {{{clock.path[-1]}{width}}}",
        columns=(day.path, clock.path),
    )


def _of_day(day: Column, patterns: list[str]) -> TimeGuess:
    zone, doubts = _zone(day)
    return TimeGuess(
        field=day.path,
        format=patterns[0],
        zone=zone,
        because=f"all values are {patterns[0]}",
        doubts=("the time of day is missing, midnight is assumed", *_either_way(patterns), *doubts),
        columns=(day.path,),
    )


def _zone(*columns: Column, pattern: str = "") -> tuple[str, tuple[str, ...]]:
    """UTC if names or values say so; else a doubt."""
    for column in columns:
        mentions = [
            text for text in (column.path[-1], pattern, *column.examples) if _UTC.search(text)
        ]
        if mentions:
            return "UTC", ()
    return "", ('the zone is not known: add zone = "UTC" or such as zone = "America/Sao_Paulo"',)


def _either_way(patterns: Sequence[str]) -> tuple[str, ...]:
    """A doubt if day and month could be swapped."""
    first = patterns[0]
    if any(_exchanged(first) == other for other in patterns[1:]):
        return (f"day and month could be the other way round: {_exchanged(first)}",)
    return ()


def _exchanged(pattern: str) -> str:
    return pattern.replace("%d", "%?").replace("%m", "%d").replace("%?", "%m")


def _is_written(text: str, pattern: str) -> bool:
    """Requires all digits: `strptime` accepts fewer for patterns without separators."""
    stripped = text.strip()
    bare = re.search(r"%[YmdHMS](?=%)", pattern)
    if bare and not all(len(run) % 2 == 0 for run in _DIGITS.findall(stripped)):
        return False
    if "%H%M" in pattern and not re.search(r"(?<!\d)\d{4}(?!\d)|\d{6,}", stripped):
        return False
    try:
        datetime.strptime(stripped, pattern)  # noqa: DTZ007 - only whether it can be read
    except ValueError:
        return False
    return True
