"""Two policies that set each other off: the check warns, and the node ends the chain. [PO-10,
PO-12]
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.communication.actions import MOST_HOPS
from rapport.core.event import make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import check_site, load_site

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
SITE = """
[site]
name = "round"
lateness = "10ms"
[concepts.station.attributes]
heat = "number"
damp = "number"
[sources.heat]
concept = "station"
attribute = "heat"
key = "station"
value = "value"
[sources.damp]
concept = "station"
attribute = "damp"
key = "station"
value = "value"
"""
ACTION = """
[actions."{phrase}"]
append = "raw.{source}"
type = "reading"
data = {{ station = "{{S}}", value = 99 }}
"""
POLICY = """concepts
  station S
conditions
  {attribute} of S above 30
actions
  {phrase}
"""
ROUND = {"heat": "wet it", "damp": "warm it"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    other = {"heat": "damp", "damp": "heat"}
    actions = [ACTION.format(phrase=ROUND[name], source=other[name]) for name in ROUND]
    (tmp_path / "site.toml").write_text(SITE + "".join(actions))
    for name, phrase in ROUND.items():
        text = POLICY.format(attribute=name, phrase=phrase)
        (tmp_path / f"{name}-is-high.dpl").write_text(text)
    return tmp_path


def test_the_check_warns_of_both_with_the_way_round(site: Path) -> None:
    found = [problem for problem in check_site(site) if problem.code == "policy.chain"]
    assert [problem.file for problem in found] == ["damp-is-high.dpl", "heat-is-high.dpl"]
    assert found[0].message.endswith("damp-is-high -> heat-is-high -> damp-is-high")


def test_the_node_ends_the_chain_and_says_why(site: Path) -> None:
    async def refusals(node: Node) -> list[str]:
        stored = await node.channels.channel("log").read_after(0)
        texts = [one.event.data.decode() for one in stored]
        return [text for text in texts if "action.too_many_hops" in text]

    def readings(node: Node) -> int:
        return sum(node.channels.channel(f"raw.{name}").last_position() for name in ROUND)

    async def scenario() -> None:
        node = make_node(load_site(site), NodeSettings(port=0), CLOCK)
        await node.start()
        try:
            now_ms = CLOCK.now_ms()
            hot = {"station": "s1", "value": 31, "time": format_time(now_ms)}
            event = make_event(source="heat", id="first", type="reading", time=now_ms, data=hot)
            await node.append("raw.heat", [event])
            async with asyncio.timeout(60):
                while not await refusals(node):
                    await CLOCK.sleep(20)
            assert readings(node) == 1 + MOST_HOPS
            await CLOCK.sleep(300)
            assert readings(node) == 1 + MOST_HOPS
        finally:
            await node.stop()

    asyncio.run(scenario())
