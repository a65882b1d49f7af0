"""The small parts that tie components to a node, each by itself. [EN-14]"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import AppendResult
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Event, make_event
from rapport.core.knowledge import Knowledge
from rapport.core.release import CARRIED, RELEASES, ReleasedBatch, ReleaseDone
from rapport.ensemble.device_readings import Reading, Receipt
from rapport.kernel.clock import ManualClock, SystemClock, settle
from rapport.node.ensemble_readings import CarriedReadings, LateReadingReplay
from rapport.node.ensemble_ties import (
    MOST_SUBJECTS,
    Feed,
    KnowledgeQueue,
    KnowledgeRecord,
    KnowledgeThrottle,
    record_of,
)
from rapport.policy.engine.stream_steps import late_event
from rapport.site.ensemble import (
    NOT_THERE,
    ComponentFilter,
    ContextPublication,
    FeedTie,
    SourceTie,
)


def said(component: str, version: int = 1, **values: Any) -> Knowledge:
    return Knowledge(component, "n", ("Car",), version, version, values)


def test_an_inbox_that_is_full_keeps_the_newest_of_each_component() -> None:
    async def scenario() -> None:
        inbox = KnowledgeQueue(most=10)
        for version in range(1, 12):
            inbox.put(said(f"c{version % 2}", version))
        await inbox.wait()
        assert [(one.component, one.version) for one in inbox.take_all()] == [
            ("c0", 10),
            ("c1", 11),
        ]
        assert inbox.skipped == 9
        for number in range(50):
            inbox.put(said(f"c{number}"))
            assert len(inbox) <= 10

    asyncio.run(scenario())


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab")), max_size=40), st.integers(0, 30)
)
def test_thinning_lets_one_of_a_component_pass_in_a_time_and_the_last_in_the_end(
    steps: list[tuple[int, str]], every_ms: int
) -> None:
    thinning, now_ms, version = KnowledgeThrottle(every_ms), 0.0, 0
    passed: list[tuple[float, Knowledge]] = []
    last: dict[str, int] = {}
    for wait_ms, component in steps:
        now_ms, version = now_ms + wait_ms, version + 1
        last[component] = version
        passed += [(now_ms, one) for one in thinning.take([said(component, version)], now_ms)]
    while (due_ms := thinning.next_due_ms()) is not None:
        passed += [(due_ms, one) for one in thinning.take([], due_ms)]
    for component, version in last.items():
        own = [(at, one.version) for at, one in passed if one.component == component]
        assert own[-1][1] == version
        assert own == sorted(set(own))
        times = [at for at, _ in own]
        assert all(b - a >= every_ms for a, b in itertools.pairwise(times))


def test_knowledge_that_no_channel_takes_keeps_the_rest_from_nothing() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        channels = open_memory(clock)
        raw: list[Event] = []

        async def append(_channel: str, events: Sequence[Event]) -> AppendResult:
            raw.extend(events)
            return AppendResult((), 0)

        tie = SourceTie(of=ComponentFilter(role="Car"), source="cars")
        record = KnowledgeRecord(channels, append, clock, source="s", readings=[tie])
        await record.step([said("a", x=1), said("bad\nname"), said("c" * 500), said("d", x=2)])
        kept = await channels.channel("knowledge").read_after(0)
        assert [stored.event.subject for stored in kept] == ["a", "d"]
        assert (record.recorded, record.refused) == (2, 2)
        assert [one.payload() for one in raw if one.subject == "d"] == [
            {"x": 2, "component": "d", "node": "n", "created_ms": 1}
        ]
        await channels.close()

    asyncio.run(scenario())


def test_what_cannot_be_written_waits_and_is_written_later() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        channels = open_memory(clock)
        is_up = False

        async def append(_channel: str, _events: Sequence[Event]) -> AppendResult:
            if not is_up:
                raise RuntimeError("the disk is full")
            return AppendResult((), 0)

        tie = SourceTie(of=ComponentFilter(), source="cars")
        record = KnowledgeRecord(channels, append, clock, source="s", readings=[tie])
        with pytest.raises(RuntimeError):
            await record.step([said("a")])
        is_up = True
        await record.step(record.inbox.take_all())
        assert (record.recorded, len(await channels.channel("knowledge").read_after(0))) == (1, 1)
        await channels.close()

    asyncio.run(scenario())


TOLD = ContextPublication(
    of=ComponentFilter(),
    entity="car/{id}",
    scope="place",
    values={"x": ("position", "x"), "name": ("name",)},
    valid_ms=500,
)


def test_knowledge_becomes_a_record_with_what_there_is_of_the_values() -> None:
    record = record_of(TOLD, said("c1", 7, position={"x": 3}, name=None))
    assert record is not None
    assert (str(record.entity), record.values) == ("car/c1", {"x": 3})
    assert (record.valid_from, record.valid_until, record.provider) == (7, 507, "c1")
    assert record_of(TOLD, said("c1", 7, position=4)) is None


def a_feed(**options: Any) -> Feed:
    tie = {"channel": "events", "type": "t", "subject": "car/*", "component": "hall", "field": "f"}
    tie |= {"value": (), "by_subject": False, **options}
    return Feed(FeedTie(**tie), open_memory(ManualClock()), _assign, _note, number=0)


def _assign(_component: str, _values: object) -> None:
    """Nobody looks."""


def _note(_component: str, error: RapportError) -> None:
    raise error


def event(subject: str, data: Any, type: str = "t") -> Event:
    return make_event(source="s", id="1", type=type, time=1, subject=subject, data=data)


def test_a_feed_takes_what_it_is_about_and_the_newest_value_counts() -> None:
    feed = a_feed(value=("at", "x"))
    assert feed.is_meant(event("car/1", {}))
    assert not feed.is_meant(event("bus/1", {}))
    assert not feed.is_meant(event("car/1", {}, type="u"))
    events = [event("car/1", {"at": {"x": 1}}), event("car/2", {"at": {"x": 2}})]
    assert feed.after(NOT_THERE, events) == 2
    assert feed.after(5, [event("car/1", {"elsewhere": 1})]) == 5
    broken = msgspec.structs.replace(events[0], data=b"{")
    assert feed.after(5, [broken]) == 5


def test_a_feed_by_subject_is_bounded() -> None:
    feed = a_feed(by_subject=True)
    many = [event(f"car/{number}", number) for number in range(MOST_SUBJECTS + 10)]
    fed = feed.after(NOT_THERE, many)
    assert len(fed) == MOST_SUBJECTS
    assert "car/9" not in fed
    assert fed["car/10"] == 10
    assert feed.after({"car/1": 1}, [event("car/2", 2)]) == {"car/1": 1, "car/2": 2}


class Carrying:
    """What carries readings into channels in memory, and what it confirmed."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.channels = open_memory(SystemClock())
        self.confirmed: dict[str, Receipt] = {}
        self._refuses = refuses
        tie = SourceTie(of=ComponentFilter(component="r*"), source="badges")
        self.readings = CarriedReadings(
            [tie], self.channels, self.append, collector="hall", confirm=self.confirmed.update
        )

    async def append(self, channel: str, events: Sequence[Event]) -> AppendResult:
        if self._refuses and any(b"bad" in one.data for one in events):
            raise InvalidInput("no", code="signature.missing")
        return await self.channels.channel(channel).append(events)

    async def raw(self) -> list[Event]:
        return [one.event for one in await self.channels.channel("raw.badges").read_after(0)]


def told(*readings: Reading, version: int = 1, to: str = "", component: str = "r1") -> Knowledge:
    values = {"to": to, "life": "l", "readings": msgspec.to_builtins(readings)}
    return Knowledge(component, "n", ("Carried",), version, version, values)


def test_readings_are_published_once_whatever_is_told_again() -> None:
    async def scenario() -> None:
        carrying = Carrying()
        one, two = Reading(1, 10, '{"a":1}'), Reading(2, 20, '{"a":2}')
        for knowledge in (told(one), told(one, two, version=2), told(one, two, version=3)):
            await carrying.readings.take(knowledge)
        assert [(event.time, event.payload()) for event in await carrying.raw()] == [
            (10, {"a": 1}),
            (20, {"a": 2}),
        ]
        assert {event.headers[CARRIED] for event in await carrying.raw()} == {"r1"}
        assert carrying.confirmed == {"r1": Receipt("l", 2)}

    asyncio.run(scenario())


def test_readings_of_others_for_others_or_without_sense_are_left_alone() -> None:
    async def scenario() -> None:
        carrying = Carrying()
        one = Reading(1, 10, "{}")
        await carrying.readings.take(told(one, to="cellar"))
        await carrying.readings.take(told(one, component="x1"))
        broken = Knowledge("r1", "n", ("Carried",), 1, 1, {"readings": 7})
        await carrying.readings.take(broken)
        assert await carrying.raw() == []
        assert (carrying.confirmed, carrying.readings.counts.not_read) == ({}, 1)
        await carrying.readings.take(told(one, to="hall"))
        assert len(await carrying.raw()) == 1

    asyncio.run(scenario())


def test_a_crash_between_the_readings_and_the_receipt_doubles_nothing() -> None:
    async def scenario() -> None:
        carrying, readings = Carrying(), [Reading(1, 1, "1"), Reading(2, 2, "2")]
        apply, carrying.channels.apply = carrying.channels.apply, crash  # type: ignore[method-assign]
        with pytest.raises(OSError, match="the power"):
            await carrying.readings.take(told(*readings))
        assert carrying.confirmed == {}
        carrying.channels.apply = apply  # type: ignore[method-assign]
        await carrying.readings.take(told(*readings, Reading(3, 3, "3")))
        assert [event.payload() for event in await carrying.raw()] == [1, 2, 3]
        assert carrying.readings.counts.repeated == 2
        assert carrying.confirmed == {"r1": Receipt("l", 3)}

    asyncio.run(scenario())


async def crash(_changes: object) -> None:
    raise OSError("the power went")


def test_a_reading_that_the_channel_refuses_is_buried_and_stops_no_other() -> None:
    async def scenario() -> None:
        carrying = Carrying(refuses=True)
        readings = [Reading(1, 1, '"ok"'), Reading(2, 2, '"bad"'), Reading(3, 3, "no JSON")]
        await carrying.readings.take(told(*readings))
        assert [event.payload() for event in await carrying.raw()] == ["ok", "no JSON"]
        dead = await carrying.channels.channel("dead_letters").read_after(0)
        assert len(dead) == 1
        assert carrying.confirmed == {"r1": Receipt("l", 3)}
        assert carrying.readings.counts.refused == 1

    asyncio.run(scenario())


RAW = {"rawchannel": "raw.badges", "rawposition": "7"}


def test_only_late_readings_that_were_carried_lead_to_a_second_look() -> None:
    async def scenario() -> None:
        channels = open_memory(SystemClock())
        readings = [
            make_event(
                source=source,
                id=id,
                type="person.position",
                time=time,
                headers=RAW if id == "plain" else {CARRIED: "r1", **RAW},
            )
            for source, id, time in (
                ("badges", "c1", 50),
                ("badges", "plain", 60),
                ("badges", "c2", 40),
                ("forged", "c3", 30),
            )
        ]
        await channels.channel("events").append(readings)
        late = [late_event("s", (one.time, one.id)) for one in readings]
        await channels.channel("detections").append(late)
        look = LateReadingReplay(channels, SystemClock(), {"badges"})
        batch = await channels.channel("detections").read_after(0)
        await look.look(batch)
        await look.look(batch)  # as after a crash
        batch_done, asked = await channels.channel(RELEASES).read_after(0)
        one: ReleasedBatch = batch_done.event.payload_as(ReleasedBatch)
        assert (one.channel, one.released, one.first_ms) == ("raw.badges", [7], 40)
        done: ReleaseDone = asked.event.payload_as(ReleaseDone)
        assert (done.first_ms, done.last_ms, done.through) == (40, 50, 3)
        assert (done.streams, done.released) == (["person.position"], 2)
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("data", [b"1" + b"0" * 30, b'{"x": [' + b"9" * 30 + b"]}"])
def test_a_value_that_cannot_be_kept_is_a_fault_and_does_not_stop_its_feed(data: bytes) -> None:
    """Else the feed would read the same event again and again, and tell nothing that follows."""

    async def scenario() -> None:
        channels, given = open_memory(ManualClock()), list[object]()
        faults: list[str] = []
        tie = FeedTie(
            channel="events",
            type="t",
            subject="car/*",
            component="hall",
            field="f",
            value=(),
            by_subject=False,
        )
        feed = Feed(
            tie,
            channels,
            lambda _component, values: given.append(values["f"]),
            lambda _component, error: faults.append(error.code),
            number=0,
        )
        running = asyncio.create_task(feed.run())
        await settle()
        huge = msgspec.structs.replace(event("car/1", 0), data=data)
        await channels.channel("events").append([huge])
        await settle()
        then = msgspec.structs.replace(event("car/1", 7), id="2")
        await channels.channel("events").append([then])
        await settle()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (given, faults) == ([7], ["ensemble.bad_value"])

    asyncio.run(scenario())
