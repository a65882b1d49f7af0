"""What the devices of helpers say, each in its own words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from both_ways import Participant, Sent

Words = dict[str, Any]


def participants(step: str) -> list[Participant]:
    """Headquarters speak root, the fire brigade its own; the Red Cross joins."""
    found = [Participant("headquarters"), Participant("fire", "fire")]
    return [*found, Participant("red_cross", "red_cross")] if step == "joined" else found


def events(step: str, count: int, seed: int) -> Iterator[Sent]:
    """Random events of all helpers and types."""
    chance = random.Random(seed)
    senders = [each.name for each in participants(step)]
    for _ in range(count):
        sender = chance.choice(senders)
        kind = chance.choice([*KINDS] if step == "added" else [*KINDS][:-1])
        writer = WRITERS[sender](chance, step)
        event = {name: writer.value(what) for name, what in KINDS[kind].items()}
        yield Sent(sender, f"{writer.prefix}{kind}", event)


KINDS: dict[str, dict[str, str]] = {
    "Sighting": {"id": "text", "area": "region", "people": "count"},
    "Deployment": {"team": "text", "area": "region", "route": "places"},
    "Hazard": {"danger": "text", "area": "region", "spread": "number"},
    "TeamStatus": {"team": "text", "at": "place", "members": "count"},
    "Request": {"id": "text", "at": "place", "amount": "count"},
    "Cleared": {"team": "text", "area": "region"},
    "Evacuation": {"area": "region", "shelter": "place"},
}


class Headquarters:
    """Random values in metres on the plan of the city; regions are circles or boxes."""

    prefix = ""

    def __init__(self, chance: random.Random, step: str) -> None:
        self.chance, self.step = chance, step

    def value(self, what: str) -> Any:
        if what == "text":
            return f"t-{self.chance.randrange(100)}"
        if what == "count":
            return self.chance.randrange(500)
        if what == "number":
            return self.chance.uniform(0, 20)
        if what == "places":
            return [self.place() for _ in range(self.chance.randint(0, 4))]
        return self.place() if what == "place" else self.region(self.chance.random() < 0.5)

    def place(self) -> Words:
        found = {"x": self.chance.uniform(-20_000, 20_000), "y": self.chance.uniform(-9e3, 9e3)}
        if self.step == "changed":
            found["accuracy"] = self.chance.uniform(1, 50)
        return found

    def region(self, is_circle: bool) -> Words:
        name = self.value("text")
        if is_circle:
            radius = self.chance.uniform(10, 3_000)
            return {"@type": "Circle", "name": name, "centre": self.place(), "radius": radius}
        return {"@type": "Box", "name": name, "low": self.place(), "high": self.place()}


class Fire(Headquarters):
    """Latitude and longitude, feet."""

    prefix = "Fire"

    def place(self) -> Words:
        return {"lat": self.chance.uniform(52.3, 52.7), "lon": self.chance.uniform(13.1, 13.7)}

    def region(self, is_circle: bool) -> Words:
        name = self.value("text")
        if is_circle:
            radius = self.chance.uniform(30, 9_000)
            return {"@type": "FireCircle", "title": name, "middle": self.place(), "radius": radius}
        corners = {"south_west": self.place(), "north_east": self.place()}
        return {"@type": "FireBox", "title": name, **corners}


class RedCross(Headquarters):
    """Bearing and kilometres from the camp."""

    prefix = "Rc"

    def place(self) -> Words:
        return {"bearing": self.chance.uniform(0, 359.9), "distance": self.chance.uniform(0.1, 20)}

    def region(self, is_circle: bool) -> Words:
        name = self.value("text")
        if is_circle:
            radius = self.chance.uniform(0.01, 3)
            return {"@type": "RcCircle", "name": name, "around": self.place(), "radius": radius}
        return {"@type": "RcBox", "name": name, "from": self.place(), "to": self.place()}


WRITERS = {"headquarters": Headquarters, "fire": Fire, "red_cross": RedCross}
