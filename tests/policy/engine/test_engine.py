"""The live engine: detections once, across restarts and kill -9; late, ahead, by the clock."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import (
    DETECTED,
    UNDECIDED,
    Detection,
    Undecided,
    detection_lines,
)
from rapport.core.errors import Corrupt, UnknownName
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock, SystemClock, settle
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.recordings.files import read_recorded
from rapport.site.site import load_site

CHECK = Path(__file__).parents[2] / "data" / "checks" / "small-policies"
SITE = load_site(CHECK)
NOW = 100_000
NAMES = ("and-not", "within", "mixed", "chain-not")


def engine(channels: Channels, clock: ManualClock, *names: str, **options: Any) -> PolicyEngine:
    return PolicyEngine(
        channels,
        clock,
        name="site",
        ontology=SITE.ontology,
        pull=SITE.tables,
        plans=[SITE.policies[name].plan for name in names or NAMES],
        lateness_ms=options.pop("lateness_ms", 2_000),
        **options,
    )


def position(time_ms: int, id: str, person: str, x: float, y: float) -> Event:
    return make_event(
        source="positions",
        id=id,
        type="person.position",
        subject=f"person/{person}",
        time=time_ms,
        data={"key": person, "value": [x, y]},
    )


def recorded(name: str = "events_shuffled.csv") -> list[Event]:
    source = SITE.ontology.sources["positions"]
    [rows] = read_recorded(CHECK / name, source, SITE.ontology)
    return [
        position(
            row["time"], row["id"], row["key"], row["person.position.x"], row["person.position.y"]
        )
        for row in rows.to_pylist()
    ]


def expected(*names: str) -> bytes:
    lines = [(CHECK / f"{name}.expected.jsonl").read_bytes().splitlines() for name in names]
    return b"\n".join(sorted(line for part in lines for line in part))


async def appended(channels: Channels, channel: str, type: str) -> list[Event]:
    stored = await channels.channel(channel).read_after(0, limit=100_000)
    return [item.event for item in stored if item.event.type == type]


async def detections(channels: Channels) -> bytes:
    found = [
        Detection.from_event(event) for event in await appended(channels, "detections", DETECTED)
    ]
    return b"\n".join(sorted(detection_lines(found).splitlines()))


async def drain(running: PolicyEngine) -> None:
    while await running.step(timeout_ms=0):
        pass


def scenario(test: Callable[[Channels, ManualClock], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        clock = ManualClock(NOW)
        channels = open_memory(clock)
        await test(channels, clock)
        await channels.close()

    asyncio.run(run())


def test_the_engine_finds_what_replay_finds() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, *SITE.policies, batch=17)
        await channels.channel("events").append(recorded())
        await drain(running)
        clock.set_ms(NOW + 60_000)
        await drain(running)
        assert await detections(channels) == expected(*SITE.policies)
        assert running.counts.read == 200
        assert running.counts.late == 0

    scenario(test)


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 10_000_000])
def test_restarting_anywhere_gives_each_detection_once(every: int) -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        events = recorded()
        clock.set_ms(0)
        for first in range(0, 200, 20):
            latest = max(event.time for event in events[: first + 20])
            clock.set_ms(latest)
            await channels.channel("events").append(events[first : first + 20])
            # `every` = 0 commits each batch; the other one never, so all is read again each time.
            running = engine(channels, clock, batch=7, commit_every_ms=every)
            await drain(running)
        last = engine(channels, clock, commit_every_ms=every)
        await drain(last)
        clock.set_ms(NOW + 60_000)
        await drain(last)
        assert await detections(channels) == expected(*NAMES)
        found = await appended(channels, "detections", DETECTED)
        assert len({event.id for event in found}) == len(found)

    scenario(test)


def test_the_clock_decides_absence_when_no_event_comes() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "and-not", lateness_ms=500)
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        await drain(running)
        clock.set_ms(NOW + 5_499)
        await drain(running)
        assert await appended(channels, "detections", DETECTED) == []
        clock.set_ms(NOW + 5_500)
        await drain(running)
        [found] = await appended(channels, "detections", DETECTED)
        assert found.time == NOW + 5_000
        moved = await appended(channels, "detections", "rapport.policy.time")
        assert moved[-1].payload() == {"time": NOW + 5_500, "after": 1}

    scenario(test)


def test_events_move_time_on_themselves_while_they_flow() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "or", lateness_ms=0, quiet_ms=100)
        for number in range(20):
            # A transport that takes a second: by the clock every one of these would be late.
            stamp = NOW - 1_000 + number * 50
            await channels.channel("events").append([position(stamp, f"e{number}", "2", 5, 5)])
            await drain(running)
            clock.set_ms(NOW + (number + 1) * 50)
            await drain(running)
        assert running.counts.moved_by_clock == 0
        assert running.counts.late == 0
        assert running.counts.detections == 19
        clock.set_ms(NOW + 20 * 50 + 100)
        await drain(running)
        assert running.counts.detections == 20

    scenario(test)


def test_time_stands_while_readings_are_still_on_their_way() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        idle = False
        running = engine(channels, clock, "and-not", upstream_is_idle=lambda: idle)
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        await drain(running)
        clock.set_ms(NOW + 60_000)
        await drain(running)
        assert running.counts.moved_by_clock == 0
        await channels.channel("events").append([position(NOW + 1, "b", "3", 5, 5)])
        await drain(running)
        idle = True
        await drain(running)
        assert await appended(channels, "detections", DETECTED) == []
        assert running.counts.late == 0

    scenario(test)


def test_time_stands_for_a_reading_that_arrives_right_after_an_empty_look() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        idle = False
        running = engine(channels, clock, "and-not", upstream_is_idle=lambda: idle)
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        await drain(running)
        clock.set_ms(NOW + 60_000)
        subscription = await running._subscribed()
        look = subscription.next_bare_batch

        async def look_too_early(**options: Any) -> list[Any]:
            nonlocal idle
            found = await look(**options)
            await channels.channel("events").append([position(NOW + 1, "b", "3", 5, 5)])
            idle = True
            return found

        subscription.next_bare_batch = look_too_early  # type: ignore[method-assign]
        assert await running.step(timeout_ms=0) == 0
        subscription.next_bare_batch = look  # type: ignore[method-assign]
        await drain(running)
        assert (running.counts.read, running.counts.late) == (2, 0)

    scenario(test)


def test_a_late_reading_is_reported_and_left_out() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "and-not", lateness_ms=0)
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        await drain(running)
        clock.set_ms(NOW + 5_000)
        await drain(running)
        await channels.channel("events").append([position(NOW + 1, "b", "3", 5, 5)])
        await drain(running)
        [late] = await appended(channels, "detections", "rapport.policy.late")
        assert late.payload() == {"id": "b", "time": NOW + 1}
        assert late.causes() == ("b",)
        assert running.counts.late == 1
        assert len(await appended(channels, "detections", DETECTED)) == 1

    scenario(test)


def test_what_the_clock_decided_stays_decided_after_a_crash() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        options = {"lateness_ms": 0, "commit_every_ms": 10_000_000}
        before = engine(channels, clock, "and-not", **options)
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        await drain(before)
        clock.set_ms(NOW + 5_000)
        await drain(before)
        # An employee's reading comes too late; then the process dies without any commit.
        await channels.channel("events").append([position(NOW + 1, "b", "3", 5, 5)])
        await drain(before)
        log = await channels.channel("detections").read_after(0)
        after = engine(channels, clock, "and-not", **options)
        await drain(after)
        assert await channels.channel("detections").read_after(0) == log
        assert after.counts.late == 1

    scenario(test)


def test_a_reading_far_ahead_of_the_clock_is_set_aside_and_moves_nothing() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "and-not")
        await channels.channel("events").append(
            [
                position(NOW + 60_001, "ahead", "2", 5, 5),
                position(NOW, "a", "2", 5, 5),
                position(NOW + 60_000, "b", "2", 50, 50),
            ]
        )
        await drain(running)
        [aside] = await appended(channels, "quarantine", "rapport.policy.quarantined")
        assert aside.payload()["reason"] == "policy.ahead_of_clock"
        assert aside.payload()["event"]["id"] == "ahead"
        assert running.counts.quarantined == 1
        assert running.counts.late == 0

    scenario(test)


def test_an_event_that_is_no_reading_is_set_aside_with_the_reason() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "within")
        bad = Event(
            source="s", id="bad", type="person.position", subject="", time=NOW, data=b"\xff{"
        )
        other = make_event(source="s", id="x", type="else", time=NOW)
        await channels.channel("events").append([bad, other, position(NOW, "a", "2", 5, 5)])
        await drain(running)
        [aside] = await appended(channels, "quarantine", "rapport.policy.quarantined")
        assert aside.payload()["reason"] == "reading.bad_data"
        assert running.counts.read == 3

    scenario(test)


def test_policies_are_deployed_and_stopped_while_events_flow() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "or", lateness_ms=0, quiet_ms=0)
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        clock.set_ms(NOW + 1)
        await drain(running)
        running.withdraw("or")
        with pytest.raises(UnknownName):
            running.withdraw("or")
        running.deploy(SITE.policies["within"].plan)
        running.deploy(SITE.policies["within"].plan)
        await channels.channel("events").append(
            [position(NOW + 1, "b", "2", 5, 5), position(NOW + 2, "c", "3", 5, 5)]
        )
        clock.set_ms(NOW + 1_000)
        await drain(running)
        found = await appended(channels, "detections", DETECTED)
        assert [event.subject for event in found] == ["policy/or", "policy/within"]
        assert list(running.policies()) == ["within"]

    scenario(test)


def test_a_changed_policy_begins_anew_and_the_others_go_on() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        first = engine(channels, clock, "and-not")
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        await drain(first)
        await first.commit()
        second = engine(channels, clock, "and-not", "or-of-nots")
        clock.set_ms(NOW + 60_000)
        await drain(second)
        found = await appended(channels, "detections", DETECTED)
        assert [event.subject for event in found] == ["policy/and-not", "policy/or-of-nots"]

    scenario(test)


def test_a_broken_state_is_reported_as_corrupt() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        place = await channels.subscribe("events", "policy")
        await place.commit(1, b"\xc1garbage")
        with pytest.raises(Corrupt):
            await engine(channels, clock).step(timeout_ms=0)

    scenario(test)


def test_run_works_until_it_is_cancelled() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "or", lateness_ms=0)
        task = asyncio.create_task(running.run())
        await channels.channel("events").append([position(NOW, "a", "2", 5, 5)])
        for _ in range(50):
            await clock.advance(100)
            if running.counts.detections:
                break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert running.counts.detections == 1

    scenario(test)


@pytest.mark.parametrize("asked", [False, True])
def test_a_change_that_fails_while_a_batch_is_awaited_loses_nothing(asked: bool) -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        events = recorded()
        running = engine(channels, clock, *SITE.policies, commit_every_ms=10_000_000)
        await running.commit()
        await channels.channel("events").append(events[:100])
        await drain(running)
        awaited = asyncio.create_task(running.step(timeout_ms=1_000))
        await settle()
        async with running.turn:
            # What a change does that fails: the engine goes back to the commit before all events.
            running.return_to_commit()
            if asked:
                assert (await running.next_position()).after == 100
        await channels.channel("events").append(events[100:])
        await awaited
        await drain(running)
        clock.set_ms(NOW + 60_000)
        await drain(running)
        assert await detections(channels) == expected(*SITE.policies)
        assert running.counts.late == 0

    scenario(test)


CHILD = """
import asyncio, sys
from pathlib import Path
from rapport.channel.backends.local import open_embedded
from rapport.kernel.clock import SystemClock
from rapport.policy.engine.engine import PolicyEngine
from rapport.site.site import load_site

async def main(directory, check):
    site, clock = load_site(Path(check)), SystemClock()
    engine = PolicyEngine(
        open_embedded(Path(directory), clock), clock, name="site", ontology=site.ontology,
        pull=site.tables, plans=[policy.plan for policy in site.policies.values()],
        lateness_ms=2_000, batch=3, commit_every_ms=5,
        upstream_is_idle=lambda: False,
    )
    while True:
        taken = await engine.step(timeout_ms=20)
        print(engine.counts.read if taken else "idle", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def run_child(directory: Path, until: Callable[[str], bool]) -> None:
    """Runs the engine in a process of its own and kills it when a line of its output says so."""
    command: Sequence[str] = (sys.executable, "-c", CHILD, str(directory), str(CHECK))
    deadline = time.monotonic() + 60
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if until(line.strip()) or time.monotonic() > deadline:
                break
        os.kill(child.pid, signal.SIGKILL)


@pytest.mark.slow
def test_kill_nine_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    async def prepare() -> None:
        channels = open_embedded(tmp_path, SystemClock())
        await channels.channel("events").append(recorded())
        await channels.close()

    async def check() -> None:
        channels = open_embedded(tmp_path, SystemClock())
        last = engine(channels, SystemClock(), *SITE.policies, quiet_ms=0)  # type: ignore[arg-type]
        await drain(last)
        assert await detections(channels) == expected(*SITE.policies)
        found = await appended(channels, "detections", DETECTED)
        assert len({event.id for event in found}) == len(found)
        await channels.close()

    asyncio.run(prepare())
    for steps in (1, 6, 11):
        left = iter(range(steps, -1, -1))
        run_child(tmp_path, lambda line, left=left: line == "idle" or next(left) == 0)  # type: ignore[misc]
    asyncio.run(check())


def watched_engine(channels: Channels, clock: ManualClock) -> PolicyEngine:
    """The engine of a site whose positions promise to come every second."""
    sources = {
        name: msgspec.structs.replace(source, period_ms=1_000)
        for name, source in SITE.ontology.sources.items()
    }
    return PolicyEngine(
        channels,
        clock,
        name="site",
        ontology=msgspec.structs.replace(SITE.ontology, sources=sources),
        pull=SITE.tables,
        plans=[SITE.policies["and-not"].plan],
        lateness_ms=500,
    )


@pytest.mark.parametrize("restarted", [False, True])
def test_absence_that_a_silent_source_leaves_open_is_appended_as_undecided(restarted: bool) -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        plain = engine(channels, clock, "and-not", lateness_ms=500)
        watched = watched_engine(channels, clock)
        await channels.channel("events").append(recorded("events.csv"))
        await drain(watched)
        if restarted:
            await watched.commit()
            watched = watched_engine(channels, clock)
        clock.set_ms(NOW + 60_000)
        await drain(watched)
        unsure = await appended(channels, "detections", UNDECIDED)
        if not restarted:
            assert watched.counts.undecided == len(unsure) > 0
        certain = await appended(channels, "detections", DETECTED)
        assert len(certain) + len(unsure) == expected("and-not").count(b"\n") + 1
        assert {Undecided.from_event(event).silent for event in unsure} == {("positions",)}
        assert plain.counts.undecided == 0

    scenario(test)
