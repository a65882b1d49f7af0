"""Consumers in their own terms: transformations, originals, the cache, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from rapport.channel.access.identities import Grant, Rights
from rapport.channel.backends.local import open_memory
from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import InterpretationError, Problem, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.conversion.conversions import (
    Call,
    Conversion,
    Stateful,
    UnitChange,
    converts,
)
from rapport.mediation.interpretations.model import (
    DropAttribute,
    FormatChoice,
    IdentityRule,
    Interpretation,
    RenameAttribute,
    Rule,
    TimeRule,
    TypeMapping,
    ValueRule,
)
from rapport.mediation.interpretations.model import FieldsInterpretation as FieldsForm
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository, activate
from rapport.mediation.interpretations.type_changes import Augment, apply_change
from rapport.mediation.outgoing.consumer_transformer import ConsumerTransformer
from rapport.mediation.outgoing.service import OutgoingMediation
from rapport.mediation.outgoing.terms import query_view
from rapport.mediation.reader import MediationReader
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.types import Attribute, ComplexType

CONCEPTS = {
    "station": {
        "temperature": ConceptAttribute("number", "degC"),
        "humidity": ConceptAttribute("number", "%"),
    }
}


def change_typed(repository: Repository, change: Augment) -> tuple[Problem, ...]:
    """Applies a change of typed interpretations; an error leaves everything as it was."""
    typed, problems = apply_change(repository.in_force.typed, change)
    if typed is not repository.in_force.typed:
        repository.swap(repository.in_force.with_typed(typed))
    return problems


def weather(name: str, unit: str, **more: Any) -> Interpretation:
    """Stations with another name for the key, and temperatures in another unit."""
    return Interpretation(
        name=name,
        types=(
            unit_type(unit),
            ComplexType(
                f"{name}-weather",
                (
                    Attribute("place", "text"),
                    Attribute("time", "Time", optional=True),
                    Attribute("temperature", unit, optional=True),
                    Attribute("humidity", "%", optional=True),
                ),
            ),
        ),
        mappings=(
            TypeMapping(f"{name}-weather", "station", "in", (RenameAttribute("place", "key"),)),
            TypeMapping("station", f"{name}-weather", "out", (RenameAttribute("key", "place"),)),
        ),
        rules=(
            Rule(unit, f"{name}-in", "in"),
            Rule("degC", f"{name}-out", "out"),
            *more.pop("rules", ()),
        ),
        conversions=(
            converts(f"{name}-in", unit, "degC", UnitChange(unit, "degC")),
            converts(f"{name}-out", "degC", unit, UnitChange("degC", unit)),
            *more.pop("conversions", ()),
        ),
        **more,
    )


US, LAB = weather("us", "degF"), weather("lab", "K")
SOURCE = SourceBinding(
    source="weather",
    concept="station",
    attribute="temperature",
    further=("humidity",),
    interpretation="us",
)


def in_force(*typed: Interpretation, **more: Any) -> ActiveInterpretations:
    found, _ = activate(more.pop("fields", {}), typed, concepts=CONCEPTS, **more)
    assert not found.refused
    return found


def reading(number: int, celsius: float = 25.0, **headers: str) -> Event:
    data = msgspec.json.encode({"key": f"s{number}", "value": [celsius]})
    return Event("weather", f"e{number}", "station.temperature", "station/s", 5, data, headers)


def stored(*events: Event) -> list[StoredEvent]:
    return [StoredEvent(number + 1, 9, event) for number, event in enumerate(events)]


def outgoing(*typed: Interpretation, **options: Any) -> OutgoingMediation:
    return OutgoingMediation(Repository(in_force(*typed)), open_memory(ManualClock()), **options)


class World:
    """A source whose events were received and mediated, and consumers of the result."""

    def __init__(
        self, found: ActiveInterpretations, binding: SourceBinding = SOURCE, **options: Any
    ) -> None:
        clock = ManualClock()
        self.repository = Repository(found)
        self.channels: LoggedChannels = open_memory(clock)
        self.reader = MediationReader(self.channels, [binding], self.repository, clock)
        self.outgoing = OutgoingMediation(
            self.repository, self.channels, clock=clock, sources=self.reader, **options
        )

    async def receive(self, *payloads: Any, type: str = "us-weather") -> None:
        """Raw events, then what mediation makes of them."""
        raw = self.channels.channel("raw.weather")
        begin = raw.last_position()
        await raw.append(
            [
                Event("weather", f"w{begin + n}", type, "", 5, msgspec.json.encode(one))
                for n, one in enumerate(payloads)
            ]
        )
        while await self.reader.lane("weather").step(timeout_ms=0):
            pass

    async def read(self, channel: str, words: str, **more: Any) -> list[StoredEvent]:
        found = await self.channels.channel(channel).read_after(0)
        return await self.outgoing.view(channel, found, words, **more)


def test_a_reading_is_converted_for_the_consumer() -> None:
    async def scenario() -> None:
        out = outgoing(US)
        (result,) = await out.view("events", stored(reading(1, cause="w1", hops="/a/")), "us")
        assert (result.position, result.received) == (1, 9)
        assert (result.event.source, result.event.id, result.event.time) == ("weather", "e1", 5)
        assert result.event.type == "us-weather"
        assert result.event.payload() == {"place": "s1", "time": 5, "temperature": 77.0}
        assert result.event.headers["cause"] == "w1"
        assert result.event.headers["hops"] == "/a/"
        assert result.event.headers["interpretation"] == out.transformer_for("us").stamp

    asyncio.run(scenario())


def test_a_signature_of_other_data_is_not_passed_on() -> None:
    async def scenario() -> None:
        signed = reading(1, signature="x", signedby="y", datacontenttype="text/csv")
        (result,) = await outgoing(US).view("events", stored(signed), "us")
        assert set(result.event.headers) == {"interpretation"}

    asyncio.run(scenario())


def test_canonical_consumers_and_unknown_types_get_events_unchanged() -> None:
    async def scenario() -> None:
        out = outgoing(US)
        foreign = Event("s", "1", "door.opened", "", 5, b'{"a": 1}')
        events = stored(reading(1), foreign)
        assert await out.view("events", events, "root") == events
        assert (await out.view("events", events, "us"))[1] == events[1]
        assert out.statistics.counts["us"].transformed == 1

    asyncio.run(scenario())


def test_values_of_other_canonical_types_are_their_data() -> None:
    root = Interpretation(
        name="root",
        parent="",
        types=(unit_type("kg"), ComplexType("Order", (Attribute("weight", "kg"),))),
    )
    uk = Interpretation(
        name="uk",
        types=(unit_type("lb"), ComplexType("UkOrder", (Attribute("weight", "lb"),))),
        mappings=(TypeMapping("Order", "UkOrder", "out"),),
        rules=(Rule("kg", "to-lb", "out"),),
        conversions=(converts("to-lb", "kg", "lb", UnitChange("kg", "lb")),),
    )

    async def scenario() -> None:
        order = Event("shop", "o1", "Order", "order/1", 5, b'{"weight": 0.45359237}')
        (result,) = await outgoing(root, uk).view("orders", stored(order), "uk")
        assert result.event.type == "UkOrder"
        assert result.event.payload() == {"weight": pytest.approx(1.0)}

    asyncio.run(scenario())


def test_an_event_that_becomes_several_keeps_its_position() -> None:
    root = Interpretation(
        name="root",
        parent="",
        types=(
            ComplexType("Line", (Attribute("item", "text"),)),
            ComplexType("Order", (Attribute("lines", "[Line]"), Attribute("buyer", "text"))),
        ),
    )
    split = Interpretation(
        name="lines",
        types=(ComplexType("One", (Attribute("lines", "Line"), Attribute("buyer", "text"))),),
        mappings=(TypeMapping("Order", "One", "out", each="lines"),),
    )

    async def scenario() -> None:
        data = b'{"lines": [{"item": "a"}, {"item": "b"}], "buyer": "x"}'
        order = Event("shop", "o1", "Order", "", 5, data)
        result = await outgoing(root, split).view("orders", stored(order), "lines")
        assert [(one.position, one.event.id) for one in result] == [(1, "o1:0"), (1, "o1:1")]
        assert result[1].event.payload() == {"lines": {"item": "b"}, "buyer": "x"}

    asyncio.run(scenario())


def test_undeliverable_events_are_left_out_counted_and_listed() -> None:
    async def scenario() -> None:
        out = outgoing(US)
        broken = msgspec.structs.replace(reading(2), data=b'{"key": "s2"}')
        wrong = msgspec.structs.replace(reading(3), data=b'{"key": "s3", "value": ["hot"]}')
        torn = msgspec.structs.replace(reading(4), data=b"{")
        for _ in range(3):
            result = await out.view("events", stored(reading(1), broken, wrong, torn), "us")
            assert [one.position for one in result] == [1]
        assert out.statistics.counts["us"].rejected == {
            "reading.malformed": 1,
            "value.not_a_number": 1,
            "event.bad_data": 1,
        }
        listed = [
            (one.channel, one.position, one.interpretation) for one in out.statistics.undeliverable
        ]
        assert listed == [("events", 2, "us"), ("events", 3, "us"), ("events", 4, "us")]

    asyncio.run(scenario())


def test_a_type_without_a_mapping_is_reported_for_each_event_but_planned_once() -> None:
    lost = msgspec.structs.replace(US, mappings=US.mappings[:1])

    async def scenario() -> None:
        out = outgoing(lost)
        assert await out.view("events", stored(reading(1), reading(2)), "us") == []
        assert out.statistics.counts["us"].rejected == {"mapping.missing": 2}

    asyncio.run(scenario())


def test_unknown_and_refused_names_are_errors_with_a_hint() -> None:
    faulty = msgspec.structs.replace(US, name="faulty", rules=(Rule("nothing", "us-in"),))
    found, _ = activate({}, [US, faulty], concepts=CONCEPTS)
    out = OutgoingMediation(Repository(found), open_memory(ManualClock()))
    with pytest.raises(UnknownName, match=r"usa") as unknown:
        out.transformer_for("usa")
    assert "us" in unknown.value.hint
    with pytest.raises(InterpretationError):
        out.transformer_for("faulty")


def test_a_fields_interpretation_gives_originals_only() -> None:
    fields = FieldsForm(
        name="badge",
        identity=IdentityRule(("place",)),
        values=(ValueRule("value", ("temperature",), unit="degF", to="degC"),),
        time=TimeRule(("t",), "root", optional=True),
    )
    binding = msgspec.structs.replace(SOURCE, interpretation="badge", further=(), units=("degC",))

    async def scenario() -> None:
        world = World(in_force(US, fields={"badge": fields}), binding)
        await world.receive({"place": "s1", "temperature": 77})
        await world.channels.channel("events").append([reading(9)])
        result = await world.read("events", "badge")
        assert [one.event.payload() for one in result] == [{"place": "s1", "temperature": 77}]
        assert world.outgoing.statistics.counts["badge"].rejected == {"interpretation.one_way": 1}

    asyncio.run(scenario())


# --- originals ------------------------------------------------------------------------------------

RECEIVED = {"place": "s1", "temperature": 86.1, "firmware": "7"}


def test_a_consumer_with_the_producers_interpretation_gets_the_original_bytes() -> None:
    async def scenario() -> None:
        world = World(in_force(US, LAB))
        await world.receive(RECEIVED, {**RECEIVED, "place": "s2"})
        (raw, _) = await world.channels.channel("raw.weather").read_after(0)
        result = await world.read("events", "us")
        assert next(one.event.data for one in result) == raw.event.data
        assert (result[0].event.id, result[0].event.type) == ("w0", "us-weather")
        assert (
            result[0].event.headers["interpretation"] == world.outgoing.transformer_for("us").stamp
        )
        counts = world.outgoing.statistics.counts["us"]
        assert (counts.transformed, counts.originals) == (0, 2)
        assert "firmware" not in (await world.read("events", "lab"))[0].event.payload()

    asyncio.run(scenario())


@pytest.mark.parametrize("channel", ["events", "raw.weather"])
def test_originals_have_the_declared_type_whatever_the_producer_calls_them(channel: str) -> None:
    async def scenario() -> None:
        world = World(in_force(US))
        await world.receive(RECEIVED, type="json")
        (result,) = await world.read(channel, "us")
        assert (result.event.type, result.event.payload()) == ("us-weather", RECEIVED)

    asyncio.run(scenario())


US_LATER = msgspec.structs.replace(
    US,
    types=(
        US.types[0],
        ComplexType(
            "us-report",
            (Attribute("site", "text"), Attribute("temperature", "degF", optional=True)),
        ),
    ),
    mappings=(
        TypeMapping("us-report", "station", "in", (RenameAttribute("site", "key"),)),
        TypeMapping(
            "station",
            "us-report",
            "out",
            (RenameAttribute("key", "site"), DropAttribute("time"), DropAttribute("humidity")),
        ),
    ),
)


def test_own_events_come_in_the_declared_types_whatever_version_they_were_written_in() -> None:
    async def scenario() -> None:
        world = World(in_force(US))
        await world.receive({"place": "s1", "temperature": 86.1})
        world.repository.swap(in_force(US_LATER))
        await world.receive({"site": "s2", "temperature": 50.5}, type="us-report")
        result = await world.read("events", "us")
        assert [(one.event.type, one.event.payload()) for one in result] == [
            ("us-report", {"site": "s1", "temperature": pytest.approx(86.1)}),
            ("us-report", {"site": "s2", "temperature": 50.5}),
        ]
        stamp = world.outgoing.transformer_for("us").stamp
        assert {one.event.headers["interpretation"] for one in result} == {stamp}

    asyncio.run(scenario())


def test_a_raw_event_of_another_version_is_not_delivered_unchanged() -> None:
    async def scenario() -> None:
        world = World(in_force(US))
        await world.receive({"place": "s1", "temperature": 86.1})
        world.repository.swap(in_force(US_LATER))
        await world.receive({"site": "s2", "temperature": 50.5}, type="us-weather")
        for _ in range(2):
            (result,) = await world.read("raw.weather", "us")
            assert (result.event.type, result.event.payload()["site"]) == ("us-report", "s2")
        counts = world.outgoing.statistics.counts["us"]
        assert (sum(counts.rejected.values()), counts.originals) == (1, 1)

    asyncio.run(scenario())


def test_an_original_of_several_readings_comes_once() -> None:
    async def scenario() -> None:
        world = World(in_force(US))
        await world.receive({**RECEIVED, "humidity": 40}, {**RECEIVED, "humidity": 50})
        assert world.channels.channel("events").last_position() == 4
        result = await world.read("events", "us")
        assert [(one.position, one.event.payload()["humidity"]) for one in result] == [
            (1, 40),
            (3, 50),
        ]
        (tail,) = await world.outgoing.view(
            "events", await world.channels.channel("events").read_after(3), "us"
        )
        assert (tail.position, tail.event.payload()["humidity"]) == (4, 50)

    asyncio.run(scenario())


def test_without_the_right_to_the_raw_channel_the_original_is_not_delivered() -> None:
    async def scenario() -> None:
        rights = Rights({"desk": Grant(subscribe=("events",)), "chief": Grant(subscribe=("*",))})
        world = World(in_force(US), rights=rights)
        await world.receive(RECEIVED)
        for _ in range(2):  # neither gets what the other was given
            (desk,) = await world.read("events", "us", identity="desk")
            (chief,) = await world.read("events", "us", identity="chief")
            assert "firmware" not in desk.event.payload()
            assert desk.event.payload()["temperature"] == pytest.approx(86.1)
            assert chief.event.payload() == RECEIVED

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "headers",
    [
        {"rawposition": "99"},
        {"rawchannel": "raw.nowhere"},
        {"rawchannel": "events"},
        {"rawposition": "x"},
        {"rawposition": "²"},
        {"cause": "another"},
        {"interpretation": "us@000000000000"},
    ],
)
def test_missing_foreign_and_older_originals_are_replaced_by_a_conversion(headers: Any) -> None:
    async def scenario() -> None:
        world = World(in_force(US))
        await world.receive(RECEIVED)
        (one,) = await world.channels.channel("events").read_after(0)
        results = msgspec.structs.replace(one.event, headers={**one.event.headers, **headers})
        (result,) = await world.outgoing.view("events", stored(results), "us")
        assert result.event.payload()["temperature"] == pytest.approx(86.1)
        assert "firmware" not in result.event.payload()

    asyncio.run(scenario())


def test_a_child_is_not_its_parent() -> None:
    child = Interpretation(name="us/ny", parent="us")

    async def scenario() -> None:
        world = World(in_force(US, child))
        await world.receive(RECEIVED)
        (result,) = await world.read("events", "us/ny")
        assert result.event.type == "us-weather"
        assert "firmware" not in result.event.payload()
        assert result.event.headers["interpretation"].startswith("us/ny@")

    asyncio.run(scenario())


# --- once for all ---------------------------------------------------------------------------------


def test_a_hundred_consumers_of_three_interpretations_cost_three_transformations_per_event() -> (
    None
):
    async def scenario() -> None:
        world = World(in_force(US, LAB, weather("si", "K"), weather("old", "degF")))
        await world.receive(*({"place": f"s{n}", "temperature": n} for n in range(50)))
        names = ("us", "lab", "si", "old")
        found = await asyncio.gather(*(world.read("events", names[n % 4]) for n in range(100)))
        assert {len(each) for each in found} == {50}
        counts = world.outgoing.statistics.counts
        assert {name: counts[name].transformed for name in names} == {
            "us": 0,
            "lab": 50,
            "si": 50,
            "old": 50,
        }
        assert counts["us"].originals == 50

    asyncio.run(scenario())


def test_a_change_of_the_repository_clears_the_cache() -> None:
    async def scenario() -> None:
        world = World(in_force(US, LAB))
        await world.channels.channel("events").append([reading(1)])
        (before,) = await world.read("events", "lab")
        more = ComplexType("Extra", (Attribute("x", "text"),))
        assert not [
            one
            for one in change_typed(world.repository, Augment("lab", types=(more,)))
            if one.severity == "error"
        ]
        (after,) = await world.read("events", "lab")
        assert before.event.headers["interpretation"] != after.event.headers["interpretation"]
        assert world.outgoing.statistics.counts["lab"].transformed == 2

    asyncio.run(scenario())


def test_a_small_cache_only_costs_time() -> None:
    async def scenario() -> None:
        events = stored(*(reading(n, n / 7) for n in range(300)))
        large, small = outgoing(US), outgoing(US, cache_bytes=20_000)
        for _ in range(2):
            assert await large.view("events", events, "us") == await small.view(
                "events", events, "us"
            )
        assert large.statistics.counts["us"].transformed == 300
        assert small.statistics.counts["us"].transformed > 300

    asyncio.run(scenario())


class CountedFunctions(dict[str, Any]):
    """Functions of the site, without their process."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1


def test_site_functions_run_beside_the_loop_and_once() -> None:
    calls: list[Any] = []

    def shout(text: str) -> str:
        calls.append(text)
        return text.upper()

    def open_functions(names: Iterable[str]) -> Any:
        assert list(names) == ["site:shout"]
        return CountedFunctions({"site:shout": shout})

    loud = weather(
        "loud",
        "K",
        rules=(Rule("station.key", "shout", "out"),),
        conversions=(Conversion("shout", ("text",), ("text",), Call("site:shout")),),
    )

    async def scenario() -> None:
        out = outgoing(loud, functions=open_functions)
        events = stored(*(reading(n) for n in range(20)))
        found = await asyncio.gather(*(out.view("events", events, "loud") for _ in range(10)))
        assert all(each == found[0] for each in found)
        assert found[0][3].event.payload()["place"] == "S3"
        assert len(calls) == 20
        await out.close()

    asyncio.run(scenario())
    assert CountedFunctions.closed == 1


def test_a_cancelled_reader_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        class Slow(ManualClock):
            async def sleep(self, ms: int) -> None:
                await gate.wait()

        out = outgoing(US, clock=Slow())
        events = stored(*(reading(n) for n in range(300)))
        first = asyncio.create_task(out.view("events", events, "us"))
        second = asyncio.create_task(out.view("events", events, "us"))
        await asyncio.wait({second}, timeout=0.01)
        first.cancel()
        gate.set()
        assert len(await second) == 300
        assert out.statistics.counts["us"].transformed == 300

    asyncio.run(scenario())


def test_a_change_during_a_conversion_gives_waiting_readers_one_version() -> None:
    async def scenario() -> None:
        out = outgoing(US, LAB)
        events = stored(*(reading(n, n) for n in range(500)))
        old = out.transformer_for("us").stamp
        pending = [asyncio.create_task(out.view("events", events, "us")) for _ in range(3)]
        changes = 0
        while not all(one.done() for one in pending):
            await asyncio.wait(pending, timeout=0)
            more = ComplexType(f"Extra{changes}", (Attribute("x", "text"),))
            change_typed(out.repository, Augment("us", types=(more,)))
            out.transformer_for("us")
            changes += 1
        for one in pending:
            result = await one
            assert len(result) == 500
            assert {each.event.headers["interpretation"] for each in result} == {old}
        (now,) = await out.view("events", events[:1], "us")
        assert now.event.headers["interpretation"] == out.transformer_for("us").stamp != old
        assert changes > 0

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_failed_read_of_originals_fails_for_all_waiting_readers() -> None:
    async def scenario() -> None:
        world = World(in_force(US))
        await world.receive(RECEIVED)
        events = await world.channels.channel("events").read_after(0)
        await world.channels.close()
        world.channels = open_memory(ManualClock())
        found = await asyncio.gather(
            *(world.outgoing.view("events", events, "us") for _ in range(3)),
            return_exceptions=True,
        )
        assert {type(one).__name__ for one in found} == {"ChannelUnavailable"}

    asyncio.run(scenario())


def test_conversions_with_memory_are_refused_for_consumers() -> None:
    moody = weather(
        "moody",
        "K",
        rules=(Rule("station.key", "count", "out"),),
        conversions=(
            Conversion("count", ("text",), ("text",), Stateful("site:count", initial=b"0")),
        ),
    )

    async def scenario() -> None:
        out = outgoing(
            moody, functions=lambda names: CountedFunctions({"site:count": lambda s, v: (s, v)})
        )
        assert await out.view("events", stored(reading(1)), "moody") == []
        assert out.statistics.counts["moody"].rejected == {"conversion.remembers": 1}
        await out.close()

    asyncio.run(scenario())


# --- raw channels ---------------------------------------------------------------------------------


def test_a_raw_channel_is_converted_as_by_way_of_the_canonical_model() -> None:
    async def scenario() -> None:
        world = World(in_force(US, LAB))
        await world.receive(
            {**RECEIVED, "humidity": 40}, {"place": 5.5}, {**RECEIVED, "place": "b"}
        )
        early, late = await world.read("events", "lab"), await world.read("raw.weather", "lab")
        assert [one.event for one in late] == [one.event for one in early]
        assert [one.position for one in late] == [1, 1, 3]
        counts = world.outgoing.statistics.counts["lab"]
        assert counts.rejected == {"identity.not_a_name": 1}
        own = await world.read("raw.weather", "us")
        assert next(one.event.payload() for one in own) == {**RECEIVED, "humidity": 40}
        assert [one.position for one in own] == [1, 3]
        assert world.outgoing.statistics.counts["us"].rejected == {"identity.not_a_name": 1}
        as_root = await world.read("raw.weather", "root")
        stored_root = await world.channels.channel("events").read_after(0)
        assert [one.event for one in as_root] == [one.event for one in stored_root]

    asyncio.run(scenario())


def test_a_source_whose_events_need_their_order_is_refused_with_a_hint() -> None:
    async def scenario() -> None:
        found = in_force(US, LAB, formats={"us": FormatChoice("homeassistant")})
        world = World(found)
        await world.receive(RECEIVED)
        with pytest.raises(Unsupported, match="depend on those before them") as refused:
            await world.read("raw.weather", "lab")
        assert "'events'" in refused.value.hint
        assert len(await world.read("raw.weather", "us")) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("choice", "media_type", "text"),
    [
        (
            FormatChoice("csv", {"delimiter": ";", "decimal": "comma"}),
            "text/csv; charset=utf-8",
            "time;temperature;place\r\n7;70,7;A\r\n",
        ),
        (
            FormatChoice("xml", {"path": "x"}),
            "application/xml",
            '<?xml version="1.0" encoding="UTF-8"?><us-weather><time>7</time>'
            "<temperature>70.7</temperature><place>A</place></us-weather>",
        ),
    ],
)
def test_the_format_of_an_interpretation_is_that_of_delivered_data(choice, media_type, text):
    in_force, _ = activate({}, [US], concepts=CONCEPTS, formats={"us": choice})
    speech = ConsumerTransformer(in_force, "us")
    data = msgspec.json.encode({"key": "A", "value": [21.5]})
    stored = StoredEvent(1, 1, Event("s", "e", "station.temperature", "station/A", 7, data))
    result = speech.transform(stored)
    (event,) = result.events
    assert event.headers["datacontenttype"] == media_type
    assert msgspec.json.decode(event.data) == text
    # Conditions are about values, however they are written.
    (seen,) = query_view(speech, in_force, speech.transform).see(stored)
    assert seen.event.payload() == {"place": "A", "time": 7, "temperature": 70.7}


def test_a_pending_conversion_ends_with_its_own_version() -> None:
    """Functions of the site are not taken away from who still says something with them."""

    class Closing(dict[str, Any]):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    opened: list[Closing] = []

    def open_functions(names: Iterable[str]) -> Any:
        def shout(text: str) -> str:
            if own.is_closed:
                raise RuntimeError("the process is gone")
            return text.upper()

        own = Closing({"site:shout": shout})
        opened.append(own)
        return own

    loud = weather(
        "loud",
        "K",
        rules=(Rule("station.key", "shout", "out"),),
        conversions=(Conversion("shout", ("text",), ("text",), Call("site:shout")),),
    )

    async def scenario() -> None:
        gate, waits = asyncio.Event(), asyncio.Event()

        class Slow(ManualClock):
            async def sleep(self, ms: int) -> None:
                waits.set()
                await gate.wait()

        out = outgoing(loud, functions=open_functions, clock=Slow())
        events = stored(*(reading(n) for n in range(450)))
        saying = asyncio.create_task(out.view("events", events, "loud"))
        await waits.wait()  # the first of them are said
        out.repository.swap(in_force(loud, US))
        await out.view("events", events[:0], "us")
        gate.set()
        assert len(await saying) == 450
        assert out.statistics.counts["loud"].rejected == {}
        for _ in range(100):
            if opened[0].is_closed:
                break
            await asyncio.sleep(0.01)
        assert opened[0].is_closed
        await out.close()

    asyncio.run(scenario())
