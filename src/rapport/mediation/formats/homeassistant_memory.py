"""What devices have announced, in a JSON object that the caller keeps and saves. [ME-13]"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.mediation.formats.base import MAX_DOCUMENTS
from rapport.mediation.formats.homeassistant_configs import Announced, Entity, read_config
from rapport.mediation.formats.payload import decode_json
from rapport.mediation.model.remembered import Remembered
from rapport.mediation.rejection import Rejected

_ANNOUNCED, _STATES, _QUIET, _CLASSES = "announced", "states", "quiet", "classes"
_COUNT = "count"


class Announcements:
    """Entities by the topic of their announcement, found by the topic of their states: a state
    costs as much as there are entities on its topic, an announcement as much as it announces.
    """

    def __init__(self, memory: dict[str, Any]) -> None:
        self._memory = memory
        self._announced: dict[str, list[dict[str, Any]]] = _map(memory, _ANNOUNCED)
        self._states: dict[str, list[str]] = _map(memory, _STATES)
        self._quiet: dict[str, list[str]] = _map(memory, _QUIET)
        self._classes: dict[str, dict[str, int]] = _map(memory, _CLASSES)

    def announce(self, topic: str, levels: list[str], text: str) -> None:
        """What was announced there before is forgotten; raises Rejected for what is refused, after
        the rest of the announcement is remembered.
        """
        self._forget(topic)
        announced = read_config(levels, decode_json(text) if text.strip() else "")
        values = self._memory.get(_COUNT, 0) + len(announced.entities)
        if max(values, len(self._quiet) + len(announced.quiet)) > MAX_DOCUMENTS:
            raise Rejected(
                "format.too_many", f"over {MAX_DOCUMENTS:,} values or topics are announced"
            )
        self._remember(topic, announced)
        if announced.faults:
            raise announced.faults[0]

    def entities_of(self, state_topic: str) -> list[Entity]:
        """Those whose states come by a topic, in the order of their announcements."""
        return [
            msgspec.convert(each, Entity)
            for topic in self._states.get(state_topic, ())
            for each in self._announced[topic]
            if each["topic"] == state_topic
        ]

    def is_quiet(self, topic: str) -> bool:
        """Whether the topic was announced for something else than states."""
        return topic in self._quiet

    def same_class(self, entity: Entity) -> int:
        """How many values of a device have the class."""
        return self._classes.get(entity.device, {}).get(entity.device_class, 0)

    def _remember(self, topic: str, announced: Announced) -> None:
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
    """A map whose keys are saved one by one; values are assigned, never changed in place."""
    found = memory.get(name)
    if not isinstance(found, Remembered):
        found = memory[name] = Remembered(found)
    return found


def _drop(index: dict[str, list[str]], key: str, topic: str) -> None:
    topics = list(index.get(key, ()))
    if topic in topics:
        topics.remove(topic)
    if topics:
        index[key] = topics
    else:
        index.pop(key, None)
