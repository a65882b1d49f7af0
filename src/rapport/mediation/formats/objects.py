"""Payloads of plain values: JSON, MessagePack, and single values. [ME-13]"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from rapport.core.event import Event
from rapport.mediation.formats.base import (
    ENCODINGS,
    Document,
    bad_option,
    check_count,
    check_depth,
    json_of,
    numbered_documents,
    octets_of,
    parsed_object,
    read_options,
    text_of,
)
from rapport.mediation.rejections import RejectedValue

_UNPACK = msgspec.msgpack.Decoder().decode


class _NoOptions(msgspec.Struct, frozen=True):
    """For formats without options."""


class JsonFormat:
    """A JSON object, or a list of objects."""

    name = "json"

    def __init__(self, options: Mapping[str, Any]) -> None:
        read_options(_NoOptions, self.name, options)

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        return documents_of(json_of(event))


class MsgpackFormat:
    """A map, or an array of maps, in MessagePack. Octets become base64 text and timestamps ISO
    8601, as in JSON; integer keys become text; other extension types are rejected.
    """

    name = "msgpack"

    def __init__(self, options: Mapping[str, Any]) -> None:
        read_options(_NoOptions, self.name, options)

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        ready = parsed_object(event)
        return documents_of(ready if ready is not None else unpack(octets_of(event)))


class ValueOptions(msgspec.Struct, frozen=True):
    field: str = "value"
    """The name of the value in the document."""
    encoding: str = "utf-8"
    decimal: str = "point"


class ValueFormat:
    """A single value, as simple devices publish it: `-18.4`, `ON`. It becomes a document with
    one text field, parsed where a number is declared.
    """

    name = "value"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = read_options(ValueOptions, self.name, options)
        if self._options.decimal not in ("point", "comma"):
            raise bad_option(self.name, "decimal is point or comma")
        if not self._options.field:
            raise bad_option(self.name, "field is empty", 'such as field = "value"')
        if not ENCODINGS.fullmatch(self._options.encoding):
            raise bad_option(self.name, "the encoding is not known", 'such as encoding = "latin-1"')

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        if event.data[:1] in (b"{", b"["):
            raise RejectedValue(
                "payload.not_a_value",
                "the payload is an object or a list, not one value",
                'leave out format = "value": JSON needs no format',
            )
        text = text_of(event, self._options.encoding).strip()
        if text in ("", "null"):
            raise RejectedValue("payload.empty", "the payload is empty")
        return [Document({self._options.field: text})]


def unpack(raw: bytes) -> Any:
    """One MessagePack value as JSON would represent it; raises Rejected."""
    try:
        value = _UNPACK(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, TypeError) as error:
        raise RejectedValue(
            "format.not_msgpack", f"the payload is no MessagePack: {error}"
        ) from None
    check_depth(value)
    return _plain(value)


def documents_of(value: Any) -> list[Document]:
    """The objects in a value; several are numbered from 1."""
    if isinstance(value, dict):
        return [Document(value)]
    if not isinstance(value, list):
        raise _no_object("the payload")
    check_count(len(value))
    for number, each in enumerate(value, start=1):
        if not isinstance(each, dict):
            raise _no_object(f"element {number} of the list")
    return numbered_documents(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such numbers
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise RejectedValue(
        "format.not_plain", f"a value of the type {type(value).__name__} is not read"
    )


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise RejectedValue("format.not_plain", "names of attributes must be text or whole numbers")


def _no_object(what: str) -> RejectedValue:
    return RejectedValue(
        "payload.not_an_object",
        f"{what} is not an object",
        'a payload looks like {"reader": "r7", "tag": "E200-34"}, or is a list of such; '
        'one value alone needs an interpretation with format = "value"',
    )
