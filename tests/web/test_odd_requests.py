"""Requests as monitors, scrapers and hasty clients make them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

DEEP = [b"[" * 5_000, b'{"a":' * 5_000, b'[{"a":' * 3_000]


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/static/rapport.css"])
def test_monitors_may_ask_by_head(served_node: Callable[..., Any], path: str) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            asked, whole = await api.call("HEAD", path), await api.call("GET", path)
            assert (asked.status, asked.body) == (200, b"")
            assert asked.headers["content-type"] == whole.headers["content-type"]

    asyncio.run(scenario())


def test_prometheus_understands_what_the_metrics_are(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            kind, *parameters = (
                (await api.call("GET", "/metrics")).headers["content-type"].split("; ")
            )
            names = [parameter.split("=")[0] for parameter in parameters]
            assert kind == "text/plain"
            assert sorted(names) == ["charset", "version"]  # each once, or it is refused

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/soap/channels/mine?wsdl"),
        ("GET", "/soap/channels/mine?xsd"),
        ("POST", "/soap/channels/mine"),
        ("GET", "/"),
        ("GET", "/static/inbox.js"),
    ],
)
def test_the_letters_of_a_text_are_said_once(
    served_node: Callable[..., Any], method: str, path: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            kind = (await api.call(method, path)).headers["content-type"]
            assert kind.startswith("text/")
            assert kind.count("charset=utf-8") == 1

    asyncio.run(scenario())


def test_a_wrong_method_hears_the_right_ones(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            answer = await api.call("DELETE", "/healthz")
            assert answer.status == 405
            assert "GET" in answer.headers["allow"]

    asyncio.run(scenario())


def test_a_wrong_parameter_is_named(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            answer = await api.call("GET", "/channels/mine/events?limit=0&after=abc")
            detail = answer.json()["detail"]
            assert answer.status == 400
            assert "limit: " in detail
            assert "after: " in detail

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/messages", "/sessions/messages", "/channels/mine/events"])
def test_json_of_any_depth_is_refused_politely(served_node: Callable[..., Any], path: str) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            for body in DEEP:
                answer = await api.call("POST", path, body)
                assert answer.status == 400, body[:10]
                assert answer.json()["title"] != "rapport.error"

    asyncio.run(scenario())


@pytest.mark.parametrize("addresses", [7, {"a": 1}, [7]], ids=["number", "table", "numbers"])
def test_addresses_of_a_wrong_kind_are_refused(
    served_node: Callable[..., Any], addresses: object
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            answer = await api.call("PUT", "/peers/zoe", {"addresses": addresses})
            assert answer.status == 400
            assert answer.json()["title"] == "site.wrong_type"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("Caf%C3%A9%20%22x%22", 'Café "x"'),
        ("Zürich".encode().decode("latin-1"), "Zürich"),
        ("Z\xfcrich", "Zürich"),
        ("100%", "100%"),
        ("%FF", "%FF"),
    ],
    ids=["percent", "utf-8", "latin-1", "bare percent", "no text"],
)
def test_headers_of_binary_events_are_read_as_they_are_meant(
    served_node: Callable[..., Any], sent: str, kept: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            headers = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-subject": sent}
            assert (await api.call("POST", "/channels/mine/events", b"1", headers)).status == 200
            (event,) = (await api.call("GET", "/channels/mine/events")).json()["events"]
            assert event["subject"] == kept

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["data", "data_base64", "datacontenttype"])
def test_headers_cannot_stand_for_the_data_of_a_binary_event(
    served_node: Callable[..., Any], name: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            headers = {"ce-id": "1", "ce-source": "s", "ce-type": "t", f"ce-{name}": "QUJD"}
            answer = await api.call("POST", "/channels/mine/events", b"1", headers)
            assert (answer.status, answer.json()["title"]) == (400, "event.bad_extension")

    asyncio.run(scenario())


def test_another_version_of_binary_events_is_refused(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            headers = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "0.3"}
            answer = await api.call("POST", "/channels/mine/events", b"1", headers)
            assert (answer.status, answer.json()["title"]) == (400, "event.not_a_cloudevent")

    asyncio.run(scenario())


def test_a_long_chain_of_causes_is_explained_as_far_as_it_can_be(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            events = [
                {"id": f"n{number}", "source": "s", "type": "t", "cause": f"n{number - 1}"}
                for number in range(1, 600)
            ]
            assert (await api.call("POST", "/channels/mine/events", events)).status == 200
            answer = await api.call("GET", "/explain/n599")
            assert answer.status == 200
            node, depth = answer.json(), 0
            while node["causes"]:
                (node,) = node["causes"]
                depth += 1
            assert (node["id"], node["missing"]) == (f"n{599 - depth}", [])
            assert depth >= 100

    asyncio.run(scenario())
