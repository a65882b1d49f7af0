"""From bytes to detections, and how soon: decoded, reordered, executed, appended. [PO-8, UX-3]"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.policy.building import ONTOLOGY, Building, as_events, policy
from benchmarks.policy.parts import BATCH, CLOCK, Scene, say
from benchmarks.results import Result, limit, rate
from rapport.channel.backends.local import open_embedded
from rapport.core.codec import encode_block
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.readings import split_blocks
from rapport.policy.runner.local import LocalRunner

_BLOCK = 1_000
_ARRIVING_PER_MS = 10


def from_bytes(scene: Scene) -> list[Result]:
    """Blocks of a log in memory."""
    blocks, count = _blocks(scene.work.readings), len(scene.work.readings)
    took = min(asyncio.run(_blocks_to_channel(scene.building, blocks)) for _ in range(2))
    say(f"bytes to detections: {count / took:,.0f} events/s")
    return [
        rate(
            "secure-building, log blocks (1,000 events each, bytes in memory) decoded without "
            "headers, reordered (lateness 2 s), executed, detections appended durably to an "
            "embedded channel",
            count / took,
            "events/s",
            600_000,
        )
    ]


def from_log(scene: Scene) -> list[Result]:
    """An engine that starts on a log on disk; the best of three rounds, since the threads of the
    log take turns with it."""
    count = len(scene.work.readings)
    rounds = range(3)
    took = min(asyncio.run(_through_engine(scene.building, scene.work.readings)) for _ in rounds)
    say(f"engine from its log: {count / took:,.0f} events/s")
    return [
        rate(
            "secure-building, engine started on an embedded log on disk: read, executed, "
            "detections appended, snapshots committed",
            count / took,
            "events/s",
        )
    ]


def _blocks(readings: pa.RecordBatch) -> list[bytes]:
    """What a log holds of the readings; nothing else of them stays in memory to be cared for."""
    return [
        encode_block(as_events(readings.slice(first, _BLOCK)))
        for first in range(0, len(readings), _BLOCK)
    ]


async def _blocks_to_channel(building: Building, blocks: list[bytes]) -> float:
    runner = LocalRunner([policy()], building, lateness_ms=2_000)
    with tempfile.TemporaryDirectory() as folder:
        channels = open_embedded(Path(folder), CLOCK)
        detections = channels.channel("detections")
        began = CLOCK.steady_ns()
        for at in range(0, len(blocks), BATCH // _BLOCK):
            readings, _ = split_blocks(blocks[at : at + BATCH // _BLOCK], ONTOLOGY)
            found = runner.feed(readings)
            await detections.append([item.to_event(source="bench") for item in found])
        await detections.append([item.to_event(source="bench") for item in runner.finish()])
        took = CLOCK.steady_ns() - began
        await channels.close()
    return took / 1e9


async def _through_engine(building: Building, readings: pa.RecordBatch) -> float:
    with tempfile.TemporaryDirectory() as folder:
        channels = open_embedded(Path(folder), CLOCK)
        for at in range(0, len(readings), BATCH):
            await channels.channel("events").append(as_events(readings.slice(at, BATCH)))
        await channels.close()
        channels = open_embedded(Path(folder), CLOCK)  # nothing of it is in memory
        engine = PolicyEngine(
            channels,
            CLOCK,
            name="bench",
            ontology=ONTOLOGY,
            pull=building,
            plans=[policy()],
            lateness_ms=2_000,
            upstream_is_idle=lambda: False,
        )
        began = CLOCK.steady_ns()
        while engine.counts.read < len(readings):
            await engine.step(timeout_ms=0)
        await engine.commit()
        took = CLOCK.steady_ns() - began
        await channels.close()
    return took / 1e9


def single_readings(scene: Scene) -> list[Result]:
    """One reading per call of the runner, lateness 0."""
    runner = LocalRunner([policy()], scene.building, lateness_ms=0)
    readings = scene.work.readings.slice(0, 5_000)
    took = np.empty(len(readings))
    for place in range(len(readings)):
        one = readings.slice(place, 1)
        began = CLOCK.steady_ns()
        runner.feed(one)
        took[place] = CLOCK.steady_ns() - began
    middle, high = np.percentile(took, [50, 99]) / 1_000
    say(f"single readings: {middle:.0f} us median, {high:.0f} us for 99 of 100")
    label = "secure-building, runner.feed of a single reading"
    return [
        limit(f"{label}, median", float(middle), "us"),
        limit(f"{label}, 99th percentile", float(high), "us"),
    ]


def latency(scene: Scene) -> list[Result]:
    """How long after the reading that makes it due a detection is given out, when 10,000 readings
    arrive per second and the runner takes what has arrived while it was busy; the best of three
    rounds, since other work on the machine counts too.
    """
    rounds = [np.percentile(_delays(scene), [50, 99]) for _ in range(3)]
    middle, high = min(rounds, key=lambda each: float(each[1]))
    say(f"latency: {middle:.2f} ms median, {high:.2f} ms for 99 of 100")
    label = "a detection is given out after being due, at 10,000 events/s"
    return [
        limit(f"{label}, median", float(middle), "ms", 5),
        limit(f"{label}, 99th percentile", float(high), "ms", 5),
    ]


def _delays(scene: Scene) -> list[float]:
    """Of each detection; the time of arrival is computed, the time the runner takes measured."""
    runner = LocalRunner([policy()], scene.building, lateness_ms=0)
    readings, late = scene.work.readings.slice(0, 50_000), []
    times = readings.column("time").to_numpy()
    now_ms, taken = 0.0, 0
    while taken < len(readings):
        arrived = min(int(now_ms * _ARRIVING_PER_MS), len(readings))
        if arrived <= taken:
            now_ms = (taken + 1) / _ARRIVING_PER_MS
            continue
        batch = readings.slice(taken, arrived - taken)
        began = CLOCK.steady_ns()
        found = runner.feed(batch)
        now_ms += (CLOCK.steady_ns() - began) / 1e6
        for item in found:
            due = int(np.searchsorted(times, item.time, side="right"))
            late.append(now_ms - (due + 1) / _ARRIVING_PER_MS)
        taken = arrived
    return late
