"""Late readings are never silent: a source with many of them degrades the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
from structlog.testing import capture_logs

from rapport.channel.backends.local import open_memory
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.kernel.telemetry import DegradedConditions
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.metrics import UNDECLARED, LateShare, LateShares
from rapport.policy.runner.local import LateCount
from rapport.site.site import load_site

CHECK = Path(__file__).parents[2] / "data" / "checks" / "small-policies"
SITE = load_site(CHECK)
NOW = 1_800_000_000_000
MINUTE, HOUR = 60_000, 3_600_000
MINUTE_NS = MINUTE * 1_000_000


def position(time_ms: int, id: str) -> Event:
    return make_event(
        source="positions",
        id=id,
        type="person.position",
        subject="person/2",
        time=time_ms,
        data={"key": "2", "value": [5.0, 5.0]},
    )


def test_a_late_share_above_one_percent_degrades_the_node_until_it_is_below_again() -> None:
    async def run() -> None:
        clock = ManualClock(NOW)
        channels, conditions = open_memory(clock), DegradedConditions(clock)
        engine = PolicyEngine(
            channels,
            clock,
            name="site",
            ontology=SITE.ontology,
            pull=SITE.tables,
            plans=[SITE.policies["or"].plan],
            lateness_ms=2_000,
            conditions=conditions,
        )

        async def come(*events: Event) -> None:
            clock.set_ms(clock.now_ms() + 1_000)
            await channels.channel("events").append(list(events))
            while await engine.step(timeout_ms=0):
                pass

        for first in range(0, 200, 100):
            times = range(first, first + 100)
            await come(*(position(clock.now_ms(), f"e{number}") for number in times))
        with capture_logs() as lines:
            await come(position(clock.now_ms() - HOUR, "late1"))
            await come(position(clock.now_ms() - HOUR, "late2"))
            assert conditions.current() == []  # 2 of 202
            await come(position(clock.now_ms() - 3 * HOUR, "late3"))
            [condition] = conditions.current()
            assert condition.name == "policy.late.positions"
            assert condition.reason == (
                "3 of 203 readings of positions in the last 10 min came late (1.5 %), up to 3 h "
                "behind: policies do not use them"
            )
            await come(position(clock.now_ms() - HOUR, "late4"))
            assert conditions.current()[0].since == condition.since
            assert engine.late() == {"positions": 4}
            clock.set_ms(clock.now_ms() + 11 * MINUTE)
            await come()
            assert conditions.current() == []
        warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
        assert warnings == ["degraded", "no longer degraded"]
        await channels.close()

    asyncio.run(run())


def batch(*sources: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"source": list(sources)})


def test_each_source_has_its_share_and_what_is_older_than_the_window_is_forgotten() -> None:
    shares, declared = LateShares(), {"a", "b"}
    shares.add(batch("a", "a", "b"), {"a": LateCount(1, 500)}, declared, 0)
    shares.add(batch("a"), {"a": LateCount(1, 900)}, declared, 5 * MINUTE_NS)
    assert shares.recent(9 * MINUTE_NS) == {
        "a": LateShare(3, 2, 900),
        "b": LateShare(1, 0, 0),
    }
    assert shares.recent(10 * MINUTE_NS) == {"a": LateShare(1, 1, 900)}
    assert shares.recent(15 * MINUTE_NS) == {}
    assert shares.late == {"a": 2}


def test_names_of_sources_that_nobody_declared_take_no_room() -> None:
    shares = LateShares()
    for number in range(100):
        name = f"x{number}"
        shares.add(batch(name), {name: LateCount(1, 10)}, (), 0)
    assert shares.recent(0) == {UNDECLARED: LateShare(100, 100, 10)}
    assert shares.recent(0)[UNDECLARED].reason(UNDECLARED).startswith("100 of 100 readings")
