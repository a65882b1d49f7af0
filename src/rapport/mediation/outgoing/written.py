"""A consumer's value in the format of its interpretation. [ME-13]"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rapport.core.codec import DATA_TYPE, octets_event_parts
from rapport.core.errors import InvalidInput
from rapport.mediation.formats.named import write
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.rejection import Rejected

_ENCODE = msgspec.json.Encoder().encode
_AS_TEXT = ("csv", "xml")
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+", re.ASCII)


def written(value: Any, choice: FormatChoice, type_name: str) -> tuple[bytes, dict[str, str]]:
    """Data of the envelope and the headers that say what they are; raises Rejected for a value that
    the format cannot hold.

    CSV (a heading and a row), XML and MessagePack are written; the others are JSON already, or have
    no form for a single value, and are given as JSON.
    """
    if is_json(choice):
        return _ENCODE(value), {}
    try:
        raw, media_type = write(value, choice.name, _options(choice, type_name))
    except InvalidInput as error:
        raise Rejected(error.code, error.message, error.hint) from None
    if choice.name in _AS_TEXT:
        return _ENCODE(raw.decode()), {DATA_TYPE: media_type}
    return octets_event_parts(raw, media_type)


def is_json(choice: FormatChoice) -> bool:
    """Values are given as JSON."""
    return choice.name not in (*_AS_TEXT, "msgpack")


def _options(choice: FormatChoice, type_name: str) -> dict[str, Any]:
    """Of what was said about reading, what counts for writing too."""
    if choice.name == "xml":
        return {"root": _NOT_IN_A_NAME.sub("-", type_name)}
    if choice.name == "csv":
        known = {name: choice.options[name] for name in ("decimal",) if name in choice.options}
        delimiter = choice.options.get("delimiter", ",")
        delimiter = "," if delimiter == "sniffed" else delimiter
        return known | {"delimiter": delimiter, "heading": True}
    return {}
