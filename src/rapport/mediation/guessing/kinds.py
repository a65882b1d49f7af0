"""Which format a file is in. Pure. [ME-13]"""

from __future__ import annotations

from itertools import islice
from typing import Any

from rapport.mediation.formats.files import json_values
from rapport.mediation.formats.senml import FIELDS
from rapport.mediation.rejection import Rejected

_LOOKED_AT = 20


def kind_of(raw: bytes) -> tuple[str, str]:
    """The name of a format, and why."""
    start = raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start == b"<":
        return "xml", "it begins with <"
    if start in (b"{", b"["):
        values = _first_values(raw, is_pack=True)
        if values and all(map(_is_senml, values)):
            return "senml", "all fields are those of SenML records"
        values = _first_values(raw, is_pack=False)
        if values and all(map(_is_ngsi, values)):
            return "ngsi", "entities with a type and attributes that have a value inside"
        if values:
            return "json", "it is JSON"
    return "csv", "it is text that is neither JSON nor XML"


def _first_values(raw: bytes, *, is_pack: bool) -> list[Any]:
    try:
        return list(islice(json_values(raw, is_pack=is_pack), _LOOKED_AT))
    except Rejected:
        return []


def _is_senml(value: Any) -> bool:
    records = value if isinstance(value, list) else [value]
    return bool(records) and all(
        isinstance(record, dict)
        and record.keys() <= FIELDS
        and bool(record.keys() & {"n", "bn", "v", "vs", "vb", "bt"})
        for record in records
    )


def _is_ngsi(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    if "@context" in value or isinstance(value.get("subscriptionId"), str):
        return True
    return any(
        isinstance(each, dict) and bool(each.keys() & {"value", "object"})
        for each in value.values()
    )
