"""How fast policies are executed, and what exactly was counted. [PO-8, UX-3]"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rapport.bench.building import (
    ALONE,
    ONTOLOGY,
    TOGETHER,
    Building,
    Workload,
    as_events,
    policy,
    walk,
)
from rapport.channel.backends.embedded import open_embedded
from rapport.core.codec import decode_block, encode_block
from rapport.core.detection import Detection
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.policy.engine import PolicyEngine
from rapport.policy.readings import readings_from_events
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.local import LocalRunner, in_event_order
from rapport.policy.runners.operators import make_operator

SEED = 20_260_302
_PEOPLE, _ROOMS = 200, 100
_BATCH = 10_000
_BLOCK = 1_000
_clock = SystemClock()


def run(quick: bool) -> dict[str, Any]:
    """All measurements; progress goes to stderr."""
    events = 100_000 if quick else 1_000_000
    building = Building(_PEOPLE, _ROOMS, SEED)
    work = walk(_PEOPLE, _ROOMS, events, SEED)
    _say(f"{events:,} events, seed {SEED}, digest {work.digest}")
    results = [
        *_operators(building, work),
        *_consumption(building, work),
        *_rooms(building, work),
        *_from_bytes(building, work),
        *_live(building, work.readings.slice(0, events // 5)),
        *_single(building, work.readings.slice(0, 5_000)),
    ]
    return {"name": "policy", "results": results}


def _operators(building: Building, work: Workload) -> list[dict[str, Any]]:
    """Sorted Arrow batches in, detections out; neither decoding nor reordering is counted."""
    rate, found, state = _through_operator(building, work.readings, ALONE)
    per_detection = len(work.readings) / max(len(found), 1)
    _say(f"operators: {rate:,.0f} events/s, one detection per {per_detection:,.0f} events")
    return [
        _result(
            "secure-building, operators alone: sorted Arrow batches of 10,000 in, detections out",
            rate,
            "events/s",
            goal=1_500_000,
        ),
        _result("secure-building, snapshot of the operator", state, "bytes", better="lower"),
        _result("secure-building, detections", len(found), "detections"),
    ]


def _consumption(building: Building, work: Workload) -> list[dict[str, Any]]:
    readings = work.readings.slice(0, len(work.readings) // 5)
    rate, found, _ = _through_operator(building, readings, TOGETHER)
    _say(f"positive correlation: {rate:,.0f} events/s, {len(found):,} detections")
    return [
        _result(
            "'A is within 5m of B' (each pair a detection), operators alone, batches of 10,000",
            rate,
            "events/s",
        )
    ]


def _rooms(building: Building, work: Workload) -> list[dict[str, Any]]:
    """The same people in a building with 100 times the rooms and the floor for them."""
    large = Building(_PEOPLE, _ROOMS * 100, SEED)
    walked = walk(_PEOPLE, _ROOMS * 100, len(work.readings), SEED)
    few, _, _ = _through_operator(building, work.readings, ALONE)
    many, _, _ = _through_operator(large, walked.readings, ALONE)
    _say(f"10,000 rooms: {many:,.0f} events/s")
    return [
        _result(
            "operators alone, people spread over 10,000 rooms instead of 100", many, "events/s"
        ),
        _result("time per event, 10,000 rooms / 100 rooms", few / many, "ratio", better="lower"),
    ]


def _from_bytes(building: Building, work: Workload) -> list[dict[str, Any]]:
    blocks = _blocks(work.readings)
    count = len(work.readings)
    rate = max(asyncio.run(_blocks_to_channel(building, blocks, count)) for _ in range(2))
    _say(f"bytes to detections: {rate:,.0f} events/s")
    return [
        _result(
            "secure-building, log blocks (1,000 events each, bytes in memory) decoded, reordered "
            "(lateness 2 s), executed, detections appended durably to an embedded channel",
            rate,
            "events/s",
            goal=600_000,
        )
    ]


def _blocks(readings: pa.RecordBatch) -> list[bytes]:
    """What a log holds of the readings; nothing else of them stays in memory to be cared for."""
    return [
        encode_block(as_events(readings.slice(first, _BLOCK)))
        for first in range(0, len(readings), _BLOCK)
    ]


async def _blocks_to_channel(building: Building, blocks: list[bytes], events: int) -> float:
    runner = LocalRunner([policy()], building, lateness_ms=2_000)
    with tempfile.TemporaryDirectory() as folder:
        channels = open_embedded(Path(folder), _clock)
        detections = channels.channel("detections")
        began = _clock.steady_ns()
        for at in range(0, len(blocks), _BATCH // _BLOCK):
            batch = [event for block in blocks[at : at + 10] for event in decode_block(block)]
            found = runner.feed(readings_from_events(batch, ONTOLOGY))
            await detections.append([item.to_event(source="bench") for item in found])
        await detections.append([item.to_event(source="bench") for item in runner.finish()])
        took = _clock.steady_ns() - began
        await channels.close()
    return events / took * 1e9


def _live(building: Building, readings: pa.RecordBatch) -> list[dict[str, Any]]:
    rate = asyncio.run(_through_engine(building, as_events(readings)))
    _say(f"live engine: {rate:,.0f} events/s")
    return [
        _result(
            "secure-building, live engine: subscription of an embedded channel to detections "
            "appended, snapshots committed",
            rate,
            "events/s",
        )
    ]


async def _through_engine(building: Building, events: list[Event]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        channels = open_embedded(Path(folder), _clock)
        for at in range(0, len(events), _BATCH):
            await channels.channel("events").append(events[at : at + _BATCH])
        engine = PolicyEngine(
            channels,
            _clock,
            name="bench",
            ontology=ONTOLOGY,
            pull=building,
            plans=[policy()],
            lateness_ms=2_000,
            upstream_is_idle=lambda: False,
        )
        began = _clock.steady_ns()
        while engine.counts.read < len(events):
            await engine.step(timeout_ms=0)
        await engine.commit()
        took = _clock.steady_ns() - began
        await channels.close()
    return len(events) / took * 1e9


def _single(building: Building, readings: pa.RecordBatch) -> list[dict[str, Any]]:
    """One reading per call of the runner, lateness 0."""
    runner = LocalRunner([policy()], building, lateness_ms=0)
    took = np.empty(len(readings))
    for place in range(len(readings)):
        one = readings.slice(place, 1)
        began = _clock.steady_ns()
        runner.feed(one)
        took[place] = _clock.steady_ns() - began
    middle, high = np.percentile(took, [50, 99]) / 1_000
    _say(f"single readings: {middle:.0f} us median, {high:.0f} us for 99 of 100")
    label = "secure-building, runner.feed of a single reading"
    return [
        _result(f"{label}, median", float(middle), "us", better="lower"),
        _result(f"{label}, 99th percentile", float(high), "us", better="lower"),
    ]


def _through_operator(
    pull: PullData, readings: pa.RecordBatch, conditions: str
) -> tuple[float, list[Detection], int]:
    """Events per second (the better of two runs), detections, and bytes of state at the end."""
    batches, best = _cut(readings), 0.0
    for _ in range(2):
        operator = make_operator(policy(conditions), pull)
        found: list[Detection] = []
        began = _clock.steady_ns()
        for batch, watermark in batches:
            found += operator.process(batch, watermark)
        best = max(best, len(readings) / (_clock.steady_ns() - began) * 1e9)
        state = len(operator.snapshot())
        found += operator.process(readings.slice(0, 0), END_OF_TIME)
    return best, found, state


def _cut(readings: pa.RecordBatch) -> list[tuple[pa.RecordBatch, int]]:
    """Batches of about 10,000 in event order, equal times together, each with its watermark."""
    times = readings.column("time").to_numpy()
    edges = [0]
    while edges[-1] < len(times):
        last = times[min(edges[-1] + _BATCH, len(times)) - 1]
        edges.append(int(np.searchsorted(times, last, side="right")))
    return [
        (in_event_order(readings.slice(low, high - low)), int(times[high - 1]) + 1)
        for low, high in pairwise(edges)
    ]


def _result(
    metric: str,
    value: float,
    unit: str,
    *,
    better: str = "higher",
    goal: float | None = None,
) -> dict[str, Any]:
    return {
        "metric": metric,
        "value": round(value, 3),
        "unit": unit,
        "better": better,
        "goal": goal,
        "ok": None if goal is None else value >= goal,
    }


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
