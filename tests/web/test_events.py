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


FRIDGES = """
[concepts.fridge.attributes]
temperature = "number"
state = "text"
[concepts.fridge.units]
temperature = "degC"

[sources.fridges]
concept = "fridge"
attribute = "temperature"
key = "key"
value = "value"

[sources.switches]
concept = "fridge"
attribute = "state"
key = "key"
value = "state"

[sources.probes]
concept = "fridge"
attribute = "temperature"
interpretation = "probes"
id = "n"
[interpretations.probes]
identity = { field = "fridge" }
value = { field = "t_f", unit = "degF" }

[sources.loggers]
concept = "fridge"
attribute = "temperature"
interpretation = "loggers"
id = "n"
[interpretations.loggers]
format = { name = "csv", delimiter = ";", decimal = "comma" }
identity = { field = "fridge" }
value = { field = "t", unit = "degC" }

[sources.boxes]
concept = "fridge"
attribute = "temperature"
interpretation = "boxes"
[interpretations.boxes]
format = "xml"
identity = { field = "fridge" }
value = { field = "t", unit = "degC" }

[sources.packs]
concept = "fridge"
attribute = "temperature"
interpretation = "packs"
[interpretations.packs]
format = "senml"
identity = { field = "device" }
value = { field = "temperature" }

[sources.packed]
concept = "fridge"
attribute = "temperature"
interpretation = "packed"
[interpretations.packed]
format = "msgpack"
identity = { field = "fridge" }
value = { field = "t", unit = "degC" }

[sources.alone]
concept = "fridge"
attribute = "temperature"
interpretation = "alone"
[interpretations.alone]
format = "value"
identity = { field = "fridge" }
value = { field = "value", unit = "degC" }
"""


def test_what_is_published_can_be_read_and_is_kept_once(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            first = await api.call("POST", "/channels/mine/events", EVENT)
            again = await api.call("POST", "/channels/mine/events", [EVENT, EVENT | {"id": "2"}])
            assert first.json() == {"positions": [1], "duplicates": 0}
            assert again.json() == {"positions": [1, 2], "duplicates": 1}
            read = (await api.call("GET", "/channels/mine/events?after=1")).json()
            assert read["next"] == 2
            assert [event["id"] for event in read["events"]] == ["2"]
            assert read["events"][0]["data"] == {"a": 1}

    asyncio.run(scenario())


def test_binary_cloudevents_are_taken(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            headers = {"ce-id": "7", "ce-source": "s", "ce-type": "t", "ce-traceparent": "00-1"}
            answer = await api.call("POST", "/channels/mine/events", b'{"b":2}', headers)
            assert answer.status == 200
            (event,) = (await api.call("GET", "/channels/mine/events")).json()["events"]
            assert (event["id"], event["data"], event["traceparent"]) == ("7", {"b": 2}, "00-1")

    asyncio.run(scenario())


def test_reading_waits_for_the_first_event(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            waiting = asyncio.create_task(api.call("GET", "/channels/mine/events?wait=10s"))
            await asyncio.sleep(0.05)
            await api.call("POST", "/channels/mine/events", EVENT)
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
        ("/channels/mine/events", EVENT | {"time": "2026-03-02T09:14:05"}, 400, "time.no_zone"),
        ("/channels/Not A Name/events", EVENT, 400, "channel.bad_name"),
        ("/channels/events/events", EVENT, 403, "channel.reserved"),
        ("/channels/output.mail/events", EVENT, 403, "channel.reserved"),
        ("/sources/readers", b"not json", 400, "event.bad_data"),
        ("/sources/readers", b"[1, 2", 400, "event.bad_data"),
        ("/nowhere", {}, 404, "http.not_found"),
    ],
)
def test_bad_input_gets_code_and_hint_and_changes_nothing(
    served_node: Callable[..., Any], path: str, body: Any, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            answer = await api.call("POST", path.replace(" ", "%20"), body)
            assert (answer.status, answer.json()["title"]) == (status, code)
            assert answer.headers["content-type"].startswith("application/problem+json")
            assert api.node.channels.channel("mine").last_position() == 0
            assert (await api.call("GET", "/healthz")).status == 200

    asyncio.run(scenario())


def test_too_much_at_once_is_refused(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(max_body_bytes=2_000, max_batch=3) as api:
            large = await api.call("POST", "/channels/mine/events", EVENT | {"data": "x" * 5_000})
            many = await api.call("POST", "/sources/readers", [{"n": n} for n in range(4)])
            assert (large.status, large.json()["title"]) == (413, "input.too_large")
            assert (many.status, many.json()["title"]) == (413, "event.batch_too_large")

    asyncio.run(scenario())


def test_a_device_posts_its_own_format_and_a_request_repeated_under_its_key_is_stored_once(
    served_node: Callable[..., Any],
) -> None:
    reading = {"reader": "r1", "tag": "E200-01", "dx": 1.0, "dy": 2.0, "t": "2026-03-02T09:14:05Z"}
    key = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}

    async def scenario() -> None:
        async with served_node() as api:
            await api.call("POST", "/sources/readers", reading, key)
            again = await api.call("POST", "/sources/readers", reading, key)
            assert again.json() == {"positions": [1], "duplicates": 1}
            await api.node.channels.channel("events").wait_after(0, timeout_ms=10_000)
            (event,) = (await api.call("GET", "/channels/events/events")).json()["events"]
            assert event["data"] == {"key": "p01", "value": [6.0, 6.0]}

    asyncio.run(scenario())


def test_no_bytes_break_a_endpoint(served_node: Callable[..., Any]) -> None:
    found: list[bytes] = []

    @settings(suppress_health_check=list(HealthCheck))
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
        async with served_node() as api:
            for body in found:
                for path in ("/channels/mine/events", "/sources/readers"):
                    assert (await api.call("POST", path, body)).status in (200, 400, 413)
                assert (await api.call("POST", "/sources/unknown", body)).status == 404
            assert api.node.not_ready() == []

    asyncio.run(scenario())


def test_equal_readings_are_events_of_their_own_and_their_order_stays(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=FRIDGES) as api:
            for value in (21.5, 21.5, 22.0, 21.5, 21.5):
                answer = await api.call("POST", "/sources/fridges", {"key": "f1", "value": value})
                assert answer.json()["duplicates"] == 0
            switched = [{"key": "f1", "state": state} for state in ("ON", "OFF", "ON")]
            await api.call("POST", "/sources/switches", switched)
            assert await api.values("fridge.temperature", 8) == [21.5, 21.5, 22.0, 21.5, 21.5]
            assert await api.values("fridge.state", 8) == ["ON", "OFF", "ON"]

    asyncio.run(scenario())


def test_an_idempotency_key_names_a_request_of_one_source_also_after_a_restart(
    served_node: Callable[..., Any],
) -> None:
    batch = [{"key": "f1", "value": 4.0}, {"key": "f1", "value": 4.0}]
    key = {"Idempotency-Key": "k-1"}

    async def scenario() -> None:
        async with served_node(site_text=FRIDGES) as api:
            first = await api.call("POST", "/sources/fridges", batch, key)
            again = await api.call("POST", "/sources/fridges", batch, key)
            other_key = await api.call("POST", "/sources/fridges", batch, {"Idempotency-Key": "k"})
            assert first.json() == {"positions": [1, 2], "duplicates": 0}
            assert again.json() == {"positions": [1, 2], "duplicates": 2}
            assert other_key.json() == {"positions": [3, 4], "duplicates": 0}
            switched = [{"key": "f1", "state": "ON"}] * 2
            elsewhere = await api.call("POST", "/sources/switches", switched, key)
            assert elsewhere.json() == {"positions": [1, 2], "duplicates": 0}
        async with served_node(site_text=FRIDGES) as api:
            later = await api.call("POST", "/sources/fridges", batch, key)
            assert later.json() == {"positions": [1, 2], "duplicates": 2}
            other = [batch[0], {"key": "f1", "value": 9.0}]
            misused = await api.call("POST", "/sources/fridges", other, key)
            assert (misused.status, misused.json()["title"]) == (422, "event.key_reused")
            assert api.node.channels.channel("raw.fridges").last_position() == 4
            too_long = await api.call(
                "POST", "/sources/fridges", batch, {"Idempotency-Key": "k" * 2_000}
            )
            assert (too_long.status, too_long.json()["title"]) == (400, "event.bad_key")

    asyncio.run(scenario())


def test_a_declared_id_field_names_readings_also_of_a_source_with_an_interpretation(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=FRIDGES) as api:
            reading = {"n": 7, "fridge": "f1", "t_f": 39.2}
            for _ in range(2):
                await api.call("POST", "/sources/probes", [reading, reading | {"n": 8}])
            key = {"Idempotency-Key": "of no matter here"}
            again = await api.call("POST", "/sources/probes", reading | {"t_f": 50}, key)
            assert again.json() == {"positions": [1], "duplicates": 1}
            csv = b"n;fridge;t\n1;f1;4,5\n2;f1;4,5\n"
            for _ in range(2):
                assert (await api.call("POST", "/sources/loggers", csv)).status == 200
            assert await api.values("fridge.temperature", 4) == [4.0, 4.0, 4.5, 4.5]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("source", "body", "values"),
    [
        ("loggers", b"n;fridge;t\n1;f1;-18,4\n", [-18.4]),
        ("loggers", b'"n;fridge;t\\n1;f1;-18,4\\n"', [-18.4]),
        ("boxes", b'<?xml version="1.0"?><box><fridge>f1</fridge><t>-18.4</t></box>', [-18.4]),
        (
            "packs",
            b'[{"bn":"f1:","n":"temperature","u":"Cel","v":4},{"n":"humidity","u":"%RH","v":50}]',
            [4.0],
        ),
        ("packed", b"\x82\xa6fridge\xa2f1\xa1t\xcb\xc0\x32\x66\x66\x66\x66\x66\x66", [-18.4]),
        ("packed", b'{"fridge": "f1", "t": -18.4}', [-18.4]),
        ("alone?fridge=f1", b"-18.4", [-18.4]),
        ("alone?fridge=f1", b" -18.4\r\n", [-18.4]),
    ],
)
def test_a_body_is_read_by_the_format_of_its_source(
    served_node: Callable[..., Any], source: str, body: bytes, values: list[float]
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=FRIDGES) as api:
            answer = await api.call("POST", f"/sources/{source}", body, {"Content-Type": "x/y"})
            assert answer.json() == {"positions": [1], "duplicates": 0}
            assert await api.values("fridge.temperature", len(values)) == values

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("source", "body"),
    [
        ("boxes", b"<box>"),
        ("packed", b"\xc1"),
        ("fridges", b"ON"),
        ("fridges", b""),
        ("alone", b""),
    ],
)
def test_a_body_that_is_not_in_the_format_of_its_source_is_refused(
    served_node: Callable[..., Any], source: str, body: bytes
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=FRIDGES) as api:
            answer = await api.call("POST", f"/sources/{source}", body)
            assert answer.status == 400
            assert api.node.channels.channel(f"raw.{source}").last_position() == 0

    asyncio.run(scenario())


def test_an_unknown_source_is_not_found_and_the_nearest_name_is_told(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            answer = await api.call("POST", "/sources/reader", {"a": 1})
            assert (answer.status, answer.json()["title"]) == (404, "source.unknown")
            assert answer.json()["hint"] == "did you mean 'readers'?"
            assert "raw.reader" not in api.node.channels.names()

    asyncio.run(scenario())


def test_a_site_with_open_sources_stores_and_quarantines_what_it_does_not_know(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_keys="open_sources = true") as api:
            answer = await api.call("POST", "/sources/reader", {"a": 1})
            assert answer.status == 200
            quarantine = api.node.channels.channel("quarantine")
            assert await quarantine.wait_after(0, timeout_ms=10_000)
            (stored,) = await quarantine.read_after(0)
            assert b"source.unbound" in stored.event.data

    asyncio.run(scenario())
