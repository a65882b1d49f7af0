"""Sources that speak typed interpretations, and sources whose events are not JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.codec import DATA_TYPE
from rapport.core.errors import Problem
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.conversion.conversions import UnitChange, converts
from rapport.mediation.interpretations.model import (
    FieldsInterpretation,
    FormatChoice,
    IdentityRule,
    RenameAttribute,
    Rule,
    TimeRule,
    TypeMapping,
    ValueRule,
)
from rapport.mediation.interpretations.model import Interpretation as TypedForm
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository, activate
from rapport.mediation.interpretations.type_changes import Augment, apply_change
from rapport.mediation.memory import SourceMemory
from rapport.mediation.reader import MediationReader, build_transformer
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.typed_source import TypedTransformer
from rapport.mediation.types import Attribute, ComplexType
from rapport.store.memory import MemoryRecordStore

CONCEPTS = {
    "station": {
        "temperature": ConceptAttribute("number", "degC"),
        "humidity": ConceptAttribute("number", "%"),
    }
}
US = TypedForm(
    name="us",
    types=(
        unit_type("degF"),
        ComplexType(
            "UsWeather",
            (
                Attribute("station", "text"),
                Attribute("temperature", "degF", optional=True),
                Attribute("humidity", "%", optional=True),
            ),
        ),
    ),
    mappings=(
        TypeMapping("UsWeather", "station", "in", shape=(RenameAttribute("station", "key"),)),
    ),
    rules=(Rule("degF", "to-celsius", "in"),),
    conversions=(converts("to-celsius", "degF", "degC", UnitChange("degF", "degC")),),
)
BINDING = SourceBinding(
    source="weather",
    concept="station",
    attribute="temperature",
    further=("humidity",),
    interpretation="us",
)


def change_typed(repository: Repository, change: Augment) -> tuple[Problem, ...]:
    """Applies a change of typed interpretations; an error leaves everything as it was."""
    typed, problems = apply_change(repository.in_force.typed, change)
    if typed is not repository.in_force.typed:
        repository.swap(repository.in_force.with_typed(typed))
    return problems


def raw(value: Any, position: int = 1, **envelope: Any) -> StoredEvent:
    event = Event("weather", f"w{position}", "weather.raw", "", 1_000, msgspec.json.encode(value))
    return StoredEvent(position, 1_000, msgspec.structs.replace(event, **envelope))


def in_force(*typed: TypedForm, **formats: FormatChoice) -> ActiveInterpretations:
    found, _problems = activate({}, typed, concepts=CONCEPTS, formats=formats)
    return found


def seen(event: Event) -> tuple[str, str, str, Any]:
    return event.id, event.type, event.subject, event.payload()["value"]


def test_one_event_gives_a_reading_for_each_attribute():
    meaning = build_transformer(BINDING, in_force(US))
    readings, rejections = meaning.apply_many(
        [raw({"station": "KJFK", "temperature": 77, "humidity": 15.0})]
    )
    assert rejections == []
    assert [seen(each) for each in readings] == [
        ("w1/temperature", "station.temperature", "station/KJFK", [25.0]),
        ("w1/humidity", "station.humidity", "station/KJFK", [15.0]),
    ]
    assert readings[0].headers["interpretation"] == meaning.stamp
    assert readings[0].headers["rawposition"] == "1"


def test_a_source_of_one_attribute_keeps_the_id_of_its_event():
    binding = msgspec.structs.replace(BINDING, further=())
    readings, _ = build_transformer(binding, in_force(US)).apply_many(
        [raw({"station": "KJFK", "temperature": 77, "humidity": 15.0})]
    )
    assert [each.id for each in readings] == ["w1"]


def test_a_bad_event_is_rejected_and_stops_no_other():
    meaning = build_transformer(BINDING, in_force(US))
    events = [
        raw({"station": "KJFK", "temperature": "hot"}, 1),
        raw({"station": "KJFK"}, 2),
        raw({"station": 5.5, "temperature": 77}, 3),
        raw([1], 4),
        raw({"station": "KJFK", "temperature": 32}, 5),
        raw({"station": "KJFK", "temperature": 1e308 * 10}, 6),
    ]
    readings, rejections = meaning.apply_many(events)
    assert [each.id for each in readings] == ["w5/temperature"]
    assert [(one.position, one.code) for one in rejections] == [
        (1, "value.not_a_number"),
        (2, "reading.empty"),
        (3, "identity.not_a_name"),
        (4, "payload.not_an_object"),
        (6, "reading.empty"),
    ]


def test_values_of_other_types_of_root_go_into_a_channel_as_they_are():
    root = TypedForm(
        name="root", parent="", types=(ComplexType("Order", (Attribute("weight", "kg"),)),)
    )
    root = msgspec.structs.replace(root, types=(unit_type("kg"), *root.types))
    british = TypedForm(
        name="uk",
        types=(unit_type("lb"), ComplexType("UkOrder", (Attribute("weight", "lb"),))),
        mappings=(TypeMapping("UkOrder", "Order", "in"),),
        rules=(Rule("lb", "to-kg", "in"),),
        conversions=(converts("to-kg", "lb", "kg", UnitChange("lb", "kg")),),
    )
    binding = SourceBinding(source="weather", interpretation="uk", into="orders")
    meaning = build_transformer(binding, in_force(root, british))
    assert meaning.into == "orders"
    (order,), _ = meaning.apply_many([raw({"weight": 100}, subject="order/1")])
    assert (order.id, order.type, order.subject) == ("w1", "Order", "order/1")
    assert order.payload() == {"weight": pytest.approx(45.359237)}


def test_a_refused_interpretation_holds_its_source_back_with_the_reason():
    without_rule = msgspec.structs.replace(US, rules=())
    repository = Repository(in_force(without_rule))
    reader = MediationReader(open_memory(ManualClock()), [BINDING], repository, ManualClock())
    _, (rejection,) = reader.transformer("weather").apply_many(
        [raw({"station": "KJFK", "temperature": 77})]
    )
    assert "expected degC, found degF" in rejection.message
    assert repository.in_force.refused["us"]


def test_where_the_format_knows_only_texts_declared_numbers_are_read():
    table = in_force(US, us=FormatChoice("csv", {"delimiter": ";", "decimal": "comma"}))
    text = "station;temperature;humidity\nA;77,0;1\nB;x;2\nC;32;-3,5\n"
    readings, rejections = build_transformer(BINDING, table).apply_many([raw(text, headers=CSV)])
    assert [each.payload() for each in readings] == [
        {"key": "A", "value": [25.0]},
        {"key": "A", "value": [1.0]},
        {"key": "C", "value": [0.0]},
        {"key": "C", "value": [-3.5]},
    ]
    assert [one.code for one in rejections] == ["value.not_a_number"]


CSV = {"datacontenttype": "text/csv"}


def test_the_fields_form_reads_formats_and_the_units_they_say():
    plain = FieldsInterpretation(
        name="nodes",
        time=TimeRule(("when",), "iso8601", "UTC"),
        identity=IdentityRule(("station",)),
        values=(ValueRule("value", ("temperature",), unit="degF"),),
        format=FormatChoice("csv", {"delimiter": ";", "decimal": "comma"}),
    )
    binding = SourceBinding(
        source="weather",
        concept="station",
        attribute="temperature",
        interpretation="nodes",
        units=("degC",),
    )
    meaning = build_transformer(binding, ActiveInterpretations({"nodes": plain}))
    text = "station;when;temperature\nA;2026-03-02T08:00:00Z;77,0\nA;never;1\n"
    (reading,), (rejection,) = meaning.apply_many([raw(text, headers=CSV)])
    assert (reading.payload(), reading.time) == ({"key": "A", "value": [25.0]}, 1772438400000)
    assert reading.id.startswith("w1:")
    assert (rejection.code, rejection.event.id) == ("time.bad_time", "w1")


def test_a_change_is_seen_by_the_next_batch_and_a_faulty_one_by_none():
    repository = Repository(in_force(US))
    reader = MediationReader(open_memory(ManualClock()), [BINDING], repository, ManualClock())
    before = reader.transformer("weather")
    assert any(
        problem.severity == "error"
        for problem in change_typed(
            repository, Augment("us", rules=(Rule("Nothing", "to-celsius"),))
        )
    )
    assert reader.transformer("weather") is before
    added = Augment("us", types=(ComplexType("Ping", ()),))
    assert all(problem.severity != "error" for problem in change_typed(repository, added))
    after = reader.transformer("weather")
    assert isinstance(after, TypedTransformer)
    assert after.stamp != before.stamp


def test_the_memory_of_conversions_survives_the_process(tmp_path):
    records, memory = MemoryRecordStore(), SourceMemory("weather")
    assert memory.save(3) is None
    memory.states.states["count"] = 7
    memory.format["seen"] = {"a": 1}
    saving = memory.save(9)
    assert saving is not None
    records.apply(saving.records)
    again = SourceMemory.restore(records, "weather")
    assert (again.position, again.format, again.states.states) == (
        9,
        {"seen": {"a": 1}},
        {"count": 7},
    )
    assert again.save(12) is None


def test_events_in_the_memory_are_not_processed_twice():
    """Killed after the memory was saved and before the place was."""

    async def scenario() -> None:
        clock = ManualClock()
        channels = open_memory(clock)
        await channels.channel("raw.weather").append([raw({"n": i}, i).event for i in (1, 2, 3)])
        taken: list[int] = []

        class Remembering:
            stamp, may_block, into, local_zone = "x@1", False, "events", ""

            def apply_many(self, events):
                taken.extend(one.position for one in events)
                return [], []

        from rapport.mediation.reader import Lane

        lane = Lane(channels, "weather", Remembering)
        lane.memory.position = 2
        await lane.step(timeout_ms=0)
        assert taken == [3]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("format_name", "said"),
    [
        (
            "senml",
            lambda unit: [
                {"bn": "KJFK", "n": "temperature", "v": 25.0} | ({"u": unit} if unit else {})
            ],
        ),
        (
            "ngsi",
            lambda unit: {
                "id": "KJFK",
                "type": "UsWeather",
                "temperature": {
                    "type": "Property",
                    "value": 25.0,
                    **({"unitCode": unit} if unit else {}),
                },
            },
        ),
    ],
)
def test_the_unit_in_the_data_counts_before_the_declared_one(format_name, said):
    names = {"senml": "device", "ngsi": "id"}
    named = msgspec.structs.replace(
        US,
        types=(
            unit_type("degF"),
            ComplexType(
                "UsWeather",
                (
                    Attribute(names[format_name], "text"),
                    Attribute("temperature", "degF", optional=True),
                ),
            ),
        ),
        mappings=(
            TypeMapping(
                "UsWeather",
                "station",
                "in",
                shape=(RenameAttribute(names[format_name], "key"),),
            ),
        ),
    )
    meaning = build_transformer(BINDING, in_force(named, us=FormatChoice(format_name, {})))
    unit = {"senml": "Cel", "ngsi": "CEL"}[format_name]
    (reading,), rejections = meaning.apply_many([raw(said(unit))])
    assert rejections == []
    assert reading.payload() == {"key": "KJFK", "value": [pytest.approx(25.0)]}
    found, rejections = meaning.apply_many([raw(said(""))])
    if format_name == "senml":
        assert [one.code for one in rejections] == ["unit.undeclared"]
        assert "celsius" in rejections[0].hint
    else:  # the data model says it
        assert found[0].payload()["value"] == [pytest.approx(-3.888888888)]


def test_a_reading_lacks_the_format_headers_of_its_raw_event() -> None:
    choice = FormatChoice("csv", {"columns": ["station", "temperature"]})
    meaning = build_transformer(BINDING, in_force(US, us=choice))
    headers = {DATA_TYPE: "text/csv", "trace": "t"}
    (reading,), rejections = meaning.apply_many([raw("s1,50", headers=headers)])
    assert rejections == []
    assert reading.payload() == {"key": "s1", "value": [10.0]}
    assert DATA_TYPE not in reading.headers
    assert reading.headers["trace"] == "t"
