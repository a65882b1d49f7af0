"""What listeners and sources say to each other, as JSON and as HTTP answers. [CH-7, CH-17]"""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.agents.connection import (
    CallBarred,
    CallFailed,
    HttpReply,
    NodeConnection,
    Reason,
)
from rapport.channel.agents.listener_state import BatchReceived, LeaseEnded
from rapport.channel.agents.listener_threads import SourceEndpoint, read_source_answer
from rapport.channel.requests.request import (
    Batch,
    Request,
    read_batch,
    read_request,
    write_batch,
    write_request,
)
from rapport.core.codec import octets_event_parts
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent

TOLD = Reason("a.code", "what is wrong")
PROBLEM = json.dumps({"title": "a.code", "detail": "what is wrong"}).encode()
NAMES = st.text(string.ascii_letters + string.digits + "äöß€ ", min_size=1, max_size=8)
EVENTS = st.builds(
    Event,
    NAMES,
    NAMES,
    NAMES,
    NAMES | st.just(""),
    st.integers(0, 2**42),
    st.sampled_from([b"null", b'{"a":[1,2.5]}', b'"x"']),
    st.dictionaries(st.sampled_from(["cause", "x", "other"]), NAMES, max_size=2),
)
BATCHES = st.builds(
    Batch,
    events=st.lists(
        st.builds(StoredEvent, st.integers(1, 2**53), st.integers(0, 2**42), EVENTS), max_size=4
    ).map(tuple),
    current_token=NAMES,
    next_token=NAMES | st.none(),
    lease_minutes=st.integers(0, 100),
    gone=st.booleans(),
    handback=NAMES | st.just(""),
)


@given(BATCHES)
def test_a_batch_arrives_as_it_was_sent(batch: Batch) -> None:
    assert read_batch(write_batch("c", batch)) == batch


@pytest.mark.parametrize(
    ("media_type", "octets"), [("application/xml", b"<a>1</a>"), ("image/png", b"\x89PNG\xff")]
)
def test_data_that_are_not_json_arrive_as_they_were(media_type: str, octets: bytes) -> None:
    data, headers = octets_event_parts(octets, media_type)
    event = Event("s", "1", "t", "", 5, data, headers)
    batch = Batch(events=(StoredEvent(3, 7, event),), current_token="a")
    assert read_batch(write_batch("c", batch)) == batch


def test_each_event_shows_the_handback_and_the_channels_own_members_win() -> None:
    event = Event("s", "1", "t", "", 5, b"1", {"position": "9", "handback": "forged", "x": "y"})
    body = write_batch(
        "c", Batch(events=(StoredEvent(3, 7, event),), current_token="a", handback="h")
    )
    (shown,) = json.loads(body)["events"]
    assert (shown["position"], shown["received"], shown["handback"]) == (3, 7, "h")
    (read,) = read_batch(body).events
    assert (read.position, read.event.headers) == (3, {"x": "y"})


def test_without_a_handback_none_is_shown() -> None:
    body = write_batch("c", Batch(events=(), current_token="a"))
    assert "handback" not in json.loads(body)


def test_a_request_says_only_what_it_changes_and_is_read_back() -> None:
    request = Request(token="abc", seen=True, wait_ms=5)
    assert json.loads(write_request(request)) == {"token": "abc", "seen": True, "wait_ms": 5}
    assert read_request(write_request(request)) == request
    with pytest.raises(InvalidInput):
        write_request(Request(query={"a": object()}))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, CallBarred(TOLD)),
        (401, CallBarred(TOLD)),
        (404, CallBarred(TOLD)),
        (422, CallBarred(TOLD)),
        (429, CallFailed(TOLD, 3_000)),
        (500, CallFailed(TOLD, 3_000)),
        (503, CallFailed(TOLD, 3_000)),
    ],
)
def test_the_status_decides_and_the_problem_is_the_reason(status: int, expected: object) -> None:
    assert read_source_answer(HttpReply(status, "3", PROBLEM)) == expected


def test_a_lease_that_ran_out_is_distinguished_from_other_conflicts() -> None:
    body = json.dumps({"title": "channel.lease_expired", "detail": "over"}).encode()
    assert isinstance(read_source_answer(HttpReply(409, None, body)), LeaseEnded)
    assert read_source_answer(HttpReply(409, None, PROBLEM)) == CallBarred(TOLD)


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b'{"events":[{}],"current_token":"a"}']))
def test_whatever_says_200_counts_only_when_it_is_a_batch(body: bytes) -> None:
    answer = read_source_answer(HttpReply(200, None, body))
    assert isinstance(answer, CallFailed)
    assert answer.reason.code == "http.strange_answer"


def test_a_batch_is_got() -> None:
    batch = Batch(events=(), current_token="a", next_token="b")
    assert read_source_answer(HttpReply(200, None, write_batch("c", batch))) == BatchReceived(batch)


def test_nobody_there_is_an_answer_and_after_an_interrupt_nothing_is_tried() -> None:
    door = SourceEndpoint("http://127.0.0.1:9", "c")
    answer = door.request(Request(query={}))
    assert isinstance(answer, CallFailed)
    assert answer.reason.code == "node.unreachable"
    door.interrupt()
    assert isinstance(door.request(Request(query={})), CallFailed)
    with pytest.raises(InvalidInput):
        SourceEndpoint("ftp://x", "c")


def test_a_password_in_the_address_is_not_shown() -> None:
    line = NodeConnection("http://ana:s3cret@127.0.0.1:1/x", most_answer_bytes=1_000)
    answer = line.get("/y", 5.0)
    assert isinstance(answer, CallFailed)
    assert "http://127.0.0.1:1/x" in answer.reason.message
    with pytest.raises(InvalidInput) as caught:
        NodeConnection("ftp://ana:s3cret@127.0.0.1", most_answer_bytes=1_000)
    assert "s3cret" not in answer.reason.message + caught.value.message
