"""The formats by name, for the payloads of events and for files. [ME-13]

An interpretation declares `format = "senml"`, or with options `format = { name = "csv", delimiter =
";" }`; the default is JSON.

Values of files become raw events: JSON stays as it is (also NGSI and SenML, which are parsed when
they are mediated); rows of CSV, elements of XML and maps of MessagePack become JSON objects.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, BinaryIO

import msgspec

from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.mediation.formats.base import Format, decode_json
from rapport.mediation.formats.csv_format import CsvFormat
from rapport.mediation.formats.homeassistant import HomeAssistantFormat
from rapport.mediation.formats.ngsi import NgsiFormat
from rapport.mediation.formats.objects import (
    JsonFormat,
    MsgpackFormat,
    ValueFormat,
    documents_of,
    unpack,
)
from rapport.mediation.formats.senml import SenmlFormat
from rapport.mediation.formats.xml_format import XmlFormat
from rapport.mediation.rejections import RejectedValue

_MAKERS: dict[str, Callable[[Mapping[str, Any]], Format]] = {
    "json": JsonFormat,
    "msgpack": MsgpackFormat,
    "xml": XmlFormat,
    "csv": CsvFormat,
    "senml": SenmlFormat,
    "ngsi": NgsiFormat,
    "homeassistant": HomeAssistantFormat,
    "value": ValueFormat,
}

FORMATS = tuple(_MAKERS)


def get_format(name: str, options: Mapping[str, Any]) -> Format:
    """Raises UnknownName `format.unknown`, or InvalidInput `format.unknown_option` and
    `format.bad_option`.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise UnknownName("format", name[:40], FORMATS, code="format.unknown")
    return maker(options)


def parse_format(declared: Any) -> tuple[str, dict[str, Any]]:
    """Name and options from a declared `format`: a name, or a table with the name. >>>
    parse_format({"name": "csv", "delimiter": ";"}) ('csv', {'delimiter': ';'})
    """
    if isinstance(declared, str):
        return declared, {}
    if isinstance(declared, dict) and isinstance(declared.get("name"), str):
        return declared["name"], {key: each for key, each in declared.items() if key != "name"}
    raise InvalidInput(
        "the format must be a name, or a table with a name",
        code="format.bad_option",
        hint='such as format = "json" or format = { name = "csv", delimiter = ";" }',
    )


MAX_WHOLE_BYTES = 256 * 1024 * 1024
"""Maximum size of a file that must be in memory as a whole: one JSON document, XML, MessagePack."""
_LONGEST_LINE = 16 * 1024 * 1024
_SENML = "senml"


def read_values(
    file: BinaryIO, name: str, options: Mapping[str, Any]
) -> Iterator[dict[str, Any] | list[Any]]:
    """Reads the values of a file; raises InvalidInput with the line of an invalid one. CSV and
    JSON lines are streamed; a single JSON document, XML and MessagePack are read as a whole.
    """
    format = get_format(name, options)
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
    except RejectedValue as refused:
        raise InvalidInput(refused.message, code=refused.code, hint=refused.hint) from None
    except UnicodeError as error:
        raise InvalidInput(
            f"the file is no text in {options.get('encoding', 'utf-8')}: {error}",
            code="format.not_text",
            hint="say --option encoding=latin-1, or what it is in",
        ) from None


def json_values(raw: bytes, *, is_pack: bool) -> Iterator[dict[str, Any] | list[Any]]:
    """The values of JSON lines or of one JSON document: the elements of its list unless it is a
    SenML pack; raises Rejected.
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
    """Lines that are not empty, with their numbers; overlong lines in pieces."""
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
    except RejectedValue as refused:
        raise RejectedValue(
            refused.code, f"line {number}: {refused.message}", refused.hint
        ) from None


def _checked(value: Any, what: str) -> dict[str, Any] | list[Any]:
    if isinstance(value, (dict, list)):
        return value
    raise RejectedValue("payload.not_an_object", f"{what} is not an object")


def _whole(file: BinaryIO) -> bytes:
    raw = file.read(MAX_WHOLE_BYTES + 1)
    if len(raw) > MAX_WHOLE_BYTES:
        raise RejectedValue(
            "format.too_large",
            f"the file has over {MAX_WHOLE_BYTES:,} bytes and is one document",
            "split it, or write one object on each line",
        )
    return raw
