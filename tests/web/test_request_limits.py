"""What requests may hold of the node's memory: decided before the work that it would cost."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core import codec
from rapport.core.codec import check_value_count
from rapport.core.errors import TooLarge, Unavailable
from rapport.web import request_limits, server
from rapport.web.request_limits import FREE_BYTES, BodyBudget, CountedBody

MANY = b"[" + b"0," * 4_000_000 + b"0]"
"""8 MB of the smallest values."""
ENDPOINTS = ["/sources/readers", "/channels/mine/events", "/messages", "/sessions/messages"]


def test_eight_megabytes_of_zeros_are_refused_at_every_endpoint_before_they_are_decoded(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_args: Any, **_more: Any) -> None:
        raise AssertionError("decoded before it was counted")

    async def scenario() -> None:
        async with served_node() as api:
            with monkeypatch.context() as patched:
                patched.setattr("rapport.web.cloudevents.check_json", never)
                patched.setattr("rapport.core.codec._decode_common", never)
                patched.setattr("rapport.core.message.Message.from_json", never)
                for path in [*ENDPOINTS, "/inputs/any", "/policies/check", "/routing"]:
                    answer = await api.call("POST", path, MANY)
                    assert answer.status in (404, 405, 413), (path, answer.body)
                    if path in ENDPOINTS:
                        assert answer.json()["title"] == "event.too_many_values", path

    asyncio.run(scenario())


def test_more_readings_than_a_batch_may_hold_are_refused_before_events_are_made(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(max_batch=10) as api:
            for path in ENDPOINTS[:3]:
                refused = await api.call("POST", path, [{"a": 1}] * 11)
                assert refused.status in (400, 413), path
            refused = await api.call("POST", "/sources/readers", [{"a": 1}] * 11)
            assert refused.json()["title"] == "event.batch_too_large"
            assert api.node.channels.channel("raw.readers").last_position() == 0

    asyncio.run(scenario())


def test_a_long_text_full_of_commas_is_not_taken_for_many_values() -> None:
    check_value_count(json.dumps({"text": ',[{"' * 1_000_000}).encode())
    check_value_count(b"a,b,c\n" * 1_000_000)


@given(
    st.recursive(
        st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_body_is_refused_exactly_when_its_separators_outside_of_strings_are_too_many(
    value: Any,
) -> None:
    body = json.dumps([value]).encode()

    def separators(inner: Any) -> int:
        if isinstance(inner, list):
            return 1 + max(len(inner) - 1, 0) + sum(separators(one) for one in inner)
        if isinstance(inner, dict):
            own = 1 + max(len(inner) - 1, 0) + len(inner)
            return own + sum(separators(one) for one in inner.values())
        return 0

    before, codec.MOST_VALUES = codec.MOST_VALUES, 10
    try:
        check_value_count(body)
        is_refused = False
    except TooLarge:
        is_refused = True
    finally:
        codec.MOST_VALUES = before
    assert is_refused == (len(body) > 10 and separators([value]) >= 10)


def test_bodies_are_bounded_per_endpoint_and_in_all_and_given_back() -> None:
    budget = BodyBudget(max_body_bytes=8)
    half = budget.most_endpoint_bytes
    budget.charge("sources", half)
    with pytest.raises(Unavailable):
        budget.charge("sources", 1)
    budget.charge("messages", half)
    with pytest.raises(Unavailable):
        budget.charge("channels", 1)
    budget.release("sources", half)
    budget.charge("channels", half)
    budget.release("channels", half)
    budget.release("messages", half)
    assert budget.is_empty()


def test_small_requests_go_on_while_large_unfinished_ones_fill_the_budget() -> None:
    budget = BodyBudget(max_body_bytes=8)
    budget.charge("sources", budget.most_endpoint_bytes)

    def receiving(size: int) -> Callable[[], Any]:
        async def receive() -> Any:
            return {"type": "http.request", "body": bytes(size), "more_body": False}

        return receive

    small = CountedBody(budget, "sources", receiving(FREE_BYTES))
    large = CountedBody(budget, "sources", receiving(FREE_BYTES + 1))
    assert asyncio.run(small()) is not None
    with pytest.raises(Unavailable):
        asyncio.run(large())
    small.release()
    large.release()
    budget.release("sources", budget.most_endpoint_bytes)
    assert budget.is_empty()


def test_unfinished_bodies_beyond_the_budget_are_answered_with_try_again_later(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "_LEAST_BYTES_IN_ALL", 1024 * 1024)

    async def scenario() -> None:
        async with served_node(max_body_bytes=400_000) as api:
            host, port = api.url.removeprefix("http://").split(":")
            head = b"POST /sources/readers HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            head += b"Content-Length: 350000\r\n\r\n"
            unfinished = []
            for _ in range(6):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(head + b"[" + b" " * 299_999)
                await writer.drain()
                unfinished.append((reader, writer))
            answers = [asyncio.ensure_future(reader.readline()) for reader, _ in unfinished]
            done, _waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            assert all(one.result().startswith(b"HTTP/1.1 503") for one in done)
            small = await api.call("POST", "/sources/readers", {"a": 1})
            assert small.status == 200 or small.status == 202, small.body
            for task in answers:
                task.cancel()
            for _, writer in unfinished:
                writer.close()

    asyncio.run(scenario())


def test_connections_beyond_the_limit_are_refused_and_the_others_go_on(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 16)

    async def scenario() -> None:
        async with served_node() as api:
            host, port = api.url.removeprefix("http://").split(":")
            idle = [socket.create_connection((host, int(port))) for _ in range(16)]
            reader, writer = await asyncio.open_connection(host, int(port))
            assert (await reader.readline()).startswith(b"HTTP/1.1 503")
            writer.close()
            for _ in range(2):  # the limit counts the connection of the request, too
                idle.pop().close()
            answer = await api.call("GET", "/healthz")
            while answer.status == 503:  # until the server has seen that one is gone
                answer = await api.call("GET", "/healthz")
            assert answer.status == 200
            for one in idle:
                one.close()

    asyncio.run(scenario())
