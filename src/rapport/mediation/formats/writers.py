"""Writes a consumer's value as event data: CSV (a heading and a row), XML, MessagePack, else JSON.
[ME-13]
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import msgspec

from rapport.core.codec import DATA_TYPE, octets_event_parts
from rapport.mediation.formats.base import MAX_DEPTH, decimal_mark
from rapport.mediation.formats.xml_format import TEXT
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import RejectedValue

_ENCODE = msgspec.json.Encoder().encode
_XML_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+", re.ASCII)
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def is_written_as_json(choice: FormatChoice) -> bool:
    return choice.name not in ("csv", "xml", "msgpack")


def write_event_data(
    value: Any, choice: FormatChoice, type_name: str
) -> tuple[bytes, dict[str, str]]:
    """The data and headers of an event; raises Rejected `format.unwritable` if the format cannot
    represent the value.
    """
    if is_written_as_json(choice):
        return _ENCODE(value), {}
    if choice.name == "csv":
        return _ENCODE(_csv_text(value, choice)), {DATA_TYPE: "text/csv; charset=utf-8"}
    if choice.name == "xml":
        return _ENCODE(_xml_document(value, type_name)), {DATA_TYPE: "application/xml"}
    try:
        packed = msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _refused("msgpack", str(error)) from None
    return octets_event_parts(packed, "application/msgpack")


def _csv_text(value: Any, choice: FormatChoice) -> str:
    """An object of scalars as one row below its heading; null is an empty cell."""
    if not isinstance(value, dict) or not value:
        raise _refused("csv", "only an object with attributes can be written")
    delimiter = choice.options.get("delimiter", ",")
    sign = {"tab": "\t", "sniffed": ","}.get(delimiter, delimiter)
    text = io.StringIO()
    try:
        writer = csv.writer(text, delimiter=sign, lineterminator="\r\n")
        writer.writerow(value)
        writer.writerow([_cell(each, decimal_mark(choice)) for each in value.values()])
    except (TypeError, ValueError, csv.Error) as error:
        raise _refused("csv", str(error)) from None
    return text.getvalue()


def _cell(value: Any, decimal: str | None) -> str:
    text = _scalar(value)
    if text is None:
        raise _refused("csv", "a cell holds no object and no list")
    is_number = isinstance(value, float)
    return text.replace(".", ",") if is_number and decimal == "comma" else text


def _xml_document(value: Any, type_name: str) -> str:
    """XML that reads back as the same value with all scalars as text. Only surrounding spaces and
    the difference between null and `""` are lost; a list inside a list is refused.
    """
    pieces = ['<?xml version="1.0" encoding="UTF-8"?>']
    _element(_NOT_IN_A_NAME.sub("-", type_name), value, pieces, 0)
    return "".join(pieces)


def _element(name: str, value: Any, pieces: list[str], depth: int) -> None:
    if not _XML_NAME.fullmatch(name) or depth > MAX_DEPTH - 2:
        raise _refused("xml", f"{name[:60]!r} cannot name an element, or stands too deep")
    if not isinstance(value, dict):
        pieces.append(f"<{name}>{escape(_xml_text(value))}</{name}>")
        return
    pieces.append(f"<{name}")
    for key, each in value.items():
        if key.startswith("@"):
            if not _XML_NAME.fullmatch(key[1:]):
                raise _refused("xml", f"{key[:60]!r} cannot name an attribute")
            pieces.append(f" {key[1:]}={quoteattr(_xml_text(each))}")
    pieces.append(">")
    _children(value, pieces, depth)
    pieces.append(f"</{name}>")


def _children(value: Mapping[str, Any], pieces: list[str], depth: int) -> None:
    for key, each in value.items():
        if key == TEXT:
            pieces.append(escape(_xml_text(each)))
        elif not key.startswith("@"):
            for one in each if isinstance(each, list) else [each]:
                _element(key, one, pieces, depth + 1)


def _xml_text(value: Any) -> str:
    text = _scalar(value)
    if text is None or _NOT_IN_XML.search(text):
        raise _refused("xml", "a value is a list in a list, or has signs that XML does not know")
    return text


def _scalar(value: Any) -> str | None:
    """The text of a scalar; None for other values."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, (int, float)) else None


def _refused(name: str, message: str) -> RejectedValue:
    return RejectedValue("format.unwritable", f"this cannot be written as {name}: {message}")
