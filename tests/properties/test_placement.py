"""What a consumer gets does not depend on where transformations run, on the cache, on how it reads,
or on who else listens; and nothing is transformed twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.conversion.conversions import UnitChange, converts
from rapport.mediation.interpretations.model import (
    DropAttribute,
    Interpretation,
    RenameAttribute,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.repository import Repository, activate
from rapport.mediation.outgoing.client_mediator import Mediator, export_interpretations
from rapport.mediation.outgoing.service import OutgoingMediation
from rapport.mediation.reader import MediationReader
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.types import Attribute, ComplexType
from rapport.units.quantities import converter
from support.examples import examples

CONCEPTS = {
    "station": {
        "temperature": ConceptAttribute("number", "degC"),
        "humidity": ConceptAttribute("number", "%"),
    }
}
NAMES = ("a", "b", "c")


class Desk(msgspec.Struct, frozen=True):
    """How one interpretation differs from root."""

    unit: str
    key: str
    is_dry: bool
    """It has no word for humidity."""


class Reader(msgspec.Struct, frozen=True):
    """A consumer: its words, what it reads, and in sets of how many."""

    words: str
    channel: str
    size: int


desks = st.builds(
    Desk, st.sampled_from(["degF", "K", "degR"]), st.sampled_from(["key", "place"]), st.booleans()
)
readers = st.builds(
    Reader,
    st.sampled_from(NAMES),
    st.sampled_from(["events", "raw.weather"]),
    st.integers(1, 5),
)
numbers = st.floats(-1e6, 1e6, allow_nan=False) | st.just("hot") | st.none()
payloads = st.lists(
    st.tuples(st.sampled_from(["s1", "s2", 5.5]), numbers, st.none() | st.floats(0, 100)),
    max_size=6,
)


def interpretation(name: str, desk: Desk) -> Interpretation:
    attributes = [Attribute(desk.key, "text"), Attribute("time", "Time", optional=True)]
    attributes.append(Attribute("temperature", desk.unit, optional=True))
    if not desk.is_dry:
        attributes.append(Attribute("humidity", "%", optional=True))
    renamed = () if desk.key == "key" else (RenameAttribute(desk.key, "key"),)
    back = () if desk.key == "key" else (RenameAttribute("key", desk.key),)
    dropped = (DropAttribute("humidity"),) if desk.is_dry else ()
    return Interpretation(
        name=name,
        types=(unit_type(desk.unit), ComplexType(f"{name} weather", tuple(attributes))),
        mappings=(
            TypeMapping(f"{name} weather", "station", "in", renamed),
            TypeMapping("station", f"{name} weather", "out", (*back, *dropped)),
        ),
        rules=(Rule(desk.unit, f"{name} in", "in"), Rule("degC", f"{name} out", "out")),
        conversions=(
            converts(f"{name} in", desk.unit, "degC", UnitChange(desk.unit, "degC")),
            converts(f"{name} out", "degC", desk.unit, UnitChange("degC", desk.unit)),
        ),
    )


class World:
    """Some desks, the first of which produces."""

    def __init__(self, chosen: dict[str, Desk], cache_bytes: int) -> None:
        typed = [interpretation(name, desk) for name, desk in chosen.items()]
        self.in_force, _ = activate({}, typed, concepts=CONCEPTS)
        assert not self.in_force.refused
        self.desks, clock = chosen, ManualClock()
        self.channels = open_memory(clock)
        binding = SourceBinding(
            source="weather",
            concept="station",
            attribute="temperature",
            further=("humidity",),
            interpretation="a",
        )
        repository = Repository(self.in_force)
        self.reader = MediationReader(self.channels, [binding], repository, clock)
        self.outgoing = OutgoingMediation(
            repository, self.channels, clock=clock, sources=self.reader, cache_bytes=cache_bytes
        )

    async def receive(self, given: list[Any]) -> None:
        producer = self.desks["a"]
        events = []
        for number, (key, temperature, humidity) in enumerate(given):
            said = {producer.key: key, "temperature": temperature, "firmware": number}
            if not producer.is_dry:
                said["humidity"] = humidity
            events.append(
                Event("weather", f"w{number}", "a weather", "", 7, msgspec.json.encode(said))
            )
        await self.channels.channel("raw.weather").append(events)
        while await self.reader.lane("weather").step(timeout_ms=0):
            pass

    async def read(self, reader: Reader) -> list[Event]:
        """Everything, set by set; an original that the edge of a set repeats counts once."""
        found: list[Event] = []
        channel, position = self.channels.channel(reader.channel), 0
        while stored := await channel.read_after(position, limit=reader.size):
            position = stored[-1].position
            said = await self.outgoing.view(reader.channel, stored, reader.words)
            assert {one.position for one in said} <= {one.position for one in stored}
            found += [one.event for one in said if one.event not in found]
        return found

    async def expected(self, words: str) -> list[Any]:
        """The payloads, calculated by hand from what root has."""
        desk = self.desks[words]
        found = []
        for stored in await self.channels.channel("events").read_after(0):
            data, attribute = stored.event.payload(), stored.event.type.partition(".")[2]
            value = {desk.key: data["key"], "time": 7}
            if attribute == "temperature":
                value["temperature"] = converter("degC", desk.unit).apply(data["value"][0])
            elif not desk.is_dry:
                value["humidity"] = data["value"][0]
            found.append(value)
        return found


@pytest.mark.slow
@given(
    st.lists(desks, min_size=3, max_size=3),
    payloads,
    st.lists(readers, min_size=1, max_size=8),
    st.sampled_from([32 * 1024 * 1024, 6_000]),
)
def test_a_consumer_gets_the_same_wherever_and_with_whomever_it_reads(
    chosen: list[Desk], given_: list[Any], audience: list[Reader], cache_bytes: int
) -> None:
    async def scenario() -> None:
        world = World(dict(zip(NAMES, chosen, strict=True)), cache_bytes)
        await world.receive(given_)
        together = await asyncio.gather(*(world.read(reader) for reader in audience))
        for reader, found in zip(audience, together, strict=True):
            alone = World(world.desks, 0)
            await alone.receive(given_)
            assert found == await alone.read(reader)
            if reader.words != "a":
                assert [one.payload() for one in found] == await world.expected(reader.words)
                assert found == await _by_mediator(world, reader.words)
        raw = await world.channels.channel("raw.weather").read_after(0)
        own = await world.read(Reader("a", "raw.weather", 10))
        fits = [key != 5.5 and temperature != "hot" for key, temperature, _ in given_]
        assert [one.data for one in own] == [
            one.event.data for one, is_declared in zip(raw, fits, strict=True) if is_declared
        ]
        if cache_bytes > 6_000:
            await _check_counts(world, audience)

    asyncio.run(scenario())


async def _by_mediator(world: World, words: str) -> list[Event]:
    """The same at the client's edge."""
    mediator = Mediator(export_interpretations(world.in_force), words)
    found = []
    for stored in await world.channels.channel("events").read_after(0):
        try:
            found += mediator.from_root(stored.event)
        except InvalidInput:
            continue
    return found


async def _check_counts(world: World, audience: list[Reader]) -> None:
    """No event of a channel was given a form twice, however many there are who want it."""
    for words in NAMES:
        channels = {reader.channel for reader in audience if reader.words == words}
        events = sum(world.channels.channel(name).last_position() for name in channels)
        counts = world.outgoing.statistics.of(words)
        done = counts.transformed
        if words == "a":
            assert done == 0
        assert done <= events
        unsaid = [
            one for one in world.outgoing.statistics.undeliverable if one.interpretation == words
        ]
        assert len(unsaid) <= sum(
            world.channels.channel(name).last_position() for name in world.channels.names()
        )


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), max_size=12), min_size=1, max_size=10))
def test_whatever_is_asked_at_once_each_event_is_said_once(asked: list[list[int]]) -> None:
    async def scenario() -> None:
        desk = Desk("degF", "place", is_dry=False)
        world = World(dict.fromkeys(NAMES, desk), 32 * 1024 * 1024)
        events = [
            StoredEvent(
                number + 1,
                1,
                Event(
                    *("weather", f"e{number}", "station.temperature", "station/s", 7),
                    msgspec.json.encode({"key": "s", "value": [number]}),
                ),
            )
            for number in range(21)
        ]
        found = await asyncio.gather(
            *(
                world.outgoing.view("events", [events[number] for number in numbers], "b")
                for numbers in asked
            )
        )
        for numbers, said in zip(asked, found, strict=True):
            assert [one.position for one in said] == [number + 1 for number in numbers]
        wanted = {number for numbers in asked for number in numbers}
        assert world.outgoing.statistics.of("b").transformed == len(wanted)

    asyncio.run(scenario())
