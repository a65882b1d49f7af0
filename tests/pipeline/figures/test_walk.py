"""A real node's own lake: the command's tables are what plain loops say; its page shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rapport.cli.pipeline import report
from rapport.communication.answers import AnswerData, record_answer
from rapport.communication.links import answer_secret, answer_token
from rapport.context.connections import ContextNotFound
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.event import make_event
from rapport.core.times import format_time
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.component import Component
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.kernel.clock import Chance, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.lake.places import Lake
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.site.site import load_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.slow]

CLOCK = SystemClock()
OVERLAYS = """
[context]
listen = "127.0.0.1:0"
[ensemble]
node = "hall"
listen = "127.0.0.1:0"
gossip = { knowledge_ms = 100, probability = 1.0 }
"""
ROOM = EntityRef("room", "r1")
Tables = dict[str, list[dict[str, Any]]]


def make_site(directory: Path) -> Path:
    """The secure building with short windows; nobody listens to mail or to the lead's phone."""
    site = prepare_site(
        directory, mail_port=9, phone_url="http://127.0.0.1:9/", answer_within="500ms"
    )
    file = site / "site.toml"
    text = file.read_text().replace('lateness = "5s"', 'lateness = "200ms"')
    text = text.replace('"mail:ana@example.org"', '"mail:ana@example.org", "inbox:"')
    file.write_text(text.replace('window = "5s"', 'window = "300ms"') + OVERLAYS)
    return site


class Car(Component):
    """Lives on a node elsewhere."""

    seats: int = 4


async def gossiped(node: Node) -> None:
    """Another node tells of its car until some versions took each other's place."""
    assert node.ensemble is not None
    running = node.ensemble.running
    settings = RuntimeSettings(gossip=GossipSettings(knowledge_ms=50, probability=1.0))
    other = await EnsembleNode.open(
        "street",
        [Car(id="car 1")],
        listen=("127.0.0.1", 0),
        clock=CLOCK,
        chance=Chance(1),
        join=[running.address],
        settings=settings,
    )

    async def heard() -> bool:
        return running.status().counters.get("versions_received", 0) >= 4

    try:
        await until(heard)
    finally:
        await other.close()


async def asked(node: Node) -> None:
    """The broker is asked for what it has, and for what nobody has."""
    assert node.context is not None
    broker, now_ms = node.context.broker, CLOCK.now_ms()
    await broker.put(ContextRecord("desk", ROOM, "status", now_ms, now_ms + 60_000, {"n": 1}))
    for _ in range(3):
        await broker.ask(ROOM, "status")
    with pytest.raises(ContextNotFound):
        await broker.ask(ROOM, "other", within_ms=100)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await CLOCK.sleep(20)


async def badge(node: Node, id: str, reader: str, tag: str, ago_ms: int = 0) -> None:
    time_ms = CLOCK.now_ms() - ago_ms
    seen = {"reader": reader, "tag": tag, "dx": 0, "dy": 0, "t": format_time(time_ms)}
    raw = make_event(source="readers", id=id, type="readers.raw", time=time_ms, data=seen)
    await node.append("raw.readers", [raw])


async def live(site: Path) -> None:
    """Two alarms, of which ana answers one and the other goes on to the lead; a late reading, one
    without a known tag, one of a source that nobody declared; a neighbour's car, and questions to
    the broker.
    """
    node = make_node(load_site(site), NodeSettings(port=0), CLOCK)
    await node.start()
    try:
        await badge(node, "1", "r1", "E200-01")
        await badge(node, "2", "r1", "nobody's tag")
        stray = make_event(source="x", id="9", type="x", time=CLOCK.now_ms(), data={})
        await node.append("raw.oldcam", [stray])
        await until(lambda: told(node, 1))
        (row,) = node.ledger.messages()
        secret = answer_secret(node.channels.records)
        token = answer_token(secret, row.message, "ana")
        answer = AnswerData(message=row.message, peer="ana", text="going", token=token)
        await record_answer(node.channels, secret, answer, now_ms=CLOCK.now_ms())
        await badge(node, "3", "r2", "E200-02")
        await badge(node, "4", "r2", "E200-02", ago_ms=60_000)
        await until(lambda: told(node, 2))
        await until(lambda: escalated(node))
        await gossiped(node)
        await asked(node)
    finally:
        await node.stop()


async def told(node: Node, messages: int) -> bool:
    await node.ledger.refresh()
    rows = node.ledger.rows(peer="ana")
    reached = {row.message for row in rows if row.state in ("handed", "confirmed")}
    return len(reached) >= messages


async def escalated(node: Node) -> bool:
    await node.ledger.refresh()
    return any(row.state in ("handed", "confirmed") for row in node.ledger.rows(peer="lea"))


def test_the_command_tells_of_a_real_node_what_plain_loops_tell(
    spark: SparkSession, tmp_path: Path, judged: Callable[[Path], Tables]
) -> None:
    site = make_site(tmp_path / "site")
    asyncio.run(live(site))
    page = tmp_path / "report.html"
    report(site=site, master="local[2]", html=page)
    lake = site / ".rapport" / "lake"
    expected = judged(lake)
    for name, rows in expected.items():
        table = Lake.at(lake).open("gold", name).read()
        assert _sorted(table.to_pylist()) == _sorted(rows), name
    (funnel,) = expected["funnel"]
    assert (funnel["detected"], funnel["messages"], funnel["handed"]) == (2, 2, 2)
    assert (funnel["answered"], funnel["escalated"]) == (1, 1)
    relations = {edge["relation"] for edge in expected["provenance"]}
    assert relations == {"shows", "led to", "told", "answered", "escalated"}
    assert {row["source"] for row in expected["quarantine"]} == {"readers", "oldcam"}
    assert [row["source"] for row in expected["late"]] == ["readers"]
    (hall,) = expected["gossip"]
    assert (hall["node"], hall["first"]) == ("hall", 1)
    assert hall["age_timed"] == hall["replaced"] >= 3
    assert [row["kind"] for row in expected["gossip_messages"]].count("knowledge") == 1
    answers = {row["answer"]: row["requests"] for row in expected["brokers"]}
    assert answers == {"here": 3, "not_found": 1}
    told = page.read_text()
    assert "How knowledge spread" in told
    assert "How fast brokers answered" in told
    assert "What happened at secure-building" in told
    assert "escalated: collective:security-leads" in told
    assert not (lake / ".report").exists()


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])
