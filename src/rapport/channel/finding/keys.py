"""The keys that events have in a field index, whole blocks at a time. [CH-4]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rapport.channel.finding.unusual import UNUSUAL, is_unusual
from rapport.channel.query.cursor import Cursor
from rapport.channel.query.fields import parse_field
from rapport.channel.query.tree import Field
from rapport.channel.query.values import decode_payload, element, member
from rapport.channel.query.xml_values import (
    as_boolean,
    as_number,
    is_xml,
    xml_document,
    xml_steps,
    xml_text,
    xml_value,
)
from rapport.core.event import Event
from rapport.core.xml import XmlNode
from rapport.store.field_index import Column
from rapport.store.field_keys import Key, key_of, number_key, text_key

Keys = tuple[list[Key | None], list[tuple[int, Key]]]


class Extraction:
    """Knows how to fetch some fields; made once per set of fields."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._fields = {path: parse_field(Cursor(path)) for path in self.paths if path != UNUSUAL}
        self._needs_payload = any(field.path[0] == "data" for field in self._fields.values())
        self._parts: dict[tuple[str, ...], Extraction] = {}

    def only(self, paths: Sequence[str]) -> Extraction:
        """The same for some of the fields."""
        chosen = tuple(paths)
        if chosen == self.paths:
            return self
        if chosen not in self._parts:
            self._parts[chosen] = Extraction(chosen)
        return self._parts[chosen]

    def columns(self, first: int, received: int, events: Sequence[Event]) -> list[Column]:
        """The keys of events that stand from position `first` on."""
        payloads = [_Payload.of(event) for event in events] if self._needs_payload else []
        columns = []
        for path, field in self._fields.items():
            root = field.path[0]
            if root == "data":
                keys, more = _payload_keys(field, payloads, first)
            else:
                keys, more = _envelope_keys(field, events, received), []
            columns.append(Column(path, first, keys, more))
        if UNUSUAL in self.paths:
            unusual = [1 if is_unusual(event) else None for event in events]
            columns.append(Column(UNUSUAL, first, unusual))
        return columns


def _envelope_keys(field: Field, events: Sequence[Event], received: int) -> list[Key | None]:
    root = field.path[0]
    if root == "received":
        return [number_key(received)] * len(events)
    if root == "time":
        return [number_key(event.time) for event in events]
    if root == "headers":
        name = str(field.path[1])
        return [key_of(event.headers.get(name)) for event in events]
    name = str(root)
    return [text_key(getattr(event, name)) for event in events]


class _Payload:
    """A payload read once for all fields."""

    __slots__ = ("document", "is_xml", "json")

    def __init__(self, json: Any, document: XmlNode | None, is_xml: bool) -> None:
        self.json, self.document, self.is_xml = json, document, is_xml

    @staticmethod
    def of(event: Event) -> _Payload:
        if event.headers and is_xml(event.headers):
            text = xml_text(event.data)
            return _Payload(text, xml_document(text), True)
        return _Payload(decode_payload(event.data), None, False)


def _payload_keys(field: Field, payloads: Sequence[_Payload], first: int) -> Keys:
    fetches: list[tuple[Callable[[Any, Any], Any], Any]] = [
        (element if isinstance(step, int) else member, step) for step in field.path[1:]
    ]
    in_xml = xml_steps(field.path[1:])
    keys: list[Key | None] = []
    more: list[tuple[int, Key]] = []
    for position, payload in enumerate(payloads, start=first):
        value = payload.json
        if payload.is_xml:
            value = xml_value(payload.document, in_xml) if fetches else payload.json
            more += [(position, key) for key in _other_keys(value)]
        else:
            for fetch, step in fetches:
                value = fetch(value, step)
        keys.append(key_of(value))
    return keys, more


def _other_keys(value: str | None) -> list[Key]:
    """A value in XML is a text, and whatever else it reads like."""
    found = [key_of(as_number(value)), key_of(as_boolean(value))]
    return [key for key in found if isinstance(key, int)]
