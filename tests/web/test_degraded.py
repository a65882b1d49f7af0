"""A node that works with a fault reports it wherever its state is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rapport.kernel.clock import SystemClock

CAMERA = {"cam": "c2", "face": "p07", "bearing_deg": 0, "dist_ft": 12}


def test_a_degraded_node_gives_its_reason_in_readyz_overview_and_metrics(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            conditions = api.node.conditions
            ready = await api.call("GET", "/readyz")
            assert (ready.status, ready.json()) == (200, {"status": "ready", "reasons": []})
            conditions.begin("disk.full", "no space is left for the log")
            (begun,) = conditions.current()
            expected = {
                "name": "disk.full",
                "reason": "no space is left for the log",
                "since": begun.since,
            }
            degraded = await api.call("GET", "/readyz")
            assert degraded.status == 200
            assert degraded.json() == {
                "status": "degraded",
                "reasons": ["no space is left for the log"],
                "conditions": [expected],
            }
            assert (await api.call("GET", "/overview")).json()["conditions"] == [expected]
            metrics = (await api.call("GET", "/metrics")).body.decode()
            assert 'rapport_degraded{condition="disk.full"} 1.0' in metrics
            conditions.end("disk.full")
            assert (await api.call("GET", "/readyz")).json()["status"] == "ready"
            assert (await api.call("GET", "/overview")).json()["conditions"] == []

    asyncio.run(scenario())


def test_a_source_whose_readings_come_late_degrades_the_node_with_the_reason(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            now_ms = SystemClock().now_ms()
            for time_ms in (now_ms, now_ms - 3 * 3_600_000):
                seen = CAMERA | {"ts": time_ms / 1_000}
                assert (await api.call("POST", "/sources/cameras", seen)).status < 300
            deadline = time.monotonic() + 30
            while (ready := (await api.call("GET", "/readyz")).json())["status"] != "degraded":
                assert time.monotonic() < deadline, ready
                await asyncio.sleep(0.1)
            [reason] = ready["reasons"]
            assert reason.startswith("1 of 2 readings of cameras ")
            assert "3 h behind" in reason
            [shown] = (await api.call("GET", "/overview")).json()["conditions"]
            assert shown["reason"] == reason
            metrics = (await api.call("GET", "/metrics")).body.decode()
            assert 'rapport_degraded{condition="policy.late.cameras"} 1.0' in metrics
            assert 'rapport_policy_late_total{source="cameras"} 1.0' in metrics
            assert 'rapport_policy_late_ratio{source="cameras"} 0.5' in metrics

    asyncio.run(scenario())
