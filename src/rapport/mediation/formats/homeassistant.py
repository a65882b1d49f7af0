"""Home Assistant MQTT discovery: units and names come in announcements, values in states. [ME-13]

Announcements (`homeassistant/sensor/node7/temperature/config`) are remembered and say no reading.
A state is read by all announcements that name its topic; those of one device are one document,
`{"device": "node7", "topic": "node7/state", "temperature": 93.2}` with the unit beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rapport.channel.mqtt.bridge import TOPIC
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.mediation.formats.base import Document, bad_option, part_id, read_options
from rapport.mediation.formats.homeassistant_configs import BINARY, Entity
from rapport.mediation.formats.homeassistant_memory import Announcements
from rapport.mediation.formats.homeassistant_templates import NotThere, Template, read_template
from rapport.mediation.formats.payload import decode_json, text_of
from rapport.mediation.rejection import Rejected
from rapport.units.quantities import parse_number

DEVICE, TOPIC_NAME = "device", "topic"
_NOTHING = ("", "unknown", "unavailable", "None", "none", "null")
"""States by which Home Assistant says that there is no value."""
_MAX_BYTES = 1024 * 1024
"""Longest message of a device."""


class HomeAssistantOptions(msgspec.Struct, frozen=True):
    """How announcements are found and values named."""

    prefix: str = "homeassistant"
    """The first levels of the topics of announcements."""
    attribute: Literal["device_class", "object"] = "device_class"
    """The name of a value: its device class (`temperature`; its object where it has none), or
    always its object (`bedroom_temperature`).
    """


class HomeAssistantFormat:
    """Messages of topics that devices announced."""

    name = "homeassistant"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = read_options(HomeAssistantOptions, self.name, options)
        if not self._options.prefix.strip("/") or set("+#") & set(self._options.prefix):
            raise bad_option(self.name, "the prefix is no topic", 'such as "homeassistant"')

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        """See Format; the topic is that of the MQTT bridge, or else the event's subject."""
        topic = event.headers.get(TOPIC) or event.subject
        if not topic:
            raise Rejected(
                "format.no_topic",
                "the event does not say the topic it came by",
                "the MQTT bridge of the node does; other publishers put it into the subject",
            )
        remembered = Announcements(memory)
        text = text_of(event)
        if len(text) > _MAX_BYTES:
            raise Rejected("format.too_large", f"the message has over {_MAX_BYTES:,} signs")
        levels = self._announcing(topic)
        if levels is not None:
            remembered.announce(topic, levels, text)
            return []
        entities = remembered.entities_of(topic)
        if not entities and remembered.is_quiet(topic):
            return []
        if not entities:
            raise Rejected(
                "format.not_announced",
                f"no device has announced the topic {topic[:100]!r}",
                "its announcement has not come yet, or was refused; announcements must be bridged "
                f"into the same source: {self._options.prefix}/#",
            )
        return self._documents(topic, text, entities, remembered)

    def _announcing(self, topic: str) -> list[str] | None:
        """The levels between prefix and `config`; None for other topics."""
        prefix = self._options.prefix.strip("/") + "/"
        if not topic.startswith(prefix) or not topic.endswith("/config"):
            return None
        return topic[len(prefix) : -len("/config")].split("/")

    def _documents(
        self, topic: str, text: str, entities: list[Entity], remembered: Announcements
    ) -> list[Document]:
        message = _Message(text)
        values: dict[str, dict[str, Any]] = {}
        units: dict[str, dict[str, str]] = {}
        missing: Rejected | None = None
        for entity in entities:
            name = self._name_of(entity, remembered)
            try:
                state = _state(entity, message)
            except NotThere as fault:  # others of its device may be in the message all the same
                missing = missing or fault
                continue
            found = values.setdefault(entity.device, {DEVICE: entity.device, TOPIC_NAME: topic})
            found[name] = state
            if entity.unit:
                units.setdefault(entity.device, {})[name] = entity.unit
        if missing is not None and not values:
            raise missing
        several = len(values) > 1
        return [
            Document(found, id=part_id(device) if several else "", units=units.get(device, {}))
            for device, found in values.items()
        ]

    def _name_of(self, entity: Entity, remembered: Announcements) -> str:
        if self._options.attribute == "object" or not entity.device_class:
            name = entity.object
        else:
            name = entity.device_class
            if remembered.same_class(entity) > 1:
                raise Rejected(
                    "format.ambiguous",
                    f"{entity.device[:60]!r} has several values of the class {name[:60]!r}",
                    'name values by their object: format = { name = "homeassistant", '
                    'attribute = "object" }',
                )
        if name in (DEVICE, TOPIC_NAME):
            raise Rejected("format.bad_config", f"a value cannot be named {name!r}")
        return name


class _Message:
    """A state as text, and as JSON for those who ask."""

    def __init__(self, text: str) -> None:
        self.text, self._decoded = text, msgspec.UNSET

    def picked(self, template: Template) -> Any:
        """What a template takes out."""
        if template.is_json and self._decoded is msgspec.UNSET:
            self._decoded = decode_json(self.text)
        return template.value_in(self.text, self._decoded)


def _state(entity: Entity, message: _Message) -> Any:
    value = message.picked(read_template(entity.template)) if entity.template else message.text
    if entity.component in BINARY and str(value) in (entity.on, entity.off):
        return str(value) == entity.on
    if isinstance(value, str) and value.strip() in _NOTHING:
        return None
    if entity.numeric and isinstance(value, str):
        try:
            return parse_number(value)
        except InvalidInput:
            return value  # for the interpretation to refuse, with its reason
    return value
