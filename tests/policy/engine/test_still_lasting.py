"""After an outage a state that was detected too long ago to act on it is reported when it is still
true, and only then. [PO-7, PO-10]
"""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.detection import DETECTED, STILL_LASTS, Detection
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.ontology import Ontology, PushSource
from support.varied.worlds import Pull

HOUR = 3_600_000
ONTOLOGY = Ontology(
    concepts={"station": {"temperature": "number"}},
    relationships={},
    sources={
        "hut": PushSource(
            name="hut", concept="station", attribute="temperature", key="key", value=("value",)
        )
    },
)
TEXT = """concepts
  station S
conditions
  temperature of S > 30 for 2 hours
actions
  call
"""


def read(number: int, time_ms: int, value: float) -> Event:
    return make_event(
        source="hut",
        id=f"e{number}",
        type="station.temperature",
        time=time_ms,
        data={"key": "s1", "value": [value]},
    )


@pytest.mark.parametrize(
    ("readings", "is_still_true"),
    [
        ([(0, 31.0), (5 * HOUR, 32.0)], True),
        ([(0, 31.0)], True),
        ([(0, 31.0), (5 * HOUR, 20.0)], False),
        ([(0, 31.0), (3 * HOUR, 20.0), (4 * HOUR, 31.0)], False),
    ],
    ids=["still hot", "last heard of as hot", "cool again", "hot anew, not for long"],
)
def test_a_state_found_hours_late_is_reported_when_it_is_still_true(
    readings: list[tuple[int, float]], is_still_true: bool
) -> None:
    async def story() -> None:
        clock = ManualClock(0)
        channels = open_memory(clock)
        plan = compile_policy(TEXT, name="hot", ontology=ONTOLOGY, window_ms=5_000).plan

        def engine() -> PolicyEngine:
            return PolicyEngine(
                channels,
                clock,
                name="site",
                ontology=ONTOLOGY,
                pull=Pull({}),
                plans=[plan],
                lateness_ms=0,
                quiet_ms=0,
                commit_every_ms=0,
            )

        first = engine()
        events = [read(number, *one) for number, one in enumerate(readings)]
        await channels.channel("events").append(events[:1])
        await first.step(timeout_ms=0)
        clock.set_ms(5 * HOUR + 60_000)  # the node was away
        await channels.channel("events").append(events[1:])
        for again in (engine(), engine()):  # and dies once more on its way
            for _ in range(4):
                await again.step(timeout_ms=0)
        stored = [one.event for one in await channels.channel("detections").read_after(0)]
        (found,) = [one for one in stored if one.type == DETECTED]
        assert found.time == 2 * HOUR
        still = [Detection.from_event(one) for one in stored if one.type == STILL_LASTS]
        assert [one.id() for one in still] == [found.id] * is_still_true
        await channels.close()

    asyncio.run(story())


def test_a_state_that_was_detected_in_time_is_not_reported_again_after_a_crash() -> None:
    async def story() -> None:
        clock = ManualClock(0)
        channels = open_memory(clock)
        plan = compile_policy(TEXT, name="hot", ontology=ONTOLOGY, window_ms=5_000).plan
        for away_ms in (0, 5 * HOUR):  # the second one reads all of it again, later
            engine = PolicyEngine(
                channels,
                clock,
                name="site",
                ontology=ONTOLOGY,
                pull=Pull({}),
                plans=[plan],
                lateness_ms=0,
                quiet_ms=0,
                commit_every_ms=10**9,
            )
            if not away_ms:
                await channels.channel("events").append([read(0, 0, 31.0)])
                await engine.step(timeout_ms=0)
            clock.set_ms(clock.now_ms() + 2 * HOUR + 1_000 + away_ms)
            for _ in range(4):
                await engine.step(timeout_ms=0)
        stored = [one.event for one in await channels.channel("detections").read_after(0)]
        assert [one.type for one in stored].count(DETECTED) == 1
        assert STILL_LASTS not in [one.type for one in stored]
        await channels.close()

    asyncio.run(story())
