"""What a device announces by Home Assistant's MQTT discovery: its entities. Pure. [ME-13]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rapport.mediation.formats.homeassistant_templates import read_template
from rapport.mediation.rejection import Rejected

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
"""The short names of what is read here; the others name what we do not look at."""
_DEVICE_ABBREVIATIONS = {"cns": "connections", "ids": "identifiers"}
_BASE = "~"
BINARY = ("binary_sensor", "switch", "light", "siren", "fan")
"""Components whose state is on or off."""


class Entity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a device measures, as it is remembered."""

    object: str
    """The name in the topic of the announcement, or in the bundle of a device."""
    component: str
    device: str
    topic: str
    """Where its states come."""
    template: str = ""
    unit: str = ""
    device_class: str = ""
    on: str = "ON"
    off: str = "OFF"
    numeric: bool = False


class Announced(msgspec.Struct, frozen=True):
    """What one message announces; `quiet` are topics that bring other things than states."""

    entities: tuple[Entity, ...] = ()
    quiet: tuple[str, ...] = ()
    faults: tuple[Rejected, ...] = ()


def read_config(levels: list[str], payload: Any) -> Announced:
    """The announcement made on the topic `<component>/[<node>/]<object>/config`; `levels` are those
    before the last. Raises Rejected when nothing can be made of it.
    """
    if len(levels) not in (2, 3):
        raise _refused("the topic is not <component>/[<node>/]<object>/config")
    if payload == "":
        return Announced()  # taken back
    if not isinstance(payload, dict):
        raise _refused("the announcement is not an object")
    component, name = levels[0], levels[-1]
    config = _spelled_out(payload)
    device = _device(config) or (levels[1] if len(levels) == 3 else name)
    configs = list(_components(config)) if component == "device" else [(name, component, config)]
    entities, faults = [], []
    for each, kind, own in configs:
        try:
            if "state_topic" in own:
                entities.append(_entity(each, kind, device, own))
        except Rejected as fault:
            faults.append(fault)
    quiet = [topic for _name, _kind, own in configs for topic in _quiet_topics(own)]
    return Announced(tuple(entities), tuple(dict.fromkeys(quiet)), tuple(faults))


def _spelled_out(payload: dict[str, Any]) -> dict[str, Any]:
    """Long names, and `~` put in at either end of topics."""
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
    """The entities of a device's bundle; what stands beside them holds for each."""
    components = config.get("components")
    if not isinstance(components, dict):
        raise _refused("the announcement of a device has no components")
    common: dict[str, Any] = {
        key: config[key]
        for key in ("state_topic", "availability", "availability_topic", "command_topic")
        if key in config
    }
    for name, own in components.items():
        if not isinstance(own, dict):
            raise _refused(f"the component {name[:60]!r} is not an object")
        spelled = _spelled_out(own)
        kind = spelled.pop("platform", "")
        if not isinstance(kind, str) or not kind:
            raise _refused(f"the component {name[:60]!r} does not say its platform")
        if spelled:  # the platform alone takes the component back
            yield name, kind, {**common, **spelled}


def _entity(name: str, component: str, device: str, config: dict[str, Any]) -> Entity:
    template = _text(config, "value_template") or _text(config, "state_value_template")
    if template:
        read_template(template)
    unit, device_class = _text(config, "unit_of_measurement"), _text(config, "device_class")
    topic = _text(config, "state_topic")
    if not topic or "+" in topic or "#" in topic:
        raise _refused(f"the state topic of {name[:60]!r} is no topic")
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
        raise _refused(f"{key!r} is no text")
    return value


def _refused(message: str) -> Rejected:
    return Rejected(
        "format.bad_config",
        message,
        'such as homeassistant/sensor/node7/temperature/config with {"stat_t": "node7/state", '
        '"unit_of_meas": "°F", "val_tpl": "{{ value_json.Temperature }}"}',
    )
