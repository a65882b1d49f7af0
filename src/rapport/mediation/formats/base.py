"""What a format is: from one event to the documents it says. Limits that hold for all. [ME-13]

The payload of an event as it was sent: JSON, text or octets. [ME-13]

The log keeps JSON as it is, other text as a JSON text with the header `datacontenttype`, octets as
base64 with the header `dataencoding`. This undoes it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.errors import InvalidInput
from rapport.core.event import ADDED_FIELDS, Event
from rapport.core.ids import content_id
from rapport.kernel.fields import suggest
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import Rejected
from rapport.units.numbers import DecimalMark

MAX_DOCUMENTS = 10_000
"""Most documents of one event."""
MAX_DEPTH = 100
"""Most objects and lists within each other."""
MAX_BYTES = 16 * 1024 * 1024
"""Longest payload that a format looks at."""
MAX_NAMES = 2_000
"""Most names in one object that a format makes: columns, attributes."""

_LONGEST_ID = 100
_NO_UNITS: Mapping[str, str] = MappingProxyType({})

Options = TypeVar("Options", bound=msgspec.Struct)


class Document(msgspec.Struct, frozen=True):
    """One thing said by an event, as a plain value: an object of texts, numbers, truths, lists."""

    value: dict[str, Any]
    type: str = ""
    """What the format knows of its type; empty: the type of the envelope."""
    id: str = ""
    """Tells several documents of one event apart; empty: the only one."""
    time: int | None = None
    """When, in ms UTC, if the format itself says so; None: fields or the envelope say it."""
    units: Mapping[str, str] = _NO_UNITS
    """Units said in the data themselves, by name in `value`; as written there."""


class Format(Protocol):
    """A way to write documents into an event. Formats hold no state: what must be remembered from
    one event to the next is in `memory`.
    """

    name: str

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        """What the event says; no documents when it is not about readings.

        `memory` is JSON that the caller keeps, one for each source; it may change even when the
        event is refused. What changes is assigned anew, never changed in place; a map of which
        keys are saved one by one is a `Remembered`. Raises Rejected and nothing else.
        """


def read_options(kind: type[Options], name: str, given: Mapping[str, Any]) -> Options:
    """The options of a format; raises InvalidInput `format.unknown_option`, `format.bad_option`."""
    known = kind.__struct_fields__
    for option in given:
        if option not in known:
            raise InvalidInput(
                f"the format {name!r} has no option {str(option)[:40]!r}",
                code="format.unknown_option",
                hint=suggest(str(option), known) or "it takes none",
            )
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise bad_option(name, str(error)) from None


def bad_option(name: str, message: str, hint: str = "") -> InvalidInput:
    """The fault of an option's value."""
    return InvalidInput(f"the format {name!r}: {message}", code="format.bad_option", hint=hint)


def part_id(name: str) -> str:
    """A name of somebody else's as the id of a document; ids become part of an event's id, so what
    is too long or unprintable for that is told by its hash.
    """
    return name if len(name) <= _LONGEST_ID and name.isprintable() else content_id(name)[:16]


def check_count(count: int) -> None:
    """Raises Rejected when an event says more than one event may."""
    if count > MAX_DOCUMENTS:
        raise Rejected(
            "format.too_many",
            f"one event holds more than {MAX_DOCUMENTS:,} documents",
            "send them in several events; rapport import splits files",
        )


def check_depth(value: Any) -> None:
    """Raises Rejected for a value nested too deeply for those who walk through it later."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise Rejected(
                "format.too_deep", f"values are nested more than {MAX_DEPTH} levels deep"
            )
        level = [
            part
            for each in level
            if isinstance(each, (dict, list))
            for part in (each.values() if isinstance(each, dict) else each)
        ]


_OF_TEXTS = ("csv", "xml", "value")


TRUTHS = {"true": True, "false": False, "1": True, "0": False, "on": True, "off": False}
"""How texts say that something is so, in small letters."""


def decimal_mark(choice: FormatChoice) -> DecimalMark | None:
    """How numbers are written in a format that knows only texts; None for the others."""
    if choice.name not in _OF_TEXTS:
        return None
    return "comma" if choice.options.get("decimal") == "comma" else "point"


ENCODINGS = re.compile(
    r"(utf-?8(-sig)?|utf-?16(-?[lb]e)?|us-ascii|ascii|iso-?8859-\d{1,2}|latin-?1|"
    r"cp125\d|windows-125\d|mac-?roman|cp850|cp437)",
    re.IGNORECASE | re.ASCII,
)
"""Encodings of text that may be declared; others of Python's codecs are no encodings of text."""

_DECODE = msgspec.json.Decoder().decode
_BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)


def octets_of(event: Event) -> bytes:
    """The payload as bytes."""
    _check_size(event)
    if DATA_ENCODING in event.headers:
        return _from_base64(event)
    if DATA_TYPE in event.headers:
        return _text(event).encode()
    return event.data


def text_of(event: Event, encoding: str = "utf-8") -> str:
    """The payload as text; `encoding` is that of octets, other text has been decoded before.

    A JSON text stands for its characters, since that is how text travels in JSON; any other JSON
    stands as it is written.
    """
    _check_size(event)
    if DATA_ENCODING in event.headers:
        return decode_text(_from_base64(event), encoding)
    if DATA_TYPE in event.headers or event.data[:1] == b'"':
        return _text(event).removeprefix("\ufeff")
    return decode_text(event.data, "utf-8")


def json_of(event: Event) -> Any:
    """The payload as a JSON value, bounded in depth; text and octets are read as JSON too."""
    _check_size(event)
    raw = event.data
    if DATA_ENCODING in event.headers or DATA_TYPE in event.headers:
        raw = octets_of(event).removeprefix(b"\xef\xbb\xbf")
    return decode_json(raw)


def parsed_object(event: Event) -> dict[str, Any] | None:
    """The payload if it is a plain JSON object: of the formats that are not JSON this is a
    document that was read before, such as a row that `rapport import` published.
    """
    if event.data[:1] != b"{" or DATA_TYPE in event.headers or DATA_ENCODING in event.headers:
        return None
    value = json_of(event)
    return value if isinstance(value, dict) else None


def added_fields(event: Event) -> dict[str, Any]:
    """The fields that the transport of an event knows; none without the header."""
    said = event.headers.get(ADDED_FIELDS)
    found = decode_json(said) if said is not None else {}
    if not isinstance(found, dict):
        raise Rejected("payload.bad_fields", f"the header {ADDED_FIELDS} is not an object")
    return found


def with_added_fields(event: Event, documents: list[Document]) -> list[Document]:
    """The documents, each with the fields that the transport of the event added; these count more
    than fields of the same name.
    """
    added = added_fields(event)
    if not added:
        return documents
    return [
        msgspec.structs.replace(document, value=document.value | added) for document in documents
    ]


def decode_json(raw: bytes | str) -> Any:
    """JSON, bounded in depth; raises Rejected."""
    try:
        value = _DECODE(raw)
    except _BROKEN as error:
        raise Rejected("payload.not_json", f"the payload is not JSON: {error}") from None
    # Counting brackets is quick; only what has that many can be that deep.
    if _brackets(raw) > MAX_DEPTH:
        check_depth(value)
    return value


def _brackets(raw: bytes | str) -> int:
    if isinstance(raw, str):
        return raw.count("{") + raw.count("[")
    return raw.count(b"{") + raw.count(b"[")


def decode_text(octets: bytes, encoding: str) -> str:
    """Octets in a declared encoding; a byte order mark is left out. Raises Rejected."""
    try:
        return octets.decode(encoding).removeprefix("\ufeff")
    except (UnicodeError, LookupError) as error:
        raise Rejected(
            "format.not_text",
            f"the payload is no text in {encoding}: {error}",
            'declare the encoding, such as encoding = "latin-1"',
        ) from None


def _from_base64(event: Event) -> bytes:
    try:
        return base64.b64decode(_text(event).encode("ascii"), validate=True)
    except (UnicodeError, binascii.Error):
        raise Rejected("payload.not_base64", "the octets of the event are not base64") from None


def _text(event: Event) -> str:
    try:
        return msgspec.json.decode(event.data, type=str)
    except _BROKEN:
        raise Rejected(
            "payload.not_text", "data that are not JSON must stand as a JSON text"
        ) from None


def _check_size(event: Event) -> None:
    if len(event.data) > MAX_BYTES:
        raise Rejected(
            "format.too_large",
            f"the payload has {len(event.data):,} bytes; {MAX_BYTES:,} are allowed",
            "send it in parts",
        )
