"""A node that works with a fault reports it wherever its state is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def test_a_degraded_node_gives_its_reason_in_readyz_overview_and_metrics(
    with_doors: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with with_doors() as doors:
            conditions = doors.node.conditions
            ready = await doors.ask("GET", "/readyz")
            assert (ready.status, ready.json()) == (200, {"status": "ready", "reasons": []})
            conditions.begin("disk.full", "no space is left for the log")
            (begun,) = conditions.current()
            expected = {
                "name": "disk.full",
                "reason": "no space is left for the log",
                "since": begun.since,
            }
            degraded = await doors.ask("GET", "/readyz")
            assert degraded.status == 200
            assert degraded.json() == {
                "status": "degraded",
                "reasons": ["no space is left for the log"],
                "conditions": [expected],
            }
            assert (await doors.ask("GET", "/overview")).json()["conditions"] == [expected]
            metrics = (await doors.ask("GET", "/metrics")).body.decode()
            assert 'rapport_degraded{condition="disk.full"} 1.0' in metrics
            conditions.end("disk.full")
            assert (await doors.ask("GET", "/readyz")).json()["status"] == "ready"
            assert (await doors.ask("GET", "/overview")).json()["conditions"] == []

    asyncio.run(scenario())
