"""What consumers get does not depend on whether it is said from bytes to bytes. [ME-8, ME-9]"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.event import Event, StoredEvent
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.in_force import InForce, take_in
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.model.conversions import UnitChange, converts
from rapport.mediation.model.interpretation import (
    DropAttribute,
    Interpretation,
    Mapping,
    RenameAttribute,
    Rule,
)
from rapport.mediation.model.types import Attribute, ComplexType
from rapport.mediation.outgoing.speech import Speech

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
        Mapping("Alarm", "Told", "out"),
        Mapping(
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


def in_force(**formats: FormatChoice) -> InForce:
    root = Interpretation(name="root", parent="", types=(ALARM,))
    found, problems = take_in({}, [root, DESK], concepts=CONCEPTS, formats=formats)
    assert not [one for one in problems if one.severity == "error"], problems
    return found


SITE = in_force()


def speeches(site: InForce = SITE) -> tuple[Speech, Speech]:
    """One that tries to be quick, and one that never does."""
    quick, plain = Speech(site, "desk"), Speech(site, "desk")
    plain._usual = dict.fromkeys(TYPES)
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


def canonical(speech: Speech, event: Event) -> Any:
    said = speech.say(StoredEvent(1, 0, event))
    if not said.is_made:
        return said
    told = [
        (one.id, one.type, one.headers, json.dumps(json.loads(one.data), sort_keys=True))
        for one in said.events
    ]
    return told, said.code, said.message, said.is_made, said.plain


@given(st.lists(st.tuples(st.sampled_from(TYPES), data), max_size=12))
@settings(max_examples=200, deadline=None)
def test_said_from_bytes_to_bytes_or_not_consumers_get_the_same_or_the_same_reason(
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
def test_usual_events_are_said_in_the_consumers_words(name: str, sent: Any, told: Any) -> None:
    quick, _ = speeches()
    event = Event("s", "e", name, "", 7, json.dumps(sent).encode())
    (said,) = quick.say(StoredEvent(1, 0, event)).events
    assert json.loads(said.data) == told
    usual = quick._usual[name]
    assert usual is not None
    assert usual.data_of(event) == said.data


def test_where_hardly_an_event_is_usual_nothing_is_tried_any_longer() -> None:
    quick, _ = speeches()
    odd = Event("s", "e", "Alarm", "", 7, b'{"level":0,"undeclared":1}')
    good = Event("s", "e", "Alarm", "", 7, b'{"level":0}')
    for _ in range(60):
        (said,) = quick.say(StoredEvent(1, 0, odd)).events
        assert json.loads(said.data) == {"level": 32.0, "undeclared": 1}
    usual = quick._usual["Alarm"]
    assert usual is not None
    assert usual.data_of(good) is None
    (said,) = quick.say(StoredEvent(1, 0, good)).events
    assert json.loads(said.data) == {"level": 32.0}


def test_consumers_of_another_format_get_it() -> None:
    quick, plain = speeches(in_force(desk=FormatChoice("csv")))
    event = StoredEvent(1, 0, Event("s", "e", "Alarm", "", 7, b'{"level":0}'))
    assert quick.say(event) == plain.say(event)
    assert b"32" in quick.say(event).events[0].data
    assert quick._usual["Alarm"] is None
