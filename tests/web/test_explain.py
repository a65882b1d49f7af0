"""The endpoints that explain policies: why, why not, and who may ask. [PO-11]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rapport.cli.main import run as command
from rapport.core.times import format_time


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_guest_outside_is_told_how_far(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            now = api.node.clock.now_ms()
            at = format_time(now)
            body = {"reader": "r1", "tag": "E200-01", "dx": 500.0, "dy": 0.0, "t": at}
            assert (await api.call("POST", "/sources/readers", body)).status == 200
            found = await api.call("GET", "/channels/events/events?wait=20s")
            assert len(found.json()["events"]) == 1
            path = f"/policies/secure-building/why-not?at={now}&who=A%3Dp01&window=60s"
            answer = (await api.call("GET", path)).json()
            assert answer["fired"] == []
            clause = answer["candidates"][0]["clauses"][0]
            assert (clause["text"], clause["truth"]) == ("A is inside R", "false")
            assert "E200-01" in clause["readings"][0]["raw"]
            assert answer["nearest"]["value"]

    run(scenario)


def test_questions_that_cannot_be_answered_are_refused(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            for path, status, title in (
                ("/policies/secure-bilding/why-not", 404, "policy.unknown"),
                ("/policies/secure-building/why-not?who=X%3D1", 404, "explain.unknown_alias"),
                ("/policies/secure-building/why-not?who=p01", 400, "explain.bad_identity"),
                ("/policies/secure-building/why-not?at=noon", 400, "time.bad_time"),
                ("/explain/nothing/why", 404, "event.unknown"),
            ):
                refused = await api.call("GET", path)
                assert (refused.status, refused.json()["title"]) == (status, title), path

    run(scenario)


def test_the_command_asks_a_node_elsewhere(
    served_node: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            asked = ["why-not", "secure-building", "A=p01", "--at", "0", "--url", api.url]
            site = ["--site", str(api.node.site.directory)]
            assert await asyncio.to_thread(command, [*asked, *site]) == 1

    run(scenario)
    assert "secure-building did not fire for A = p01" in capsys.readouterr().out


def test_who_may_not_read_the_channels_may_not_ask(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token="secret") as api:
            path = "/policies/secure-building/why-not"
            assert (await api.call("GET", path)).status == 401
            known = {"Authorization": "Bearer secret"}
            assert (await api.call("GET", path, headers=known)).status == 200

    run(scenario)
