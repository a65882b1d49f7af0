"""Formats by their names. [ME-13]

An interpretation says `format = "senml"`, or with options `format = { name = "csv", delimiter = ";"
}`; without it events are JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.mediation.formats.base import Format, read_options
from rapport.mediation.formats.csv_rows import CsvFormat
from rapport.mediation.formats.homeassistant import HomeAssistantFormat
from rapport.mediation.formats.ngsi import NgsiFormat
from rapport.mediation.formats.objects import (
    JsonFormat,
    MsgpackFormat,
    NoOptions,
    ValueFormat,
)
from rapport.mediation.formats.senml import SenmlFormat
from rapport.mediation.formats.writing import (
    Written,
    write_csv,
    write_json,
    write_msgpack,
    write_senml,
    write_xml,
)
from rapport.mediation.formats.xml_elements import XmlFormat

JSON = "json"


def _json(options: Mapping[str, Any]) -> Format:
    read_options(NoOptions, JSON, options)
    return JsonFormat()


def _msgpack(options: Mapping[str, Any]) -> Format:
    read_options(NoOptions, "msgpack", options)
    return MsgpackFormat()


_MAKERS: dict[str, Callable[[Mapping[str, Any]], Format]] = {
    JSON: _json,
    "msgpack": _msgpack,
    "xml": XmlFormat,
    "csv": CsvFormat,
    "senml": SenmlFormat,
    "ngsi": NgsiFormat,
    "homeassistant": HomeAssistantFormat,
    "value": ValueFormat,
}
_WRITERS: dict[str, Callable[[Any, Mapping[str, Any]], Written]] = {
    JSON: write_json,
    "msgpack": write_msgpack,
    "xml": write_xml,
    "csv": write_csv,
    "senml": write_senml,
}

FORMATS = tuple(_MAKERS)
"""The names of all formats."""


def format_named(name: str, options: Mapping[str, Any]) -> Format:
    """The format of that name; raises UnknownName `format.unknown`, or InvalidInput
    `format.unknown_option` and `format.bad_option`.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise UnknownName("format", name[:40], FORMATS, code="format.unknown")
    return maker(options)


def read_format(declared: Any) -> tuple[str, dict[str, Any]]:
    """Name and options from what stands at `format`: a name, or a table with the name in it.

    >>> read_format({"name": "csv", "delimiter": ";"})
    ('csv', {'delimiter': ';'})
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


def write(value: Any, name: str, options: Mapping[str, Any]) -> Written:
    """A value in a format, as bytes and media type; raises InvalidInput, Unsupported."""
    writer = _WRITERS.get(name)
    if writer is not None:
        return writer(value, options)
    if name in _MAKERS:
        written = ", ".join(sorted(_WRITERS))
        raise Unsupported(f"writing the format {name!r}", hint=f"formats to write: {written}")
    raise UnknownName("format", name[:40], FORMATS, code="format.unknown")
