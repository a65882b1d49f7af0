"""Situations of a running node over HTTP: what is open, who looks after it, and what people get.
[SI-4, SI-5, SI-12, SI-14]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.communication.adapters.base import Delivery
from rapport.core.detection import DETECTED, ENDED
from rapport.core.event import make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from tests.web.conftest import NodeApi

pytestmark = pytest.mark.slow

FREEZERS = """
[site]
name = "freezers"
lateness = "100ms"
[policies]
files = ["*.dpl"]
window = "5s"
[concepts.freezer.attributes]
temperature = "number"
[concepts.freezer.units]
temperature = "degC"
[sources.freezers]
concept = "freezer"
attribute = "temperature"
key = "key"
value = ["temperature"]
stale_after = "10 min"
[peers.fred]
addresses = ["inbox:"]
zone = "Europe/Vienna"
language = "de"
"""
WARM = """concepts
  freezer F
situation
  temperature of F above -15 degC
cleared by
  temperature of F below -17 degC
actions
  call fred
    to fred
    say "{F} is at {temperature of F}: {why}"
    answer within 10 min
    repeat every 1 s
actions when cleared
  tell fred
    to fred
    say "{F} is fine again at {temperature of F} after {duration}"
"""
GUESTS = """concepts
  freezer F
conditions
  temperature of F above 5 degC
actions
  tell fred
    to fred
    say "{F} thaws at {temperature of F}"
"""
TEXT = {"Content-Type": "text/plain; charset=utf-8"}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.fixture
def freezers(tmp_path: Path) -> Callable[[], Any]:
    """A node of freezers with open endpoints."""

    @asynccontextmanager
    async def open_node() -> AsyncIterator[NodeApi]:
        (tmp_path / "site.toml").write_text(FREEZERS)
        (tmp_path / "thaw.dpl").write_text(GUESTS)
        node = make_node(load_site(tmp_path), NodeSettings(port=0), SystemClock())
        try:
            async with serving(node, token="") as url:
                await node.start()
                yield NodeApi(node, url)
        finally:
            await node.stop()

    return open_node


async def read(api: Any, freezer: str, degrees: float) -> None:
    now_ms = api.node.clock.now_ms()
    event = make_event(
        source="freezers",
        id=f"{freezer}-{now_ms}-{degrees}",
        type="freezer.temperature",
        subject=f"freezer/{freezer}",
        time=now_ms,
        data={"key": freezer, "value": [degrees]},
    )
    await api.node.channels.channel("events").append([event])


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    while not await check():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def texts(api: Any, peer: str = "fred") -> list[str]:
    stored = await api.node.channels.channel("output.inbox").read_after(0, limit=1_000)
    found = [Delivery.from_event(one.event) for one in stored]
    return [one.text for one in found if one.peer == peer]


async def of_type(api: Any, kind: str) -> list[Any]:
    stored = await api.node.channels.channel("detections").read_after(0, limit=1_000)
    return [one.event.payload() for one in stored if one.event.type == kind]


def test_a_situation_from_the_first_reading_to_the_message_that_it_is_over(
    freezers: Callable[[], Any],
) -> None:
    async def scenario() -> None:
        async with freezers() as api:
            done = await api.call("POST", "/policies/warm", WARM.encode(), TEXT)
            assert done.status == 200, done.json()
            await read(api, "f1", -14.25)
            await read(api, "f2", -20.0)

            async def is_open() -> bool:
                return bool((await api.call("GET", "/policies/warm/states")).json()["open"])

            await until(is_open)
            states = (await api.call("GET", "/policies/warm/states")).json()
            [one] = states["states"]
            assert one["state"]["bindings"] == {"F": "f1"}
            assert one["state"]["atoms"][0]["values"] == {
                "temperature of F": {"value": -14.25, "unit": "degC"}
            }

            async def is_told() -> bool:
                return bool(await texts(api))

            await until(is_told)
            assert (await texts(api))[0] == (
                "f1 is at -14,25 °C: temperature of F above -15 °C (temperature of F is -14.25 °C)"
            )
            body = json.dumps({"bindings": {"F": "f1"}, "by": "ana"}).encode()
            done = await api.call("POST", "/policies/warm/acknowledge", body)
            assert (done.status, done.json()["situations"]) == (200, [{"F": "f1"}])

            async def is_acknowledged() -> bool:
                [one] = (await api.call("GET", "/policies/warm/states")).json()["states"]
                return bool(one["acknowledged_by"] == "ana")

            await until(is_acknowledged)
            before = len(await texts(api))
            await read(api, "f1", -20.0)

            async def is_over() -> bool:
                return any("fine again" in text for text in await texts(api))

            await until(is_over)
            assert len(await texts(api)) == before + 1
            assert "-20 °C" in (await texts(api))[-1]
            assert (await api.call("GET", "/policies/warm/states")).json()["open"] == 0
            for kind, truth in ((DETECTED, "true"), (ENDED, "false")):
                stored = await api.node.channels.channel("detections").read_after(0, limit=1_000)
                [id] = [one.event.id for one in stored if one.event.type == kind]
                why = (await api.call("GET", f"/explain/{id}/why")).json()
                [atom] = why["situation"]["atoms"]
                assert (why["situation"]["truth"], atom["atom"]["truth"]) == (truth, truth)
                assert atom["atom"]["distance"] == (0.75 if kind == DETECTED else -5.0)
            at = format_time(why["situation"]["time"])
            told = (await api.call("GET", f"/policies/warm/why-not?at={at}&who=F%3Df1")).json()
            assert told["situation"]["truth"] == "false", told
            vague = await api.call("GET", f"/policies/warm/why-not?at={at}")
            assert vague.json()["title"] == "policy.which_situation"

    run(scenario)


def test_deleting_a_policy_ends_what_is_open_with_the_reason(
    freezers: Callable[[], Any],
) -> None:
    async def scenario() -> None:
        async with freezers() as api:
            await api.call("POST", "/policies/warm", WARM.encode(), TEXT)
            await read(api, "f1", -14.0)

            async def is_begun() -> bool:
                return bool(
                    [one for one in await of_type(api, DETECTED) if one["policy"] == "warm"]
                )

            await until(is_begun)
            assert (await api.call("DELETE", "/policies/warm")).status == 200
            [ended] = await of_type(api, ENDED)
            assert ended["reason"] == "the policy was deleted"

            async def is_over() -> bool:
                return any("fine again" in text for text in await texts(api))

            await until(is_over)

    run(scenario)


def test_a_policy_with_conditions_names_values_as_of_the_detection(
    freezers: Callable[[], Any],
) -> None:
    async def scenario() -> None:
        async with freezers() as api:
            await read(api, "f1", 6.5)

            async def is_told() -> bool:
                return bool(await texts(api))

            await until(is_told)
            assert await texts(api) == ["f1 thaws at 6,5 °C"]

    run(scenario)


def test_wrong_questions_are_answered_with_what_would_be_right(
    freezers: Callable[[], Any],
) -> None:
    async def scenario() -> None:
        async with freezers() as api:
            await api.call("POST", "/policies/warm", WARM.encode(), TEXT)
            other = "thaw"
            for method, path, body, status, title in (
                ("GET", "/policies/nobody/states", b"", 404, "policy.unknown"),
                ("GET", f"/policies/{other}/states", b"", 409, "policy.no_situation"),
                ("POST", "/policies/warm/acknowledge", b"{}", 409, "policy.not_open"),
                ("POST", "/policies/warm/acknowledge", b"[]", 400, "policy.bad_body"),
                ("POST", "/policies/warm/acknowledge", b'{"who": 1}', 400, "policy.bad_body"),
                ("POST", "/policies/warm/acknowledge", b'{"by": "\\n"}', 400, "policy.bad_name"),
            ):
                answer = await api.call(method, path, body)
                assert (answer.status, answer.json()["title"]) == (status, title), path
            wrong = WARM.replace("{temperature of F}", "{temperatur of F}").encode()
            refused = await api.call("POST", "/policies/other", wrong, TEXT)
            assert refused.status in (400, 422)
            assert "did you mean {temperature of F}?" in refused.body.decode()
            early = WARM.replace("{why}", "{duration}").encode()
            refused = await api.call("POST", "/policies/other", early, TEXT)
            assert "{duration}" in refused.body.decode()

    run(scenario)
