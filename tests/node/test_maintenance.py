"""A node looks after its channels: rules of the site, interceptors of the site, metrics. [CH-10,
CH-14]
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.core.errors import SiteError, UnknownName
from rapport.core.event import Event, make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.metrics import metrics_text
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import load_site


def node_with(site: Path, channels: str) -> Node:
    file = site / "site.toml"
    file.write_text(file.read_text() + channels)
    return make_node(load_site(site), NodeSettings(port=0), SystemClock())


def plain(first: int, last: int, type: str = "t") -> list[Event]:
    return [Event("s", str(n), type, "", 0, b"{}") for n in range(first, last + 1)]


async def until_last(node: Node, channel: str, position: int) -> None:
    async with asyncio.timeout(10):
        while node.channels.channel(channel).last_position() < position:
            await SystemClock().sleep(5)


def test_rules_and_interceptors_of_the_site_are_in_force(building_site):
    async def scenario():
        node = node_with(
            building_site,
            """
[channels."own.*"]
keep_for = "1 day"
ttl = "50ms"
interceptors = ["count", "drop: type = 'noise'", "forward: copies"]
""",
        )
        await node.start()
        try:
            await node.append("own.a", [*plain(1, 2), *plain(3, 3, "noise")])
            await until_last(node, "copies", 2)
            assert (await node.maintenance.state("own.a")).keep_for_ms == 86_400_000
            await SystemClock().sleep(80)
            (swept,) = await node.channels.sweeper.sweep_all()
            assert swept.trimmed == 2
            told = metrics_text(node).decode()
            assert 'rapport_channel_kept_bytes{channel="own.a"} 0.0' in told
            assert 'what="dropped"} 1.0' in told
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_what_a_following_one_of_the_site_missed_while_the_node_was_down_comes_after_it(
    building_site,
):
    table = '\n[channels."own.*"]\ninterceptors = ["forward: copies"]\n'

    async def scenario():
        node = node_with(building_site, table)
        await node.append("own.a", plain(1, 2))  # not started yet: from before it was declared
        await node.start()
        await node.append("own.a", plain(3, 4))
        await until_last(node, "copies", 2)
        await node.stop()
        again = make_node(load_site(building_site), NodeSettings(port=0), SystemClock())
        await again.append("own.a", plain(5, 6))
        await again.start()
        await until_last(again, "copies", 4)
        found = await again.channels.channel("copies").read_after(0)
        assert [one.event.id for one in found] == ["3", "4", "5", "6"]
        await again.stop()

    asyncio.run(scenario())


def test_an_interceptor_of_the_site_that_cannot_be_made_is_refused_with_the_site(building_site):
    with pytest.raises(SiteError) as caught:
        node_with(building_site, '\n[channels]\ninterceptors = ["fliter: a = 1"]\n')
    assert [(one.code, one.hint) for one in caught.value.problems] == [
        ("name.unknown", "did you mean 'filter'?")
    ]


def test_events_are_given_the_meaning_of_a_source_on_their_way(building_site):
    async def scenario():
        node = node_with(building_site, "")
        await node.start()
        try:
            wrong = {"interpretation": "raeders"}
            with pytest.raises(UnknownName):
                await node.channels.interceptors.declare("meant", "meant", "mediate", wrong)
            settings = {"interpretation": "readers"}
            await node.channels.interceptors.declare("meant", "meant", "mediate", settings)
            now_ms = node.clock.now_ms()
            seen = {"reader": "r1", "tag": "E200-01", "dx": 0, "dy": 0, "t": format_time(now_ms)}
            badge = make_event(source="readers", id="1", type="raw", time=now_ms, data=seen)
            await node.append("meant", [badge, *plain(7, 7)])
            found = [one.event for one in await node.channels.channel("meant").read_after(0)]
            assert [event.type for event in found] == ["person.position", "t"]
            (shown,) = node.channels.interceptors.listed("meant")
            assert (shown.changed, shown.faults) == (1, 1)
        finally:
            await node.stop()

    asyncio.run(scenario())
