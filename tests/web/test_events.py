import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

EVENT = {
    "id": "1",
    "source": "s",
    "type": "t",
    "time": "2026-03-02T09:14:05.210Z",
    "data": {"a": 1},
}


def test_what_is_published_can_be_read_and_is_kept_once(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            first = await doors.ask("POST", "/channels/mine/events", EVENT)
            again = await doors.ask("POST", "/channels/mine/events", [EVENT, EVENT | {"id": "2"}])
            assert first.json() == {"positions": [1], "duplicates": 0}
            assert again.json() == {"positions": [1, 2], "duplicates": 1}
            read = (await doors.ask("GET", "/channels/mine/events?after=1")).json()
            assert read["next"] == 2
            assert [event["id"] for event in read["events"]] == ["2"]
            assert read["events"][0]["data"] == {"a": 1}

    asyncio.run(scenario())


def test_binary_cloudevents_are_taken(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            headers = {"ce-id": "7", "ce-source": "s", "ce-type": "t", "ce-traceparent": "00-1"}
            answer = await doors.ask("POST", "/channels/mine/events", b'{"b":2}', headers)
            assert answer.status == 200
            (event,) = (await doors.ask("GET", "/channels/mine/events")).json()["events"]
            assert (event["id"], event["data"], event["traceparent"]) == ("7", {"b": 2}, "00-1")

    asyncio.run(scenario())


def test_reading_waits_for_the_first_event(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            waiting = asyncio.create_task(doors.ask("GET", "/channels/mine/events?wait=10s"))
            await asyncio.sleep(0.05)
            await doors.ask("POST", "/channels/mine/events", EVENT)
            assert len((await waiting).json()["events"]) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/channels/mine/events", b"{oops", 400, "event.not_a_cloudevent"),
        ("/channels/mine/events", b"\xff\xfe", 400, "event.not_a_cloudevent"),
        ("/channels/mine/events", {"id": "1"}, 400, "event.not_a_cloudevent"),
        ("/channels/mine/events", [EVENT, {"id": "2"}], 400, "event.not_a_cloudevent"),
        ("/channels/mine/events", EVENT | {"time": "soon"}, 400, "time.bad_time"),
        ("/channels/Not A Name/events", EVENT, 400, "channel.bad_name"),
        ("/channels/events/events", EVENT, 403, "channel.reserved"),
        ("/channels/output.mail/events", EVENT, 403, "channel.reserved"),
        ("/sources/readers", b"not json", 400, "event.bad_data"),
        ("/sources/readers", b"[1, 2", 400, "event.bad_data"),
        ("/nowhere", {}, 404, "http.not_found"),
    ],
)
def test_bad_input_gets_code_and_hint_and_changes_nothing(
    with_doors: Callable[..., Any], path: str, body: Any, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            answer = await doors.ask("POST", path.replace(" ", "%20"), body)
            assert (answer.status, answer.json()["title"]) == (status, code)
            assert answer.headers["content-type"].startswith("application/problem+json")
            assert doors.node.channels.channel("mine").last_position() == 0
            assert (await doors.ask("GET", "/healthz")).status == 200

    asyncio.run(scenario())


def test_too_much_at_once_is_refused(with_doors: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with with_doors(max_body_bytes=2_000, max_batch=3) as doors:
            large = await doors.ask("POST", "/channels/mine/events", EVENT | {"data": "x" * 5_000})
            many = await doors.ask("POST", "/sources/s", [{"n": n} for n in range(4)])
            assert (large.status, large.json()["title"]) == (413, "input.too_large")
            assert (many.status, many.json()["title"]) == (413, "event.batch_too_large")

    asyncio.run(scenario())


def test_a_device_posts_its_own_words_and_a_repetition_is_stored_once(
    with_doors: Callable[..., Any],
) -> None:
    reading = {"reader": "r1", "tag": "E200-01", "dx": 1.0, "dy": 2.0, "t": "2026-03-02T09:14:05Z"}

    async def scenario() -> None:
        async with with_doors() as doors:
            await doors.ask("POST", "/sources/readers", reading)
            again = await doors.ask("POST", "/sources/readers", reading)
            assert again.json() == {"positions": [1], "duplicates": 1}
            await doors.node.channels.channel("events").wait_after(0, timeout_ms=10_000)
            (event,) = (await doors.ask("GET", "/channels/events/events")).json()["events"]
            assert event["data"] == {"key": "p01", "value": [6.0, 6.0]}

    asyncio.run(scenario())


def test_no_bytes_break_a_door(with_doors: Callable[..., Any]) -> None:
    found: list[bytes] = []

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.binary(max_size=60)
        | st.recursive(
            st.none() | st.text(max_size=4) | st.floats() | st.integers(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["id", "source", "type", "time", "data", "x"]),
                    inner,
                    max_size=5,
                )
            ),
        ).map(lambda value: json.dumps(value).encode())
    )
    def collect(body: bytes) -> None:
        found.append(body)

    collect()

    async def scenario() -> None:
        async with with_doors() as doors:
            for body in found:
                for path in ("/channels/mine/events", "/sources/readers", "/sources/unknown"):
                    assert (await doors.ask("POST", path, body)).status in (200, 400, 413)
            assert doors.node.not_ready() == []

    asyncio.run(scenario())
