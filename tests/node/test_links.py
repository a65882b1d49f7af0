"""Links: a backlog that is more than the neighbour takes at once arrives all the same. [CH-11]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import AppendResult
from rapport.channel.federation import Link, LinkReceiver
from rapport.core.errors import Unavailable
from rapport.core.event import Event
from rapport.kernel.clock import Chance, ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.kernel.tasks import Tasks
from rapport.node.links import LinkParts, Neighbour, NodeIntroduction, RunningLink, parts_of
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from support.running import running

SITE = '[site]\nname = "{name}"\n[concepts.sample.attributes]\nmass = "number"\n'
LINK = '[links.there]\nurl = "{url}"\nsend = ["alarms"]\n'


def _event(number: int, size: int) -> Event:
    data = b'"%b"' % (b"x" * size)
    return Event(source="s", id=str(number), type="t", subject="", time=number, data=data)


def _site(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "site.toml").write_text(text)
    return folder


@pytest.mark.slow
def test_a_backlog_larger_than_the_neighbour_takes_at_once_arrives(tmp_path: Path) -> None:
    async def scenario() -> None:
        there = load_site(_site(tmp_path / "there", SITE.format(name="there")))
        limits = NodeSettings(port=0, max_batch=7, max_body_bytes=4_096)
        node = make_node(there, limits, SystemClock())
        async with serving(node) as url:
            await node.start()
            here = _site(tmp_path / "here", SITE.format(name="here") + LINK.format(url=url))
            async with running(here) as sender:
                events = [_event(number, 1_000) for number in range(40)]
                await sender.channels.channel("alarms").append(events)
                arrived = node.channels.channel("alarms")
                async with asyncio.timeout(30):
                    while arrived.last_position() < len(events):
                        await arrived.wait_after(arrived.last_position(), timeout_ms=200)
                found = await arrived.read_after(0, limit=100)
                assert [one.event.id for one in found] == [event.id for event in events]
        await node.stop()

    asyncio.run(scenario())


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_parts_keep_all_events_in_order_and_fit(sizes: list[int], most: int) -> None:
    events = [_event(number, size) for number, size in enumerate(sizes)]
    parts = list(parts_of(events, most))
    assert [event for part in parts for event in part] == events
    for part in parts:
        assert len(part) == 1 or sum(len(event.data) for event in part) <= most


def test_a_password_in_the_address_of_a_neighbour_is_not_shown() -> None:
    async def scenario() -> None:
        neighbour = Neighbour("http://ana:s3cret@127.0.0.1:1", "")
        with pytest.raises(Unavailable) as caught:
            await neighbour.hello()
        assert "http://127.0.0.1:1" in caught.value.message
        assert "s3cret" not in caught.value.message
        await neighbour.close()

    asyncio.run(scenario())


def test_a_link_that_failed_unexpectedly_serves_its_channels_again() -> None:
    async def scenario() -> None:
        clock = ManualClock(1_000)
        channels = open_memory(clock)

        async def append(name: str, events: Sequence[Event]) -> AppendResult:
            return await channels.channel(name).append(list(events))

        async def bury(*_what: object) -> None:
            raise AssertionError("nothing is refused here")

        parts = LinkParts(
            node="here",
            clock=clock,
            chance=Chance(1),
            channels=channels,
            receiver=LinkReceiver("here", channels, append, bury),
        )
        link = RunningLink(Link(name="there", url="http://there", send=("alarms",)), "", parts)
        met, given = 0, list[str]()

        async def hello() -> NodeIntroduction:
            nonlocal met
            met += 1
            if met == 2:
                raise ValueError("nobody thought of this")
            return NodeIntroduction("there", [])

        async def hand_over(_channel: str, _node: str, events: Sequence[Event]) -> None:
            given.extend(event.id for event in events)

        link._neighbour.hello, link._neighbour.hand_over = hello, hand_over  # type: ignore[method-assign]
        tasks = Tasks(clock)
        await channels.channel("alarms").append([_event(1, 1)])
        tasks.start("link", link.run)
        await clock.advance(10_000)
        await channels.channel("alarms").append([_event(2, 1)])
        await clock.advance(10_000)
        await tasks.stop()
        await link.close()
        assert given == ["1", "2"]
        assert link.status["send", "alarms"].forwarded == 2

    asyncio.run(scenario())


@pytest.mark.slow
def test_what_the_neighbour_cannot_read_is_counted_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = _site(tmp_path / "there", SITE.format(name="there"))
        settings = NodeSettings(port=0)
        node = make_node(load_site(folder), settings, SystemClock())
        await node.start()
        for number in range(10):
            await node.channels.channel("alarms").append([_event(number, 20 + number)])
        await node.stop()
        (log,) = folder.rglob("logs/alarms/*.log")
        damaged = b"x" * 24
        log.write_bytes(log.read_bytes().replace(b'"%b"' % damaged, b'"y%b"' % damaged[1:]))
        node = make_node(load_site(folder), settings, SystemClock())
        async with serving(node) as url:
            await node.start()
            link = f'[links.there]\nurl = "{url}"\nreceive = ["alarms"]\n'
            here = _site(tmp_path / "here", SITE.format(name="here") + link)
            async with running(here) as receiver:
                arrived = receiver.channels.channel("alarms")
                async with asyncio.timeout(30):
                    while arrived.last_position() < 9:
                        await arrived.wait_after(arrived.last_position(), timeout_ms=200)
                    # The same set is asked for again until there is more: it names its gap again.
                    await node.channels.channel("alarms").append([_event(10, 1)])
                    while arrived.last_position() < 10:
                        await arrived.wait_after(arrived.last_position(), timeout_ms=200)
                (status,) = [one for one in receiver.links.status() if one.channel == "alarms"]
                assert status.counts.unreadable == 1
            await node.stop()

    asyncio.run(scenario())
