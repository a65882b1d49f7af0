"""The room put together from a site file, as a node does it."""

from __future__ import annotations

import asyncio

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.adapter_config import adapter_names
from rapport.communication.adapters.base import Sent, adapter
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.config import communication_from_site
from rapport.communication.ledger import Ledger
from rapport.communication.links import PublicAddress
from rapport.core.detection import Detection
from rapport.kernel.clock import ManualClock
from rapport.kernel.plugins import Plugins
from rapport.kernel.toml import TomlFile

SITE = """
[peers.ana]
addresses = ["mail:ana@example.org", "pager:12"]
delivery = "preferred"
fallback = true
[actions."raise alarm"]
send_to = "peer:ana"
text = "Guest {A}"
[adapters.mail]
host = "mail.invalid"
[adapters.pager]
speed = 7
"""
MAIL_TABLE = '[adapters.mail]\nhost = "mail.invalid"\n'
PHRASES = {"p": ("raise alarm",)}


class Pager:
    """An adapter as a plug-in author writes it."""

    name = "pager"

    def __init__(self, settings, link_for):
        self.settings, self.link_for = settings, link_for
        self.sent = []

    async def send(self, delivery):
        self.sent.append(delivery.target)
        return Sent()

    async def close(self):
        return


def declare(text, tmp_path, plugins):
    file = TomlFile.parse(text.encode(), name="site.toml")
    declared, problems = communication_from_site(file, tmp_path, adapters=adapter_names(plugins))
    assert problems == []
    return declared


async def settle(assembly):
    busy = True
    while busy:
        busy = bool(await assembly.engine.settle())
        for dispatch in assembly.dispatches:
            busy = bool(await dispatch.settle()) or busy


async def opened(assembly):
    await assembly.engine.open()
    for dispatch in assembly.dispatches:
        await dispatch.open()
    return assembly


def test_adapters_of_plug_ins_get_their_table_and_serve_their_addresses(tmp_path):
    async def scenario():
        plugins = Plugins()
        plugins.add("adapters", "pager", Pager)
        clock = ManualClock(1_000)
        channels = open_memory(clock)
        text = SITE.replace('"mail:ana@example.org", ', "")
        assembly = await opened(
            Assembly(
                channels,
                channels.records,
                clock,
                declare(text, tmp_path, plugins),
                AssemblyOptions(
                    phrases=PHRASES, address=PublicAddress("http://node"), plugins=plugins
                ),
            )
        )
        await channels.channel("detections").append([detection()])
        await settle(assembly)
        pager = assembly.adapters["pager"]
        assert pager.sent == ["12"]
        assert pager.settings == {"speed": 7}
        assert pager.link_for("m", "ana").startswith("http://node/answer/m/ana/")
        assert {"communication", "adapter.pager"} <= set(assembly.work())
        await assembly.close()

    asyncio.run(scenario())


def test_what_waits_for_an_adapter_that_is_no_more_fails_and_the_next_address_is_used(tmp_path):
    async def scenario():
        plugins = Plugins()
        plugins.add("adapters", "pager", Pager)
        clock = ManualClock(1_000)
        channels = open_memory(clock)
        declared = declare(SITE, tmp_path, plugins)
        first = await opened(
            Assembly(
                channels,
                channels.records,
                clock,
                declared,
                AssemblyOptions(phrases=PHRASES, plugins=plugins),
            )
        )
        await channels.channel("detections").append([detection()])
        await first.engine.settle()  # queued for mail, and then the site changes
        await first.close()

        without_mail = SITE.replace('"mail:ana@example.org", ', "").replace(MAIL_TABLE, "")
        declared = declare(without_mail, tmp_path, plugins)
        second = await opened(
            Assembly(
                channels,
                channels.records,
                clock,
                declared,
                AssemblyOptions(phrases=PHRASES, plugins=plugins),
            )
        )
        await settle(second)
        assert second.adapters["pager"].sent == ["12"]
        ledger = Ledger(channels)
        await ledger.refresh()
        states = {row.adapter: (row.state, row.reason[:15]) for row in ledger.rows()}
        assert states == {"mail": ("failed", "adapter.unknown"), "pager": ("handed", "")}
        await second.close()

    asyncio.run(scenario())


def detection(guest="5"):
    found = Detection(policy="p", time=1_000, bindings={"A": guest}, causes=((1_000, "e"),))
    return found.to_event(source="policy")


def test_an_adapter_that_is_removed_is_used_no_more_and_one_that_comes_back_is(tmp_path):
    async def scenario():
        plugins = Plugins()
        plugins.add("adapters", "pager", Pager)
        clock = ManualClock(1_000)
        channels = open_memory(clock)
        text = SITE.replace('"mail:ana@example.org", ', "")
        declared = declare(text, tmp_path, plugins)
        assembly = Assembly(
            channels,
            channels.records,
            clock,
            declared,
            AssemblyOptions(phrases=PHRASES, plugins=plugins),
        )
        await assembly.engine.open()
        first = assembly.adapters["pager"]
        assert await assembly.outputs.remove("pager")
        await channels.channel("detections").append([detection("5")])
        await assembly.engine.settle()
        again = Pager({}, assembly.link_for)
        await assembly.outputs.use(again)
        await channels.channel("detections").append([detection("6")])
        await assembly.engine.settle()
        await channels.channel("output.pager").wait_after(0)
        await assembly.outputs.remove("pager")
        await assembly.engine.settle()
        ledger = Ledger(channels)
        await ledger.refresh()
        assert (first.sent, again.sent) == ([], ["12"])
        assert sorted(row.state for row in ledger.rows()) == ["failed", "handed"]
        await assembly.close()

    asyncio.run(scenario())


def test_a_stateful_plug_in_has_an_instance_per_peer_made_with_its_table_and_address(tmp_path):
    made = []

    @adapter("pager", stateful=True)
    class Line(Pager):
        def __init__(self, settings, link_for, address):
            super().__init__(settings, link_for)
            made.append((settings["speed"], address))

    async def scenario():
        plugins = Plugins()
        plugins.add("adapters", "pager", Line)
        clock = ManualClock(1_000)
        channels = open_memory(clock)
        text = SITE.replace('"mail:ana@example.org", ', "")
        declared = declare(text, tmp_path, plugins)
        assembly = await opened(
            Assembly(
                channels,
                channels.records,
                clock,
                declared,
                AssemblyOptions(phrases=PHRASES, plugins=plugins),
            )
        )
        assert made == []
        await channels.channel("detections").append([detection("5")])
        await channels.channel("detections").append([detection("6")])
        await settle(assembly)
        assert made == [(7, "pager:12")]
        await assembly.close()

    asyncio.run(scenario())


def test_an_input_of_the_site_brings_messages_in_and_ends_with_the_node(tmp_path):
    async def scenario():
        clock = ManualClock(1_000)
        channels = open_memory(clock)
        (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
        text = SITE_WITH_INPUT
        declared = declare(text, tmp_path, Plugins())
        assembly = Assembly(
            channels, channels.records, clock, declared, AssemblyOptions(phrases={})
        )
        running = asyncio.create_task(assembly.work()["communication.inputs"]())
        await clock.advance(0)
        (status,) = assembly.inputs.status()
        assert (status.name, status.kind, status.owner) == ("gateway", "push", "component:site")
        body = b'{"type":"TEXT","subtype":"SMS","sender":"peer:ana","content":"on my way"}'
        (arrived,) = await assembly.web_inputs["gateway"].take(
            {"content-type": "application/json"}, body
        )
        assert arrived.accepted
        (stored,) = await channels.channel("input").read_after(0)
        assert stored.event.headers["adapter"] == "gateway"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert assembly.inputs.status() == []
        await assembly.close()

    asyncio.run(scenario())


SITE_WITH_INPUT = """
[peers.ana]
addresses = ["inbox:"]
[inputs.gateway]
adapter = "webhook"
secret = "file:secret"
"""
