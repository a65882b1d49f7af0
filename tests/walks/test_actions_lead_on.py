"""The walk of actions: a policy that says itself whom to tell reaches the phone; another's action
appends an event in which a third, registered while the node ran, sees its own situation. [PO-3,
PO-10, PO-11, CO-8]
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.event_lookup import CauseNode, cause_tree
from rapport.communication.ledger_rows import MessageRow
from rapport.core.event import make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.node.node import Node
from rapport.scenarios.webhook_sink import WebhookSink
from support.running import running

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
SITE = """
[site]
name = "walk"
lateness = "100ms"
[concepts.person.attributes]
position = "point"
[concepts.room.attributes]
area = "rectangle"
alarms = "number"
[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = {{ area = ["x1", "y1", "x2", "y2"] }}
[sources.badges]
concept = "person"
attribute = "position"
key = "who"
value = ["x", "y"]
[sources.alarms]
concept = "room"
attribute = "alarms"
key = "room"
value = "count"
[peers.ana]
addresses = ["webhook:{phone}"]
[peers.lea]
addresses = ["inbox:"]
[collectives.guards]
members = ["ana"]
[actions."write it down"]
append = "raw.alarms"
type = "alarm.raised"
data = {{ room = "{{R}}", count = 1, because = "{{policy}} at {{time}}" }}
most_hops = 2
"""
CONCEPTS = "concepts\n  person A\n  room R\nconditions\n  A is inside R\nactions\n"
TELLING = (
    CONCEPTS
    + """  call the guards
    to guards
    first answer wins
    answer within 60 s
    then lea
    urgent
    say "{A} is in room # {R}"
"""
)
WRITING = CONCEPTS + "  write it down\n"
ALARMED = """concepts
  room R
conditions
  alarms of R at least 1
actions
  tell the lead
    to peer lea
    say "alarm in {R}"
  write it down
"""
"""Feeds itself: what it writes down is an alarm again."""


def make_site(directory: Path, phone: str, channels: str) -> Path:
    directory.mkdir()
    (directory / "site.toml").write_text(SITE.format(phone=phone) + channels)
    (directory / "rooms.csv").write_text("id,x1,y1,x2,y2\nlab,0,0,10,10\n")
    (directory / "telling.dpl").write_text(TELLING)
    (directory / "writing.dpl").write_text(WRITING)
    return directory


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(30):
        while not (found := await look()):
            await CLOCK.sleep(20)
    return found


async def messages(node: Node, policy: str) -> list[MessageRow]:
    await node.ledger.refresh()
    return [row for row in node.ledger.messages() if row.policy == policy]


async def badge(node: Node, who: str) -> None:
    now_ms = CLOCK.now_ms()
    seen = {"who": who, "x": 5, "y": 5, "time": format_time(now_ms)}
    event = make_event(source="badges", id=f"b-{who}", type="seen", time=now_ms, data=seen)
    await node.append("raw.badges", [event])


def path_of(node: CauseNode) -> list[str]:
    """The channels from an event back along its first causes."""
    return [node.channel, *(path_of(node.causes[0]) if node.causes else [])]


def test_actions_reach_the_phone_and_lead_to_other_detections(
    tmp_path: Path, elsewhere: str
) -> None:
    async def scenario() -> None:
        async with WebhookSink() as phone:
            site = make_site(tmp_path / "site", phone.url, elsewhere)
            async with running(site) as node:
                done = await node.policies.life.register("alarmed", ALARMED, by="test")
                assert done.changed
                assert done.problems == ()
            async with running(site) as node:
                await badge(node, "7")
                await told_by_phone(node, phone)
                await chained(node)
                lead = await lead_told(node)
            await asyncio.to_thread(explained, site, lead.message)

    asyncio.run(scenario())


async def told_by_phone(node: Node, phone: WebhookSink) -> None:
    async def rang() -> bool:
        return bool(phone.posted)

    await until(rang)
    (posted,) = phone.posted
    body = json.loads(posted.body)
    assert body["data"]["text"] == "7 is in room # lab"
    assert body["data"]["urgent"]
    assert body["data"]["wants_answer"]
    (message,) = await messages(node, "telling")
    assert message.receiver == "collective:guards"
    assert message.state == "open"


async def chained(node: Node) -> None:
    """What was written down is a detection of another policy, whose actions tell the lead and write
    it down again, until that has led on too often.
    """

    async def refused() -> bool:
        return any(row.result == "failed" for row in await messages(node, "alarmed"))

    await until(refused)
    found = await messages(node, "alarmed")
    assert [row.text for row in found if row.receiver == "peer:lea"] == ["alarm in lab"] * 2
    appended = await node.channels.channel("raw.alarms").read_after(0)
    assert [stored.event.headers["actionhops"] for stored in appended] == ["1", "2"]
    reasons = [row.reason for row in node.ledger.rows(state="failed")]
    assert any("action.too_many_hops" in reason for reason in reasons)
    (written,) = await messages(node, "writing")
    assert (written.state, written.result) == ("closed", "done")
    tree = await cause_tree(node.channels, (await lead_told(node)).message)
    assert path_of(tree) == [
        "log",  # the lead is told
        "detections",  # of the third policy
        "events",
        "raw.alarms",  # what the second policy's action appended
        "log",  # the action
        "detections",  # of the second policy
        "events",
        "raw.badges",
    ]


async def lead_told(node: Node) -> MessageRow:
    """What the lead was told first."""
    return [row for row in await messages(node, "alarmed") if row.receiver == "peer:lea"][-1]


def explained(site: Path, message: str) -> None:
    """The command tells the same from the log of a node that does not run."""
    done = subprocess.run(
        [sys.executable, "-m", "rapport.cli.main", "explain", message, "--site", str(site)],
        capture_output=True,
        check=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "250"},
    )
    text = done.stdout.decode()
    for part in ("tell the lead", "room.alarms", "alarm.raised", "write it down", "b-7"):
        assert part in text
