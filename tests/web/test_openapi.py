"""The documents of the endpoints: whole, true to what the endpoints do, and readable by tools."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.site.site import load_site
from rapport.web.app import serving
from support.examples import examples

pytestmark = pytest.mark.slow


def test_every_endpoint_has_summary_answers_tag_and_problems(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            document = (await api.call("GET", "/schema/openapi.json")).json()
            assert document["openapi"].startswith("3.1")
            for path, methods in document["paths"].items():
                for method, told in methods.items():
                    assert len(told["summary"]) > 5, (method, path)
                    assert told["tags"], (method, path)
                    assert any(status.startswith("2") for status in told["responses"])
                    assert "400" in told["responses"]
            publish = document["paths"]["/channels/{name}/events"]["post"]
            assert "application/cloudevents-batch+json" in publish["requestBody"]["content"]
            assert publish["security"] == [{}, {"bearer": []}]
            assert document["paths"]["/healthz"]["get"]["security"] == []
            assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
            assert dangling(document) == []

    asyncio.run(scenario())


def test_every_route_that_needs_no_token_is_listed_as_such(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            paths = (await api.call("GET", "/schema/openapi.json")).json()["paths"]
            listed = {
                (method, path)
                for path, operations in paths.items()
                for method, operation in operations.items()
                if operation["security"] == []
            }
            assert listed == {
                *(("get", path) for path in ("/", "/static/{name}", "/healthz", "/readyz")),
                ("get", "/static/inbox.webmanifest"),
                ("get", "/identity"),
                *(("get", path) for path in ("/console", "/login/{code}")),
                ("get", "/console-files/{name}"),
                *((method, "/session") for method in ("get", "post", "delete")),
                *((method, "/inbox") for method in ("get", "post")),
                *((method, "/inbox/{peer}") for method in ("get", "post")),
                *((method, "/inbox/{peer}/{link}") for method in ("get", "post")),
                *((method, "/answer/{message}/{peer}/{token}") for method in ("get", "post")),
                *((method, "/sessions") for method in ("post", "delete")),
                *(("post", path) for path in ("/sessions/messages", "/inputs/{name}")),
                ("get", "/soap/channels/{name}"),
            }

    asyncio.run(scenario())


WITHOUT_BODY = {
    "/messages/{message}/close",
    "/channels/{name}/interceptors/{interceptor}/on",
    "/interpretations/reload",
    "/load/stream/{follower}",
    "/peers/{peer}/inbox-link",
    "/policies",
    "/policies/{policy}/{act}",
    "/pushes/{session}/cancel",
    "/reload",
    "/site/changes/{change}/undo",
    "/tables/{table}/refresh",
}
"""Endpoints that change something and read no body."""


def test_every_endpoint_that_reads_a_body_tells_of_it(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            document = (await api.call("GET", "/schema/openapi.json")).json()
            silent = {
                path
                for path, methods in document["paths"].items()
                for method, told in methods.items()
                if method in ("post", "put", "patch") and "requestBody" not in told
            }
            assert silent == WITHOUT_BODY

    asyncio.run(scenario())


def test_the_asyncapi_document_has_what_version_3_demands(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            document = (await api.call("GET", "/schema/asyncapi.json")).json()
            assert document["asyncapi"] == "3.0.0"
            assert {"title", "version"} <= set(document["info"])
            assert dangling(document) == []
            names = re.compile(r"[A-Za-z0-9_-]+\Z")
            for name, channel in document["channels"].items():
                assert names.match(name)
                assert channel["messages"]
                placeholders = set(re.findall(r"{(\w+)}", channel["address"]))
                assert placeholders == set(channel.get("parameters", {}))
            for operation in document["operations"].values():
                assert operation["action"] in ("send", "receive")
                channel = operation["channel"]["$ref"].removeprefix("#/channels/")
                assert channel in document["channels"]
                for message in operation.get("messages", ()):
                    assert message["$ref"].startswith(f"#/channels/{channel}/messages/")

    asyncio.run(scenario())


def dangling(document: Any) -> list[str]:
    """References that lead nowhere."""
    missing = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            target = value.get("$ref")
            if isinstance(target, str) and not leads(target):
                missing.append(target)
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    def leads(target: str) -> bool:
        place = document
        for part in target.removeprefix("#/").split("/"):
            while isinstance(place, dict) and "$ref" in place:
                place = follow(place["$ref"])
            if not isinstance(place, dict) or part not in place:
                return False
            place = place[part]
        return True

    def follow(target: str) -> Any:
        place = document
        for part in target.removeprefix("#/").split("/"):
            place = place[part]
        return place

    look(document)
    return missing


@pytest.fixture(scope="module")
def node_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with open endpoints in a thread of its own."""
    directory: Path = tmp_path_factory.mktemp("openapi")
    site = prepare_site(
        directory / "site", mail_port=9, phone_url="http://127.0.0.1:9/x", answer_within="60s"
    )
    found: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def run() -> None:
        node = make_node(load_site(site), NodeSettings(port=0), SystemClock())
        try:
            async with serving(node) as url:
                await node.start()
                found.append(url)
                ready.set()
                await asyncio.to_thread(stop.wait)
        finally:
            await node.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(20)
    yield found[0]
    stop.set()
    thread.join()


CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)


ENDLESS = ("/channels/{name}/stream", "/load/stream", "/live")


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_gets_an_answer_that_the_document_does_not_tell(
    node_url: str, mode: GenerationMode
) -> None:
    """Requests that the document allows, and requests that it does not: never a fault of ours,
    always an answer with a status, media type and form that it names.
    """
    document = schemathesis.openapi.from_url(f"{node_url}/schema/openapi.json")
    statuses: Counter[int] = Counter()
    operations = [found.ok() for found in document.get_all_operations()]
    for operation in operations:
        if operation.path not in ENDLESS:
            try_out(operation, mode, statuses)
    assert statuses[200 if mode is GenerationMode.POSITIVE else 400] > 20


def try_out(operation: Any, mode: GenerationMode, statuses: Counter[int]) -> None:
    @settings(
        max_examples=examples(10),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(timeout=70)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # a endpoint without input cannot be asked wrongly
