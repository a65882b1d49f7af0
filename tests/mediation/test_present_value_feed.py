"""Conversions that learn from readings in root, and ask what is so at present."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.errors import Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.core.release import ReleaseRequest
from rapport.kernel.clock import ManualClock
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.conversion.conversions import converts
from rapport.mediation.conversion.lookups import ContextLookup
from rapport.mediation.conversion.places import MovingOrigin, ToAbsolute
from rapport.mediation.interpretations.model import Interpretation, Rule, TypeMapping
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository, activate
from rapport.mediation.present_values import PresentValueFeed, needs_feed
from rapport.mediation.quarantine.release import ReleaseService
from rapport.mediation.reader import MediationReader, build_transformer
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.typed_source import TypedTransformer
from rapport.mediation.types import Attribute, ComplexType

CONCEPTS = {
    "truck": {"position": ConceptAttribute("point"), "load": ConceptAttribute("text")},
    "parcel": {"position": ConceptAttribute("point"), "content": ConceptAttribute("text")},
}
SCANNER = Interpretation(
    name="scanner",
    types=(
        ComplexType("Seen", (Attribute("truck", "text"), Attribute("x", "m"), Attribute("y", "m"))),
        ComplexType(
            "Scan",
            (
                Attribute("key", "text"),
                Attribute("position", "Seen"),
                Attribute("content", "text"),
            ),
        ),
    ),
    mappings=(TypeMapping("Scan", "parcel", "in"),),
    rules=(Rule("Scan.position", "from-truck", "in"), Rule("Scan.content", "load-of", "in")),
    conversions=(
        converts(
            "from-truck",
            "Seen",
            "Point",
            ToAbsolute(
                MovingOrigin(
                    feed="truck",
                    key="truck",
                    feed_key="key",
                    x="position.x",
                    y="position.y",
                    time="time",
                )
            ),
        ),
        converts("load-of", "text", "text", ContextLookup("truck", "load")),
    ),
)
BINDING = SourceBinding(
    source="scans",
    concept="parcel",
    attribute="position",
    further=("content",),
    interpretation="scanner",
)


def in_force() -> ActiveInterpretations:
    found, _ = activate({}, [SCANNER], concepts=CONCEPTS)
    assert not found.refused
    return found


def reading(stream: str, key: str, time: int, value: list[Any]) -> Event:
    data = msgspec.json.encode({"key": key, "value": value})
    return Event("trucks", f"{stream}-{key}-{time}", stream, f"truck/{key}", time, data)


def scan() -> StoredEvent:
    result = {"key": "p1", "position": {"truck": "t1", "x": 1.0, "y": 2.0}, "content": "t1"}
    return StoredEvent(1, 0, Event("scans", "s1", "Scan", "", 9, msgspec.json.encode(result)))


def test_a_reference_point_moves_with_the_readings_of_another_source():
    async def scenario() -> None:
        clock = ManualClock()
        channels, now = open_memory(clock), in_force()
        feed = PresentValueFeed(
            channels,
            clock,
            lambda: True,
            lambda: [meaning],
            lambda: CONCEPTS,
            channels.records,
        )
        built = build_transformer(BINDING, now, context=feed.present)
        assert isinstance(built, TypedTransformer)
        meaning: TypedTransformer = built
        _, rejections = meaning.apply_many([scan()])
        assert rejections  # nobody said yet where the truck is
        events = channels.channel("events")
        await events.append(
            [
                reading("truck.position", "t1", 5, [100.0, 200.0]),
                reading("truck.load", "t1", 5, ["bread"]),
                reading("truck.position", "t1", 3, [0.0, 0.0]),  # older than what is known
                Event("x", "y", "truck.position", "", 1, b'"nonsense"'),
            ]
        )
        assert await feed.step() == 4
        found, rejections = meaning.apply_many([scan()])
        assert rejections == []
        assert [each.payload()["value"] for each in found] == [[101.0, 202.0], ["bread"]]
        assert feed.refused == 1
        await feed.save()
        again = PresentValueFeed(
            channels, clock, lambda: True, lambda: [], lambda: CONCEPTS, channels.records
        )
        assert again.present.value("truck", "t1", "load") == ["bread"]
        assert await again.step() == 0

    asyncio.run(scenario())


def test_events_are_followed_only_where_something_needs_them():
    assert needs_feed(in_force().typed, CONCEPTS)
    plain, _ = activate({}, [Interpretation(name="plain")], concepts=CONCEPTS)
    assert not needs_feed(plain.typed, CONCEPTS)


def test_a_node_s_reader_teaches_its_sources():
    async def scenario() -> None:
        clock = ManualClock()
        channels = open_memory(clock)
        reader = MediationReader(
            channels, [BINDING], Repository(in_force()), clock, records=channels.records
        )
        await channels.channel("events").append(
            [
                reading("truck.position", "t1", 5, [100.0, 200.0]),
                reading("truck.load", "t1", 5, ["bread"]),
            ]
        )
        await channels.channel("raw.scans").append([scan().event])
        reader.transformer("scans")
        await reader.present_feed.step()
        await reader.lane("scans").step(timeout_ms=0)
        found = await channels.channel("events").read_after(2)
        assert [one.event.payload()["value"] for one in found] == [[101.0, 202.0], ["bread"]]
        await reader.stop()

    asyncio.run(scenario())


def test_state_learned_from_another_source_survives_a_restart():
    """Also when it has said nothing itself since then, and when it is not heard before."""

    async def scenario() -> None:
        clock = ManualClock()
        channels = open_memory(clock)

        def reader() -> MediationReader:
            now = Repository(in_force())
            return MediationReader(channels, [BINDING], now, clock, records=channels.records)

        await channels.channel("events").append(
            [
                reading("truck.position", "t1", 5, [100.0, 200.0]),
                reading("truck.load", "t1", 5, ["bread"]),
            ]
        )
        first = reader()
        assert await first.present_feed.step() == 2
        await first.stop()
        again = reader()
        assert await again.present_feed.step() == 0
        await channels.channel("raw.scans").append([scan().event])
        await again.lane("scans").step(timeout_ms=0)
        found = await channels.channel("events").read_after(2)
        assert [one.event.payload()["value"] for one in found] == [[101.0, 202.0], ["bread"]]
        await again.stop()

    asyncio.run(scenario())


def test_the_position_is_not_saved_while_learned_state_cannot_be():
    async def scenario() -> None:
        clock = ManualClock()
        channels = open_memory(clock)
        learned = False

        async def keep() -> bool:
            return learned

        def feed() -> PresentValueFeed:
            return PresentValueFeed(
                channels, clock, lambda: True, list, lambda: CONCEPTS, channels.records, keep=keep
            )

        await channels.channel("events").append([reading("truck.load", "t1", 5, ["bread"])])
        first = feed()
        await first.step()
        assert not await first.save()
        assert await feed().step() == 1
        learned = True
        assert await first.save()
        assert await feed().step() == 0

    asyncio.run(scenario())


def test_a_source_that_learns_is_not_mediated_again_with_its_present_state():
    async def scenario() -> None:
        clock = ManualClock()
        channels = open_memory(clock)
        reader = MediationReader(channels, [BINDING], Repository(in_force()), clock)
        releasing = ReleaseService(
            channels, reader.isolated_transformer, clock, new_id=lambda: "r1"
        )
        await channels.channel("raw.scans").append([scan().event])
        with pytest.raises(Unsupported, match="'scans' again"):
            await releasing.try_out(ReleaseRequest(what="again", source="scans"))

    asyncio.run(scenario())
