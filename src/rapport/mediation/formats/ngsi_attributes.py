"""One attribute of an NGSI entity, however it is written: its value, unit and time. [ME-13]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

_VALUE_KEYS = {
    "Property": "value",
    "GeoProperty": "value",
    "Relationship": "object",
    "LanguageProperty": "languageMap",
    "VocabProperty": "vocab",
    "JsonProperty": "json",
    "ListProperty": "valueList",
    "ListRelationship": "objectList",
}
"""Kinds of attributes in NGSI-LD, and where the value stands in them."""
_VALUES = (*dict.fromkeys(_VALUE_KEYS.values()),)
_GEOMETRIES = ("Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon")
_TIMES = ("observedAt", "TimeInstant", "timestamp")
"""Metadata that say when; the first is NGSI-LD's own, the others are usual in NGSIv2."""
_UNITS = ("unitCode", "unit")
_OWN = ("type", "metadata", "datasetId", "createdAt", "modifiedAt", "deletedAt", "previousValue")


class Attribute(msgspec.Struct, frozen=True):
    """`observed` and `unit` are empty when nobody says."""

    name: str
    value: Any
    unit: str = ""
    observed: str = ""


def attributes_of(name: str, written: Any, *, plain: bool = False) -> Iterator[Attribute]:
    """What an attribute says: itself, and the properties of itself as `name.property`.

    Of several instances of one attribute (NGSI-LD `datasetId`) the one without an id has the plain
    name, others are `name@datasetId`.
    """
    if not plain and isinstance(written, list) and written and all(map(_is_normalised, written)):
        for instance in written:
            dataset = instance.get("datasetId")
            yield from _read(f"{name}@{dataset}" if dataset else name, instance)
    elif not plain and isinstance(written, dict) and _is_normalised(written):
        yield from _read(name, written)
    else:
        yield Attribute(name, written)


def _is_normalised(written: Any) -> bool:
    """Whether it is an attribute with its value inside, and not the value itself."""
    if not isinstance(written, dict):
        return False
    kind = written.get("type")
    if isinstance(kind, str) and kind in _VALUE_KEYS:
        return _VALUE_KEYS[kind] in written
    if kind in _GEOMETRIES and "coordinates" in written:
        return False
    return sum(key in written for key in _VALUES) == 1


def _read(name: str, written: dict[str, Any]) -> Iterator[Attribute]:
    key = next(key for key in _value_keys(written) if key in written)
    metadata = written.get("metadata")
    sayings = {**(metadata if isinstance(metadata, dict) else {}), **written}
    yield Attribute(
        name, written[key], unit=_text(sayings, _UNITS), observed=_text(sayings, _TIMES)
    )
    for below, value in sayings.items():
        if below not in (key, *_OWN, *_TIMES, *_UNITS):
            yield Attribute(f"{name}.{below}", _inner(value))


def _value_keys(written: dict[str, Any]) -> tuple[str, ...]:
    kind = written.get("type")
    own = _VALUE_KEYS.get(kind) if isinstance(kind, str) else None
    return (own,) if own else _VALUES


def _text(sayings: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = _inner(sayings.get(name))
        if isinstance(value, str):
            return value
    return ""


def _inner(value: Any) -> Any:
    """The value of metadata, which may be an attribute in turn."""
    if isinstance(value, dict) and _is_normalised(value):
        return value[next(key for key in _value_keys(value) if key in value)]
    return value
