"""The WebSocket endpoint, spoken to by a stock client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rapport.core.event import Event
from rapport.web.channel_socket import MOST_FAULTS, MOST_SUBSCRIPTIONS
from support.examples import examples

pytestmark = pytest.mark.slow

EVENT = {"id": "1", "source": "s", "type": "t", "time": "2026-03-02T09:14:05.210Z", "data": 1}


@asynccontextmanager
async def talking(api: Any, channel: str = "mine", **more: Any) -> AsyncIterator[ClientConnection]:
    address = api.url.replace("http://", "ws://") + f"/channels/{channel}/socket"
    async with connect(address, compression=None, **more) as socket:
        yield socket


async def say(socket: ClientConnection, frame: Any) -> None:
    await socket.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))


async def hear(socket: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(socket.recv(), 10))


async def fill(api: Any, first: int, last: int, channel: str = "mine") -> None:
    events = [
        Event("s", f"e{n}", "even" if n % 2 == 0 else "odd", "", n, str(n).encode())
        for n in range(first, last + 1)
    ]
    await api.node.channels.channel(channel).append(events)


async def batches_until(socket: ClientConnection, position: int) -> list[Any]:
    found = []
    while not found or found[-1]["position"] < position:
        found.append(await hear(socket))
        assert "batch" in found[-1], found[-1]
    return found


def positions(batches: list[Any]) -> list[int]:
    return [event["position"] for batch in batches for event in batch["batch"]]


def test_history_goes_on_live_without_a_gap_or_a_repetition(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 25)
            async with talking(api) as socket:
                await say(socket, {"subscribe": {"id": "a", "max_batch": 10}, "ref": 7})
                assert await hear(socket) == {"subscribed": "a", "position": 0, "ref": 7}
                old = await batches_until(socket, 25)
                assert [len(batch["batch"]) for batch in old] == [10, 10, 5]
                await fill(api, 26, 40)
                new = await batches_until(socket, 40)
                assert positions(old + new) == list(range(1, 41))
                assert new[0]["batch"][0]["data"] == 26

    asyncio.run(scenario())


def test_a_query_a_handback_and_tokens_that_go_on_elsewhere(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 20)
            asked = {"id": "q", "query": "type = 'even'", "max_batch": 4, "handback": "h-1"}
            async with talking(api) as socket:
                await say(socket, {"subscribe": asked})
                await hear(socket)
                first, second = await hear(socket), await hear(socket)
                assert positions([first, second]) == [2, 4, 6, 8, 10, 12, 14, 16]
                assert first["handback"] == "h-1"
            async with talking(api) as socket:
                await say(socket, {"subscribe": {"id": "again", "token": second["current_token"]}})
                await hear(socket)
                assert positions([await hear(socket)]) == [10, 12, 14, 16]
                await say(socket, {"subscribe": {"id": "on", "token": first["next_token"]}})
                answers = [await hear(socket) for _ in range(4)]
                going_on = [one for one in answers if one.get("id") == "on"]
                assert positions(going_on) == [10, 12, 14, 16, 18, 20]
                assert going_on[0]["handback"] == "h-1"
            # The same tokens work at the request endpoint.
            body = {"token": first["current_token"]}
            by_request = (await api.call("POST", "/channels/mine/requests", body)).json()
            assert [event["position"] for event in by_request["events"]] == [2, 4, 6, 8]

    asyncio.run(scenario())


def test_nothing_is_sent_beyond_the_credit(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 10)
            async with talking(api) as socket:
                await say(socket, {"subscribe": {"id": "a", "max_batch": 2, "credit": 2}})
                await hear(socket)
                assert positions([await hear(socket), await hear(socket)]) == [1, 2, 3, 4]
                await say(socket, {"ping": {"n": 1}, "ref": "p"})
                assert await hear(socket) == {"pong": {"n": 1}, "ref": "p"}
                await say(socket, {"credit": 1, "id": "a"})
                assert positions([await hear(socket)]) == [5, 6]
                await say(socket, {"unsubscribe": "a", "ref": 3})
                assert await hear(socket) == {"unsubscribed": "a", "ref": 3}
                await say(socket, {"credit": 1, "id": "a"})
                assert (await hear(socket))["error"]["title"] == "socket.unknown"

    asyncio.run(scenario())


def test_publishing_is_answered_when_durable_and_repetitions_are_told(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api, talking(api) as socket:
            await say(socket, {"publish": [EVENT, EVENT | {"id": "2"}], "ref": "r1"})
            assert await hear(socket) == {
                "published": {"positions": [1, 2], "duplicates": 0},
                "ref": "r1",
            }
            await say(socket, {"publish": [EVENT], "ref": "r2"})
            assert (await hear(socket))["published"] == {"positions": [1], "duplicates": 1}
            assert api.node.channels.channel("mine").last_position() == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{oops", "socket.bad_frame"),
        ("[]", "socket.bad_frame"),
        ({}, "socket.bad_frame"),
        ({"subscribe": {}, "ping": 1}, "socket.bad_frame"),
        ({"shout": 1}, "socket.bad_frame"),
        ({"subscribe": {"colour": "red"}}, "socket.bad_frame"),
        ({"subscribe": {"query": "type ="}}, "query.unexpected"),
        ({"subscribe": {"token": "AAAA"}}, "token.damaged"),
        ({"subscribe": {"token": "x", "query": {}}}, "request.no_query"),
        ({"subscribe": {"after": -1}}, "socket.bad_subscription"),
        ({"subscribe": {"id": "x" * 65}}, "socket.bad_subscription"),
        ({"subscribe": {"credit": -1}}, "socket.bad_credit"),
        ({"credit": 1, "id": "none"}, "socket.unknown"),
        ({"publish": [{"id": "1"}]}, "event.not_a_cloudevent"),
        ({"publish": 5}, "event.not_a_batch"),
    ],
)
def test_a_fault_is_told_and_the_socket_goes_on(
    served_node: Callable[..., Any], frame: Any, code: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api, talking(api) as socket:
            await say(socket, frame if isinstance(frame, str) else frame | {"ref": 1})
            answer = await hear(socket)
            assert answer["error"]["title"] == code
            if code != "socket.bad_frame":
                assert answer["ref"] == 1
            await say(socket, {"publish": [EVENT]})
            assert (await hear(socket))["published"]["positions"] == [1]

    asyncio.run(scenario())


def test_too_many_faults_or_too_large_a_frame_end_the_socket(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(max_body_bytes=50_000) as api:
            async with talking(api) as socket:
                for _ in range(MOST_FAULTS):
                    await say(socket, "?")
                    await hear(socket)
                with pytest.raises(ConnectionClosed) as caught:
                    await hear(socket)
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1008
            async with talking(api) as socket:
                await say(socket, "x" * 60_000)
                with pytest.raises(ConnectionClosed) as caught:
                    await hear(socket)
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1009
            assert (await api.call("GET", "/healthz")).status == 200

    asyncio.run(scenario())


def test_a_socket_has_a_bounded_number_of_subscriptions(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api, talking(api) as socket:
            for number in range(MOST_SUBSCRIPTIONS):
                await say(socket, {"subscribe": {"id": str(number), "credit": 0}})
                assert (await hear(socket))["subscribed"] == str(number)
            await say(socket, {"subscribe": {"id": "one more"}})
            assert (await hear(socket))["error"]["title"] == "socket.too_many_subscriptions"
            await say(socket, {"subscribe": {"id": "0"}})
            assert (await hear(socket))["error"]["title"] == "socket.duplicate_subscription"

    asyncio.run(scenario())


def test_who_may_not_come_in_gets_status_and_problem(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token="s3cret-s3cret-s3cret-s3cret") as api:
            for headers, status in (({}, 401), ({"Origin": "https://evil.example"}, 403)):
                with pytest.raises(InvalidStatus) as caught:
                    async with talking(api, additional_headers=headers):
                        pass
                assert caught.value.response.status_code == status
                assert json.loads(caught.value.response.body)["status"] == status
            bearer = {"Authorization": "Bearer s3cret-s3cret-s3cret-s3cret"}
            async with talking(api, additional_headers=bearer) as socket:
                await say(socket, {"ping": 1})
                assert await hear(socket) == {"pong": 1}

    asyncio.run(scenario())


def test_channels_of_the_node_can_be_read_but_not_written(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api, talking(api, "detections") as socket:
            await say(socket, {"publish": [EVENT]})
            assert (await hear(socket))["error"]["title"] == "channel.reserved"
            await say(socket, {"subscribe": {"id": "d"}})
            assert (await hear(socket))["subscribed"] == "d"

    asyncio.run(scenario())


def test_a_query_with_an_end_ends_its_subscription(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 5)
            async with talking(api) as socket:
                await say(socket, {"subscribe": {"id": "a", "query": "position <= 3"}})
                await hear(socket)
                assert positions([await hear(socket)]) == [1, 2, 3]
                assert await hear(socket) == {"end": "a", "position": 3}

    asyncio.run(scenario())


def test_endpoints_that_close_close_the_socket_and_a_reader_goes_on_by_position(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await fill(api, 1, 3)
            async with talking(api) as socket:
                await say(socket, {"subscribe": {"id": "a", "after": 1}})
                await hear(socket)
                assert positions([await hear(socket)]) == [2, 3]
                api.node.closing.set()
                with pytest.raises(ConnectionClosed) as caught:
                    await hear(socket)
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1012

    asyncio.run(scenario())


def test_a_reader_that_does_not_read_holds_up_nobody_and_little_memory(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with (
            served_node() as api,
            talking(api, max_queue=1) as idle,
            talking(api) as quick,
        ):
            for socket in (idle, quick):
                await say(socket, {"subscribe": {"id": "a", "max_batch": 50}})
                await hear(socket)
            big = b'"' + b"x" * 10_000 + b'"'
            for number in range(40):
                events = [Event("s", f"{number}-{n}", "t", "", n, big) for n in range(50)]
                await api.node.channels.channel("mine").append(events)
            got = await batches_until(quick, 2_000)
            assert positions(got) == list(range(1, 2_001))
            # 20 MB were published; what waits for the idle reader fits into a few buffers.
            assert positions(await batches_until(idle, 2_000)) == list(range(1, 2_001))

    asyncio.run(scenario())


def test_no_frames_break_a_socket(served_node: Callable[..., Any]) -> None:
    found: list[str] = []
    leaves = st.none() | st.text(max_size=4) | st.integers(-5, 2**70) | st.floats() | st.booleans()
    values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=2), max_leaves=4)
    members = st.dictionaries(
        st.sampled_from(["id", "query", "token", "after", "credit", "max_batch", "handback"]),
        values,
        max_size=4,
    )

    @settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.text(max_size=30)
        | st.dictionaries(
            st.sampled_from(["subscribe", "credit", "unsubscribe", "publish", "ping", "id", "ref"]),
            values | members,
            max_size=3,
        ).map(json.dumps)
    )
    def collect(frame: str) -> None:
        found.append(frame)

    collect()

    async def scenario() -> None:
        async with served_node() as api:
            for frame in found:
                async with talking(api) as socket:
                    await say(socket, frame)
                    await say(socket, {"ping": "well?"})
                    while "pong" not in (answer := await hear(socket)):
                        assert answer.get("error", {}).get("status", 0) < 500, (frame, answer)
            assert api.node.not_ready() == []

    asyncio.run(scenario())
