"""The network of a node over HTTP: neighbours, what waits, and why one is cut off. [CN-12]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.network import network_mark
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from support.freezer_site import write_freezer_site
from support.running import running
from web.conftest import NodeApi

pytestmark = pytest.mark.slow

THERE = '[site]\nname = "there"\n'
HERE = """
[site]
name = "here"
[links.bologna]
url = "http://ana:s3cret@{address}"
receive = ["alarms"]
send = ["samples"]
[context]
listen = "127.0.0.1:0"
[channels]
push_to = ["http://127.0.0.1:1"]
"""


def write_site(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "site.toml").write_text(text)
    return folder


async def until(
    api: NodeApi, holds: Callable[[dict[str, Any]], object], path: str = "/network"
) -> dict[str, Any]:
    """The answer as soon as something holds of it."""
    async with asyncio.timeout(30):
        while True:
            found: dict[str, Any] = (await api.call("GET", path)).json()
            if holds(found):
                return found
            await api.node.clock.sleep(20)


def link_of(found: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in found["neighbours"] if one["kind"] == "link")


def flow(found: dict[str, Any], way: str) -> dict[str, Any]:
    return next((one for one in link_of(found)["flows"] if one["way"] == way), {"count": -1})


def events(count: int) -> list[Event]:
    return [Event("s", str(number), "t", "", number, data=b"1") for number in range(count)]


def test_a_link_shows_what_went_over_it_and_why_it_is_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        there = make_node(
            load_site(write_site(tmp_path / "there", THERE)), NodeSettings(port=0), SystemClock()
        )
        async with serving(there) as url:
            await there.start()
            await there.channels.channel("alarms").append(events(3))
            text = HERE.format(address=url.removeprefix("http://"))
            site = load_site(write_site(tmp_path / "here", text))
            here = make_node(site, NodeSettings(port=0), SystemClock())
            async with serving(here) as own:
                await here.start()
                api = NodeApi(here, own)
                await here.channels.channel("samples").append(events(2))
                found = await until(
                    api,
                    lambda one: (flow(one, "in")["count"], flow(one, "out")["count"]) == (3, 2),
                )
                link = link_of(await until(api, lambda one: link_of(one)["state"] == "well"))
                assert (link["name"], link["node"]) == ("bologna", there.links.node)
                assert link["last"] > 0
                assert "s3cret" not in str(found)
                (part,) = found["parts"]
                assert (part["kind"], part["state"]) == ("context", "well")
                before = network_mark(here)
                assert network_mark(here) == before
                await there.stop()
                await until(api, lambda one: link_of(one)["state"] == "cut")
                assert network_mark(here) != before
                await here.channels.channel("samples").append(events(5)[2:])
                cut = await until(api, lambda one: flow(one, "out")["behind"] == 3)
                assert link_of(cut)["reason"]
                since = await until(api, lambda one: link_of(one)["since"] > 0)
                assert link_of(since)["since"] > 0
            await here.stop()

    asyncio.run(scenario())


def test_a_push_is_shown_to_its_subscriber_and_says_why_it_does_not_arrive(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        text = HERE.format(address="127.0.0.1:1")
        site = load_site(write_site(tmp_path / "here", text))
        here = make_node(site, NodeSettings(port=0), SystemClock())
        async with serving(here) as own:
            await here.start()
            api = NodeApi(here, own)
            await here.channels.channel("samples").append(events(1))
            wanted = {"query": {}, "push_address": "http://127.0.0.1:1/in?key=s3cret"}
            answer = await api.call("POST", "/channels/samples/requests", wanted)
            assert answer.status == 200, answer.body
            found = await until(
                api,
                lambda one: any(
                    each["kind"] == "push" and each["state"] == "cut" for each in one["neighbours"]
                ),
            )
            push = next(one for one in found["neighbours"] if one["kind"] == "push")
            assert (push["address"], push["flows"][0]["channel"]) == (
                "http://127.0.0.1:1/in",
                "samples",
            )
            assert push["reason"]
        await here.stop()

    asyncio.run(scenario())


BROKERS = """
[site]
name = "{name}"
[context]
listen = "127.0.0.1:0"
{join_context}
[ensemble]
node = "{name}"
listen = "127.0.0.1:0"
membership = {{ period_ms = 100, ack_ms = 25, gossip_ms = 20 }}
{join_ensemble}
"""
HALL = """
[mqtt.hall]
broker = "mqtt://127.0.0.1:1"
in = [{ topic = "sensors/temperature", source = "hall" }]
"""


def of_kind(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in found["neighbours"] if one["kind"] == kind]


def test_brokers_and_ensemble_nodes_that_were_joined_are_shown_and_a_lost_mqtt_broker(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        first = BROKERS.format(name="one", join_context="", join_ensemble="")
        async with running(write_site(tmp_path / "one", first)) as one:
            assert one.context is not None
            assert one.ensemble is not None
            context = one.context.broker.status().address
            ensemble = one.ensemble.running.status().address
            text = BROKERS.format(
                name="two",
                join_context=f'join = ["{context}"]',
                join_ensemble=f'join = ["{ensemble}"]',
            )
            site = load_site(write_site(tmp_path / "two", text + HALL))
            two = make_node(site, NodeSettings(port=0), SystemClock())
            async with serving(two) as url:
                await two.start()
                api = NodeApi(two, url)
                found = await until(
                    api, lambda seen: of_kind(seen, "context") and of_kind(seen, "ensemble")
                )
                (broker,) = of_kind(found, "context")
                assert (broker["address"], broker["state"]) == (context, "well")
                (member,) = of_kind(found, "ensemble")
                assert (member["name"], member["address"]) == ("one", ensemble)
                assert member["state"] == "well"
                found = await until(
                    api, lambda seen: all(part["state"] == "well" for part in seen["parts"])
                )
                assert [part["kind"] for part in found["parts"]] == ["context", "ensemble"]
                found = await until(
                    api, lambda seen: "no broker" in of_kind(seen, "mqtt")[0]["reason"]
                )
                (hall,) = of_kind(found, "mqtt")
                assert (hall["state"], hall["address"]) == ("cut", "127.0.0.1:1")
                assert found["neighbours"][0] == hall  # what is cut comes first
            await two.stop()

    asyncio.run(scenario())


def test_a_node_without_neighbours_has_an_empty_network_and_strangers_do_not_see_it(
    tmp_path: Path,
) -> None:
    async def closed(do: Callable[[NodeApi], Awaitable[None]]) -> None:
        folder = write_freezer_site(tmp_path / "cold", closed=True)
        node = make_node(load_site(folder), NodeSettings(port=0), SystemClock())
        async with serving(node, token="0123456789abcdefXYZ-node-token") as url:
            await node.start()
            await do(NodeApi(node, url))
        await node.stop()

    async def look(api: NodeApi) -> None:
        boss = {"Authorization": "Bearer 0123456789abcdefXYZ-node-token"}
        found = (await api.call("GET", "/network", None, boss)).json()
        assert (found["site"], found["neighbours"], found["parts"]) == ("cold-store", [], [])
        gateway = {"Authorization": "Bearer 0123456789abcdefXYZ-gateway-token"}
        assert (await api.call("GET", "/network", None, gateway)).status == 403

    asyncio.run(closed(look))
