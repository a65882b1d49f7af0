"""The values of a file, one after another, as raw events hold them. [ME-13]

What is JSON stays as it stands (also NGSI and SenML: the format reads it again when it gets its
meaning); rows of CSV, elements of XML and maps of MessagePack become JSON objects, their encoding
solved, since JSON is Unicode.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, BinaryIO

import msgspec

from rapport.core.errors import InvalidInput, Unsupported
from rapport.mediation.formats.csv_rows import CsvFormat
from rapport.mediation.formats.named import format_named
from rapport.mediation.formats.objects import documents_of, unpack
from rapport.mediation.formats.payload import decode_json
from rapport.mediation.formats.xml_elements import XmlFormat
from rapport.mediation.rejection import Rejected

MAX_WHOLE_BYTES = 256 * 1024 * 1024
"""Longest file that must be held in memory as a whole: one JSON document, XML, MessagePack."""
_LONGEST_LINE = 16 * 1024 * 1024
_SENML = "senml"


def values_of(
    file: BinaryIO, name: str, options: Mapping[str, Any]
) -> Iterator[dict[str, Any] | list[Any]]:
    """The values of a file in a format; raises InvalidInput with the line of what is none.

    CSV and JSON lines are read as they are needed, whatever their length; a file that is one JSON
    document, XML or MessagePack as a whole.
    """
    format = format_named(name, options)
    try:
        if isinstance(format, CsvFormat):
            with io.TextIOWrapper(file, encoding=format.options.encoding, newline="") as text:
                yield from format.rows(_without_mark(text))
        elif isinstance(format, XmlFormat):
            yield from (document.value for document in format.documents(_whole(file)))
        elif name == "msgpack":
            yield from (document.value for document in documents_of(unpack(_whole(file))))
        elif name == "homeassistant":
            raise Unsupported("importing Home Assistant messages from a file")
        elif name == "value":
            raise Unsupported("importing single values from a file", hint="import it as CSV")
        else:
            yield from _json_values(file, is_pack=name == _SENML)
    except Rejected as refused:
        raise InvalidInput(refused.message, code=refused.code, hint=refused.hint) from None
    except UnicodeError as error:
        raise InvalidInput(
            f"the file is no text in {options.get('encoding', 'utf-8')}: {error}",
            code="format.not_text",
            hint="say --option encoding=latin-1, or what it is in",
        ) from None


def json_values(raw: bytes, *, is_pack: bool) -> Iterator[dict[str, Any] | list[Any]]:
    """The values of JSON lines, or of one JSON document: the elements of its list, unless the list
    is a pack of SenML; raises Rejected.
    """
    yield from _json_values(io.BytesIO(raw), is_pack=is_pack)


def _without_mark(lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")


def _json_values(file: BinaryIO, *, is_pack: bool) -> Iterator[dict[str, Any] | list[Any]]:
    lines = _filled_lines(file)
    first, second = next(lines, (1, b"")), next(lines, (2, b""))
    if second[1] and _is_json(first[1]):
        for number, line in chain((first, second), lines):
            yield _checked(_line_value(line, number), f"line {number}")
        return
    whole = decode_json(first[1] + second[1] + _whole(file))
    for value in whole if isinstance(whole, list) and not is_pack else [whole]:
        yield _checked(value, "an element")


def _filled_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers; what is longer than a line may be comes in
    pieces.
    """
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield number, line


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return False
    return True


def _line_value(line: bytes, number: int) -> Any:
    try:
        return decode_json(line)
    except Rejected as refused:
        raise Rejected(refused.code, f"line {number}: {refused.message}", refused.hint) from None


def _checked(value: Any, what: str) -> dict[str, Any] | list[Any]:
    if isinstance(value, (dict, list)):
        return value
    raise Rejected("payload.not_an_object", f"{what} is not an object")


def _whole(file: BinaryIO) -> bytes:
    raw = file.read(MAX_WHOLE_BYTES + 1)
    if len(raw) > MAX_WHOLE_BYTES:
        raise Rejected(
            "format.too_large",
            f"the file has over {MAX_WHOLE_BYTES:,} bytes and is one document",
            "split it, or write one object on each line",
        )
    return raw
