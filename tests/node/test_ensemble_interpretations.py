"""Interpretations spread by gossip: taken from nodes that the site names, later ones, checked, and
never over the node's own files. [ME-12, EN-14]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from rapport.core.errors import Problem
from rapport.ensemble.text_sharing import Offer
from rapport.kernel.clock import SystemClock
from rapport.mediation.interpretations.change_requests import request_from_file, request_from_json
from rapport.mediation.interpretations.views import change_view
from rapport.node.ensemble_interpretations import SharedInterpretation, SharedInterpretations
from rapport.node.node import Node
from rapport.transport.base import Address
from support.running import running

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
SITE = """
[site]
name = "{name}"
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[ensemble]
listen = "127.0.0.1:0"
join = {join}
gossip = {{ knowledge_ms = 100, probability = 1.0, fan_out = 3 }}
membership = {{ period_ms = 200, ack_ms = 50, gossip_ms = 40 }}
[ensemble.interpretations]
accept = {accept}
"""
IN_FILE = '[interpretations.us]\nunits = {{ "station.temperature" = "{}" }}\n'
FIELDS = """
[interpretations.probe]
identity = { field = "id" }
value.value = { field = "t", unit = "degF" }
"""
LOOKED_UP = '"tag", lookup = { table = "tags", column = "station" } }'
BELOW = '[interpretations.below]\nparent = "us"\nunits = { "station.temperature" = "K" }\n'


class Town:
    """Nodes in one process; each joins the first."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._first: list[Address] = []
        self.nodes: dict[str, Node] = {}

    async def node(self, name: str, accept: Sequence[str] = (), more: str = "") -> Node:
        site = self._folder / name
        site.mkdir(exist_ok=True)
        join = [f"{host}:{port}" for host, port in self._first]
        text = SITE.format(name=name, join=join, accept=list(accept)) + more
        (site / "site.toml").write_text(text)
        node = await self._stack.enter_async_context(running(site))
        assert node.ensemble is not None
        self._first = self._first or [node.ensemble.running.address]
        self.nodes[name] = node
        return node

    async def declare(self, name: str, text: str) -> None:
        await self.nodes[name].meanings.updating.change(
            lambda now: request_from_file("x", text.encode(), "toml", now)
        )

    def stamps(self, name: str) -> dict[str, str]:
        updating = self.nodes[name].meanings.updating
        return dict(updating._current().standing.in_force.stamps)

    def problems(self, name: str) -> list[Problem]:
        """Why interpretations are refused at a node."""
        ensemble = self.nodes[name].ensemble
        assert ensemble is not None
        return [why for one in ensemble.status().interpretations for why in one.problems]

    def shared(self, name: str) -> dict[str, SharedInterpretation]:
        ensemble = self.nodes[name].ensemble
        assert ensemble is not None
        return {one.name: one for one in ensemble.status().interpretations}


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        yield Town(folder, stack)


async def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await CLOCK.sleep(30)


def test_a_change_spreads_to_who_accepts_the_node_and_to_nobody_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with town(tmp_path) as place:
            await place.node("a")
            await place.node("b", ["a"])
            await place.node("stranger")
            await place.node("c", ["b"])
            await place.declare("a", IN_FILE.format("degF"))
            await place.declare("a", FIELDS)
            names = {"us", "probe"}
            await until(lambda: names <= place.stamps("b").keys() & place.stamps("c").keys())
            assert place.stamps("b")["us"] == place.stamps("a")["us"] == place.stamps("c")["us"]
            assert place.stamps("b")["probe"] == place.stamps("a")["probe"]
            await until(lambda: all("us" in place.shared(one) for one in "abc"))
            assert {place.shared(one)["us"].origin for one in "abc"} == {"a"}
            assert names.isdisjoint(place.stamps("stranger"))
            (first, *_) = place.nodes["c"].meanings.updating.history()
            assert change_view(*first).by == "gossip of a"

    asyncio.run(scenario())


def test_nodes_that_accept_each_other_agree_on_the_later_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with town(tmp_path) as place:
            await place.node("a", ["b"])
            await place.declare("a", IN_FILE.format("degF"))
            await place.node("b", ["a"])
            await place.declare("b", IN_FILE.format("K"))
            wanted = place.stamps("b")["us"]
            await until(lambda: place.stamps("a")["us"] == wanted == place.stamps("b")["us"])
            changes = len(place.nodes["a"].meanings.updating.history())
            await CLOCK.sleep(1_000)
            assert place.stamps("a")["us"] == wanted == place.stamps("b")["us"]
            assert len(place.nodes["a"].meanings.updating.history()) == changes
            assert len(place.nodes["b"].meanings.updating.history()) == 1

    asyncio.run(scenario())


def test_a_later_change_counts_also_where_a_node_has_more_than_it_can_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rapport.node.ensemble_interpretations.MOST_OFFERS", 1)

    async def scenario() -> None:
        async with town(tmp_path) as place:
            await place.node("old")
            await place.declare("old", IN_FILE.format("degF"))
            await until(lambda: "us" in place.shared("old"))
            first, place._first = place._first, []
            later = await place.node("later", ["old"])
            await place.declare("later", FIELDS)
            await place.declare("later", IN_FILE.format("K"))
            await until(lambda: "probe" in place.shared("later"))
            own = place.stamps("later")["us"]
            place._first += first
            await place.node("between")
            assert later.ensemble is not None
            replicas = later.ensemble.running.machine.host.replicas
            await until(lambda: "shelf of old" in replicas)
            await CLOCK.sleep(1_500)
            assert place.stamps("later")["us"] == own

    asyncio.run(scenario())


def test_more_than_a_node_can_offer_at_a_time_is_offered_by_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rapport.node.ensemble_interpretations.MOST_OFFERS", 1)
    monkeypatch.setattr("rapport.node.ensemble_interpretations.PAGE_MS", 6_000)
    monkeypatch.setattr("rapport.node.ensemble_interpretations._LOOK_MS", 500)

    async def scenario() -> None:
        async with town(tmp_path) as place:
            await place.node("a")
            await place.node("b", ["a"])
            await place.declare("a", IN_FILE.format("degF") + FIELDS)
            await until(lambda: {"us", "probe"} <= place.stamps("b").keys(), 60)

    asyncio.run(scenario())


def test_what_files_declare_is_offered_and_never_taken_from_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with town(tmp_path) as place:
            await place.node("a", ["b"], IN_FILE.format("degF") + FIELDS)
            await place.node("b", ["a"], IN_FILE.format("K"))
            await until(lambda: "probe" in place.stamps("b"))
            own = {name: place.stamps(name)["us"] for name in "ab"}
            await until(lambda: any(place.problems("a")))
            (problem,) = place.problems("a")
            assert problem.code == "interpretation.in_file"
            assert {name: place.stamps(name)["us"] for name in "ab"} == own

    asyncio.run(scenario())


def test_what_does_not_fit_is_refused_and_told_and_the_rest_is_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with town(tmp_path) as place:
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "tags.csv").write_text("tag,station\n1,s1\n")
            await place.node("a", (), '[tables.tags]\ncsv = "tags.csv"\nkey = "tag"\n')
            await place.node("b", ["a"])
            await place.declare("a", FIELDS.replace('"id" }', LOOKED_UP))
            # What stands on another comes before it by name: it is taken when that is there.
            await place.declare("a", IN_FILE.format("degF") + BELOW)
            await until(lambda: {"us", "below"} <= place.stamps("b").keys())
            await until(lambda: "probe" in place.shared("b"))
            refused = place.shared("b")["probe"]
            assert (refused.state, refused.origin) == ("refused", "a")
            assert "tags" in refused.problems[0].message
            assert "probe" not in place.stamps("b")

    asyncio.run(scenario())


def test_one_that_was_removed_here_stays_away_until_it_is_changed_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with town(tmp_path) as place:
            await place.node("a")
            await place.node("b", ["a"])
            await place.declare("a", IN_FILE.format("degF"))
            await until(lambda: "us" in place.stamps("b"))
            await until(lambda: "us" in place.shared("b"))
            remove = request_from_json(b'{"type": "remove", "name": "us"}')
            await place.nodes["b"].meanings.updating.change(lambda _: remove)
            await CLOCK.sleep(500)
            assert "us" not in place.stamps("b")
            await place.declare("a", IN_FILE.format("K"))
            await until(lambda: "us" in place.stamps("b"))

    asyncio.run(scenario())


def test_a_node_that_begins_to_share_does_not_undo_what_others_changed_later(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        (tmp_path / "b").mkdir()
        alone = SITE.format(name="b", join=[], accept=[]).partition("[ensemble]")[0]
        (tmp_path / "b" / "site.toml").write_text(alone)
        async with running(tmp_path / "b") as node:
            text = IN_FILE.format("degF").encode()
            await node.meanings.updating.change(
                lambda now: request_from_file("x", text, "toml", now)
            )
        async with town(tmp_path) as place:
            await place.node("a", ["b"])
            await place.declare("a", IN_FILE.format("K"))
            later = place.stamps("a")["us"]
            await until(lambda: "us" in place.shared("a"))
            await place.node("b", ["a"])
            assert place.stamps("b")["us"] != later
            await until(lambda: place.shared("b").keys() >= {"us"})
            await until(lambda: place.stamps("a")["us"] == place.stamps("b")["us"])
            assert place.stamps("a")["us"] == later

    asyncio.run(scenario())


def test_a_node_that_is_killed_while_it_takes_one_over_does_not_call_it_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = SharedInterpretations._keep

    async def scenario() -> None:
        async with town(tmp_path) as place:
            await place.node("a", ["b"])
            await place.declare("a", IN_FILE.format("degF"))
            async with town(tmp_path) as other:
                other._first = place._first
                with monkeypatch.context() as killed:
                    killed.setattr(SharedInterpretations, "_keep", never_at_b(keep))
                    await other.node("b", ["a"])
                    await until(lambda: "us" in other.stamps("b"))
            await place.declare("a", IN_FILE.format("K"))
            later = place.stamps("a")["us"]
            await until(lambda: place.shared("a")["us"].version == later)
            async with town(tmp_path) as other:
                other._first = place._first
                await other.node("b", ["a"])
                await until(lambda: other.stamps("b")["us"] == later)
                assert place.stamps("a")["us"] == later

    asyncio.run(scenario())


def never_at_b(keep: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """There it does not come to its end."""

    async def kept(shared: SharedInterpretations, offers: Iterable[Offer]) -> None:
        offered = list(offers)
        if offered and shared._node == "b":
            await asyncio.Event().wait()
        await keep(shared, offered)

    return kept


def test_after_a_restart_a_node_still_knows_whose_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with town(tmp_path) as place:
            await place.node("a")
            await place.declare("a", IN_FILE.format("degF"))
            async with town(tmp_path) as other:
                other._first = place._first
                await other.node("b", ["a"])
                await until(lambda: "us" in other.stamps("b"))
                await until(lambda: "us" in other.shared("b"))  # told a moment later
                since = other.shared("b")["us"].since_ms
            async with town(tmp_path) as other:
                other._first = place._first
                await other.node("b", ["a"])
                await until(lambda: "us" in other.shared("b"))
                again = other.shared("b")["us"]
                assert (again.origin, again.since_ms) == ("a", since)
                assert len(other.nodes["b"].meanings.updating.history()) == 1

    asyncio.run(scenario())
