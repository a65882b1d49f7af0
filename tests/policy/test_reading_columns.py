"""Readings read as columns: the same values as one by one, or none at all; and one bad event never
changes another's reading.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.codec import encode_block
from rapport.core.event import BareEvent, BareStoredEvent, Event
from rapport.core.event_columns import decode_block_events
from rapport.core.schema import AREAS, PARTS, AttributeType
from rapport.policy import readings
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.readings import (
    bare_readings,
    columns_of_data,
    readings_schema,
    repeated,
    split_blocks,
    split_events,
)

KINDS: tuple[AttributeType, ...] = tuple(k for k in get_args(AttributeType) if k not in AREAS)
ONTOLOGY = Ontology(
    concepts={"thing": {kind: kind for kind in KINDS}},
    relationships={},
    sources={
        kind: PushSource(name=kind, concept="thing", attribute=kind, key="k", value=PARTS[kind])
        for kind in KINDS
    },
)
MANY = 70
"""Enough to be read as columns, here."""


@pytest.fixture(autouse=True, scope="module")
def _columns_for_fewer() -> Iterator[None]:
    """Small batches are read as columns, too: what is worth it is not what is right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readings, "_MANY", MANY)
        yield


PLAIN_KEYS = st.sampled_from(["5", "é", "a,b", "},{", "[", "key", "\x7f", "\u2028", "☃" * 30])
KEYS = PLAIN_KEYS | st.sampled_from(["", 'a"b', "a\\b", "a\nb", "\x00"]) | st.text(max_size=5)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)
SPELLINGS = [
    *("0", "-0", "-0.0", "00", "01", "-01", "0.5", ".5", "5.", "-.5", "1e5", "1E+5"),
    *("1e-5", "1.e5", "1e", "1e400", "-1e400", "1e-400", "+1", "-", "--", "1-2", "1.2.3"),
    *("NaN", "nan", "inf", "Infinity", "-inf", "0x10", "1_0", "null", "true", "false"),
    *("[]", "{}", "9007199254740993", "18446744073709551616"),
    *("123456789012345678901234567890", "0.1000000000000000055511151231257827", "2.5e-324"),
    *("4.9e-324", "0e999", "1e99999999999", "0.0e-99999", "1e+", "٣", "1,2"),
]
TOKENS = st.sampled_from(SPELLINGS) | st.text("0123456789.-+eE", min_size=1, max_size=12)
BROKEN = st.sampled_from(
    [
        b"",
        b"null",
        b"[]",
        b'{"key":"a"',
        b'"value":[1,2]}',
        b'"value":[1,2]},{"key":"b","value":[3,4]}',
        b'{"key":"a","value":[1,2]},{"key":"b","value":[3,4]}',
        b'{"key":"a","value":[1,2]}{"key":"b","value":[3,4]}',
        b'{"key":"x}',
        b'{","value":[1,2]}',
        b'{"key":"x","z":[{}',
        b'{}],"value":[1,2]}',
        b'{"key":"a\xff","value":[1,2]}',
        b'{"key":"a\xc3","value":[1,2]}',
        b'{"value":[1,2]}',
        b'{"key":"a","value":[]}',
        b'{"key":"a","value":[1,2]}]',
    ]
)
UNUSUAL = st.sampled_from(
    [
        b'{ "key": "a", "value": [1, 2] }',
        b'{"value":[1,2],"key":"a"}',
        b'{"key":"a","value":[1,2],"more":{"key":"b","value":[3,4]}}',
        b'{"key":"a","key":"b","value":[1,2]}',
        b'{"key":"a","value":[1,2],"value":[3,4]}',
        b'{"key":"a","value":[9,9],"x":","}',
        rb'{"key":"\u0061\n","value":[1,2]}',
        b'{"key":"a","value":["b"]}',
        b'{"key":"a","value":["b","c"]}',
        b'{"key":"a","value":["b\\"c"]}',
        b'{"key":"a","value":[true]}',
        b'{"key":"a","value":[1]}',
        b'{"key":"a","value":[1,2,3,4]}',
    ]
)


def encoded(key: str, value: list[Any]) -> bytes:
    return msgspec.json.encode({"key": key, "value": value})


def value_of(kind: AttributeType) -> st.SearchStrategy[Any]:
    if kind == "text":
        return KEYS
    return st.booleans() if kind == "boolean" else NUMBERS


def sound(kind: AttributeType) -> st.SearchStrategy[bytes]:
    count = len(PARTS[kind])
    return st.builds(encoded, KEYS, st.lists(value_of(kind), min_size=count, max_size=count))


def spelt(kind: AttributeType) -> st.SearchStrategy[bytes]:
    """Readings of the usual form with anything in the place of a number."""
    count = len(PARTS[kind])
    return st.lists(TOKENS, min_size=count, max_size=count).map(
        lambda tokens: f'{{"key":"a","value":[{",".join(tokens)}]}}'.encode()
    )


def data_of(kind: AttributeType) -> st.SearchStrategy[bytes]:
    return st.one_of(sound(kind), sound(kind), spelt(kind), BROKEN, UNUSUAL)


def exact(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Rows with numbers as their bits: zero and minus zero differ."""
    return [
        [struct.pack(">d", value) if isinstance(value, float) else value for value in row.values()]
        for row in rows
    ]


def each_alone(events: list[BareEvent]) -> tuple[list[list[Any]], list[tuple[str, str]]]:
    """What every event is when there is no other."""
    rows, faults = [], []
    for event in events:
        found, rejected = split_events([event], ONTOLOGY)
        rows += found.to_pylist()
        faults += [(event.id, problem.code) for event, problem in rejected]
    return exact(rows), faults


def bare(number: int, kind: str, data: bytes, **changes: Any) -> BareEvent:
    event = BareEvent(kind, f"e{number}", f"thing.{kind}", "", 1_000_000 + number, data)
    return msgspec.structs.replace(event, **changes)


def as_block(events: list[BareEvent]) -> bytes:
    fields = (msgspec.structs.astuple(event) for event in events)
    return encode_block([Event(*values, {"cause": "c"}) for values in fields])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [1, 2.5, -0.0, 1e300, 5e-324])
def test_readings_as_our_encoder_writes_them_are_read_as_columns(
    kind: AttributeType, value: float
) -> None:
    bounded = min(value, 90.0)
    one: Any = {"text": "a,]}b", "boolean": value > 1, "geo_point": bounded}.get(kind, value)
    data = [encoded(f"k{number}é", [one] * len(PARTS[kind])) for number in range(5)]
    found = columns_of_data(pa.array(data, pa.binary()), kind)
    assert found is not None
    keys, parts = found
    assert keys.to_pylist() == [f"k{number}é" for number in range(5)]
    assert [part.to_pylist() for part in parts] == [[one] * 5] * len(PARTS[kind])


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("point", b'{"key":"a"b","value":[1,2]}'),
        ("point", b'{"key":"","value":[1,2]}'),
        ("text", b'{"key":"a","b","value":["c"]}'),
        ("text", b'{"key":"a","value":["b"c"]}'),
        ("boolean", b'{"key":"a"b","value":[true]}'),
        ("boolean", b'{"key":"a","value":[True]}'),
        ("number", b'{"key":"a\\","value":[1]}'),
    ],
    ids=["quote", "empty", "pair", "text_quote", "truth_quote", "truth", "escape"],
)
def test_what_only_looks_like_a_reading_is_none(kind: AttributeType, data: bytes) -> None:
    assert columns_of_data(pa.array([data], pa.binary()), kind) is None
    assert each_alone([bare(0, kind, data)])[0] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
@given(st.data())
def test_columns_say_what_the_decoder_says_of_each(kind: AttributeType, data: Any) -> None:
    given_data = data.draw(st.lists(data_of(kind), min_size=1, max_size=4))
    column = pa.array([b"before", *given_data], pa.binary())[1:]
    found = columns_of_data(column, kind)
    if found is not None:
        keys, parts = found
        names = [f"part{number}" for number in range(len(parts))]
        table = pa.record_batch([keys, *parts], ["key", *names])
        alone, faults = each_alone(
            [bare(number, kind, one) for number, one in enumerate(given_data)]
        )
        assert not faults
        own = [[value for value in row[4:] if value is not None] for row in alone]
        assert exact(table.to_pylist()) == own


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
@given(st.data())
def test_one_event_never_changes_the_reading_of_another(kind: AttributeType, data: Any) -> None:
    """Among many sound ones, in one batch or in blocks, every event is what it is alone."""
    usual = encoded("5", [{"text": "x", "boolean": True}.get(kind, 1.5)] * len(PARTS[kind]))
    given_data = [usual] * MANY
    for one in data.draw(st.lists(data_of(kind), max_size=4)):
        given_data.insert(data.draw(st.integers(0, MANY)), one)
    events = [bare(number, kind, one) for number, one in enumerate(given_data)]
    rows, faults = each_alone(events)
    cut = data.draw(st.integers(0, len(events)))
    for found, rejected in (
        split_events(events, ONTOLOGY),
        split_blocks([as_block(events[:cut]), as_block(events[cut:])], ONTOLOGY),
    ):
        assert exact(found.to_pylist()) == rows
        assert [(event.id, problem.code) for event, problem in rejected] == faults


@pytest.mark.parametrize(
    "broken",
    [
        (b'{"key":"a"', b'"value":[1,2]},{"key":"b","value":[3,4]}'),
        (b'{"key":"a","value":[1', b'2]},{"key":"b","value":[3,4]}'),
        (
            b'{"key":"x}',
            b'{","value":[1,2]}',
            b'{"key":"a","value":[1,2]},{"key":"b","value":[3,4]}',
        ),
        (
            b'{"key":"x","z":[{}',
            b'{}],"value":[1,2]}',
            b'{"key":"a","value":[1,2]},{"key":"b","value":[3,4]}',
        ),
    ],
    ids=["fields", "numbers", "string", "list"],
)
@pytest.mark.parametrize("beside", [0, MANY])
def test_data_that_are_whole_only_together_are_no_readings(
    broken: tuple[bytes, ...], beside: int
) -> None:
    events = [bare(number, "point", encoded("5", [1, 2])) for number in range(beside)]
    events += [bare(1_000 + number, "point", data) for number, data in enumerate(broken)]
    found, rejected = split_events(events, ONTOLOGY)
    assert len(found) == beside
    assert [event.id for event, _ in rejected] == [event.id for event in events[beside:]]


@pytest.mark.slow
@given(st.data())
def test_events_of_several_streams_are_what_each_is_alone(data: Any) -> None:
    drawn = data.draw(
        st.lists(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), sound(kind))))
    )
    drawn += [("point", encoded("5", [1, 2])), ("text", encoded("5", ["x"]))] * (MANY // 2)
    order = data.draw(st.permutations(range(len(drawn))))
    source = st.sampled_from(["point", "text", "nobody"])
    events = [
        bare(number, *drawn[place], source=data.draw(source)) for number, place in enumerate(order)
    ]
    rows, faults = each_alone(events)
    found, rejected = split_events(events, ONTOLOGY)
    assert exact(found.to_pylist()) == rows
    assert [(event.id, problem.code) for event, problem in rejected] == faults
    assert found.schema.equals(readings_schema(ONTOLOGY))


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_give_what_their_events_give(kind: AttributeType) -> None:
    value = [{"text": "x", "boolean": False}.get(kind, 2)] * len(PARTS[kind])
    events = [bare(number, kind, encoded(f"k{number}", value)) for number in range(MANY)]
    blocks = [as_block(events[:7]), as_block(events[7:])]
    assert split_blocks(blocks, ONTOLOGY)[0].equals(split_events(events, ONTOLOGY)[0])
    assert split_blocks(blocks, ONTOLOGY)[0].num_rows == MANY


@pytest.mark.parametrize(
    "changes",
    [{}, {"source": "number"}, {"source": "nobody"}, {"type": "thing.number"}, {"type": "other"}]
    + [{"time": time} for time in (0, 2**60, 2**62, 10**9)],
    ids=["none", "source", "nobody", "type", "other", "early", "far", "farther", "ahead"],
)
@pytest.mark.parametrize("all_of_them", [False, True])
def test_blocks_of_a_channel_give_what_bare_events_give(
    changes: dict[str, Any], all_of_them: bool
) -> None:
    events = [bare(number, "point", encoded("5", [1, 2])) for number in range(MANY)]
    places = range(MANY) if all_of_them else (3,)
    for place in places:
        events[place] = msgspec.structs.replace(events[place], **changes)
    blocks = [(1, 2_000_000, as_block(events[:9])), (50, 2_000_000, as_block(events[9:]))]
    stored = [
        BareStoredEvent(first + number, received, event)
        for (first, received, _body), part in zip(blocks, (events[:9], events[9:]), strict=True)
        for number, event in enumerate(part)
    ]
    expected = bare_readings(stored, ONTOLOGY, 60_000)
    found = decode_block_events(blocks)
    if found is None:
        assert not all_of_them or changes.get("time") == 0
        assert split_blocks([body for *_, body in blocks], ONTOLOGY)[0].equals(
            split_events(events, ONTOLOGY)[0]
        )
        return
    assert list(found) == stored
    given_out = bare_readings(found, ONTOLOGY, 60_000)
    assert (given_out is None) == (expected is None)
    if given_out is not None and expected is not None:
        assert given_out.readings.equals(expected.readings)
        assert given_out.times is None
        assert expected.times is None


@pytest.mark.parametrize("count", [0, 1, 2**14, 2**14 + 1])
def test_a_text_is_repeated(count: int) -> None:
    column = repeated("é", count)
    assert (len(column), column.type) == (count, pa.string())
    assert set(column.to_pylist()) <= {"é"}
