"""Direct mode, asked by listeners: a program and its listeners with nothing in between. [CH-8]"""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from rapport.channel.requests.request import Request
from rapport.client import DirectSink, DirectSource, Listener, ListenerSettings, Publisher
from rapport.core.errors import (
    ChannelUnavailable,
    InvalidInput,
    LeaseExpired,
    NotAllowed,
    StoreUnavailable,
    UnknownName,
    Unsupported,
)
from rapport.kernel.clock import ManualClock

QUICK = ListenerSettings(first_pause_ms=5, longest_pause_ms=20, batch_events=7, wait_seconds=5)


def payloads(events: list[Any]) -> list[Any]:
    return [one.event.payload() for one in events]


def pull_all(listener: Listener, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        got = listener.pull(count - len(found), timeout=10)
        assert got, listener.status()
        found += got
    return found


def post(url: str, body: bytes, path: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told


def test_a_listener_gets_history_and_live_events_with_its_handback():
    with DirectSource(channel="c", source="s", token="secret") as source:
        source.publish_many({"type": "t", "data": n} for n in range(20))
        with Listener(
            source.url, "c", "type = 't'", token="secret", handback="room 5", settings=QUICK
        ) as listener:
            first = pull_all(listener, 20)
            assert payloads(first) == list(range(20))
            assert [one.position for one in first] == list(range(1, 21))
            assert {one.handback for one in first} == {"room 5"}
            source.publish(type="other", data=0)
            source.publish(type="t", data=20)
            (live,) = listener.pull(5, timeout=10)
            assert (live.event.payload(), live.position) == (20, 22)


def test_a_listener_that_begins_with_new_events_gets_no_history():
    with DirectSource(channel="c", source="s") as source:
        source.publish(type="t", data="old")
        with Listener(source.url, "c", from_start=False, settings=QUICK) as listener:
            assert listener.pull(1, timeout=0.2) == []
            source.publish(type="t", data="new")
            assert payloads(listener.pull(9, timeout=10)) == ["new"]


def test_what_a_program_takes_from_publishers_it_may_offer_to_listeners(tmp_path):
    with (
        DirectSource(channel="c") as source,
        DirectSink(tmp_path / "sink", source.publish_many, channel="c") as sink,
        Publisher(tmp_path / "outbox", sink.url, channel="c", source="s") as publisher,
        Listener(source.url, "c", settings=QUICK) as listener,
    ):
        publisher.publish_many({"type": "t", "data": n} for n in range(30))
        assert payloads(pull_all(listener, 30)) == list(range(30))


def test_what_was_let_go_before_it_was_asked_for_is_told():
    with DirectSource(channel="c", source="s", most_events=10) as source:
        source.publish_many({"type": "t", "data": n} for n in range(8))
        first = source.request("c", Request(query={}, max_messages=4))
        second = source.request("c", Request(token=first.next_token))
        assert payloads(second.events) == [4, 5, 6, 7]
        source.publish_many({"type": "t", "data": n} for n in range(8, 16))
        again = source.request("c", Request(token=first.next_token))
        assert (again.gone, again.events) == (True, ())
        left = source.request("c", Request(token=again.next_token))
        assert payloads(left.events) == [6, 7, 8, 9]


def test_the_same_token_gives_the_same_set_and_others_are_refused():
    with DirectSource(channel="c", source="s") as source, DirectSource(channel="c") as other:
        source.publish_many({"type": "t", "data": n} for n in range(5))
        batch = source.request("c", Request(query={}, max_messages=2, handback="h"))
        again = source.request("c", Request(token=batch.current_token))
        assert (again.events, again.handback) == (batch.events, "h")
        assert again.next_token is not None
        with pytest.raises(NotAllowed, match="issued to another identity"):
            source.request("c", Request(token=batch.current_token), identity="x")
        with pytest.raises(NotAllowed, match="not given out"):
            other.request("c", Request(token=batch.current_token))
        with pytest.raises(UnknownName):
            source.request("d", Request(query={}))
        with pytest.raises(Unsupported) as refused:
            source.request("c", Request(query={}, take=True))
        assert "node" in refused.value.hint


def test_leases_are_enforced_and_cancelled_by_zero():
    clock = ManualClock(1_000)
    with DirectSource(channel="c", source="s", clock=clock) as source:
        source.publish(type="t")
        batch = source.request("c", Request(query={}, lease_minutes=1))
        assert batch.lease_minutes == 1
        source.request("c", Request(token=batch.current_token, lease_minutes=0))
        with pytest.raises(LeaseExpired):
            source.request("c", Request(token=batch.current_token))
        second = source.request("c", Request(query={}, lease_minutes=1))
        clock.set_ms(1_000 + 61_000)
        with pytest.raises(LeaseExpired):
            source.request("c", Request(token=second.current_token))


def test_events_are_offered_once_and_bad_ones_are_refused():
    with DirectSource(channel="c", source="s") as source:
        source.publish(type="t", id="1")
        source.publish(type="t", id="1")
        assert len(source.request("c", Request(query={})).events) == 1
        with pytest.raises(InvalidInput):
            source.publish(type="")


def test_strangers_pages_and_wrong_doors_are_refused():
    with pytest.raises(InvalidInput, match="without authentication"):
        DirectSource(channel="c", host="0.0.0.0")
    with DirectSource(channel="c", source="s", token="t") as source:
        path, body = "/channels/c/requests", b'{"query": {}}'
        right = {"Authorization": "Bearer t"}
        assert post(source.url, body, path)[0] == 401
        assert post(source.url, body, path, Origin="http://evil", **right)[0] == 403
        assert post(source.url, body, "/channels/d/requests", **right)[0] == 404
        status, told = post(source.url, b'{"query": "type ="}', path, **right)
        assert (status, told["status"]) == (400, 400)
        assert post(source.url, b"nonsense", path, **right)[1]["title"] == "request.not_a_request"
        assert post(source.url, body, path, **right)[0] == 200
        with pytest.raises(StoreUnavailable, match="cannot listen"):
            DirectSource(channel="c", port=int(source.url.rsplit(":", 1)[1]))


def test_closing_answers_who_waits_and_ends_the_source():
    source = DirectSource(channel="c", source="s")
    listener = Listener(source.url, "c", settings=QUICK)
    assert listener.pull(1, timeout=0.1) == []
    source.close()
    source.close()
    with pytest.raises(ChannelUnavailable):
        source.publish(type="t")
    listener.close()
