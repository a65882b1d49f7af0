"""A steady sensor says the same again and again: each time is a reading. [CH-6, CH-12]

Over a real HTTP server, with the clock moved by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.core.times import parse_time
from rapport.kernel.clock import ManualClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.json_client import post_json
from rapport.site.site import load_site
from rapport.web.app import serving

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "cold-store"
lateness = "1s"
[concepts.store.attributes]
temperature = "number"
[sources.thermometers]
concept = "store"
attribute = "temperature"
key = "store"
value = "celsius"
[policies]
files = ["*.dpl"]
"""
SILENT = """concepts
  store S
conditions
  no temperature of S for 3 min
actions
  look after it
"""
MINUTE_MS, STEP_MS = 60_000, 5_000


@asynccontextmanager
async def served(node: Node, clock: ManualClock) -> AsyncIterator[str]:
    """The node's HTTP server; it begins and ends by the clock, which moves by milliseconds then."""

    async def tick() -> None:
        while True:
            await clock.advance(1)
            await asyncio.sleep(0.001)

    async with AsyncExitStack() as stack:
        ticking = asyncio.create_task(tick())
        stack.callback(lambda: ticking.cancel())
        url = await stack.enter_async_context(serving(node))
        ticking.cancel()
        yield url
        ticking = asyncio.create_task(tick())


async def pass_time(node: Node, clock: ManualClock, duration_ms: int) -> None:
    """What has come in gets its meaning and is decided, while the clock moves time on."""
    while await node.mediation.lane("thermometers").step(timeout_ms=0):
        pass
    for _ in range(duration_ms // STEP_MS):
        while await node.policy.step(timeout_ms=0):
            pass
        await clock.advance(STEP_MS)
    await node.policy.step(timeout_ms=0)


async def found(node: Node, channel: str, key: str) -> list[Any]:
    """What stands at a key of a channel's events, of those that have it."""
    stored = await node.channels.channel(channel).read_after(0)
    payloads = [one.event.payload() for one in stored]
    return [payload[key] for payload in payloads if key in payload]


def test_five_equal_readings_are_five_events_and_a_steady_sensor_is_not_silent(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        (tmp_path / "site.toml").write_text(SITE)
        (tmp_path / "silent.dpl").write_text(SILENT)
        clock = ManualClock(parse_time("2026-03-02T09:00:00Z"))
        node = make_node(load_site(tmp_path), NodeSettings(port=0), clock)
        try:
            await node.meanings.begin()
            await node.policies.begin()
            async with served(node, clock) as url:
                for _ in range(5):
                    reading = {"store": "s1", "celsius": -18.4}
                    await post_json(f"{url}/sources/thermometers", reading)
                    await pass_time(node, clock, MINUTE_MS)
            assert await found(node, "events", "value") == [[-18.4]] * 5
            assert await found(node, "detections", "bindings") == []
            await pass_time(node, clock, 3 * MINUTE_MS)
            assert await found(node, "detections", "bindings") == [{"S": "s1"}]
        finally:
            await node.stop()

    asyncio.run(scenario())
