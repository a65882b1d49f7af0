"""Writers: a plain value in a format. [ME-13]"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

import msgspec

from rapport.core.errors import InvalidInput
from rapport.mediation.formats.base import MAX_DEPTH, read_options
from rapport.mediation.formats.objects import NoOptions
from rapport.mediation.formats.senml import DEVICE, SUM
from rapport.mediation.formats.xml_format import TEXT

WrittenValue = tuple[bytes, str]
"""Bytes and their media type."""
_XML_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_json(value: Any, options: Mapping[str, Any]) -> WrittenValue:
    read_options(NoOptions, "json", options)
    return _encoded(msgspec.json.encode, value), "application/json"


def write_msgpack(value: Any, options: Mapping[str, Any]) -> WrittenValue:
    read_options(NoOptions, "msgpack", options)
    return _encoded(msgspec.msgpack.encode, value), "application/msgpack"


class XmlWriteOptions(msgspec.Struct, frozen=True):
    """`root`: the name of the document element."""

    root: str = "event"


def write_xml(value: Any, options: Mapping[str, Any]) -> WrittenValue:
    """Writes XML that reads back as the same value with all scalars as text. Only surrounding
    spaces and the difference between null and `""` are lost; a list inside a list is refused.
    """
    chosen = read_options(XmlWriteOptions, "xml", options)
    pieces = ['<?xml version="1.0" encoding="UTF-8"?>']
    _element(chosen.root, value, pieces, 0)
    return "".join(pieces).encode(), "application/xml"


class CsvWriteOptions(msgspec.Struct, frozen=True):
    """`columns` empty: those of the value. `heading`: write the column names first."""

    delimiter: str = ","
    decimal: Literal["point", "comma"] = "point"
    columns: tuple[str, ...] = ()
    heading: bool = False
    encoding: str = "utf-8"


def write_csv(value: Any, options: Mapping[str, Any]) -> WrittenValue:
    """Writes an object of scalars as one row; null is an empty cell."""
    chosen = read_options(CsvWriteOptions, "csv", options)
    row = _object(value, "csv")
    columns = chosen.columns or tuple(row)
    unknown = [name for name in row if name not in columns]
    if unknown or not columns:
        shown = f"there is no column for {unknown[0][:60]!r}" if unknown else "there is no column"
        raise _refused("csv", shown)
    text = io.StringIO()
    try:
        sign = "\t" if chosen.delimiter == "tab" else chosen.delimiter
        writer = csv.writer(text, delimiter=sign, lineterminator="\r\n")
        if chosen.heading:
            writer.writerow(columns)
        writer.writerow([_cell(row.get(name), chosen.decimal) for name in columns])
        octets = text.getvalue().encode(chosen.encoding)
    except (TypeError, ValueError, LookupError, csv.Error) as error:
        raise _refused("csv", str(error)) from None
    return octets, f"text/csv; charset={chosen.encoding}"


class SenmlWriteOptions(msgspec.Struct, frozen=True):
    """`units` by attribute; `time`: the attribute with ms UTC."""

    units: dict[str, str] = {}
    time: str = ""


def write_senml(value: Any, options: Mapping[str, Any]) -> WrittenValue:
    """Writes a pack of one device: `{"device": "dev:1", "temperature": 21.5}`; nulls are left
    out.
    """
    chosen = read_options(SenmlWriteOptions, "senml", options)
    row = dict(_object(value, "senml"))
    device, time = row.pop(DEVICE, None), row.pop(chosen.time, None) if chosen.time else None
    if not isinstance(device, str) or not device:
        raise _refused("senml", f"{DEVICE!r} must name the device")
    pack: list[dict[str, Any]] = [{"bn": f"{device}:"}]
    if time is not None:
        if not isinstance(time, int) or isinstance(time, bool):
            raise _refused("senml", f"{chosen.time!r} must be whole milliseconds")
        pack[0]["bt"] = time / 1_000
    pack += [_record(name, each, chosen.units) for name, each in row.items() if each is not None]
    return _encoded(msgspec.json.encode, pack), "application/senml+json"


def _record(name: str, value: Any, units: Mapping[str, str]) -> dict[str, Any]:
    is_sum = name.endswith(SUM) and name != SUM and isinstance(value, (int, float))
    record: dict[str, Any] = {"n": name.removesuffix(SUM) if is_sum else name}
    if name in units:
        record["u"] = units[name]
    if isinstance(value, bool):
        record["vb"] = value
    elif isinstance(value, (int, float)):
        record["s" if is_sum else "v"] = value
    elif isinstance(value, str):
        record["vs"] = value
    else:
        raise _refused("senml", f"{name[:60]!r} is no text, number or truth")
    return record


def _encoded(encode: Callable[[Any], bytes], value: Any) -> bytes:
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(
            f"the value cannot be written: {error}", code="format.unwritable"
        ) from None


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
    for key, each in value.items():
        if key == TEXT:
            pieces.append(escape(_xml_text(each)))
        elif not key.startswith("@"):
            for one in each if isinstance(each, list) else [each]:
                _element(key, one, pieces, depth + 1)
    pieces.append(f"</{name}>")


def _xml_text(value: Any) -> str:
    text = _scalar(value)
    if text is None or _NOT_IN_XML.search(text):
        raise _refused("xml", "a value is a list in a list, or has signs that XML does not know")
    return text


def _cell(value: Any, decimal: str) -> str:
    text = _scalar(value)
    if text is None:
        raise TypeError("a cell holds no object and no list")
    is_number = isinstance(value, float)
    return text.replace(".", ",") if is_number and decimal == "comma" else text


def _scalar(value: Any) -> str | None:
    """The text of a scalar; None for other values."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, (int, float)) else None


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _refused(name, "only an object can be written")
    return value


def _refused(name: str, message: str) -> InvalidInput:
    return InvalidInput(f"this cannot be written as {name}: {message}", code="format.unwritable")
