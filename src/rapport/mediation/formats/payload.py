"""The payload of an event as it was sent: JSON, text or octets. [ME-13]

The log keeps JSON as it is, other text as a JSON text with the header `datacontenttype`, octets as
base64 with the header `dataencoding`. This undoes it.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import msgspec

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.event import ADDED_FIELDS, Event
from rapport.mediation.formats.base import MAX_BYTES, MAX_DEPTH, Document, check_depth
from rapport.mediation.rejection import Rejected

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


def ready_object(event: Event) -> dict[str, Any] | None:
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
