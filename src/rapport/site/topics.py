"""What a broker's topics hold: messages of one form, and the levels of their topics that name
things, as samples of new sources. Pure. [CN-6, CH-12]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rapport.channel.mqtt.bridge import Packet, named_levels
from rapport.mediation.guessing.vocabulary import QUANTITIES, meanings_of

DEVICE = "device"
_MOST_ROWS = 2_000
_MEASURED = frozenset((*QUANTITIES, "battery", "power", "energy", "voltage", "co2", "level"))
"""A level of a topic with such a word says what is measured, not which thing measures."""


class HeardTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that one source can read."""

    subscription: str
    """Levels in braces become fields of the payload."""
    quantity: str
    """What a payload of one value alone is; empty: payloads are objects."""
    things: tuple[str, ...]
    """The texts of the level that names the thing, sorted."""
    rows: tuple[dict[str, Any], ...]
    """The payloads with the fields of their topics."""
    packets: tuple[Packet, ...]

    @property
    def sample(self) -> bytes:
        return b"\n".join(map(msgspec.json.encode, self.rows))


def survey_topics(subscription: str, packets: Sequence[Packet]) -> list[HeardTopics]:
    """Groups the messages of a subscription by form and topic; those with most things first.
    Messages that hold neither an object nor a number are left out.
    """
    groups: dict[tuple[Any, ...], list[tuple[Packet, Any]]] = {}
    for packet in packets[:_MOST_ROWS]:
        value = _value(packet.payload)
        if value is None:
            continue
        levels = packet.topic.split("/")
        measured = tuple(
            (place, level)
            for place, level in enumerate(levels)
            if not meanings_of(level).isdisjoint(_MEASURED)
        )
        form = (len(levels), measured, isinstance(value, dict))
        groups.setdefault(form, []).append((packet, value))
    found = [_group(subscription, group) for group in groups.values()]
    return sorted(found, key=lambda one: (-len(one.things), one.subscription))


def _value(payload: bytes) -> Any:
    """An object, or a finite number; None for anything else."""
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(value, dict):
        return value if _has_number(value) else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def _has_number(value: dict[str, Any]) -> bool:
    return any(
        _has_number(one)
        if isinstance(one, dict)
        else isinstance(one, (int, float)) and not isinstance(one, bool)
        for one in value.values()
    )


def _group(subscription: str, group: list[tuple[Packet, Any]]) -> HeardTopics:
    topics = list(dict.fromkeys(packet.topic for packet, _value in group))
    own = _subscription(subscription, [topic.split("/") for topic in topics])
    quantity = ""
    if not isinstance(group[0][1], dict):
        levels = own.split("/")
        named = [one for one in levels if not meanings_of(one).isdisjoint(_MEASURED)]
        quantity = named[-1] if named else "value"
    rows = []
    for packet, value in group:
        fields = named_levels(own, packet.topic)
        rows.append({**(value if isinstance(value, dict) else {quantity: value}), **fields})
    things = {row[DEVICE] for row in rows if DEVICE in row}
    return HeardTopics(
        subscription=own,
        quantity=quantity,
        things=tuple(sorted(things)),
        rows=tuple(rows),
        packets=tuple(packet for packet, _value in group),
    )


def _subscription(wanted: str, topics: list[list[str]]) -> str:
    """The narrowest subscription for topics of one length, with the levels that vary named: the
    last of them is the thing.
    """
    wanted_levels = wanted.split("/")
    open_from = wanted_levels.index("#") if "#" in wanted_levels else len(wanted_levels)
    levels = []
    for place, first in enumerate(topics[0]):
        given = wanted_levels[place] if place < open_from and place < len(wanted_levels) else "#"
        if given.startswith("{"):
            levels.append(given)
        elif given == "+" or any(topic[place] != first for topic in topics):
            levels.append("+")
        else:
            levels.append(first)
    if not any(one == "+" or one.startswith("{") for one in levels):
        _name_one(levels, open_from)
    varying = [place for place, level in enumerate(levels) if level == "+"]
    has_device = f"{{{DEVICE}}}" in levels
    for place in varying:
        is_thing = place == varying[-1] and not has_device
        levels[place] = f"{{{DEVICE}}}" if is_thing else f"{{level_{place + 1}}}"
    return "/".join(levels)


def _name_one(levels: list[str], open_from: int) -> None:
    """Where only one topic was heard: the first level that `#` covers and that is no quantity."""
    free: Iterable[int] = range(open_from, len(levels))
    for place in free:
        if meanings_of(levels[place]).isdisjoint(_MEASURED):
            levels[place] = "+"
            return
