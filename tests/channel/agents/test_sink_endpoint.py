"""What an HTTP answer means to a publisher. [CH-5]"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.agents.connection import CallBarred, CallFailed, HttpReply, Reason
from rapport.channel.agents.courier import (
    EventsAccepted,
    EventsRefused,
    RequestTooLarge,
    encode_batch,
    read_answer,
)
from rapport.channel.agents.outbox import NumberedEvent
from rapport.core.codec import decode_cloudevents
from rapport.core.event import Event

PROBLEM = json.dumps({"title": "a.code", "detail": "what is wrong"}).encode()
TOLD = Reason("a.code", "what is wrong")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, EventsRefused(TOLD)),
        (422, EventsRefused(TOLD)),
        (413, RequestTooLarge(TOLD)),
        (401, CallBarred(TOLD)),
        (403, CallBarred(TOLD)),
        (404, CallBarred(TOLD)),
        (301, CallBarred(TOLD)),
        (500, CallFailed(TOLD)),
        (503, CallFailed(TOLD)),
        (429, CallFailed(TOLD)),
    ],
)
def test_the_status_decides_and_the_problem_is_the_reason(status, expected):
    assert read_answer(HttpReply(status, None, PROBLEM), 3) == expected


@pytest.mark.parametrize(
    ("text", "pause_ms"),
    [
        ("2", 2000),
        (" 0 ", 0),
        ("9" * 30, 600_000),
        ("-1", None),
        ("Wed, 21 Oct", None),
        ("²", None),
    ],
)
def test_retry_after_is_read_in_seconds_and_within_bounds(text, pause_ms):
    assert read_answer(HttpReply(503, text, PROBLEM), 1) == CallFailed(TOLD, pause_ms)


def test_a_yes_counts_only_for_as_many_events_as_were_sent():
    assert (
        read_answer(HttpReply(200, None, b'{"positions":[7,8],"duplicates":0}'), 2)
        == EventsAccepted()
    )
    for body in (b'{"positions":[7]}', b"ok", b"", b"[]", b'{"positions":"ab"}', b"\xff"):
        assert isinstance(read_answer(HttpReply(200, None, body), 2), CallFailed)


@given(status=st.integers(100, 599), body=st.binary(max_size=50), retry=st.text(max_size=5))
def test_no_answer_makes_it_raise(status, body, retry):
    read_answer(HttpReply(status, retry, body), 1)


def test_a_batch_is_read_by_the_door_as_it_was_meant():
    events = [
        Event(
            "s", "1", "t", "u", 1_772_442_000_000, b'{"a":[1]}', {"publisher": "p", "epoch": "4"}
        ),
        Event("s", "2", "t", "", 1_772_442_000_001, b"null", {"publisher": "p", "epoch": "4"}),
    ]
    body = encode_batch([NumberedEvent(n, one) for n, one in enumerate(events, start=9)])
    first, second = decode_cloudevents(body, received_ms=0)
    assert (first.data, first.time, first.subject) == (b'{"a":[1]}', 1_772_442_000_000, "u")
    assert first.headers == {"publisher": "p", "epoch": "4", "sequence": "9"}
    assert second.headers["sequence"] == "10"
