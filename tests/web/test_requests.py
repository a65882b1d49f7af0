import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

PATH = "/channels/mine/requests"


def event(number: int) -> dict[str, Any]:
    return {"id": str(number), "source": "s", "type": f"t{number % 2}", "data": {"n": number}}


def test_a_query_is_read_to_its_end_by_tokens(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("POST", "/channels/mine/events", [event(n) for n in range(1, 21)])
            query = {"query": "type = 't1' AND data.n > 2", "max_messages": 4}
            batch = (await api.call("POST", PATH, query)).json()
            found = [item["data"]["n"] for item in batch["events"]]
            while batch["next_token"]:
                batch = (await api.call("POST", PATH, {"token": batch["next_token"]})).json()
                found += [item["data"]["n"] for item in batch["events"]]
            assert found == [3, 5, 7, 9, 11, 13, 15, 17, 19]
            assert (batch["ttl_ms"], batch["lease_minutes"], batch["gone"]) == (-1, 10, False)

    asyncio.run(scenario())


def test_taken_messages_are_gone_for_others(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("POST", "/channels/mine/events", [event(n) for n in range(1, 4)])
            seen = (await api.call("POST", PATH, {"query": {}})).json()
            taken = (await api.call("POST", PATH, {"query": {"id": "2"}, "take": True})).json()
            assert [item["id"] for item in taken["events"]] == ["2"]
            again = (await api.call("POST", PATH, {"token": seen["current_token"]})).json()
            assert (again["gone"], again["events"]) == (True, [])
            rest = (await api.call("POST", PATH, {"token": again["next_token"]})).json()
            assert [item["id"] for item in rest["events"]] == ["1", "3"]

    asyncio.run(scenario())


def test_a_request_waits_for_its_first_match(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            asked = {"query": "data.n = 2", "wait_ms": 20_000}
            waiting = asyncio.create_task(api.call("POST", PATH, asked))
            await asyncio.sleep(0.05)
            await api.call("POST", "/channels/mine/events", event(1))
            await api.call("POST", "/channels/mine/events", event(2))
            assert [item["id"] for item in (await waiting).json()["events"]] == ["2"]

    asyncio.run(scenario())


def test_closing_endpoints_answer_who_waits(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            waiting = asyncio.create_task(
                api.call("POST", PATH, {"query": {}, "wait_ms": 60_000, "take": True})
            )
            await asyncio.sleep(0.1)
        answer = await waiting
        assert (answer.status, answer.json()["events"]) == (200, [])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{oops", 400, "request.not_a_request"),
        (b"[1]", 400, "request.not_a_request"),
        (b"", 400, "request.not_a_request"),
        ({"query": "type = 'a'", "wait": 5}, 400, "request.not_a_request"),
        ({"query": "type = 'a'", "wait_ms": "long"}, 400, "request.not_a_request"),
        ({}, 400, "request.no_query"),
        ({"query": {}, "token": "x"}, 400, "request.no_query"),
        ({"query": {}, "max_messages": -1}, 400, "request.bad_field"),
        ({"query": "typ = 'a'"}, 400, "query.unknown_field"),
        ({"query": "type = 'a'", "kind": "prolog"}, 404, "name.unknown"),
        ({"token": "not a token"}, 400, "token.damaged"),
    ],
)
def test_a_bad_request_gets_code_and_place(
    served_node: Callable[..., Any], body: Any, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            answer = await api.call("POST", PATH, body)
            assert (answer.status, answer.json()["title"]) == (status, code)
            if code == "query.unknown_field":
                (problem,) = answer.json()["problems"]
                assert (problem["line"], problem["column"]) == (1, 1)
                assert "did you mean 'type'" in problem["hint"]

    asyncio.run(scenario())


def test_a_node_token_is_asked_for(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token="secret") as api:
            assert (await api.call("POST", PATH, {"query": {}})).status == 401
            headers = {"Authorization": "Bearer secret"}
            assert (await api.call("POST", PATH, {"query": {}}, headers)).status == 200

    asyncio.run(scenario())


def test_no_bytes_break_the_endpoint(served_node: Callable[..., Any]) -> None:
    found: list[bytes] = []
    names = st.sampled_from(["query", "token", "take", "wait_ms", "kind", "seen", "x", "data"])
    values = st.none() | st.booleans() | st.text(max_size=6) | st.integers(-5, 2**70) | st.floats()

    @settings(suppress_health_check=list(HealthCheck))
    @given(
        st.binary(max_size=40)
        | st.dictionaries(names, values | st.dictionaries(names, values), max_size=4).map(
            lambda value: json.dumps(value | {"wait_ms": 0}).encode()
        )
    )
    def collect(body: bytes) -> None:
        found.append(body)

    collect()

    async def scenario() -> None:
        async with served_node() as api:
            await api.call("POST", "/channels/mine/events", event(1))
            for body in found:
                assert (await api.call("POST", PATH, body)).status in (200, 400, 403, 404)

    asyncio.run(scenario())
