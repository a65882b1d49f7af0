"""What a typed source means does not depend on how many of its events come together. [ME-8]"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.codec import DATA_TYPE
from rapport.core.event import Event, StoredEvent
from rapport.mediation.codegen.json_fast_path import JsonFastPath
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.conversion.conversions import UnitChange, converts
from rapport.mediation.interpretations.model import (
    FormatChoice,
    Interpretation,
    RenameAttribute,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.repository import activate
from rapport.mediation.outgoing.consumer_transformer import (
    ConsumerResult,
    ConsumerTransformer,
    RawConsumerTransformer,
)
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.typed_source import TypedTransformer
from rapport.mediation.types import Attribute, ComplexType

ROOT = Interpretation(
    name="root",
    parent="",
    types=(
        ComplexType("Place", (Attribute("name", "text"), Attribute("height", "m", optional=True))),
        ComplexType(
            "Alarm",
            (
                Attribute("level", "degC"),
                Attribute("what", "text", optional=True),
                Attribute("place", "Place", optional=True),
            ),
        ),
        ComplexType("Note", (Attribute("text", "text"),)),
    ),
)
US = Interpretation(
    name="us",
    types=(
        unit_type("degF"),
        unit_type("ft"),
        ComplexType("Spot", (Attribute("name", "text"), Attribute("height", "ft", optional=True))),
        ComplexType(
            "Warning",
            (
                Attribute("heat", "degF"),
                Attribute("what", "text", optional=True),
                Attribute("place", "Spot", optional=True),
            ),
        ),
        ComplexType("Remark", (Attribute("text", "text"),)),
        ComplexType("Unmapped", (Attribute("text", "text"),)),
    ),
    mappings=(
        TypeMapping("Warning", "Alarm", "in", (RenameAttribute("heat", "level"),)),
        TypeMapping("Spot", "Place", "in"),
        TypeMapping("Remark", "Note", "in"),
        TypeMapping("Alarm", "Warning", "out", (RenameAttribute("level", "heat"),)),
        TypeMapping("Place", "Spot", "out"),
    ),
    rules=(
        Rule("degF", "celsius", "in"),
        Rule("ft", "metres", "in"),
        Rule("degC", "fahrenheit", "out"),
        Rule("m", "feet", "out"),
    ),
    conversions=(
        converts("celsius", "degF", "degC", UnitChange("degF", "degC")),
        converts("metres", "ft", "m", UnitChange("ft", "m")),
        converts("fahrenheit", "degC", "degF", UnitChange("degC", "degF")),
        converts("feet", "m", "ft", UnitChange("m", "ft")),
    ),
)
DESK = msgspec.structs.replace(US, name="desk")
CONCEPTS = {"station": {"temperature": ConceptAttribute("number", "degC")}}
BINDING = SourceBinding(source="feed", interpretation="us")
TYPES = (*("Warning",) * 6, "Remark", "Unmapped", "strange")


def site(**formats: FormatChoice) -> Any:
    found, _ = activate({}, [ROOT, US, DESK], concepts=CONCEPTS, formats=formats)
    assert not found.refused
    return found


SITE = site()


def transformer(**binding: Any) -> TypedTransformer:
    return TypedTransformer(msgspec.structs.replace(BINDING, **binding), SITE)


scalars = st.sampled_from([None, True, 0, -40, 71.5, 1e308, 10**30, "hot", "", "é\n"])
places = st.fixed_dictionaries({}, optional={"name": scalars, "height": scalars, "more": scalars})
warnings = st.fixed_dictionaries(
    {"heat": st.sampled_from([32, 71.5, -459.67]) | scalars},
    optional={"what": scalars, "place": places | scalars, "more": scalars, "@type": scalars},
)
result = st.one_of(
    warnings,
    warnings,
    st.fixed_dictionaries({"text": scalars}),
    st.lists(warnings, max_size=3),
    scalars,
)
data = st.one_of(
    result.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"", b"{", b'{"heat":1e999}', b'{"heat":"\xff"}', b'{"heat":1} {"heat":2}']),
)
headers = st.sampled_from([{}, {}, {}, {"rawposition": "7"}, {DATA_TYPE: "text/plain"}])


@st.composite
def batches(draw: st.DrawFn) -> list[StoredEvent]:
    rows = draw(st.lists(st.tuples(st.sampled_from(TYPES), data, headers), min_size=4, max_size=14))
    return [
        StoredEvent(place, 5, Event("feed", f"e{place % 11}", type_name, "s", place, result, given))
        for place, (type_name, result, given) in enumerate(rows, start=1)
    ]


def results(event: Event) -> Any:
    """All of an event, its data in one form."""
    return msgspec.structs.replace(
        event, data=json.dumps(msgspec.json.decode(event.data), sort_keys=True).encode()
    )


@pytest.mark.slow
@given(batches(), st.sampled_from(["", "Warning"]))
def test_a_batch_gives_the_results_of_single_events(batch: list[StoredEvent], speaks: str) -> None:
    together, rejected = transformer(speaks=speaks).apply_many(batch)
    alone = [transformer(speaks=speaks).apply_many([one]) for one in batch]
    assert list(map(results, together)) == [results(each) for found, _ in alone for each in found]
    assert rejected == [each for _, found in alone for each in found]


@pytest.mark.slow
@given(batches())
def test_a_raw_channel_in_a_batch_gives_the_results_of_single_events(
    batch: list[StoredEvent],
) -> None:
    class Sources:
        def binding(self, source: str) -> SourceBinding:
            return BINDING

        def isolated_transformer(self, source: str) -> TypedTransformer:
            return transformer()

    late = RawConsumerTransformer("feed", ConsumerTransformer(SITE, "desk"), Sources(), SITE)
    twice = [*batch, *batch[:2]]
    assert [in_one_form(one) for one in late.transform_all(twice)] == [
        in_one_form(late.transform_all([one])[0]) for one in twice
    ]


def in_one_form(one: ConsumerResult) -> Any:
    return (tuple(map(results, one.events)), one.code, one.message, one.is_made)


def rows_made(meaning: TypedTransformer, events: list[StoredEvent]) -> int:
    """How many events were turned in rows."""
    counted: list[int] = []
    whole = JsonFastPath.data_of_all

    def watched(self: JsonFastPath, events: Any) -> Any:
        found = whole(self, events)
        counted.append(0 if found is None else sum(each is not None for each in found))
        return found

    with patch.object(JsonFastPath, "data_of_all", watched):
        meaning.apply_many(events)
    return sum(counted)


def warning(place: int, type_name: str = "Warning", **extra: Any) -> StoredEvent:
    value = {"heat": 70 + place, "what": "fire", **extra}
    event = Event("feed", f"e{place}", type_name, "", 1_000, msgspec.json.encode(value))
    return StoredEvent(place, 5, event)


def test_regular_events_are_converted_in_batches_although_other_types_stand_between() -> None:
    events = [warning(place, "Warning" if place % 2 else "strange") for place in range(1, 41)]
    assert rows_made(transformer(), events) == 20


@pytest.mark.parametrize(
    ("binding", "format"),
    [
        ({"concept": "station", "attribute": "temperature"}, None),
        ({}, FormatChoice("csv")),
        ({}, FormatChoice("senml")),
    ],
)
def test_readings_and_other_formats_are_processed_one_by_one(binding: Any, format: Any) -> None:
    in_force = SITE if format is None else site(us=format)
    meaning = TypedTransformer(msgspec.structs.replace(BINDING, **binding), in_force)
    assert rows_made(meaning, [warning(place) for place in range(1, 9)]) == 0


def test_where_most_are_not_as_declared_rows_are_no_longer_tried() -> None:
    meaning = transformer()
    odd = [warning(place, more=1) for place in range(1, 101)]
    assert rows_made(meaning, odd) == 0
    assert rows_made(meaning, [warning(place) for place in range(1, 9)]) == 0
    found, rejected = meaning.apply_many([warning(1)] * 8)
    assert (len(found), rejected) == (8, [])


def test_rows_are_ready_before_the_first_event_comes() -> None:
    meaning = transformer()
    meaning.prepare()
    with patch(
        "rapport.mediation.codegen.json_fast_path.compile_batch_path", side_effect=AssertionError
    ):
        assert rows_made(meaning, [warning(place) for place in range(1, 9)]) == 8
