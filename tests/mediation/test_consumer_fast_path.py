"""What consumers get does not depend on whether it is said from bytes to bytes. [ME-8, ME-9]"""

import json
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.event import Event, StoredEvent
from rapport.mediation.codegen.json_fast_path import JsonFastPath
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.conversion.conversions import UnitChange, converts
from rapport.mediation.conversion.currencies import ChangeCurrency, RateTable
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.interpretations.model import (
    DropAttribute,
    FormatChoice,
    Interpretation,
    RenameAttribute,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations, activate
from rapport.mediation.outgoing.consumer_transformer import ConsumerResult, ConsumerTransformer
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType

CONCEPTS = {
    "station": {
        "temperature": ConceptAttribute("number", "degC"),
        "place": ConceptAttribute("point"),
        "name": ConceptAttribute("text"),
        "open": ConceptAttribute("boolean"),
    }
}
OBSERVED = ComplexType(
    "Observed",
    (
        Attribute("station", "text"),
        Attribute("time", "Time", optional=True),
        Attribute("temperature", "degF", optional=True),
        Attribute("place", "Spot", optional=True),
        Attribute("name", "text", optional=True),
    ),
)
SPOT = ComplexType("Spot", (Attribute("x", "ft"), Attribute("y", "ft")))
ALARM = ComplexType("Alarm", (Attribute("level", "degC"), Attribute("what", "text", True)))
TOLD = ComplexType("Told", (Attribute("level", "degF"), Attribute("what", "text", True)))
DESK = Interpretation(
    name="desk",
    types=(unit_type("degF"), unit_type("ft"), SPOT, OBSERVED, TOLD),
    mappings=(
        TypeMapping("Alarm", "Told", "out"),
        TypeMapping(
            "station", "Observed", "out", (RenameAttribute("key", "station"), DropAttribute("open"))
        ),
    ),
    rules=(Rule("degC", "fahrenheit"), Rule("m", "feet")),
    conversions=(
        converts("fahrenheit", "degC", "degF", UnitChange("degC", "degF")),
        converts("feet", "m", "ft", UnitChange("m", "ft")),
    ),
)
TYPES = [*(f"station.{name}" for name in CONCEPTS["station"]), "Alarm", "station", "other"]


def in_force(**formats: FormatChoice) -> ActiveInterpretations:
    root = Interpretation(name="root", parent="", types=(ALARM,))
    found, _ = activate({}, [root, DESK], concepts=CONCEPTS, formats=formats)
    assert not found.refused
    return found


SITE = in_force()


def speeches(site: ActiveInterpretations = SITE) -> tuple[ConsumerTransformer, ConsumerTransformer]:
    """One that tries to be quick, and one that never does."""
    quick, plain = ConsumerTransformer(site, "desk"), ConsumerTransformer(site, "desk")
    plain._fast_paths = dict.fromkeys(TYPES)
    return quick, plain


scalars = st.sampled_from([None, True, 0, -3, 21.5, 1e308, 10**30, "hot", "", "é"])
parts = st.lists(scalars, max_size=3) | scalars
readings = st.fixed_dictionaries(
    {"key": st.sampled_from(["s1", 5, None]), "value": parts},
    optional={"more": scalars, "@type": st.just("station")},
)
values = st.fixed_dictionaries(
    {}, optional={"level": scalars, "what": scalars, "@type": scalars, "more": scalars}
)
data = st.one_of(
    (readings | values | scalars).map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"", b"{", b'{"key":"\xff","value":[1]}', b'{"level":1e999}', b"NaN"]),
)


def canonical(speech: ConsumerTransformer, event: Event) -> Any:
    return in_one_form(speech.transform(StoredEvent(1, 0, event)))


def in_one_form(result: ConsumerResult) -> Any:
    if not result.is_made:
        return result
    told = [
        (one.id, one.type, one.headers, json.dumps(json.loads(one.data), sort_keys=True))
        for one in result.events
    ]
    return told, result.code, result.message, result.is_made, result.plain


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(TYPES), data), max_size=12))
def test_the_fast_path_gives_consumers_the_same_results_and_reasons(
    events: list[tuple[str, bytes]],
) -> None:
    quick, plain = speeches()
    headers = {"interpretation": "feed@1", "signature": "x", "cause": "r1"}
    for number, (name, sent) in enumerate(events):
        event = Event("s", f"e{number}", name, "subject", 1_000 + number, sent, headers)
        assert canonical(quick, event) == canonical(plain, event)


@pytest.mark.parametrize(
    ("name", "sent", "told"),
    [
        ("station.temperature", {"key": "a", "value": [100]},
         {"station": "a", "time": 7, "temperature": 212.0}),
        ("station.place", {"key": "a", "value": [0.3048, 0]},
         {"station": "a", "time": 7, "place": {"x": 1.0, "y": 0.0}}),
        ("station.name", {"key": "a", "value": ["é"]}, {"station": "a", "time": 7, "name": "é"}),
        ("Alarm", {"level": 0, "what": None}, {"level": 32.0, "what": None}),
    ],
)  # fmt: skip
def test_regular_events_are_converted_for_the_consumer(name: str, sent: Any, told: Any) -> None:
    quick, _ = speeches()
    event = Event("s", "e", name, "", 7, json.dumps(sent).encode())
    (result,) = quick.transform(StoredEvent(1, 0, event)).events
    assert json.loads(result.data) == told
    regular = quick._fast_paths[name]
    assert regular is not None
    assert regular.data_of(event) == result.data


def test_the_fast_path_is_given_up_when_most_events_are_irregular() -> None:
    quick, _ = speeches()
    odd = Event("s", "e", "Alarm", "", 7, b'{"level":0,"undeclared":1}')
    good = Event("s", "e", "Alarm", "", 7, b'{"level":0}')
    for _ in range(60):
        (result,) = quick.transform(StoredEvent(1, 0, odd)).events
        assert json.loads(result.data) == {"level": 32.0, "undeclared": 1}
    regular = quick._fast_paths["Alarm"]
    assert regular is not None
    assert regular.data_of(good) is None
    (result,) = quick.transform(StoredEvent(1, 0, good)).events
    assert json.loads(result.data) == {"level": 32.0}


def test_consumers_of_another_format_get_it() -> None:
    quick, plain = speeches(in_force(desk=FormatChoice("csv")))
    event = StoredEvent(1, 0, Event("s", "e", "Alarm", "", 7, b'{"level":0}'))
    assert quick.transform(event) == plain.transform(event)
    assert b"32" in quick.transform(event).events[0].data
    assert quick._fast_paths["Alarm"] is None


rows = st.tuples(st.sampled_from(TYPES), st.lists(data, min_size=6, max_size=20))


@pytest.mark.slow
@given(st.lists(rows, max_size=4))
def test_a_batch_for_a_consumer_gives_the_results_of_single_events(
    drawn: list[tuple[str, list[bytes]]],
) -> None:
    quick, plain = speeches()
    sent = [(name, each) for name, row in drawn for each in row]
    stored = [
        StoredEvent(number, 0, Event("s", f"e{number}", name, "subject", 1_000 + number, each))
        for number, (name, each) in enumerate(sent)
    ]
    together = [in_one_form(one) for one in quick.transform_all(stored)]
    assert together == [in_one_form(plain.transform(one)) for one in stored]


def test_events_of_one_type_are_converted_in_one_call() -> None:
    quick, _ = speeches()
    stored = [
        StoredEvent(n, 0, Event("s", f"e{n}", "Alarm", "", 7, b'{"level":%d}' % n))
        for n in range(1_000)
    ]
    with patch.object(
        JsonFastPath, "data_of", autospec=True, side_effect=JsonFastPath.data_of
    ) as one_by_one:
        result = quick.transform_all(stored)
    assert one_by_one.call_count == 0, "events of one type are converted together"
    levels = [json.loads(one.events[0].data)["level"] for one in result]
    assert levels == pytest.approx([n * 1.8 + 32 for n in range(1_000)])


class _Rates:
    """A euro is worth two dollars, and four from the time 10 on."""

    revision = 0

    def lookup(self, table: str, key: str, column: str) -> str | None:
        raise NotImplementedError

    def rows(self, table: str, columns: Sequence[str]) -> Sequence[tuple[str, ...]]:
        return [
            ("USD", "2", "1970-01-01T00:00:00Z"),
            ("USD", "4", "1970-01-01T00:00:00.010Z"),
        ]


def test_conversions_that_need_the_event_time_run_one_by_one() -> None:
    price = ComplexType("Price", (Attribute("value", "EUR"),))
    cost = ComplexType("Cost", (Attribute("value", "USD"),))
    money = ChangeCurrency("USD", RateTable("rates", "EUR"), from_currency="EUR")
    root = Interpretation(name="root", parent="", types=(PrimitiveType("EUR", "number"), price))
    desk = Interpretation(
        name="desk",
        types=(PrimitiveType("USD", "number"), cost),
        mappings=(TypeMapping("Price", "Cost", "out"),),
        rules=(Rule("EUR", "dollars"),),
        conversions=(converts("dollars", "EUR", "USD", money),),
    )
    site, _ = activate({}, [root, desk], concepts={}, formats={})
    assert not site.refused
    speech = ConsumerTransformer(site, "desk", surroundings=ConversionEnvironment(_Rates()))
    stored = [
        StoredEvent(n, 0, Event("s", f"e{n}", "Price", "", n, b'{"value":1}')) for n in range(20)
    ]
    told = [json.loads(one.events[0].data)["value"] for one in speech.transform_all(stored)]
    assert told == [2.0] * 10 + [4.0] * 10
