"""Two processes put together from one site: doors are open in both, media may be added to both.
[CO-17]
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.adapter_config import adapter_names
from rapport.communication.adapters.base import Sent, adapter
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.cluster_leases import ShareSettings, share_of
from rapport.communication.config import communication_from_site
from rapport.communication.delivery_state import RetryPolicy
from rapport.core.errors import DuplicateName, Unsupported
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import Tasks
from rapport.kernel.toml import TomlFile

SITE = """
[peers.ana]
addresses = ["inbox:"]
[inputs.gateway]
adapter = "webhook"
trusted = true
secret = "file:secret"
[inputs.drop]
adapter = "folder"
directory = "drop"
interval = "1 s"
"""
pytestmark = pytest.mark.slow
SETTINGS = ShareSettings(count=4, lease_ms=1_500)
JSON = {"content-type": "application/json", "idempotency-key": "k1"}


class Site:
    """Channels and records in common, and the processes over them."""

    def __init__(self, directory, text=SITE):
        (directory / "drop").mkdir(exist_ok=True)
        (directory / "secret").write_text("a-secret-of-some-length")
        self.directory, self.text = directory, text
        self.clock = SystemClock()
        self.channels = open_memory(self.clock)

    def declared(self, plugins, names=()):
        file = TomlFile.parse(self.text.encode(), name="site.toml")
        known = names or adapter_names(plugins)
        declared, problems = communication_from_site(file, self.directory, adapters=known)
        assert problems == []
        return declared

    @asynccontextmanager
    async def process(self, plugins=None):
        plugins = plugins or Plugins()
        assembly = Assembly(
            self.channels,
            self.channels.records,
            self.clock,
            self.declared(plugins),
            AssemblyOptions(
                phrases={},
                plugins=plugins,
                site=self.directory,
                engines=SETTINGS,
                acts=False,
                retry=RetryPolicy(first_ms=300, longest_ms=300),
            ),
        )
        tasks = Tasks(self.clock)
        for name, work in assembly.work().items():
            tasks.start(name, work)
        try:
            yield assembly
        finally:
            await tasks.stop()
            await assembly.close()

    async def until(self, condition):
        async with asyncio.timeout(15):
            while not condition():
                await self.clock.sleep(20)

    async def events(self, name):
        return [stored.event for stored in await self.channels.channel(name).read_after(0)]


def inputs_of(assembly):
    return [status.name for status in assembly.inputs.status()]


def test_webhooks_come_in_at_every_process_and_folders_are_watched_by_one(tmp_path):
    async def scenario():
        site = Site(tmp_path)
        async with site.process() as one, site.process() as two:
            both = (one, two)
            await site.until(lambda: all("gateway" in inputs_of(each) for each in both))
            await site.until(lambda: sum("drop" in inputs_of(each) for each in both) == 1)
            for number, process in enumerate(both):
                said = {"type": "TASK", "subtype": "X", "sender": "peer:ana", "content": "here"}
                key = JSON | {"idempotency-key": f"k{number}"}
                door = process.web_inputs["gateway"]
                (arrived,) = await door.take(key, json.dumps(said).encode())
                assert arrived.accepted
                # The same request again, at the other door, is the same message.
                (again,) = (
                    await both[1 - number]
                    .web_inputs["gateway"]
                    .take(key, json.dumps(said).encode())
                )
                assert again.id == arrived.id
            events = await site.events("input")
            assert [event.headers["adapter"] for event in events] == ["gateway"] * 2

            async def handled():
                return [event for event in await site.events("log") if event.source != "gateway"]

            async with asyncio.timeout(10):
                while len(await handled()) < 2:
                    await site.clock.sleep(20)
        await site.channels.close()

    asyncio.run(scenario())


PEOPLE = {f"p{number}": "pager" for number in range(8)}
PAGED = "".join(f'[peers.{name}]\naddresses = ["{to}:{name}"]\n' for name, to in PEOPLE.items())


def pager_of(process):
    """A class as an application gives it."""

    @adapter("pager")
    class Pager:
        sent: ClassVar[list[str]] = []

        async def send(self, delivery):
            self.sent.append(f"{delivery.message}>{delivery.peer}")
            return Sent()

        async def close(self):
            self.sent.append("closed")

    Pager.__name__ = f"Pager{process}"
    return Pager


def plugged(kind):
    """The plug-ins of a process that knows the kind."""
    plugins = Plugins()
    plugins.add("adapters", "pager", lambda _settings, _link_for: kind())
    return plugins


class Paging(Site):
    """A site whose people are reached by a medium that is added at run time."""

    def __init__(self, directory):
        super().__init__(directory, PAGED)

    def declared(self, plugins):
        names = (*adapter_names(plugins), "pager")
        said = super().declared(plugins, names)
        return msgspec.structs.replace(said, wanted=(), registered_later=("pager",))

    async def both_work(self, one, two):
        await self.until(lambda: sorted((len(one.engine.held), len(two.engine.held))) == [2, 2])

    async def send_all(self, mark):
        """One message to each; gives what is to be sent."""
        app = Identifier("component", "app")
        events = []
        for name in PEOPLE:
            to = Identifier("peer", name)
            said = Message(type="T", subtype="X", sender=app, id=f"{mark}.{name}", receiver=to)
            events.append(said.to_event(source="application", time=self.clock.now_ms()))
        await self.channels.channel("input").append(events)
        return {f"{mark}.{name}>{name}" for name in PEOPLE}


def test_a_medium_registered_in_one_process_is_built_by_all_that_know_its_kind(tmp_path):
    async def scenario():
        site = Paging(tmp_path)
        first, second = pager_of("one"), pager_of("two")
        async with site.process(plugged(first)) as one, site.process(plugged(second)) as two:
            await site.both_work(one, two)
            assert await one.outputs.register(first) == "pager"
            await site.until(lambda: "pager" in two.outputs.names)
            expected = await site.send_all("a")
            await site.until(lambda: len(first.sent) + len(second.sent) == len(expected))
            assert first.sent
            assert second.sent
            assert {*first.sent, *second.sent} == expected
            with pytest.raises(DuplicateName):
                await two.outputs.register(second)

            # One that comes later has it from the start.
            third = pager_of("three")
            async with site.process(plugged(third)) as late:
                assert "pager" in late.outputs.names

            assert await two.outputs.remove("pager")
            await site.until(lambda: "closed" in first.sent and "closed" in second.sent)
            assert "pager" not in one.outputs.names
            assert not await two.outputs.remove("pager")
        await site.channels.close()

    asyncio.run(scenario())


def test_a_class_given_to_one_process_runs_there_and_the_others_say_so(tmp_path):
    async def scenario():
        site = Paging(tmp_path)
        first, second = pager_of("one"), pager_of("two")
        async with site.process() as one, site.process() as two:
            await site.both_work(one, two)
            await one.outputs.register(first)
            await site.until(lambda: "pager" in two.outputs.names)
            expected = await site.send_all("a")
            here = {
                f"a.{name}>{name}"
                for name in PEOPLE
                if share_of(f"peer:{name}", 4) in one.engine.held
            }
            assert set() < here < expected
            await site.until(lambda: len(first.sent) == len(here))

            def reasons(events):
                return [e for e in events if b"adapter.elsewhere" in e.data]

            async with asyncio.timeout(10):
                while len(reasons(await site.events("log"))) < len(expected - here):
                    await site.clock.sleep(20)
            said = reasons(await site.events("log"))[0].data.decode()
            assert "register it in every process" in said

            # Given there, too, what waits goes out.
            await two.outputs.register(second)
            await site.until(lambda: set(second.sent) == expected - here)
            assert set(first.sent) == here
        await site.channels.close()

    asyncio.run(scenario())


def test_a_medium_of_the_site_is_not_removed_at_run_time(tmp_path):
    async def scenario():
        site = Site(tmp_path)
        async with site.process() as one:
            with pytest.raises(Unsupported):
                await one.outputs.remove("inbox")
            assert "inbox" in one.outputs.names
        await site.channels.close()

    asyncio.run(scenario())
