"""What the sensors of the districts say, each in its own words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from both_ways import Participant, Sent

FIRST_S, LAST_S = 1_712_620_800, 1_719_705_600
Words = dict[str, Any]


def participants(step: str) -> list[Participant]:
    """Two districts with sensors, a control room and a radio station; the coast joins."""
    found = [
        Participant("north", "north", receives=False),
        Participant("south", receives=False),
        Participant("control_room", sends=False),
        Participant("radio", "radio", sends=False),
    ]
    return [*found, Participant("coast", "coast", receives=False)] if step == "joined" else found


def events(step: str, count: int, seed: int) -> Iterator[Sent]:
    """Random events of all sensors."""
    chance = random.Random(seed)
    senders = [each.name for each in participants(step) if each.sends]
    for number in range(count):
        sender = chance.choice(senders)
        kind = chance.choice([*KINDS] if step == "added" else [*KINDS][:-1])
        time_s = chance.randint(FIRST_S, LAST_S)
        yield Sent(sender, *WRITERS[sender](kind, f"s-{number}", time_s, chance, step))


KINDS: dict[str, dict[str, tuple[float, float]]] = {
    "Speed": {"speed": (0, 40)},
    "Flow": {"vehicles": (0, 200), "headway": (0.2, 60)},
    "Temperature": {"surface": (-30, 70), "air": (-30, 45)},
    "Rain": {"rate": (0, 90)},
    "Visibility": {"distance": (5, 9_000)},
    "Wind": {"speed": (0, 45), "gust": (0, 60)},
    "Queue": {"length": (0, 8_000), "end": (0, 0)},
    "Oil": {"length": (1, 900)},
}
"""The types of events with their numbers; the end of a queue is a place."""


def _event(kind: str, sensor: Words, place: Any, chance: random.Random) -> Words:
    found: Words = {"sensor": sensor}
    for name, (low, high) in KINDS[kind].items():
        if name == "end":
            found[name] = place(chance)
        elif name == "vehicles":
            found[name] = chance.randint(int(low), int(high))
        else:
            found[name] = round(chance.uniform(low, high), 2)
    return found


def _south(kind: str, id: str, time_s: int, chance: random.Random, step: str) -> tuple[str, Words]:
    def place(chance: random.Random) -> Words:
        found = {"x": chance.uniform(-60_000, 60_000), "y": chance.uniform(-60_000, 60_000)}
        return found | {"altitude": chance.uniform(0, 800)} if step == "changed" else found

    sensor = {"id": id, "time": time_s * 1000, "location": place(chance)}
    return kind, _event(kind, sensor, place, chance)


def _north(kind: str, id: str, time_s: int, chance: random.Random, step: str) -> tuple[str, Words]:
    def place(chance: random.Random) -> Words:
        return {"lat": chance.uniform(41.4, 42.4), "lon": chance.uniform(-88.2, -87.2)}

    local = datetime.fromtimestamp(time_s, ZoneInfo("America/Chicago"))
    sensor = {"id": id, "at": local.strftime("%m/%d/%Y %H:%M:%S"), "position": place(chance)}
    return f"North{kind}", _event(kind, sensor, place, chance)


def _coast(kind: str, id: str, time_s: int, chance: random.Random, step: str) -> tuple[str, Words]:
    def place(chance: random.Random) -> Words:
        return {"bearing": chance.uniform(0, 360), "range": chance.uniform(0.1, 30)}

    sensor = {"id": id, "seconds": time_s, "seen": place(chance)}
    return f"Coast{kind}", _event(kind, sensor, place, chance)


WRITERS = {"south": _south, "north": _north, "coast": _coast}
