"""Texts with times, durations and measured values, in the zone and language of a receiver. Pure.
[SI-5, CO-1]

A template becomes pieces once, when the detection is handled; the pieces become a text for each
receiver. Words and numbers are English or German; other languages get English.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import get_args
from zoneinfo import ZoneInfo

import msgspec

from rapport.core.detection import NamedValue

LANGUAGES = ("en", "de")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS = {
    "en": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    "de": (
        *("Jan.", "Feb.", "März", "Apr.", "Mai", "Juni"),
        *("Juli", "Aug.", "Sep.", "Okt.", "Nov.", "Dez."),
    ),
}
_WORDS: dict[str, dict[str | bool, str]] = {
    "en": {"unknown": "unknown", True: "yes", False: "no", "d": "d"},
    "de": {"unknown": "unbekannt", True: "ja", False: "nein", "d": "Tg."},
}
_SPAN_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class TextReader(msgspec.Struct, frozen=True):
    """The zone and language in which somebody reads."""

    zone: str = "UTC"
    language: str = "en"


class MomentPiece(msgspec.Struct, frozen=True, tag="moment"):
    """A moment, shown in the reader's zone."""

    time_ms: int


class DurationPiece(msgspec.Struct, frozen=True, tag="duration"):
    """A length of time."""

    duration_ms: int


class ValuePiece(msgspec.Struct, frozen=True, tag="value"):
    """A measured value with its unit."""

    value: NamedValue


LocalPiece = MomentPiece | DurationPiece | ValuePiece
"""A piece that readers may see differently."""
TextPiece = str | LocalPiece
DEFAULT_READER = TextReader()


def render(pieces: Sequence[TextPiece], reader: TextReader = DEFAULT_READER) -> str:
    """The text for a reader.

    >>> render(["since ", DurationPiece(7_500_000), ", ", ValuePiece(NamedValue(-14.25, "degC"))])
    'since 2 h 5 min, -14.25 degC'
    """
    return "".join(_shown(piece, reader) for piece in pieces)


def is_local(pieces: Sequence[TextPiece]) -> bool:
    """Whether readers may see the text differently."""
    return any(isinstance(piece, get_args(LocalPiece)) for piece in pieces)


def _shown(piece: TextPiece, reader: TextReader) -> str:
    match piece:
        case MomentPiece():
            return shown_moment(piece.time_ms, reader)
        case DurationPiece():
            return shown_duration(piece.duration_ms, reader)
        case ValuePiece():
            return shown_value(piece.value, reader)
        case _:
            return piece


def local_time(moment_ms: int, zone: str) -> datetime:
    """The moment in a time zone."""
    return (EPOCH + timedelta(milliseconds=moment_ms)).astimezone(ZoneInfo(zone))


def shown_moment(time_ms: int, reader: TextReader) -> str:
    """A moment with the name of its zone.

    >>> shown_moment(1_763_445_840_000, TextReader("Europe/Vienna", "de"))
    '18. Nov. 2025, 07:04 CET'
    """
    local, is_german = local_time(time_ms, reader.zone), reader.language == "de"
    months = _MONTHS["de" if is_german else "en"]
    dot = "." if is_german else ""
    day = f"{local.day}{dot} {months[local.month - 1]} {local.year}"
    return f"{day}, {local:%H:%M} {local.tzname()}"


def shown_duration(duration_ms: int, reader: TextReader = DEFAULT_READER) -> str:
    """A duration: two units at most, none below a second.

    >>> shown_duration(11_100_000), shown_duration(601_000), shown_duration(0)
    ('3 h 5 min', '10 min 1 s', '0 s')
    """
    left, parts = max(duration_ms, 0) // 1_000, list[str]()
    words = _words(reader)
    for seconds, unit in _SPAN_UNITS:
        count, left = divmod(left, seconds)
        parts.append(f"{count} {words.get(unit, unit)}" if count else "")
    first = next((place for place, part in enumerate(parts) if part), len(parts) - 1)
    return " ".join(part for part in parts[first : first + 2] if part) or "0 s"


def shown_value(value: NamedValue, reader: TextReader = DEFAULT_READER) -> str:
    """A value with its unit; six significant digits.

    >>> shown_value(NamedValue(None, "degC")), shown_value(NamedValue(1 / 3))
    ('unknown', '0.333333')
    """
    known, words = value.value, _words(reader)
    if known is None:
        return words["unknown"]
    if isinstance(known, bool):
        return words[known]
    text = known if isinstance(known, str) else _number(known, reader)
    return f"{text} {value.unit}" if value.unit else text


def _number(number: float, reader: TextReader) -> str:
    text = f"{number:.6g}"
    if "e" in text:
        text = f"{number:.6f}".rstrip("0").rstrip(".") if 1e-6 <= abs(number) < 1e15 else text
    return text.replace(".", ",") if reader.language == "de" else text


def _words(reader: TextReader) -> dict[str | bool, str]:
    return _WORDS.get(reader.language, _WORDS["en"])
