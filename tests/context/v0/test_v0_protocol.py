"""Hand-written bytes of v0, each message in both directions, as Appendix A prints them. [CX-2]"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.context.protocol import Question
from rapport.context.v0 import v0_protocol as m
from rapport.context.v0.v0_protocol import operation_of, read, write
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput, TooLarge

T = 1516060800000
ROOM = ContextRecord(
    "p1", EntityRef("room", "r3"), "status", T, T + 60_000, {"free": "yes", "temperature": "21.5"}
)
PATH = (("10.0.0.7", 51234), ("10.0.0.1", 7410), ("10.0.0.2", 7410))

GOLDEN = {
    "monitoring": (b"0|1516060800000", m.V0StartMonitoring(T)),
    "ping": (b"1|1516060800000", m.V0Ping(T)),
    "advertisement": (
        b"2|1516060800000|25|A|p1|room|r3|status|1516060800000|1516060860000"
        b"|free=yes;temperature=21.5",
        m.V0Update(T, ROOM, advertises=True),
    ),
    "update": (
        b"2|1516060800000|25|U|p1|room|r3|status|1516060800000|1516060860000"
        b"|free=yes;temperature=21.5",
        m.V0Update(T, ROOM),
    ),
    "request of a consumer": (
        b"3|1516060800000|room|r3|status",
        m.V0Request(T, Question(ROOM.entity, "status")),
    ),
    "request between brokers": (
        b"3|1516060800000|room|r3|status|10.0.0.7|51234|10.0.0.1|7410",
        m.V0Request(T, Question(ROOM.entity, "status"), PATH[:2]),
    ),
    "response to a consumer": (
        b"4|1516060800000|25|p1|room|r3|status|1516060800000|1516060860000"
        b"|free=yes;temperature=21.5",
        m.V0Response(T, ROOM),
    ),
    "response between brokers": (
        b"4|1516060800000|25|p1|room|r3|status|1516060800000|1516060860000"
        b"|free=yes;temperature=21.5|10.0.0.7|51234|10.0.0.1|7410|10.0.0.2|7410",
        m.V0Response(T, ROOM, PATH),
    ),
    "response that the entry broker and the last keep": (
        b"4|1516060800000|25|p1|room|r3|status|1516060800000|1516060860000"
        b"|free=yes;temperature=21.5|10.0.0.7|51234|*|10.0.0.1|7410|10.0.0.2|7410|*",
        m.V0Response(T, ROOM, PATH, (0, 2)),
    ),
    "response without values": (
        b"4|1516060800000|0|p1|room|r3|status|1516060800000|1516060860000||10.0.0.7|51234",
        m.V0Response(
            T, ContextRecord("p1", ROOM.entity, "status", T, T + 60_000), (("10.0.0.7", 51234),)
        ),
    ),
    "first ack": (
        b"5|1516060800000|ACK|Status:101|Operation Context Update/Advertisement"
        b"|Requested by 10.0.0.7",
        m.V0Acknowledgement(T, 101, "Context Update/Advertisement", "10.0.0.7"),
    ),
    "second ack": (
        b"5|1516060800000|ACK|Status:102|Operation BrokerJoining|Requested by 10.0.0.9",
        m.V0Acknowledgement(T, 102, "BrokerJoining", "10.0.0.9"),
    ),
    "nack": (
        b"6|1516060800000|NACK|Status:202|Operation Context Request|Requested by 10.0.0.7",
        m.V0Refusal(T, 202, "Context Request", "10.0.0.7"),
    ),
    "nack between brokers": (
        b"6|1516060800000|NACK|Status:202|Operation Context Request|Requested by 10.0.0.7"
        b"|10.0.0.7|51234|10.0.0.1|7410",
        m.V0Refusal(T, 202, "Context Request", "10.0.0.7", PATH[:2]),
    ),
    "leaving of a controller": (b"7|1516060800000", m.V0LeaveMessage(T)),
    "leaving of a broker": (b"7|1516060800000|*", m.V0LeaveMessage(T, is_brokers=True)),
    "joining of a controller": (
        b"8|1516060800000|10.0.0.1|10.0.0.2:7500",
        m.V0JoinMessage(T, ("10.0.0.1", "10.0.0.2:7500")),
    ),
    "joining of a broker": (b"8|1516060800000|*", m.V0JoinMessage(T, is_brokers=True)),
    "ping response": (b"9|1516060800000|Ctx_Broker|10.0.0.1", m.V0PingResponse(T, "10.0.0.1")),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_are_read(name: str) -> None:
    datagram, message = GOLDEN[name]
    assert read(datagram) == message


@pytest.mark.parametrize("name", GOLDEN)
def test_the_message_is_written(name: str) -> None:
    datagram, message = GOLDEN[name]
    assert write(message) == datagram


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\0"], ids=repr)
def test_a_line_end_or_nul_behind_is_left_out(name: str, end: bytes) -> None:
    datagram, message = GOLDEN[name]
    assert read(datagram + end) == message


@pytest.mark.parametrize("name", GOLDEN)
def test_bars_with_spaces_as_the_appendix_prints_them_are_read(name: str) -> None:
    datagram, message = GOLDEN[name]
    assert read(datagram.replace(b"|", b" | ")) == message


def test_a_bar_in_a_strangers_payload_survives_because_of_its_size() -> None:
    update = read(b"2|1|7|A|p1|room|r3|note|1|2|a=x|y;b".replace(b"y;b", b"y|z"))
    assert isinstance(update, m.V0Update)
    assert update.record.values == {"a": "x|y|z"}


def test_a_bar_in_the_payload_of_a_response_is_no_path() -> None:
    response = read(b"4|1|5|p1|room|r3|note|1|2|a=x|y|10.0.0.7|51234")
    assert isinstance(response, m.V0Response)
    assert response.record.values == {"a": "x|y"}
    assert response.path == (("10.0.0.7", 51234),)


def test_a_bar_in_our_own_output_is_escaped_and_the_size_counts_the_escape() -> None:
    record = ContextRecord("p|1", EntityRef("room", "r|3"), "sco|pe", 1, 2, {"a": "x|y"})
    assert write(m.V0Update(1, record)) == b"2|1|7|U|p%7C1|room|r%7C3|sco%7Cpe|1|2|a=x%7Cy"
    assert read(write(m.V0Update(1, record))) == m.V0Update(1, record)


def test_the_size_counts_bytes_not_characters() -> None:
    record = ContextRecord("p", EntityRef("room", "r"), "s", 1, 2, {"a": "grün"})
    assert write(m.V0Update(1, record)) == "2|1|7|U|p|room|r|s|1|2|a=grün".encode()
    assert read(write(m.V0Update(1, record))) == m.V0Update(1, record)


def test_empty_fields_survive() -> None:
    empty = b"6|1|NACK|Status:202|Operation |Requested by "
    assert read(empty) == m.V0Refusal(1, 202, "", "")
    assert write(m.V0Refusal(1, 202, "", "")) == empty
    update = read(b"2|1|0|A|p1|room|r3|status|1|2|")
    assert isinstance(update, m.V0Update)
    assert update.record.values == {}


@pytest.mark.parametrize(
    ("flag", "advertises"),
    [
        ("A", True), ("a", True), ("ADV", True), ("Advertisement", True), ("1", True),
        ("U", False), ("u", False), ("UPDATE", False), ("0", False),
    ],
)  # fmt: skip
def test_the_spellings_of_the_flag(flag: str, advertises: bool) -> None:
    update = read(f"2|1|3|{flag}|p1|room|r3|status|1|2|a=1".encode())
    assert isinstance(update, m.V0Update)
    assert update.advertises is advertises


def test_an_asterisk_that_follows_the_joining_brokers_names_is_a_brokers() -> None:
    assert read(b"8|1|10.0.0.1|*") == m.V0JoinMessage(1, ("10.0.0.1",), is_brokers=True)


BAD = {
    "nothing": b"",
    "no type": b"hello",
    "a type of two digits": b"10|1",
    "no time": b"1",
    "an empty time": b"1|",
    "a time that is none": b"1|yesterday",
    "a negative time": b"1|-5",
    "digits of another alphabet": "1|١".encode(),
    "a time of twenty digits": b"1|" + b"9" * 20,
    "more fields than a ping has": b"1|1|2",
    "an unknown flag": b"2|1|3|X|p1|room|r3|status|1|2|a=1",
    "an empty flag": b"2|1|3||p1|room|r3|status|1|2|a=1",
    "a payload that is longer than it says": b"2|1|2|A|p1|room|r3|status|1|2|a=1",
    "a payload that is shorter than it says": b"2|1|4|A|p1|room|r3|status|1|2|a=1",
    "something behind an update": b"2|1|3|A|p1|room|r3|status|1|2|a=1|10.0.0.1",
    "no payload": b"2|1|3|A|p1|room|r3|status|1|2",
    "a payload without names": b"2|1|3|A|p1|room|r3|status|1|2|abc",
    "no entity": b"2|1|3|A|p1|room||status|1|2|a=1",
    "an end before the start": b"2|1|3|A|p1|room|r3|status|2|1|a=1",
    "no scope": b"3|1|room|r3",
    "an empty scope": b"3|1|room|r3|",
    "half a pair": b"3|1|room|r3|status|10.0.0.1",
    "a port that is none": b"3|1|room|r3|status|10.0.0.1|0",
    "a port too high": b"3|1|room|r3|status|10.0.0.1|65536",
    "an asterisk in a request": b"3|1|room|r3|status|10.0.0.1|7410|*",
    "an asterisk before the first pair": b"4|1|3|p1|room|r3|status|1|2|a=1|*|10.0.0.1|7410",
    "two asterisks": b"4|1|3|p1|room|r3|status|1|2|a=1|10.0.0.1|7410|*|*",
    "an ack that is none": b"5|1|NACK|Status:101|Operation Ping|Requested by x",
    "an ack without its words": b"5|1|ACK|101|Ping|x",
    "a path in an ack": b"5|1|ACK|Status:101|Operation Ping|Requested by x|10.0.0.1|7410",
    "leaving for somewhere": b"7|1|10.0.0.1",
    "joining nobody": b"8|1",
    "joining an empty name": b"8|1||10.0.0.1",
    "a ping response of something else": b"9|1|Printer|10.0.0.1",
    "no UTF-8": b"3|1|room|r\xff|status",
    "too many pairs": b"3|1|room|r3|status" + b"|10.0.0.1|7410" * 513,
    "a datagram larger than any": b"3|1|room|r3|" + b"s" * 65_600,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_message_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(BAD[name])
    assert caught.value.code == "context.bad_v0_message"


def test_the_operation_of_what_cannot_be_read_is_named() -> None:
    assert operation_of(b"3|1|room") == "Context Request"
    assert operation_of(b"2 | x") == "Context Update/Advertisement"
    assert operation_of(b"hello") == "Unknown"
    assert operation_of(b"77|1") == "Unknown"
    assert operation_of(b"") == "Unknown"
    for answer in (b"4|x", b"5|x", b"6|x", b"9|x"):
        assert operation_of(answer) is None


def test_what_does_not_fit_in_a_datagram_is_not_written() -> None:
    large = ContextRecord("p", EntityRef("room", "r"), "s", 1, 2, {"a": "x" * 70_000})
    with pytest.raises(TooLarge) as caught:
        write(m.V0Update(1, large))
    assert caught.value.code == "context.too_large_for_v0"


texts = st.text(st.sampled_from("|;=%*7C3B25 aü"), min_size=1, max_size=10)
numbers = st.integers(0, 2**62)
addresses = st.tuples(st.sampled_from(["10.0.0.1", "::1", "broker-7"]), st.integers(1, 65_535))
paths = st.lists(addresses, max_size=4).map(tuple)
entities = st.builds(EntityRef, texts, texts)
records = st.builds(
    ContextRecord,
    texts,
    entities,
    texts,
    st.integers(0, 1_000),
    st.integers(1_001, 2**60),
    st.dictionaries(texts, st.text(st.sampled_from("|;=%*7C3B25 aü"), max_size=8), max_size=3),
)


@st.composite
def responses(draw: st.DrawFn) -> m.V0Response:
    path = draw(paths)
    marks = tuple(place for place in range(len(path)) if draw(st.booleans()))
    return m.V0Response(draw(numbers), draw(records), path, marks)


any_message = st.one_of(
    st.builds(m.V0StartMonitoring, numbers),
    st.builds(m.V0Ping, numbers),
    st.builds(m.V0Update, numbers, records, st.booleans()),
    st.builds(m.V0Request, numbers, st.builds(Question, entities, texts), paths),
    responses(),
    st.builds(m.V0Acknowledgement, numbers, st.integers(0, 999), texts, texts),
    st.builds(m.V0Refusal, numbers, st.integers(0, 999), texts, texts, paths),
    st.builds(m.V0LeaveMessage, numbers, st.booleans()),
    st.builds(m.V0JoinMessage, numbers, st.just(("10.0.0.1",)), st.booleans()),
    st.builds(m.V0PingResponse, numbers, texts),
)


@given(any_message)
def test_every_message_survives(message: Any) -> None:
    assert read(write(message)) == message


@given(any_message, st.data())
def test_changed_and_cut_bytes_are_refused_or_read_and_nothing_else(
    message: Any, data: st.DataObject
) -> None:
    datagram = bytearray(write(message))
    for _ in range(data.draw(st.integers(0, 3))):
        datagram[data.draw(st.integers(0, len(datagram) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(datagram[: data.draw(st.integers(0, len(datagram)))])
    try:
        again = read(cut)
    except InvalidInput as error:
        assert error.code == "context.bad_v0_message"
    else:
        assert read(write(again)) == again
