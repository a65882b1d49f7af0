"""Texts for people: templates of actions, and messages as mail, inbox and answer page show them.
Pure. [SI-5, CO-1, CO-10, CO-16]

In a template `{A}` is the identity of an alias, `{A.badge}` a column of the site's tables,
`{temperature of A}` a value as of the detection. A template becomes pieces once, when the detection
is handled; the pieces become a text for each receiver, with times, durations and values in the
receiver's zone and language. Words and numbers are English or German; other languages get English.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import get_args
from zoneinfo import ZoneInfo

import msgspec

from rapport.core.detection import Detection, NamedValue, phrase_key
from rapport.core.errors import InvalidInput, nearest_names
from rapport.core.message import AUTH, CONTROL, MESSAGEINFO
from rapport.core.times import format_time
from rapport.units.quantities import shown_unit

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
_PIECE = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[^{}]+|[{}]")
"""Pieces of a template: doubled braces, fields, text, and braces that are neither."""
_PARENTHESES = re.compile(r"\(.*\)|'[^']*'")
_SPAN_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class TextReader(msgspec.Struct, frozen=True):
    """The zone and language in which somebody reads."""

    zone: str = "UTC"
    language: str = "en"


class MomentPiece(msgspec.Struct, frozen=True, tag="moment"):
    """A moment, shown in the reader's zone."""

    time_ms: int


class DurationPiece(msgspec.Struct, frozen=True, tag="duration"):
    duration_ms: int


class ValuePiece(msgspec.Struct, frozen=True, tag="value"):
    value: NamedValue


LocalPiece = MomentPiece | DurationPiece | ValuePiece
"""A piece that readers may see differently."""
TextPiece = str | LocalPiece
DEFAULT_READER = TextReader()


def render(pieces: Sequence[TextPiece], reader: TextReader = DEFAULT_READER) -> str:
    """The text for a reader.

    >>> render(["since ", DurationPiece(7_500_000), ", ", ValuePiece(NamedValue(-14.25, "degC"))])
    'since 2 h 5 min, -14.25 °C'
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
    words = _truth_words(reader)
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
    known, words = value.value, _truth_words(reader)
    if known is None:
        return words["unknown"]
    if isinstance(known, bool):
        return words[known]
    text = known if isinstance(known, str) else _number(known, reader)
    return f"{text} {shown_unit(value.unit)}".rstrip() if value.unit else text


def _number(number: float, reader: TextReader) -> str:
    text = f"{number:.6g}"
    if "e" in text:
        text = f"{number:.6f}".rstrip("0").rstrip(".") if 1e-6 <= abs(number) < 1e15 else text
    return text.replace(".", ",") if reader.language == "de" else text


def _truth_words(reader: TextReader) -> dict[str | bool, str]:
    return _WORDS.get(reader.language, _WORDS["en"])


ALWAYS_KNOWN = ("policy", "time", "id")
"""Fields that every detection has; the others are the aliases of its policy."""

Facts = Callable[[str, str, str, str, str], str | None]
"""Policy, version, alias, identity and column to a value, or None."""

_MEANT = {"since": "began", "start": "began", "reason": "why", "cause": "why", "now": "time"}
"""What people write for a name that they do not know."""
_MOST_NAMED = 12
LONGEST_TEXT = 4_000
"""Longest text of a message; a longer one is cut."""


def template_fields(template: str, known: Collection[str] = ()) -> tuple[str, ...]:
    """The names in braces, in order; raises InvalidInput for anything but plain `{name}`. `known`:
    the possible names, for the hint.

    >>> template_fields("Guest {A} alone in {R}, {{not this}}")
    ('A', 'R')
    """
    return tuple(field for _text, field in _parts(template, known) if field is not None)


def named_in_texts(known: Collection[str], field: str = "") -> str:
    """The hint with the names that a text can use: aliases, their columns, and the fields of every
    detection; the one nearest to a wrong `field` first.

    >>> named_in_texts(["F", "F.name"], "f.names")
    'did you mean {F.name}? a text can name {F}, {F.name}, {policy}, {time}, {id}'
    """
    if field == "duration":
        return "{duration} is for the 'actions when cleared' of a situation, when it is known"
    own = sorted({*known} - {*ALWAYS_KNOWN}, key=lambda name: ("." in name, " " in name, name))
    meant = _MEANT.get(field, "")
    nearest = nearest_names(field, [*own, *ALWAYS_KNOWN], limit=1) if field else ()
    if meant in (*own, *ALWAYS_KNOWN):
        nearest = (meant,)
    names = [f"{{{name}}}" for name in (*own[:_MOST_NAMED], *ALWAYS_KNOWN)]
    suggestion = f"did you mean {{{nearest[0]}}}? " if nearest else ""
    more = " and more columns" if len(own) > _MOST_NAMED else ""
    return f"{suggestion}a text can name {', '.join(names)}{more}"


def no_facts(_policy: str, _version: str, _alias: str, _identity: str, _column: str) -> None:
    """There are no tables."""


def fill_template(template: str, detection: Detection, facts: Facts = no_facts) -> str:
    """The text of one detection for machines: times in ISO 8601, durations in seconds, values
    without their unit. A missing field shows as `?`: an alarm with a gap beats none.

    Control characters in values become spaces, so that no value can break a line or a mail header.
    """
    pieces = template_pieces(template, detection, facts)
    return "".join(map(_for_machines, pieces))[:LONGEST_TEXT]


def template_pieces(
    template: str, detection: Detection, facts: Facts = no_facts
) -> list[TextPiece]:
    found: list[TextPiece] = []
    for text, field in _parts(template):
        found += [text] if text else []
        found += [] if field is None else [_piece(field, detection, facts)]
    return found


def is_for_machines(template: str) -> bool:
    """Whether a template is JSON, whose times and values keep one form for everybody.

    >>> is_for_machines('{{"level": {temperature of F}}}'), is_for_machines("{F} is warm")
    (True, False)
    """
    return template.lstrip().startswith(("{{", "["))


def filled_text(
    template: str,
    detection: Detection,
    facts: Facts = no_facts,
    reader: TextReader = DEFAULT_READER,
) -> tuple[str, tuple[TextPiece, ...]]:
    """The text of one detection for a reader, and its pieces for others; no pieces for machines."""
    if is_for_machines(template):
        return fill_template(template, detection, facts), ()
    pieces = template_pieces(template, detection, facts)
    return render(pieces, reader)[:LONGEST_TEXT], tuple(pieces)


def _piece(field: str, detection: Detection, facts: Facts) -> TextPiece:
    bindings, began, values = detection.bindings, detection.began, detection.values or {}
    if field in bindings:
        return clean(bindings[field])
    match field:
        case "policy":
            return clean(detection.policy)
        case "time":
            return MomentPiece(detection.time)
        case "id":
            return detection.id()
        case "began":
            return MomentPiece(detection.time if began is None else began)
        case "duration":
            return DurationPiece(0 if began is None else detection.time - began)
        case "why":
            return clean(detection.reason or detection.holds) or "?"
    if _is_phrase(field):
        return _value_piece(values.get(phrase_key(field), NamedValue()))
    if field in values:
        return _value_piece(values[field])
    alias, _, column = field.partition(".")
    counted = values.get(alias, NamedValue()).value
    identity, fact = bindings.get(alias, counted if isinstance(counted, str) else None), None
    if identity is not None and column:
        fact = facts(detection.policy, detection.version, alias, identity, column)
    return "?" if fact is None else clean(fact)


def _value_piece(value: NamedValue) -> ValuePiece:
    known = value.value
    if isinstance(known, str):
        value = NamedValue(clean(known), value.unit)
    return ValuePiece(value)


def _for_machines(piece: TextPiece) -> str:
    match piece:
        case MomentPiece():
            return format_time(piece.time_ms)
        case DurationPiece():
            return f"{piece.duration_ms / 1_000:g}"
        case ValuePiece():
            known = piece.value.value
            is_text = isinstance(known, str)
            return str(known) if is_text else msgspec.json.encode(known).decode()
        case _:
            return piece


def constant_text(template: str) -> str | None:
    """The text for every detection; None when it has fields to fill. Raises InvalidInput.

    >>> constant_text('{{"level": 3}}'), constant_text("Guest {A}")
    ('{"level": 3}', None)
    """
    parts = _parts(template)
    if any(field is not None for _text, field in parts):
        return None
    return "".join(text for text, _field in parts)[:LONGEST_TEXT]


def clean(text: str) -> str:
    """The text in one printable line.

    >>> clean("a\\r\\nBcc: x")
    'a  Bcc: x'
    """
    return "".join(character if character.isprintable() else " " for character in text)


def printable(text: str, most: int) -> str:
    """The beginning of a text from outside, with `?` for what cannot be printed.

    >>> printable("a\\nbc", 3)
    'a?b'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


def _parts(template: str, known: Collection[str] = ()) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    text = ""
    for piece in _PIECE.findall(template):
        if piece in ("{{", "}}"):
            text += piece[0]
        elif piece in ("{", "}"):
            raise _bad(f"the text cannot be read: a single {piece}", known)
        elif piece[0] != "{":
            text += piece
        elif not _is_field(piece[1:-1]):
            raise _bad(f"a text cannot name {piece}", known)
        else:
            found.append((text, piece[1:-1]))
            text = ""
    return [*found, (text, None)] if text else found


def _is_phrase(text: str) -> bool:
    """Whether it names a value: `temperature of F`, `mean of pm10 of S in the last 24 h`."""
    return " of " in text


def _is_field(text: str) -> bool:
    if _is_phrase(text):
        is_plain = not {*_PARENTHESES.sub("", text)} & {":", "!"}
        return is_plain and all(character.isprintable() for character in text)
    alias, dot, column = text.partition(".")
    plain = column.isidentifier() and not column.startswith("_")
    return alias.isidentifier() and (not dot or plain)


def _bad(message: str, known: Collection[str]) -> InvalidInput:
    hint = "write {ALIAS}, {ALIAS.column}, {ATTRIBUTE of ALIAS}, {policy}, {time} or {id}"
    hint = named_in_texts(known) if known else hint
    return InvalidInput(message, code="action.bad_template", hint=f"{hint}; write {{{{ for a brace")


# --- messages as people read them ---


_REPORTS = {
    "ACK": "Your message was delivered",
    "ERROR": "There is a problem with your message",
    "COMERROR": "Your message could not be delivered",
    "TIMEOUT": "Nobody answered your message in time",
}
_KINDS = {CONTROL: "Delivery report", AUTH: "Login", MESSAGEINFO: "About messages"}
_NOT_ANSWERED = (CONTROL, AUTH)


def shown_time(time_ms: int, zone: str = "UTC") -> str:
    """A moment in a time zone, with its name.

    >>> shown_time(1_763_445_840_000, "Europe/Vienna")
    '18 Nov 2025, 07:04 CET'
    """
    return shown_moment(time_ms, TextReader(zone))


def shown_sender(sender: str, policy: str = "") -> str:
    """The sender: a person or application by name, a policy as such.

    >>> shown_sender("peer:ana"), shown_sender("component:policy", "alone"), shown_sender("")
    ('ana', 'policy alone', '')
    """
    kind, _, name = sender.partition(":")
    if policy and kind != "peer":
        return f"policy {policy}"
    return name or kind


def shown_kind(type: str, subtype: str = "") -> str:
    """The kind of a message.

    >>> shown_kind("TASK", "REQUEST"), shown_kind("NOTIFICATION", "raise alarm")
    ('Task: request', 'Notification: raise alarm')
    """
    if type == CONTROL:
        return _KINDS[CONTROL]
    kind = _KINDS.get(type) or _words(type)
    detail = _words(subtype) if subtype.isupper() else subtype
    if not kind or not detail:
        return kind or detail
    return f"{kind}: {detail[:1].lower()}{detail[1:]}"


def shown_text(type: str, subtype: str, text: str) -> str:
    """The text of a message; a delivery report is a sentence, also where it has no text.

    >>> shown_text("CONTROL", "ACK", ""), shown_text("CONTROL", "COMERROR", "no address")
    ('Your message was delivered.', 'Your message could not be delivered: no address')
    """
    report = _REPORTS.get(subtype, "") if type == CONTROL else ""
    if not report:
        return text
    return f"{report}: {text}" if text else f"{report}."


def is_answerable(type: str) -> bool:
    """Whether a person may answer it: delivery reports and logins want no answer."""
    return type not in _NOT_ANSWERED


def _words(name: str) -> str:
    """The name of a type in words: `FIRE_DRILL` is `Fire drill`."""
    plain = name.replace("_", " ").replace("-", " ").strip()
    return f"{plain[:1].upper()}{plain[1:].lower()}" if plain.isupper() else plain


def same_phrase(text: str) -> str:
    """The phrase as it is compared: blanks and letter case do not matter.

    >>> same_phrase("Raise  alarm")
    'raise alarm'
    """
    return " ".join(text.split()).casefold()
