"""Plays the dangerous goods against a running node: trackers over HTTP, headquarters by mail.
[PO-17, UX-1]
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rapport.core.detection import DETECTED, Detection
from rapport.kernel.clock import Clock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.dangerous_goods.goods_scenes import EXPECTED, SITE, reports
from rapport.scenarios.json_client import post_json
from rapport.scenarios.mail_server import LocalMailServer
from rapport.site.site import load_site
from rapport.web.app import serving

_GIVE_UP_MS = 20_000
_LAST_TURN_MS = 3_000
"""The last readings wait out the site's lateness of 2 s before they are judged."""
_HEADQUARTERS = 2
"""People who get a mail."""

Tell = Callable[[str], None]


class GoodsRun(msgspec.Struct, frozen=True):
    """What came of it; of each mail its receiver and subject."""

    detections: list[Detection]
    mails: list[tuple[str, str]]
    messages: list[str]
    left_out: int
    """Detections that `at most once per` did not repeat."""

    def as_expected(self) -> bool:
        """Whether headquarters was told exactly what it should be, each once."""
        found = sorted(told(one) for one in self.detections)
        return found == sorted(EXPECTED) and len(self.mails) == _HEADQUARTERS * len(EXPECTED)


class GoodsStage(msgspec.Struct, frozen=True):
    """A running node and the mailbox of headquarters."""

    node: Node
    url: str
    mailbox: LocalMailServer


def told(detection: Detection) -> tuple[str, str, str, str]:
    """Policy, items and truck."""
    bound = detection.bindings
    return detection.policy, bound["A"], bound["B"], bound["T"]


def prepare_site(directory: Path, *, mail_port: int) -> Path:
    """Copies the scenario's site and fills in where headquarters gets its mail."""
    shutil.copytree(SITE, directory, dirs_exist_ok=True)
    file = directory / "site.toml"
    text = re.sub(r"(?m)^port = 2525$", f"port = {mail_port}", file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    return directory


@asynccontextmanager
async def stage(directory: Path, clock: Clock, *, port: int = 0) -> AsyncIterator[GoodsStage]:
    """A node on a fresh copy of the site, and a mail server."""
    async with LocalMailServer() as mailbox:
        site = prepare_site(directory, mail_port=mailbox.port)
        node = make_node(load_site(site), NodeSettings(port=port), clock)
        try:
            async with serving(node) as url:
                await node.start()
                yield GoodsStage(node, url, mailbox)
        finally:
            await node.stop()


async def play(scene: GoodsStage, clock: Clock, tell: Tell) -> GoodsRun:
    """Sends every report when it is due, then waits until headquarters was told."""
    start_ms = clock.now_ms() + 500
    for report in reports(start_ms):
        await clock.sleep(report.arrives_ms - clock.now_ms())
        await post_json(f"{scene.url}/sources/{report.source}", report.payload)
    tell("the scenes are over; waiting for the last verdicts")
    await clock.sleep(_LAST_TURN_MS)
    give_up = clock.now_ms() + _GIVE_UP_MS
    while clock.now_ms() < give_up and not (await outcome(scene)).as_expected():
        await clock.sleep(200)
    return await outcome(scene)


async def outcome(scene: GoodsStage) -> GoodsRun:
    """What has come of the play so far."""
    node = scene.node
    stored = await node.channels.channel("detections").read_after(0, limit=1_000)
    await node.ledger.refresh()
    counts = node.policy.counts_by_policy()
    messages = await asyncio.to_thread(node.ledger.messages)
    return GoodsRun(
        detections=[
            Detection.from_event(item.event) for item in stored if item.event.type == DETECTED
        ],
        mails=[
            (", ".join(to), str(mail["Subject"]))
            for mail, to in zip(scene.mailbox.mails, scene.mailbox.recipients, strict=True)
        ],
        messages=[row.message for row in messages],
        left_out=sum(each.suppressed for each in counts.values()),
    )
