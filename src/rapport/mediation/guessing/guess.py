"""Guesses the meaning of a sample: its time, key, values and units. Pure. [ME-11, ME-13]"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.times import from_pattern, read_iso
from rapport.mediation.formats.csv_format import csv_options, joins_of
from rapport.mediation.guessing.columns import Column, ColumnPathName, NumberMarks, columns_of
from rapport.mediation.guessing.sample import Sample
from rapport.mediation.guessing.vocabulary import meanings_of, words_of
from rapport.mediation.plausibility import plausible_column
from rapport.units.catalogue import BY_NAME

_DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y%m%d")
_CLOCKS = (
    *("%H:%M:%S.%f", "%H:%M:%S", "%H:%M", "%H%M UTC", "%H%M GMT", "%H:%M UTC", "%H%M%S", "%H%M"),
)
_WHOLE = tuple(f"{day}{gap}{clock}" for day in _DATES for gap in (" ", "T") for clock in _CLOCKS)
_OFFSETS = tuple(f"{pattern}%z" for pattern in _WHOLE if pattern.endswith(("%M", "%S", "%f")))
_TIME_WORDS = re.compile(
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
    ordered = sorted(columns, key=lambda column: not _TIME_WORDS.search(column.path[-1]))
    for column in ordered:
        if whole := _epoch(column) or _iso(column) or _pattern(column):
            return whole  # with date and time of day
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


def _in_column(
    column: Column, format: str, because: str, *doubts: str, has_zone: bool = False
) -> TimeGuess:
    """The time in one column; without `has_zone` its zone is looked for."""
    zone, more = ("", ()) if has_zone else _zone(column)
    return TimeGuess(
        field=column.path,
        format=format,
        zone=zone,
        because=because,
        doubts=(*doubts, *more),
        columns=(column.path,),
    )


def _epoch(column: Column) -> TimeGuess | None:
    if column.kind != "number" or not _TIME_WORDS.search(column.path[-1]):
        return None
    for name, scale in (("epoch_s", 1), ("epoch_ms", 1_000)):
        if _FIRST_S * scale <= column.low <= column.high <= _LAST_S * scale:
            because = f"all numbers are times from 2000 to 2100 as {name}"
            return _in_column(column, name, because, has_zone=True)
    return None


def _iso(column: Column) -> TimeGuess | None:
    moments = []
    for value in column.values[:_LOOKED_AT]:
        if not isinstance(value, str) or len(value) < len("2026-01-01T00"):
            return None
        try:
            moments.append(read_iso(value.strip()))
        except ValueError:
            return None
    if not moments:
        return None
    if all(moment.tzinfo is not None for moment in moments):
        because = "all values are ISO 8601 with an offset from UTC"
        return _in_column(column, "iso8601", because, has_zone=True)
    return _in_column(column, "iso8601", "all values are ISO 8601")


def _pattern(column: Column) -> TimeGuess | None:
    if offset := matching_patterns(_OFFSETS, column.values):
        return _in_column(column, offset[0], f"all values are {offset[0]}", has_zone=True)
    found = matching_patterns(_WHOLE, column.values)
    if not found:
        return None
    return _in_column(column, found[0], f"all values are {found[0]}", *_either_way(found))


def _clock(columns: Sequence[Column], day: Column) -> tuple[Column, str, bool] | None:
    """A column with times of day, its pattern, and whether it needs padding with zeros."""
    for column in columns:
        if column is day or not _TIME_WORDS.search(column.path[-1]) or len(column.path) > 1:
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
    missing = "the time of day is missing, midnight is assumed"
    doubts = (missing, *_either_way(patterns))
    return _in_column(day, patterns[0], f"all values are {patterns[0]}", *doubts)


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
        return "24" in stripped and _is_end_of_day(stripped, pattern)
    return True


def _is_end_of_day(text: str, pattern: str) -> bool:
    """Whether it is a moment with the hour 24:00, the beginning of the next day."""
    try:
        from_pattern(text, pattern, "UTC")
    except InvalidInput:
        return False
    return True


_CODE = re.compile(
    r"(^|[^a-z])(id|uid|uuid|imei|mac|codigo|code|stationcode|stationid|serial)"
    r"([^a-z]|$)|(?-i:[a-z](?:Id|Code))$",
    re.IGNORECASE,
)
_THING = re.compile(
    r"(^|[^a-z])(device|dev|station|sensor|entity|node|meter|vehicle|camera|reader|key|tag|badge)([^a-z]|$)",
    re.IGNORECASE,
)
_WEAK = re.compile(
    r"name|nom|estacao|site|location|place|ref|door|city|address",
    re.IGNORECASE,
)
_NAMING = re.compile(r"(^|[^a-z])(name|nom|nome|nombre)([^a-z]|$)|(?-i:[a-z]Name)$", re.IGNORECASE)
"""A name of a thing may change or be written in two ways; its code is preferred."""
_NO_KEY = re.compile(r"region|regiao|^uf$|country|state|type|version|postal|zip", re.IGNORECASE)
_LONGEST = 100


class KeyGuess(msgspec.Struct, frozen=True):
    """The field that identifies the subject of a row."""

    field: ColumnPathName
    because: str
    doubts: tuple[str, ...] = ()
    others: tuple[ColumnPathName, ...] = ()
    """Columns that could be it just as well."""


def guess_key(columns: Sequence[Column], taken: Collection[ColumnPathName]) -> KeyGuess | None:
    """The best guess; None if no column looks like an identifier."""
    ranked = [
        (_rank(column), -index, column)
        for index, column in enumerate(columns)
        if column.path not in taken and _can_be_key(column)
    ]
    ranked = [each for each in ranked if each[0] > 0]
    if not ranked:
        return None
    score, _index, column = max(ranked, key=lambda each: each[:2])
    others = tuple(each.path for rank, _index, each in ranked if rank == score and each != column)
    values = "1 value" if column.distinct == 1 else f"{column.distinct} values"
    doubts = []
    if column.distinct == column.filled and column.filled > 1:
        doubts.append("no value comes twice: it may name the row and not the thing")
    if not (_CODE.search(column.path[-1]) or _THING.search(column.path[-1])):
        doubts.append("its name does not say that it identifies anything")
    if others:
        names = ", ".join(repr(".".join(path)) for path in others)
        doubts.append(f"it could be {names} as well, by their names and values")
    if column.filled < column.rows:
        doubts.append(f"{column.rows - column.filled} of {column.rows} rows have none")
    return KeyGuess(column.path, f"{values} in {column.rows} rows", tuple(doubts), others)


def _can_be_key(column: Column) -> bool:
    if column.kind not in ("text", "number") or not column.filled:
        return False
    is_named = _CODE.search(column.path[-1]) or _THING.search(column.path[-1])
    if column.kind == "number" and not (column.whole and is_named):
        return False
    return all(len(example) < _LONGEST for example in column.examples)


def _rank(column: Column) -> int:
    name = column.path[-1]
    if _NO_KEY.search(name):
        return 0
    if _CODE.search(name):
        base = 8
    elif _THING.search(name):
        base = 3 if _NAMING.search(name) else 5
    elif _WEAK.search(name):
        base = 2
    else:
        return 0
    repeats = column.distinct < column.filled or column.rows == 1
    return base + 4 * repeats + (column.filled == column.rows)


_BRACKETS = re.compile(r"[(\[]\s*([^()\[\]]{1,20}?)\s*[)\]]")
_LAST_WORD = re.compile(r"(?:[_\s.-]|(?<=[a-z])(?=[A-Z]))([A-Za-z%°]{1,10})$")
_LAST_SYMBOL = re.compile(r"[_\s,]((?=[^/]*[A-Za-z%°µμ])[A-Za-z0-9%°µμ²³/]{1,10})$")
_UNIT_WORDS = {
    "degC": "centigrados;centigrade;grad celsius;graus celsius;grados celsius;grados centigrados;"
    "degrés celsius;degrees celsius;deg c;degc;graus c;grados c",
    "degF": "grad fahrenheit;graus fahrenheit;grados fahrenheit;degrés fahrenheit;deg f;degf",
    "%": "prozent;percentage;por cento;porcento;percentual;por ciento;porciento;porcentaje;"
    "pour cent;pourcent;pourcentage",
    "deg": "grad;graus;grados;degrés",
    "hPa": "hektopascal;hectopascal;hectopascais;hectopascales;hectopascals;millibar;milibar",
    "m": "metro;metros;metre;meter",
    "mm": "millimeter;millimetre;millimetres;milimetro;milimetros",
    "cm": "zentimeter;centimetre;centimetres;centimetro;centimetros",
    "km": "kilometer;kilometre;kilometres;quilometro;quilometros;kilometro;kilometros",
    "km/h": "kilometer pro stunde;quilometros por hora;kilometros por hora;kilometres par heure",
    "m/s": "meter pro sekunde;metros por segundo;metres par seconde;metres per second",
    "W": "watt;watts;vatios",
    "V": "volt;volts;voltios",
}
"""Units in words of the languages of the header tables."""
_IN_WORDS = {
    " ".join(words_of(word)): unit
    for unit, words in _UNIT_WORDS.items()
    for word in words.split(";")
}
_ANGLES = frozenset(("direction", "angle", "heading", "course", "bearing"))
"""Meanings of names whose degrees are angles; a temperature in "Grad" is not."""
_LIKELY = re.compile(r"unit = [\"'](.+)[\"']$")
"""Extracts the unit from a hint."""
_TWO_MEANINGS = frozenset(
    ("min", "in", "d", "h", "a", "A", "l", "L", "s", "m", "g", "V", "W", "J", "C", "day", "hour")
)
"""Last words of names that are often not a unit: `temperature_min`, `checked_in`, `part_a`."""
_SURE_LETTERS = frozenset(("m", "s", "h", "g", "V", "W", "J"))
"""Of these, units after an underscore: `x_m`, `power_W`."""


class UnitGuess(msgspec.Struct, frozen=True):
    """`unit` is empty if unknown; `because` then has a hint."""

    unit: str
    because: str
    sure: bool
    likely: str = ""
    """The likely unit, to be confirmed."""


def guess_unit(column: Column) -> UnitGuess:
    """The unit in the data or the name; else none, with a likely one as a hint."""
    if len(column.units) > 1:
        return UnitGuess("", f"the data say several units: {', '.join(column.units)}", False)
    if column.unit in BY_NAME:
        return UnitGuess(column.unit, f"the data say {column.unit}", True)
    if column.unit:
        return UnitGuess("", f"the data say {column.unit!r}, which is no known unit", False)
    name = column.path[-1]
    found = _unit_in(name)
    if found.unit == "%" and _is_fraction(column):
        doubt = f"{found.because}, but all its values are within 0..1: are they fractions?"
        return UnitGuess("", doubt, False, "1")
    if found.unit or found.because:
        return found
    likely = plausible_column(name, column.low, column.high)
    unit = _LIKELY.search(likely)
    return UnitGuess("", likely or "the unit is not known", False, unit[1] if unit else "")


def _unit_in(name: str) -> UnitGuess:
    """The unit that a name says; without unit and reason if it says none."""
    bracketed = _BRACKETS.findall(name)
    for text in reversed(bracketed):
        if unit := text if text in BY_NAME else _in_words(text, name):
            return UnitGuess(unit, f"the name says ({text})", True)
    if suffix := _suffix(name):
        return UnitGuess(suffix, f"the name ends with {suffix}", True)
    words = words_of(_BRACKETS.sub("", name))
    for count in (3, 2, 1):
        ending = " ".join(words[-count:])
        if len(words) > count and (unit := _in_words(ending, name)):
            return UnitGuess(unit, f"the name ends with {ending}", True)
    if not bracketed:
        return UnitGuess("", "", False)
    text = bracketed[-1]
    because = f"the name says ({text}), which is no known unit"
    if text.lower() == "mb" and "pressure" in meanings_of(name):
        text = "mbar"
    alike = {unit.symbol for known, unit in BY_NAME.items() if _folded(known) == _folded(text)}
    if len(alike) != 1:
        return UnitGuess("", because, False)
    likely = alike.pop()
    return UnitGuess("", f"{because} but is written like {likely}", False, likely)


def _in_words(text: str, name: str) -> str:
    """The unit that is written as a word of some language."""
    unit = _IN_WORDS.get(" ".join(words_of(text)), "")
    return "" if unit == "deg" and meanings_of(name).isdisjoint(_ANGLES) else unit


def _folded(unit: str) -> str:
    """Without the differences of careless spellings: `Kj/m²` is alike `kJ/m2`."""
    return unit.lower().replace("²", "2").replace("³", "3").replace("μ", "µ")


def _is_fraction(column: Column) -> bool:
    """Whether percentages would all be less than one, and not only zeros."""
    return 0.0 <= column.low < column.high <= 1.0 and not column.whole


def _suffix(name: str) -> str:
    symbol = _LAST_SYMBOL.search(name)
    if symbol and symbol[1] in BY_NAME and not symbol[1].isalpha():
        return symbol[1]
    found = _LAST_WORD.search(name)
    if found is None or found[1] not in BY_NAME:
        return ""
    word = found[1]
    if word in _TWO_MEANINGS and not (word in _SURE_LETTERS and name.endswith(f"_{word}")):
        return ""
    return word


_PLACE = re.compile(r"^(lat|latitude|lon|lng|long|longitude|altitude)$", re.IGNORECASE)
_LONGEST_NAME = 256
_GEOMETRY = ("coordinates",)


class ValueGuess(msgspec.Struct, frozen=True):
    """A column of numbers that may be readings."""

    column: Column
    unit: UnitGuess


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """The proposal with its reasons."""

    format: str
    options: dict[str, Any]
    because: str
    doubts: tuple[str, ...]
    marks: NumberMarks
    rows: int
    columns: tuple[Column, ...]
    time: TimeGuess | None
    timed: bool
    """The format itself has a time."""
    key: KeyGuess | None
    values: tuple[ValueGuess, ...]
    uses: dict[str, str]
    """The use of each column by name."""
    thing: str = ""
    """The identity of all rows where no column has one; empty: nobody said it."""


def guess(sample: Sample) -> Guess:
    """Deterministic."""
    columns = columns_of(sample.rows, sample.marks, sample.units)
    time = None if sample.timed else guess_time(columns, joins=sample.format == "csv")
    options = sample.options
    if time is not None and time.join:
        options = {**options, "join": {**options.get("join", {}), time.field[0]: time.join}}
    taken = set(time.columns) if time else set()
    key = guess_key(columns, taken | _joined_columns(options, columns))
    values = tuple(
        ValueGuess(column, guess_unit(column))
        for column in columns
        if is_value(column) and column.path not in taken and not (key and key.field == column.path)
    )
    return Guess(
        format=sample.format,
        options=options,
        because=sample.because,
        doubts=sample.doubts,
        marks=sample.marks,
        rows=len(sample.rows),
        columns=columns,
        time=time,
        timed=sample.timed,
        key=key,
        values=values,
        uses=uses_of(columns, time, key, values),
    )


def _joined_columns(options: dict[str, Any], columns: tuple[Column, ...]) -> set[ColumnPathName]:
    """Columns produced by a declared join."""
    if "join" not in options:
        return set()
    made = {join.name for join in joins_of(csv_options(options))}
    return {column.path for column in columns if column.path[-1] in made}


def is_value(column: Column) -> bool:
    """Numbers other than geographic positions."""
    return (
        column.kind == "number"
        and not _PLACE.match(column.path[-1])
        and column.path[-1] not in _GEOMETRY
        and all(0 < len(name) <= _LONGEST_NAME for name in column.path)
    )


def uses_of(
    columns: tuple[Column, ...],
    time: TimeGuess | None,
    key: KeyGuess | None,
    values: tuple[ValueGuess, ...],
) -> dict[str, str]:
    """The use of each column by name."""
    taken = {value.column.path for value in values}
    uses = {}
    for column in columns:
        if time is not None and column.path in time.columns:
            uses[column.name] = "time"
        elif key is not None and column.path == key.field:
            uses[column.name] = "identity"
        elif column.path in taken:
            uses[column.name] = "value"
        else:
            uses[column.name] = "place" if _PLACE.match(column.path[-1]) else "left out"
    return uses
