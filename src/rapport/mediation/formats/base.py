"""Formats: from an event to its documents; limits, and access to the payload as sent. [ME-13]

The log stores JSON as it is, other text as a JSON string with the header `datacontenttype`, and
octets as base64 with the header `dataencoding`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.errors import InvalidInput
from rapport.core.event import ADDED_FIELDS, Event, content_id
from rapport.core.json_objects import is_deeper
from rapport.kernel.config_fields import suggest
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import RejectedValue
from rapport.units.quantities import DecimalMark

MAX_DOCUMENTS = 10_000
"""Maximum documents of one event."""
MAX_DEPTH = 100
"""Maximum nesting of objects and lists."""
MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of a payload."""
MAX_NAMES = 2_000
"""Maximum names in one object: columns, attributes."""

_LONGEST_ID = 100
_NO_UNITS: Mapping[str, str] = MappingProxyType({})

Options = TypeVar("Options", bound=msgspec.Struct)


class Document(msgspec.Struct, frozen=True):
    """One document of an event, as an object of plain values."""

    value: dict[str, Any]
    type: str = ""
    """The type, if the format knows it; empty: the type of the envelope."""
    id: str = ""
    """Distinguishes several documents of one event; empty: the only one."""
    time: int | None = None
    """The time in ms UTC, if the format has one; None: from fields or the envelope."""
    units: Mapping[str, str] = _NO_UNITS
    """Units in the data by name in `value`, as written."""


class Format(Protocol):
    """A payload format. Formats are stateless; state between events is in `memory`."""

    name: str

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        """The documents of the event; none if it contains no readings. `memory` is JSON
        kept by the caller per source; it may change even if the event is rejected. Values
        are replaced, never mutated; a map saved key by key is a `TrackedDict`. Raises only
        Rejected.
        """


def read_options(kind: type[Options], name: str, given: Mapping[str, Any]) -> Options:
    """Reads format options; raises InvalidInput `format.unknown_option`, `format.bad_option`."""
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
    return InvalidInput(f"the format {name!r}: {message}", code="format.bad_option", hint=hint)


def part_id(name: str) -> str:
    """A foreign name as a document id; a hash if it is too long or unprintable for an event id."""
    return name if len(name) <= _LONGEST_ID and name.isprintable() else content_id(name)[:16]


def check_count(count: int) -> None:
    """Rejects too many documents."""
    if count > MAX_DOCUMENTS:
        raise RejectedValue(
            "format.too_many",
            f"one event holds more than {MAX_DOCUMENTS:,} documents",
            "send them in several events; rapport import splits files",
        )


def numbered_documents(values: Sequence[dict[str, Any]]) -> list[Document]:
    """One document without an id, or several numbered from 1."""
    if len(values) == 1:
        return [Document(values[0])]
    return [Document(each, id=str(number)) for number, each in enumerate(values, start=1)]


def check_depth(value: Any) -> None:
    """Rejects values nested too deeply."""
    if is_deeper(value, MAX_DEPTH + 1):
        raise RejectedValue(
            "format.too_deep", f"values are nested more than {MAX_DEPTH} levels deep"
        )


_OF_TEXTS = ("csv", "xml", "value")


TRUTHS = {"true": True, "false": False, "1": True, "0": False, "on": True, "off": False}
"""Booleans written as text, in lower case."""


def decimal_mark(choice: FormatChoice) -> DecimalMark | None:
    """The decimal mark of a text format; None for other formats."""
    if choice.name not in _OF_TEXTS:
        return None
    return "comma" if choice.options.get("decimal") == "comma" else "point"


ENCODINGS = re.compile(
    r"(utf-?8(-sig)?|utf-?16(-?[lb]e)?|us-ascii|ascii|iso-?8859-\d{1,2}|latin-?1|"
    r"cp125\d|windows-125\d|mac-?roman|cp850|cp437)",
    re.IGNORECASE | re.ASCII,
)
"""Allowed text encodings; other Python codecs are not text encodings."""

_DECODE = msgspec.json.Decoder().decode
_BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)


def octets_of(event: Event) -> bytes:
    _check_size(event)
    if DATA_ENCODING in event.headers:
        return _from_base64(event)
    if DATA_TYPE in event.headers:
        return _text(event).encode()
    return event.data


def text_of(event: Event, encoding: str = "utf-8") -> str:
    """The payload as text; `encoding` is that of octets. A JSON string stands for its
    characters, any other JSON for its own text.
    """
    _check_size(event)
    if DATA_ENCODING in event.headers:
        return decode_text(_from_base64(event), encoding)
    if DATA_TYPE in event.headers or event.data[:1] == b'"':
        return _text(event).removeprefix("\ufeff")
    return decode_text(event.data, "utf-8")


def json_of(event: Event) -> Any:
    """The payload as JSON of bounded depth; texts and octets are parsed as JSON too."""
    _check_size(event)
    raw = event.data
    if DATA_ENCODING in event.headers or DATA_TYPE in event.headers:
        raw = octets_of(event).removeprefix(b"\xef\xbb\xbf")
    return decode_json(raw)


def parsed_object(event: Event) -> dict[str, Any] | None:
    """The payload if it is a JSON object: for other formats a document that was parsed before,
    such as a row from `rapport import`.
    """
    if event.data[:1] != b"{" or DATA_TYPE in event.headers or DATA_ENCODING in event.headers:
        return None
    value = json_of(event)
    return value if isinstance(value, dict) else None


def added_fields(event: Event) -> dict[str, Any]:
    """The fields added by the transport; none without the header."""
    header = event.headers.get(ADDED_FIELDS)
    found = decode_json(header) if header is not None else {}
    if not isinstance(found, dict):
        raise RejectedValue("payload.bad_fields", f"the header {ADDED_FIELDS} is not an object")
    return found


def with_added_fields(event: Event, documents: list[Document]) -> list[Document]:
    """The documents with the fields added by the transport, which take precedence."""
    added = added_fields(event)
    if not added:
        return documents
    return [
        msgspec.structs.replace(document, value=document.value | added) for document in documents
    ]


def decode_json(raw: bytes | str) -> Any:
    """Decodes JSON of bounded depth; raises Rejected."""
    try:
        value = _DECODE(raw)
    except _BROKEN as error:
        raise RejectedValue("payload.not_json", f"the payload is not JSON: {error}") from None
    # Counting brackets is cheap and bounds the depth.
    if _brackets(raw) > MAX_DEPTH:
        check_depth(value)
    return value


def _brackets(raw: bytes | str) -> int:
    if isinstance(raw, str):
        return raw.count("{") + raw.count("[")
    return raw.count(b"{") + raw.count(b"[")


def decode_text(octets: bytes, encoding: str) -> str:
    """Decodes octets without a byte order mark; raises Rejected."""
    try:
        return octets.decode(encoding).removeprefix("\ufeff")
    except (UnicodeError, LookupError) as error:
        raise RejectedValue(
            "format.not_text",
            f"the payload is no text in {encoding}: {error}",
            'declare the encoding, such as encoding = "latin-1"',
        ) from None


def _from_base64(event: Event) -> bytes:
    try:
        return base64.b64decode(_text(event).encode("ascii"), validate=True)
    except (UnicodeError, binascii.Error):
        raise RejectedValue(
            "payload.not_base64", "the octets of the event are not base64"
        ) from None


def _text(event: Event) -> str:
    try:
        return msgspec.json.decode(event.data, type=str)
    except _BROKEN:
        raise RejectedValue(
            "payload.not_text", "data that are not JSON must stand as a JSON text"
        ) from None


def _check_size(event: Event) -> None:
    if len(event.data) > MAX_BYTES:
        raise RejectedValue(
            "format.too_large",
            f"the payload has {len(event.data):,} bytes; {MAX_BYTES:,} are allowed",
            "send it in parts",
        )
