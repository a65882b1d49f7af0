"""Home Assistant MQTT discovery: announcements carry units and names, states carry values. [ME-13]

Announcements (`homeassistant/sensor/node7/temperature/config`) are stored and give no reading. A
state is read by all announcements that name its topic; those of one device form one document,
`{"device": "node7", "topic": "node7/state", "temperature": 93.2}`, with the unit. Value templates
are Jinja programs; nothing is executed: only templates that pick one value and perhaps round it are
supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from rapport.channel.mqtt.bridge import TOPIC
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.mediation.formats.base import (
    MAX_DOCUMENTS,
    Document,
    bad_option,
    decode_json,
    part_id,
    read_options,
    text_of,
)
from rapport.mediation.memory import TrackedDict
from rapport.mediation.rejections import RejectedValue
from rapport.units.quantities import parse_number

_WHOLE = re.compile(r"\s*\{\{-?\s*(.*?)\s*-?\}\}\s*", re.DOTALL)
_NAME = re.compile(r"value_json|value")
_STEP = re.compile(
    r"\.([A-Za-z_]\w*)|\[\s*'([^'\\]*)'\s*\]|\[\s*\"([^\"\\]*)\"\s*\]|\[\s*(\d+)\s*\]"
)
_FILTER = re.compile(r"\s*\|\s*(float|int|round)\s*(?:\(\s*(\d{0,2})\s*\))?")
_LONGEST = 1_000


class MissingValue(RejectedValue):
    """The message lacks the value that a template names."""


class Template(msgspec.Struct, frozen=True):
    """The path of a value in the message, and filters on it."""

    is_json: bool = False
    steps: tuple[str | int, ...] = ()
    filters: tuple[tuple[str, int], ...] = ()
    """Filter names with their argument, 0 without one."""

    def value_in(self, text: str, decoded: Any) -> Any:
        """The value; `text` is the message, `decoded` the same as JSON. Raises Rejected."""
        value = decoded if self.is_json else text
        for step in self.steps:
            value = _below(value, step)
        for name, digits in self.filters:
            value = _filtered(value, name, digits)
        return value


def read_template(text: str) -> Template:
    """Parses a template; raises Rejected `format.template` for one that does more than pick a
    value.

    >>> read_template("{{ value_json.ENERGY['Total'] | round(1) }}").steps
    ('ENERGY', 'Total')
    """
    found = _WHOLE.fullmatch(text) if len(text) <= _LONGEST else None
    name = _NAME.match(found[1]) if found else None
    if found is None or name is None:
        raise _bad_template(text)
    inner, end = found[1], name.end()
    steps: list[str | int] = []
    while step := _STEP.match(inner, end):
        steps.append(
            int(step[4]) if step[4] else next(part for part in step.groups() if part is not None)
        )
        end = step.end()
    filters = []
    while each := _FILTER.match(inner, end):
        filters.append((each[1], int(each[2] or 0)))
        end = each.end()
    if inner[end:].strip() or (steps and name[0] == "value"):
        raise _bad_template(text)
    return Template(name[0] == "value_json", tuple(steps), tuple(filters))


def _below(value: Any, step: str | int) -> Any:
    if isinstance(value, dict) and str(step) in value:
        return value[str(step)]
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    raise MissingValue("field.missing", f"the message has no {step!r}, which the template names")


def _filtered(value: Any, name: str, digits: int) -> Any:
    number = _number(value)
    if number is None:
        return value  # left for the interpretation to reject
    if name == "int":
        return int(number)
    return round(number, digits) if name == "round" else float(number)


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        try:
            value = parse_number(value)
        except InvalidInput:
            return None
    if not isinstance(value, (int, float)) or not abs(value) < 1e300:
        return None
    return value


def _bad_template(text: str) -> RejectedValue:
    return RejectedValue(
        "format.template",
        f"the value template {text[:100]!r} is not supported",
        "supported: {{ value }}, {{ value_json.a.b }}, {{ value_json['a'] }}, "
        "with | float, | int, | round(1)",
    )


ABBREVIATIONS = {
    "avty": "availability",
    "avty_t": "availability_topic",
    "cmd_t": "command_topic",
    "cmps": "components",
    "dev": "device",
    "dev_cla": "device_class",
    "ent_cat": "entity_category",
    "json_attr_t": "json_attributes_topic",
    "lrst_t": "last_reset_topic",
    "o": "origin",
    "obj_id": "object_id",
    "p": "platform",
    "pl_off": "payload_off",
    "pl_on": "payload_on",
    "stat_cla": "state_class",
    "stat_off": "state_off",
    "stat_on": "state_on",
    "stat_t": "state_topic",
    "stat_val_tpl": "state_value_template",
    "t": "topic",
    "uniq_id": "unique_id",
    "unit_of_meas": "unit_of_measurement",
    "val_tpl": "value_template",
}
"""Abbreviations of the keys in use."""
_DEVICE_ABBREVIATIONS = {"cns": "connections", "ids": "identifiers"}
_BASE = "~"
BINARY = ("binary_sensor", "switch", "light", "siren", "fan")
"""Components whose state is on or off."""


class Entity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measured quantity of a device, as stored."""

    object: str
    """The name in the topic of the announcement, or in the device's bundle."""
    component: str
    device: str
    topic: str
    """The topic of its states."""
    template: str = ""
    unit: str = ""
    device_class: str = ""
    on: str = "ON"
    off: str = "OFF"
    numeric: bool = False


class Announcement(msgspec.Struct, frozen=True):
    """The content of one announcement; `quiet` are topics without states."""

    entities: tuple[Entity, ...] = ()
    quiet: tuple[str, ...] = ()
    faults: tuple[RejectedValue, ...] = ()


def read_config(levels: list[str], payload: Any) -> Announcement:
    """Parses the announcement on the topic `<component>/[<node>/]<object>/config`; `levels`
    precede the last. Raises Rejected.
    """
    if len(levels) not in (2, 3):
        raise _bad_config("the topic is not <component>/[<node>/]<object>/config")
    if payload == "":
        return Announcement()  # withdrawn
    if not isinstance(payload, dict):
        raise _bad_config("the announcement is not an object")
    component, name = levels[0], levels[-1]
    config = _spelled_out(payload)
    device = _device(config) or (levels[1] if len(levels) == 3 else name)
    configs = list(_components(config)) if component == "device" else [(name, component, config)]
    entities, faults = [], []
    for each, kind, own in configs:
        try:
            if "state_topic" in own:
                entities.append(_entity(each, kind, device, own))
        except RejectedValue as fault:
            faults.append(fault)
    quiet = [topic for _name, _kind, own in configs for topic in _quiet_topics(own)]
    return Announcement(tuple(entities), tuple(dict.fromkeys(quiet)), tuple(faults))


def _spelled_out(payload: dict[str, Any]) -> dict[str, Any]:
    """Expands abbreviations, and `~` at either end of topics."""
    config = {ABBREVIATIONS.get(key, key): value for key, value in payload.items()}
    base = config.pop(_BASE, None)
    if not isinstance(base, str):
        return config
    return {key: _with_base(key, value, base) for key, value in config.items()}


def _with_base(key: str, value: Any, base: str) -> Any:
    if key == "availability" and isinstance(value, list):
        return [
            {
                ABBREVIATIONS.get(name, name): _with_base("topic", each, base)
                for name, each in entry.items()
            }
            for entry in value
            if isinstance(entry, dict)
        ]
    if isinstance(value, str) and key.endswith("topic"):
        if value.startswith(_BASE):
            return base + value[1:]
        if value.endswith(_BASE):
            return value[:-1] + base
    return value


def _components(config: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The entities of a device's bundle, with its common keys."""
    components = config.get("components")
    if not isinstance(components, dict):
        raise _bad_config("the announcement of a device has no components")
    common: dict[str, Any] = {
        key: config[key]
        for key in ("state_topic", "availability", "availability_topic", "command_topic")
        if key in config
    }
    for name, own in components.items():
        if not isinstance(own, dict):
            raise _bad_config(f"the component {name[:60]!r} is not an object")
        spelled = _spelled_out(own)
        kind = spelled.pop("platform", "")
        if not isinstance(kind, str) or not kind:
            raise _bad_config(f"the component {name[:60]!r} has no platform")
        if spelled:  # the platform alone withdraws the component
            yield name, kind, {**common, **spelled}


def _entity(name: str, component: str, device: str, config: dict[str, Any]) -> Entity:
    template = _text(config, "value_template") or _text(config, "state_value_template")
    if template:
        read_template(template)
    unit, device_class = _text(config, "unit_of_measurement"), _text(config, "device_class")
    topic = _text(config, "state_topic")
    if not topic or "+" in topic or "#" in topic:
        raise _bad_config(f"the state topic of {name[:60]!r} is no topic")
    return Entity(
        object=name,
        component=component,
        device=device,
        topic=topic,
        template=template,
        unit=unit,
        device_class=device_class,
        on=_text(config, "state_on") or _text(config, "payload_on") or "ON",
        off=_text(config, "state_off") or _text(config, "payload_off") or "OFF",
        numeric=bool(component == "number" or unit or _text(config, "state_class")),
    )


def _device(config: dict[str, Any]) -> str:
    """The first identifier of the device, or the address of its first connection."""
    device = config.get("device")
    if not isinstance(device, dict):
        return ""
    spelled = {_DEVICE_ABBREVIATIONS.get(key, key): value for key, value in device.items()}
    known = spelled.get("identifiers")
    first = known[0] if isinstance(known, list) and known else known
    if isinstance(first, (str, int)) and not isinstance(first, bool) and str(first):
        return str(first)
    connections = spelled.get("connections")
    pair = connections[0] if isinstance(connections, list) and connections else None
    return str(pair[1]) if isinstance(pair, list) and len(pair) == 2 and pair[1] else ""


def _quiet_topics(config: dict[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if key.endswith("_topic") and key != "state_topic" and isinstance(value, str):
            yield value
    availability = config.get("availability")
    for entry in availability if isinstance(availability, list) else ():
        topic = entry.get("topic", entry.get("t")) if isinstance(entry, dict) else None
        if isinstance(topic, str):
            yield topic


def _text(config: dict[str, Any], key: str) -> str:
    value = config.get(key, "")
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        return str(value)
    if not isinstance(value, str):
        raise _bad_config(f"{key!r} is no text")
    return value


def _bad_config(message: str) -> RejectedValue:
    return RejectedValue(
        "format.bad_config",
        message,
        'such as homeassistant/sensor/node7/temperature/config with {"stat_t": "node7/state", '
        '"unit_of_meas": "°F", "val_tpl": "{{ value_json.Temperature }}"}',
    )


_ANNOUNCED, _STATES, _QUIET, _CLASSES = "announced", "states", "quiet", "classes"
_COUNT = "count"


class Announcements:
    """Entities by the topic of their announcement, indexed by the topic of their states."""

    def __init__(self, memory: dict[str, Any]) -> None:
        self._memory = memory
        self._announced: dict[str, list[dict[str, Any]]] = _map(memory, _ANNOUNCED)
        self._states: dict[str, list[str]] = _map(memory, _STATES)
        self._quiet: dict[str, list[str]] = _map(memory, _QUIET)
        self._classes: dict[str, dict[str, int]] = _map(memory, _CLASSES)

    def announce(self, topic: str, levels: list[str], text: str) -> None:
        """Replaces the former announcement; raises Rejected for faulty entities after
        storing the others.
        """
        self._forget(topic)
        announced = read_config(levels, decode_json(text) if text.strip() else "")
        values = self._memory.get(_COUNT, 0) + len(announced.entities)
        if max(values, len(self._quiet) + len(announced.quiet)) > MAX_DOCUMENTS:
            raise RejectedValue(
                "format.too_many", f"over {MAX_DOCUMENTS:,} values or topics are announced"
            )
        self._remember(topic, announced)
        if announced.faults:
            raise announced.faults[0]

    def entities_of(self, state_topic: str) -> list[Entity]:
        """Entities with this state topic, in the order of their announcements."""
        return [
            msgspec.convert(each, Entity)
            for topic in self._states.get(state_topic, ())
            for each in self._announced[topic]
            if each["topic"] == state_topic
        ]

    def is_quiet(self, topic: str) -> bool:
        """Whether the topic was announced for something other than states."""
        return topic in self._quiet

    def same_class(self, entity: Entity) -> int:
        """The number of entities of a device with the same class."""
        return self._classes.get(entity.device, {}).get(entity.device_class, 0)

    def _remember(self, topic: str, announced: Announcement) -> None:
        if announced.entities:
            self._announced[topic] = [msgspec.to_builtins(each) for each in announced.entities]
        self._memory[_COUNT] = self._memory.get(_COUNT, 0) + len(announced.entities)
        for entity in announced.entities:
            topics = self._states.get(entity.topic, [])
            if topic not in topics:
                self._states[entity.topic] = [*topics, topic]
            self._count_class(entity.device, entity.device_class, 1)
        for quiet in announced.quiet:
            self._quiet[quiet] = [*self._quiet.get(quiet, ()), topic]

    def _forget(self, topic: str) -> None:
        for each in self._announced.pop(topic, ()):
            self._memory[_COUNT] -= 1
            self._count_class(each["device"], each.get("device_class", ""), -1)
            _drop(self._states, each["topic"], topic)
        for quiet in [quiet for quiet, topics in self._quiet.items() if topic in topics]:
            _drop(self._quiet, quiet, topic)

    def _count_class(self, device: str, device_class: str, by: int) -> None:
        classes = dict(self._classes.get(device, {}))
        classes[device_class] = classes.get(device_class, 0) + by
        if not classes[device_class]:
            del classes[device_class]
        if classes:
            self._classes[device] = classes
        else:
            self._classes.pop(device, None)


def _map(memory: dict[str, Any], name: str) -> Any:
    """A map saved key by key; values are replaced, never mutated."""
    found = memory.get(name)
    if not isinstance(found, TrackedDict):
        found = memory[name] = TrackedDict(found)
    return found


def _drop(index: dict[str, list[str]], key: str, topic: str) -> None:
    topics = list(index.get(key, ()))
    if topic in topics:
        topics.remove(topic)
    if topics:
        index[key] = topics
    else:
        index.pop(key, None)


DEVICE, TOPIC_NAME = "device", "topic"
_NOTHING = ("", "unknown", "unavailable", "None", "none", "null")
"""States that mean no value."""
_MAX_BYTES = 1024 * 1024
"""Maximum length of a message."""


class HomeAssistantOptions(msgspec.Struct, frozen=True):
    prefix: str = "homeassistant"
    """The first levels of announcement topics."""
    attribute: Literal["device_class", "object"] = "device_class"
    """The name of a value: its device class (`temperature`; its object if it has none), or
    always its object (`bedroom_temperature`).
    """


class HomeAssistantFormat:
    """Messages on announced topics."""

    name = "homeassistant"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = read_options(HomeAssistantOptions, self.name, options)
        if not self._options.prefix.strip("/") or set("+#") & set(self._options.prefix):
            raise bad_option(self.name, "the prefix is no topic", 'such as "homeassistant"')

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        """See Format; the topic comes from the MQTT bridge, or else from the event's
        subject.
        """
        topic = event.headers.get(TOPIC) or event.subject
        if not topic:
            raise RejectedValue(
                "format.no_topic",
                "the event has no topic",
                "the MQTT bridge of the node does; other publishers put it into the subject",
            )
        remembered = Announcements(memory)
        text = text_of(event)
        if len(text) > _MAX_BYTES:
            raise RejectedValue("format.too_large", f"the message has over {_MAX_BYTES:,} signs")
        levels = self._announcing(topic)
        if levels is not None:
            remembered.announce(topic, levels, text)
            return []
        entities = remembered.entities_of(topic)
        if not entities and remembered.is_quiet(topic):
            return []
        if not entities:
            raise RejectedValue(
                "format.not_announced",
                f"no device announced the topic {topic[:100]!r}",
                "its announcement has not arrived or was rejected; announcements must be bridged "
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
        missing: RejectedValue | None = None
        for entity in entities:
            name = self._name_of(entity, remembered)
            try:
                state = _state(entity, message)
            except MissingValue as fault:  # other values of the device may be present
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
                raise RejectedValue(
                    "format.ambiguous",
                    f"{entity.device[:60]!r} has several values of the class {name[:60]!r}",
                    'name values by their object: format = { name = "homeassistant", '
                    'attribute = "object" }',
                )
        if name in (DEVICE, TOPIC_NAME):
            raise RejectedValue("format.bad_config", f"a value cannot be named {name!r}")
        return name


class _Message:
    """A state as text, and as JSON on demand."""

    def __init__(self, text: str) -> None:
        self.text, self._decoded = text, msgspec.UNSET

    def picked(self, template: Template) -> Any:
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
            return value  # left for the interpretation to reject
    return value
