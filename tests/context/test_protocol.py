"""Bytes of v1: every message survives, everything else is InvalidInput. [CX-2]"""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.context import protocol as m
from rapport.context.protocol import MAX_DEPTH, MAX_MESSAGE, MAX_PATH, check_record, decode, encode
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME
from support.examples import examples

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
types = names.filter(lambda text: "/" not in text)
ids = st.integers(0, 2**64 - 1)
counts = st.integers(0, 65_535)
durations = st.integers(0, 2**40)
addresses = st.tuples(names, counts)
paths = st.lists(addresses, max_size=8).map(tuple)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=30)
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
entities = st.builds(EntityRef, types, names)
questions = st.builds(m.Question, entities, names)


@st.composite
def records(draw: st.DrawFn) -> ContextRecord:
    start = draw(st.integers(0, 2**50))
    return ContextRecord(
        draw(names),
        draw(entities),
        draw(names),
        start,
        start + draw(st.integers(1, 2**40)),
        draw(st.dictionaries(names, values, max_size=5)),
    )


MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    m.Put: st.builds(m.Put, ids, records(), st.booleans()),
    m.Request: st.builds(m.Request, ids, questions, durations),
    m.Answer: st.builds(m.Answer, ids, records(), counts),
    m.Status: st.builds(m.Status, ids, counts, names),
    m.Ask: st.builds(m.Ask, ids, counts, counts, questions, paths, durations, counts, names, names),
    m.FoundRecord: st.builds(
        m.FoundRecord, ids, counts, counts, records(), paths, st.just(()), addresses, counts
    ),
    m.SearchRefusal: st.builds(m.SearchRefusal, ids, counts, counts, paths, counts, names),
    m.HopAck: st.builds(m.HopAck, ids, counts, counts, names),
    m.Probe: st.builds(m.Probe, ids, counts, counts, questions, counts, addresses),
    m.Have: st.builds(m.Have, ids, counts, counts, records(), addresses),
    m.Ping: st.builds(m.Ping, ids),
    m.Pong: st.builds(m.Pong, ids, st.floats(0, 10), st.binary(max_size=64)),
    m.Join: st.builds(m.Join, ids),
    m.Welcome: st.builds(m.Welcome, ids, st.booleans(), paths),
    m.Departure: st.builds(m.Departure, ids, addresses, st.integers(-1, 9), st.booleans()),
    m.Command: st.builds(m.Command, ids, names, paths),
    m.Watch: st.builds(m.Watch, ids, questions, durations, durations, names),
    m.Unwatch: st.builds(m.Unwatch, ids),
    m.Notice: st.builds(m.Notice, ids, counts, records()),
    m.NoticeAck: st.builds(m.NoticeAck, ids, counts),
    m.Invalidation: st.builds(
        m.Invalidation, ids, st.tuples(names, names, names, names), durations, counts
    ),
}
any_message = st.one_of(*MESSAGES.values())
RECORD = ContextRecord("p1", EntityRef("room", "r3"), "status", 1_000, 2_000, {"free": True})


def with_values(values: dict[Any, Any]) -> ContextRecord:
    return ContextRecord("p1", EntityRef("room", "r3"), "status", 1_000, 2_000, values)


def refused(data: bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        decode(data)
    assert caught.value.code == "context.bad_message"
    return str(caught.value)


def test_every_kind_of_message_is_tried() -> None:
    assert set(MESSAGES) == set(get_args(m.Message))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_survives(kind: type) -> None:
    @settings(max_examples=examples(25), deadline=None)
    @given(MESSAGES[kind])
    def survives(message: Any) -> None:
        written = encode(message)
        assert written[0] == 1
        assert decode(written) == message

    survives()


def test_the_bytes_are_as_the_reference_page_shows() -> None:
    question = m.Question(EntityRef("room", "r3"), "status")
    assert encode(m.Ping(7)) == bytes.fromhex("01 92 a3 706e67 07")
    assert encode(m.Request(7, question, 2_000)) == bytes.fromhex(
        "01 95 a3 726571 07 92 92 a4 726f6f6d a2 7233 a6 737461747573 cd 07d0 c2"
    )


def test_requests_of_clients_that_know_no_fresh_answers_are_read() -> None:
    question = m.Question(EntityRef("room", "r3"), "status")
    of_before = "01 94 a3 726571 07 92 92 a4 726f6f6d a2 7233 a6 737461747573 cd 07d0"
    assert decode(bytes.fromhex(of_before)) == m.Request(7, question, 2_000)


def test_fields_that_a_newer_version_adds_at_the_end_are_left_out() -> None:
    longer = b"\x01" + msgspec.msgpack.encode(["png", 7, "a field of tomorrow"])
    assert decode(longer) == m.Ping(7)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_and_nothing_else(noise: bytes) -> None:
    for data in (noise, b"\x01" + noise):
        try:
            decode(data)
        except InvalidInput as error:
            assert error.code == "context.bad_message"


@given(any_message, st.data())
def test_bytes_cut_short_are_refused(message: Any, data: st.DataObject) -> None:
    written = encode(message)
    refused(written[: data.draw(st.integers(0, len(written) - 1))])


@given(any_message, st.data())
def test_changed_bytes_are_refused_or_read_and_nothing_else(
    message: Any, data: st.DataObject
) -> None:
    written = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode(bytes(written))
    except InvalidInput as error:
        assert error.code == "context.bad_message"
    else:
        assert isinstance(read, get_args(m.Message))
        assert decode(encode(read)) == read


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [-math.inf],
        b"bytes",
        {"in": {"deep": b"bytes"}},
        {1: "a number as a name"},
        msgspec.msgpack.Ext(5, b"own"),
        {"x" * (MAX_NAME + 1): 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_not_plain_are_refused(value: Any) -> None:
    refused(encode(m.Put(1, with_values({"value": value}))))


def test_nesting_is_bounded() -> None:
    nested: Any = "leaf"
    for _ in range(MAX_DEPTH):
        nested = [nested]
    decode(encode(m.Put(1, with_values({"value": nested}))))
    refused(encode(m.Put(1, with_values({"value": [nested]}))))


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x81"])
def test_a_tower_of_lists_or_maps_is_refused(opening: bytes) -> None:
    start = encode(m.Put(1, with_values({"v": None})))
    at = start.index(b"\xa1v") + 2
    refused(start[:at] + opening * 60_000 + b"\xc0")


@pytest.mark.parametrize("length", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"])
def test_lengths_that_lie_take_no_memory(length: bytes) -> None:
    start = encode(m.Put(1, with_values({"v": None})))
    refused(start[: start.index(b"\xa1v") + 2] + length)


@pytest.mark.parametrize(
    "record",
    [
        ContextRecord("", EntityRef("room", "r3"), "status", 1, 2),
        ContextRecord("p", EntityRef("", "r3"), "status", 1, 2),
        ContextRecord("p", EntityRef("room", ""), "status", 1, 2),
        ContextRecord("p", EntityRef("a/b", "r3"), "status", 1, 2),
        ContextRecord("p", EntityRef("room", "r3"), "", 1, 2),
        ContextRecord("p" * (MAX_NAME + 1), EntityRef("room", "r3"), "status", 1, 2),
        ContextRecord("p", EntityRef("room", "x" * MAX_NAME), "status", 1, 2),
        ContextRecord("p", EntityRef("room", "r3"), "status", 2, 2),
        ContextRecord("p", EntityRef("room", "r3"), "status", 3, 2),
        ContextRecord("p", EntityRef("room", "r3"), "status", -1, 2),
        ContextRecord("p", EntityRef("room", "r3"), "status", 1, 2**63),
    ],
)
def test_names_and_validity_are_checked(record: ContextRecord) -> None:
    refused(encode(m.Put(1, record)))
    with pytest.raises(InvalidInput):
        check_record(record)


@pytest.mark.parametrize(
    "message",
    [
        m.Ask(1, 0, 0, m.Question(RECORD.entity, "status"), (("a", 1),) * (MAX_PATH + 1), 100, 5),
        m.Ask(1, 0, 0, m.Question(RECORD.entity, "status"), (("", 1),), 100, 5),
        m.Ask(1, 0, 0, m.Question(RECORD.entity, "status"), (("a", 70_000),), 100, 5),
        m.Ask(1, 0, 0, m.Question(RECORD.entity, "status"), (), -1, 5),
        m.Ask(1, 0, 0, m.Question(RECORD.entity, "status"), (), 1, -5),
        m.FoundRecord(1, 0, 0, RECORD, (("a", 1),), (0,) * (MAX_PATH + 1), ("a", 1)),
        m.Request(1, m.Question(RECORD.entity, "status"), -1),
        m.Pong(1, math.nan),
        m.Pong(1, -1.0),
        m.Status(1, 202, "x" * 2_000),
        m.Departure(1, ("a", 1), -2),
        m.Command(1, "x" * 300),
    ],
    ids=repr,
)
def test_counts_paths_and_texts_are_bounded(message: Any) -> None:
    refused(encode(message))


def test_what_is_too_large_is_neither_written_nor_read() -> None:
    large = with_values({"text": "x" * MAX_MESSAGE})
    with pytest.raises(InvalidInput):
        encode(m.Put(1, large))
    refused(b"\x01" + b"\x90" * MAX_MESSAGE)


@pytest.mark.parametrize("value", [2**70, "\ud800", object()], ids=["huge", "lone", "object"])
def test_what_cannot_be_bytes_is_refused_when_written(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        encode(m.Put(1, with_values({"value": value})))
    assert caught.value.code == "context.bad_message"


def test_another_version_is_named_as_such() -> None:
    assert "version 1" in refused(b"\x02" + encode(m.Ping(1))[1:])
    assert "version 1" in refused(b"")
