"""A site file that one of several engines reads again is taken over by the others. [CO-17, CO-3]"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rapport.channel.backends.local import open_memory
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.cluster import SiteReloads, people_digest
from rapport.communication.cluster_leases import ShareSettings
from rapport.communication.config import CommunicationConfig, communication_from_site
from rapport.core.detection import Detection
from rapport.core.errors import SiteError, Unsupported
from rapport.core.message import MESSAGE, Identifier, Message
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.tasks import Tasks
from rapport.kernel.toml import TomlFile

BEFORE = """
[peers.ana]
addresses = ["inbox:"]
quiet = "22:00-07:00"
zone = "Europe/Vienna"
[collectives.crew]
members = ["ana"]
[actions."tell them"]
send_to = "collective:crew"
text = "look"
"""
AFTER = BEFORE.replace('members = ["ana"]', 'members = ["ana", "ben"]') + (
    '[peers.ben]\naddresses = ["inbox:"]\n'
)
CREW = Identifier("collective", "crew")


def declared(text: str) -> CommunicationConfig:
    file = TomlFile.parse(text.encode(), name="site.toml")
    people, problems = communication_from_site(file, Path())
    assert problems == []
    return people


def test_a_digest_tells_people_and_actions_apart_and_not_their_order() -> None:
    digests = {
        people_digest(declared(text))
        for text in (BEFORE, AFTER, BEFORE.replace("look", "listen"), BEFORE.replace("22:", "23:"))
    }
    assert len(digests) == 4
    head, _, tail = BEFORE.partition("[collectives.crew]")
    turned = f"[collectives.crew]{tail}{head}"
    assert people_digest(declared(turned)) == people_digest(declared(BEFORE))


class Engine:
    """The part of one engine, with the files that lie beside it."""

    def __init__(self, records: Any, clock: ManualClock, name: str) -> None:
        self.files, self.reads, self.fault = BEFORE, 0, None
        self.reloads = SiteReloads(records, clock, declared(BEFORE), instance=name, every_ms=1_000)
        self.reloads.follow = self.reload
        self.people = BEFORE

    async def reload(self) -> None:
        self.reads += 1
        if self.fault is not None:
            raise self.fault
        self.people = self.files
        self.reloads.has(declared(self.files))
        await self.reloads.announce()


async def two_engines() -> tuple[ManualClock, Any, Engine, Engine]:
    clock = ManualClock(1_000)
    records = open_memory(clock).records
    one, two = Engine(records, clock, "one"), Engine(records, clock, "two")
    for each in (one, two):
        await each.reloads.look()
    return clock, records, one, two


def test_the_other_engine_reads_its_files_once() -> None:
    async def scenario() -> None:
        _clock, _records, one, two = await two_engines()
        one.files = two.files = AFTER
        await one.reload()
        for _ in range(3):
            for each in (one, two):
                await each.reloads.look()
        assert (two.people, one.reads, two.reads) == (AFTER, 1, 1)
        one.files = two.files = BEFORE
        await two.reload()
        for each in (one, two):
            await each.reloads.look()
        assert (one.people, one.reads, two.reads) == (BEFORE, 2, 2)

    asyncio.run(scenario())


@pytest.mark.parametrize("why", ["old-files", "fault"])
def test_one_that_cannot_follow_says_so_once_and_follows_when_it_can(why: str) -> None:
    async def scenario() -> None:
        clock, _records, one, two = await two_engines()
        one.files = AFTER
        if why == "fault":
            two.files, two.fault = AFTER, SiteError([])
        with capture_logs() as logs:
            await one.reload()
            for _ in range(20):
                clock.set_ms(clock.now_ms() + 1_000)
                await two.reloads.look()
        told = [entry for entry in logs if entry.get("code") == "reload.differs"]
        assert len(told) == 1
        assert told[0]["by"] == "one"
        assert told[0]["hint"]
        assert two.people == BEFORE
        assert two.reads < 8, "further and further apart"
        two.files, two.fault = AFTER, None
        clock.set_ms(clock.now_ms() + 60_000)
        await two.reloads.look()
        assert two.people == AFTER

    asyncio.run(scenario())


def test_a_process_that_is_started_goes_by_its_own_files_and_tells_of_a_difference() -> None:
    async def scenario() -> None:
        clock, records, one, _two = await two_engines()
        one.files = AFTER
        await one.reload()
        late = Engine(records, clock, "late")
        with capture_logs() as logs:
            for _ in range(3):
                await late.reloads.look()
        assert [entry["code"] for entry in logs] == ["reload.differs"]
        assert (late.people, late.reads) == (BEFORE, 1), "it looks once whether they changed"

    asyncio.run(scenario())


def test_files_that_changed_while_a_process_started_are_read() -> None:
    async def scenario() -> None:
        clock, records, one, _two = await two_engines()
        late = Engine(records, clock, "late")
        one.files = late.files = AFTER
        await one.reload()
        await late.reloads.look()
        assert late.people == AFTER

    asyncio.run(scenario())


# --- whole processes ---


class Process:
    """One assembly, and what a node does when it reloads."""

    def __init__(self, channels: Any, clock: SystemClock) -> None:
        self.files = BEFORE
        self.assembly = Assembly(
            channels,
            channels.records,
            clock,
            declared(BEFORE),
            AssemblyOptions(
                phrases={"watch": ("tell them",)}, engines=ShareSettings(count=4, lease_ms=1_500)
            ),
        )
        self.assembly.follow_reloads(self.reload)
        self.tasks = Tasks(clock)
        for name, work in self.assembly.work().items():
            self.tasks.start(name, work)

    async def reload(self) -> None:
        people = declared(self.files)
        await self.assembly.take_over(people, people.actions, by="ops")
        await self.assembly.announce_reload()

    async def close(self) -> None:
        await self.tasks.stop()
        await self.assembly.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(15):
        while not await condition():
            await SystemClock().sleep(20)


@pytest.mark.slow
def test_whichever_engine_handles_a_message_reaches_the_people_of_the_new_file() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        channels = open_memory(clock)
        both = [Process(channels, clock) for _ in range(2)]
        try:
            engines = [process.assembly.engine for process in both]
            await until(lambda: _as_awaited(all(engine.held for engine in engines)))
            assert all(process.assembly.can_take_over for process in both)
            for process in both:
                process.files = AFTER
            await both[0].reload()
            taken = [process.assembly.directory for process in both]
            await until(lambda: _as_awaited(all(each.peer("ben") for each in taken)))
            sender = Identifier("component", "app")
            said = [
                Message(type="TASK", subtype="", sender=sender, receiver=CREW, content=f"{number}")
                for number in range(12)
            ]
            await both[0].assembly.arrivals.send(said)

            async def all_told() -> bool:
                lines = await channels.channel("log").read_after(0, limit=1_000)
                told = [
                    stored.event.payload()["message"]
                    for stored in lines
                    if stored.event.type == "rapport.delivery.handed"
                    and stored.event.payload()["peer"] == "ben"
                ]
                return len(told) == 12

            await until(all_told)
            log = await channels.channel("log").read_after(0, limit=1_000)
            changes = [
                (stored.event.subject, stored.event.payload()["change"])
                for stored in log
                if stored.event.type == "rapport.people.changed"
            ]
            assert sorted(changes) == [("collective:crew", "joined"), ("peer:ben", "added")]
        finally:
            for process in both:
                await process.close()

    asyncio.run(scenario())


async def _as_awaited(value: bool) -> bool:
    return value


@pytest.mark.slow
def test_what_is_done_about_a_phrase_changes_for_the_shares_that_work_and_for_later_ones() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        channels = open_memory(clock)
        both = [Process(channels, clock)]
        try:
            await until(lambda: _as_awaited(len(both[0].assembly.engine.held) == 5))
            both[0].files = BEFORE.replace("look", "listen")
            await both[0].reload()

            async def told(count: int) -> list[str]:
                found = Detection(policy="watch", time=count, bindings={}, causes=())
                await channels.channel("detections").append([found.to_event(source="policy")])
                texts: list[str] = []

                async def are_there() -> bool:
                    log = await channels.channel("log").read_after(0, limit=1_000)
                    events = [stored.event for stored in log]
                    texts[:] = [e.payload()["content"] for e in events if e.type == MESSAGE]
                    return len(texts) == count

                await until(are_there)
                return texts

            assert await told(1) == ["listen"]
            both.append(Process(channels, clock))
            both[0].files = both[1].files = AFTER.replace("look", "run")
            await both[0].reload()
            follower = both[1].assembly.directory
            await until(lambda: _as_awaited(follower.peer("ben") is not None))
            await both[0].close()
            assert await told(2) == ["listen", "run"]
        finally:
            for process in both[1:]:
                await process.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_new_medium_needs_a_restart_where_several_engines_work() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        process = Process(open_memory(clock), clock)
        process.files = BEFORE.replace('"inbox:"', '"ws:"')
        try:
            with pytest.raises(Unsupported) as refused:
                await process.reload()
            assert "restart" in refused.value.hint
            assert process.assembly.directory.peer("ana").addresses == ("inbox:",)
        finally:
            await process.close()

    asyncio.run(scenario())
