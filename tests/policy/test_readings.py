"""Events of the channel as readings: order, types, and what is wrong with those that are none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.readings import readings_schema, split_events
from support.event_readings import readings_from_events

ONTOLOGY = Ontology(
    concepts={
        "person": {"position": "point"},
        "door": {"open": "boolean"},
        "badge": {"owner": "text"},
    },
    relationships={},
    sources={
        name: PushSource(name=name, concept=concept, attribute=attribute, key="k", value=value)
        for name, concept, attribute, value in (
            ("positions", "person", "position", ("x", "y")),
            ("doors", "door", "open", ("v",)),
            ("badges", "badge", "owner", ("v",)),
        )
    },
)


def event(id: str, value: list[Any], *, key: str = "5", type: str = "person.position") -> Event:
    data = msgspec.json.encode({"key": key, "value": value})
    return Event(source="s", id=id, type=type, subject="", time=int(id), data=data)


def test_the_columns_are_those_of_all_streams() -> None:
    assert readings_schema(ONTOLOGY).names == [
        "time",
        "id",
        "stream",
        "source",
        "key",
        "badge.owner.value",
        "door.open.value",
        "person.position.x",
        "person.position.y",
    ]


@pytest.mark.parametrize("count", [0, 1, 3, 500])
def test_readings_keep_the_order_of_the_events(count: int) -> None:
    events = [event(str(number), [number, number / 3], key=f"k{number}") for number in range(count)]
    batch = readings_from_events(events, ONTOLOGY)
    assert batch.schema == readings_schema(ONTOLOGY)
    assert batch.column("time").to_pylist() == list(range(count))
    assert batch.column("key").to_pylist() == [f"k{number}" for number in range(count)]
    assert batch.column("person.position.y").to_pylist() == [n / 3 for n in range(count)]
    assert batch.column("door.open.value").null_count == count


@pytest.mark.parametrize("count", [2, 600])
def test_streams_of_different_types_share_a_batch(count: int) -> None:
    kinds = [("person.position", [1, 2]), ("door.open", [True]), ("badge.owner", ["é"])]
    events = [event(str(n), kinds[n % 3][1], type=kinds[n % 3][0]) for n in range(count)]
    batch = readings_from_events(events, ONTOLOGY)
    assert batch.column("stream").to_pylist() == [kinds[n % 3][0] for n in range(count)]
    assert batch.column("door.open.value")[1].as_py() is True


@pytest.mark.slow
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=400, max_size=420))
def test_numbers_are_read_exactly_by_both_ways(numbers: list[float]) -> None:
    events = [event(str(place), [number, 0]) for place, number in enumerate(numbers)]
    many = readings_from_events(events, ONTOLOGY)
    assert many.column("person.position.x").to_pylist() == numbers
    few = readings_from_events(events[:3], ONTOLOGY)
    assert few.column("person.position.x").to_pylist() == numbers[:3]


def test_events_of_other_types_are_left_out() -> None:
    other = Event(source="s", id="x", type="something.else", subject="", time=1)
    assert len(readings_from_events([other, event("1", [1, 2])], ONTOLOGY)) == 1


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"not json", "reading.bad_data"),
        (b"[]", "reading.bad_data"),
        (b'{"key":"5"}', "reading.bad_data"),
        (b'{"key":5,"value":[1,2]}', "reading.bad_data"),
        (b'{"key":"","value":[1,2]}', "reading.no_key"),
        (b'{"key":"5","value":[1]}', "reading.bad_value"),
        (b'{"key":"5","value":[1,2,3]}', "reading.bad_value"),
        (b'{"key":"5","value":[1,null]}', "reading.bad_value"),
        (b'{"key":"5","value":[1,"2"]}', "reading.bad_value"),
        (b'{"key":"5","value":[1,true]}', "reading.bad_value"),
        (b'{"key":"5","value":[1,2]} {}', "reading.bad_data"),
    ],
)
@pytest.mark.parametrize("beside", [0, 5, 300])
def test_a_faulty_event_is_named_and_the_others_are_read(
    data: bytes, code: str, beside: int
) -> None:
    faulty = Event(source="s", id="bad", type="person.position", subject="", time=1, data=data)
    events = [event(str(number), [1, 2]) for number in range(beside)]
    readings, rejected = split_events([faulty, *events], ONTOLOGY)
    assert len(readings) == beside
    assert [(found.id, problem.code) for found, problem in rejected] == [("bad", code)]
    with pytest.raises(InvalidInput, match="bad"):
        readings_from_events([*events, faulty], ONTOLOGY)


def test_pretty_printed_data_is_read_too() -> None:
    data = b'{\n "key": "5",\n "value": [1, 2]\n}'
    spread = Event(source="s", id="a", type="person.position", subject="", time=1, data=data)
    assert len(readings_from_events([spread] * 300, ONTOLOGY)) == 300


def test_a_time_beyond_all_windows_is_refused() -> None:
    far = Event(
        source="s",
        id="far",
        type="person.position",
        subject="",
        time=2**62,
        data=b'{"key":"5","value":[1,2]}',
    )
    _, [(_, problem)] = split_events([far], ONTOLOGY)
    assert problem.code == "reading.bad_time"


def test_the_source_is_the_push_source_by_whatever_name_the_event_came() -> None:
    events = [
        event("1", [1, 2]),
        msgspec.structs.replace(event("2", [1, 2]), source="positions"),
        msgspec.structs.replace(
            event("3", [1, 2]), source="urn:device:7", headers={"rawchannel": "raw.positions"}
        ),
    ]
    named = ["s", "positions", "positions"]
    assert readings_from_events(events, ONTOLOGY).column("source").to_pylist() == named
    faulty = [*events, event("4", [1])]
    readings, rejected = split_events(faulty, ONTOLOGY)
    assert readings.column("source").to_pylist() == named
    assert len(rejected) == 1
