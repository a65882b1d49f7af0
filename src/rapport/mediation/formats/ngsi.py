"""NGSI entities: NGSIv2 normalised and key-values, NGSI-LD normalised, concise and key-values;
alone, in a list, or in a notification. [ME-13]

`{"id": "s1", "type": "WeatherObserved", "temperature": {"type": "Property", "value": 33.3,
"unitCode": "CEL", "observedAt": "2026-03-02T09:00:00Z"}}` becomes `{"id": "s1", "type":
"WeatherObserved", "temperature": 33.3}` with unit and time. Attributes observed at different times
become separate documents, each with the attributes without a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.times import from_iso
from rapport.mediation.formats.base import (
    MAX_NAMES,
    Document,
    check_count,
    json_of,
    part_id,
    read_options,
)
from rapport.mediation.rejections import RejectedValue

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
"""Kinds of attributes in NGSI-LD, and the key of their value."""
_VALUES = (*dict.fromkeys(_VALUE_KEYS.values()),)
_GEOMETRIES = ("Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon")
_TIMES = ("observedAt", "TimeInstant", "timestamp")
"""Time metadata; the first is NGSI-LD's own, the others are common in NGSIv2."""
_UNITS = ("unitCode", "unit")
_OWN = ("type", "metadata", "datasetId", "createdAt", "modifiedAt", "deletedAt", "previousValue")


class NgsiAttribute(msgspec.Struct, frozen=True):
    """`observed` and `unit` may be empty."""

    name: str
    value: Any
    unit: str = ""
    observed: str = ""


def attributes_of(name: str, written: Any, *, plain: bool = False) -> Iterator[NgsiAttribute]:
    """An attribute and its own properties as `name.property`. Of several instances (NGSI-LD
    `datasetId`) the one without an id has the plain name, others are `name@datasetId`.
    """
    if not plain and isinstance(written, list) and written and all(map(_is_normalised, written)):
        for instance in written:
            dataset = instance.get("datasetId")
            yield from _read(f"{name}@{dataset}" if dataset else name, instance)
    elif not plain and isinstance(written, dict) and _is_normalised(written):
        yield from _read(name, written)
    else:
        yield NgsiAttribute(name, written)


def _is_normalised(written: Any) -> bool:
    """Whether it is an attribute with its value inside rather than the value itself."""
    if not isinstance(written, dict):
        return False
    kind = written.get("type")
    if isinstance(kind, str) and kind in _VALUE_KEYS:
        return _VALUE_KEYS[kind] in written
    if kind in _GEOMETRIES and "coordinates" in written:
        return False
    return sum(key in written for key in _VALUES) == 1


def _read(name: str, written: dict[str, Any]) -> Iterator[NgsiAttribute]:
    key = next(key for key in _value_keys(written) if key in written)
    metadata = written.get("metadata")
    members = {**(metadata if isinstance(metadata, dict) else {}), **written}
    yield NgsiAttribute(
        name,
        written[key],
        unit=_text(members, _UNITS),
        observed=_text(members, _TIMES),
    )
    for below, value in members.items():
        if below not in (key, *_OWN, *_TIMES, *_UNITS):
            yield NgsiAttribute(f"{name}.{below}", _inner(value))


def _value_keys(written: dict[str, Any]) -> tuple[str, ...]:
    kind = written.get("type")
    own = _VALUE_KEYS.get(kind) if isinstance(kind, str) else None
    return (own,) if own else _VALUES


def _text(members: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = _inner(members.get(name))
        if isinstance(value, str):
            return value
    return ""


def _inner(value: Any) -> Any:
    """The value of metadata, which may be an attribute itself."""
    if isinstance(value, dict) and _is_normalised(value):
        return value[next(key for key in _value_keys(value) if key in value)]
    return value


_ABOUT = ("id", "type", "@id", "@type", "@context", "scope")
_LONGEST_ID = 2_048


class NgsiOptions(msgspec.Struct, frozen=True):
    form: Literal["sniffed", "key-values"] = "sniffed"
    """`key-values`: every attribute is the value itself, even an object with a `value`."""


class NgsiFormat:
    name = "ngsi"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._plain = read_options(NgsiOptions, self.name, options).form == "key-values"

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        found: list[Document] = []
        for entity in _entities(json_of(event)):
            found += self._documents(entity)
            check_count(len(found))
        if len(found) == 1:
            return [msgspec.structs.replace(found[0], id="")]
        return _numbered(found)

    def _documents(self, entity: dict[str, Any]) -> list[Document]:
        about = _about(entity)
        plain: dict[str, NgsiAttribute] = {}
        timed: dict[int, dict[str, NgsiAttribute]] = {}
        for name, written in entity.items():
            if name in _ABOUT:
                continue
            for attribute in attributes_of(name, written, plain=self._plain):
                time = _time(attribute)
                group = plain if time is None else timed.setdefault(time, {})
                group.setdefault(attribute.name, attribute)
        if sum(len(group) for group in (plain, *timed.values())) > MAX_NAMES:
            raise RejectedValue("format.too_many", f"an entity has over {MAX_NAMES:,} attributes")
        if not timed:
            return [_document(about, plain, None)]
        return [_document(about, {**plain, **group}, time) for time, group in timed.items()]


def _entities(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and isinstance(value.get("data"), list) and _is_notification(value):
        value = value["data"]
    for entity in value if isinstance(value, list) else [value]:
        if not isinstance(entity, dict):
            raise RejectedValue(
                "payload.not_an_object",
                "an entity is an object, a list of them, or a notification with them in `data`",
                'such as {"id": "s1", "type": "WeatherObserved", "temperature": 33.3}',
            )
        yield entity


def _is_notification(value: dict[str, Any]) -> bool:
    return "subscriptionId" in value or value.get("type") == "Notification"


def _about(entity: dict[str, Any]) -> dict[str, str]:
    """Id and (first) type; either may be missing outside of brokers."""
    kind = entity.get("type", entity.get("@type", ""))
    if isinstance(kind, list):
        kind = kind[0] if kind else ""
    identity = entity.get("id", entity.get("@id", ""))
    if not isinstance(identity, str) or len(identity) > _LONGEST_ID:
        raise RejectedValue(
            "format.bad_entity",
            "an entity has an id that is no text or too long",
            'such as "id": "urn:ngsi-ld:WeatherObserved:s1"',
        )
    if not isinstance(kind, str):
        raise RejectedValue(
            "format.bad_entity", f"the type of the entity {identity[:60]!r} is no text"
        )
    about = {"id": identity, "type": kind}
    return {name: text for name, text in about.items() if text}


def _document(
    about: dict[str, str], attributes: Mapping[str, NgsiAttribute], time: int | None
) -> Document:
    value = {**about, **{name: each.value for name, each in attributes.items()}}
    units = {name: each.unit for name, each in attributes.items() if each.unit}
    kind, identity = about.get("type", ""), about.get("id", "")
    return Document(value, type=kind, id=identity, time=time, units=units)


def _numbered(found: list[Document]) -> list[Document]:
    """Repeated entities are distinguished by a number."""
    seen: dict[str, int] = {}
    numbered = []
    for document in found:
        name = part_id(document.id)
        count = seen[name] = seen.get(name, 0) + 1
        name = name if count == 1 else f"{name}#{count}"
        numbered.append(msgspec.structs.replace(document, id=name))
    return numbered


def _time(attribute: NgsiAttribute) -> int | None:
    if not attribute.observed:
        return None
    try:
        return from_iso(attribute.observed)
    except InvalidInput as error:
        raise RejectedValue(error.code, f"{attribute.name}: {error.message}", error.hint) from None
