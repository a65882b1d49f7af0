"""Plays the scenes against a running node: sensors over HTTP, people by mail. [UX-1, UX-7]"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rapport.communication.ledger_rows import LedgerRow, MessageRow
from rapport.core.detection import DETECTED, UNDECIDED, Detection, Undecided
from rapport.kernel.clock import Clock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.json_client import post_json
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.secure_building.building_scenes import (
    EXPECTED,
    EXPECTED_UNDECIDED,
    SITE,
    reports,
)
from rapport.scenarios.secure_building.people import Guard
from rapport.scenarios.webhook_sink import WebhookSink
from rapport.site.site import load_site
from rapport.web.app import serving

ANSWER_WITHIN = "6s"
"""Shorter than the scenario's minute, so that the demo shows the lead being asked."""
_GIVE_UP_MS = 45_000

Tell = Callable[[str], None]


class BuildingRun(msgspec.Struct, frozen=True):
    """What came of it."""

    alarms: list[tuple[str, str]]
    detections: list[Detection]
    ledger: list[LedgerRow]
    phone_calls: int
    sent: list[MessageRow]
    """The messages about the alarms, the oldest first."""
    undecided: list[Undecided]

    def as_expected(self) -> bool:
        """Whether exactly the deserved alarms were raised, the lead was asked about one, and what
        nobody can tell was reported as such.
        """
        unsure = [(one.bindings["A"], one.bindings["R"], one.silent) for one in self.undecided]
        alarms = sorted(self.alarms) == sorted(EXPECTED) and self.phone_calls == 1
        return alarms and sorted(unsure) == sorted(EXPECTED_UNDECIDED)


class BuildingStage(msgspec.Struct, frozen=True):
    """A running node with its people and its doors."""

    node: Node
    url: str
    phone: WebhookSink


def prepare_site(
    directory: Path,
    *,
    mail_port: int,
    phone_url: str,
    answer_within: str,
    gate_is_watched: bool = False,
) -> Path:
    """Copies the scenario's site and fills in where the people of this play are reached.

    With `gate_is_watched` the reader at the gate promises to be heard, and sources that the site
    does not declare are stored, as in the play; a source of a few readings would
    find them undecided.
    """
    shutil.copytree(SITE, directory, dirs_exist_ok=True)
    file = directory / "site.toml"
    text = file.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^port = 2525$", f"port = {mail_port}", text)
    text = text.replace("http://127.0.0.1:8585/phone", phone_url)
    text = text.replace('answer_within = "60s"', f'answer_within = "{answer_within}"')
    if gate_is_watched:
        text = text.replace('# period = "3s"', 'period = "3s"')
        text = text.replace("# open_sources = true", "open_sources = true")
    file.write_text(text, encoding="utf-8")
    return directory


@asynccontextmanager
async def stage(
    directory: Path,
    clock: Clock,
    tell: Tell,
    *,
    port: int = 0,
    answer_within: str = ANSWER_WITHIN,
) -> AsyncIterator[BuildingStage]:
    """A node on a fresh copy of the site, a mail server, a phone, and a guard who answers."""
    async with LocalMailServer() as mailbox, WebhookSink() as phone:
        site = prepare_site(
            directory,
            mail_port=mailbox.port,
            phone_url=phone.url,
            answer_within=answer_within,
            gate_is_watched=True,
        )
        node = make_node(load_site(site), NodeSettings(port=port), clock)
        guard = asyncio.create_task(Guard(mailbox, clock, tell).run())
        try:
            async with serving(node) as url:
                await node.start()
                yield BuildingStage(node, url, phone)
        finally:
            guard.cancel()
            await asyncio.gather(guard, return_exceptions=True)
            await node.stop()


async def play(scene: BuildingStage, clock: Clock, tell: Tell) -> BuildingRun:
    """Sends every report when it is due, then waits until all alarms are answered or passed on."""
    start_ms = clock.now_ms() + 500
    for report in reports(start_ms):
        await clock.sleep(report.arrives_ms - clock.now_ms())
        await post_json(f"{scene.url}/sources/{report.source}", report.payload)
    tell("the scenes are over; waiting for the last verdicts and answers")
    await _settled(scene, clock)
    return await outcome(scene)


async def outcome(scene: BuildingStage) -> BuildingRun:
    """What has come of the play so far."""
    node = scene.node
    stored = await node.channels.channel("detections").read_after(0, limit=1_000)
    events = [item.event for item in stored]
    found = [Detection.from_event(event) for event in events if event.type == DETECTED]
    await node.ledger.refresh()
    rows, messages = await asyncio.to_thread(lambda: (node.ledger.rows(), node.ledger.messages()))
    return BuildingRun(
        alarms=[(one.bindings["A"], one.bindings["R"]) for one in found],
        detections=found,
        ledger=rows,
        phone_calls=len(scene.phone.posted),
        sent=sorted(messages, key=lambda row: (row.time, row.message)),
        undecided=[Undecided.from_event(event) for event in events if event.type == UNDECIDED],
    )


async def _settled(scene: BuildingStage, clock: Clock) -> None:
    """Returns when the expected is there, or when waiting longer makes no sense."""
    give_up = clock.now_ms() + _GIVE_UP_MS
    while clock.now_ms() < give_up:
        now = await outcome(scene)
        if now.as_expected() and _all_told(now.ledger):
            return
        await clock.sleep(200)


def _all_told(ledger: list[LedgerRow]) -> bool:
    """Every alarm but one was answered, and the phone of the lead rang about that one."""
    answered = sum(row.state == "answered" for row in ledger if row.peer and not row.address)
    rang = any(row.adapter == "webhook" and row.state == "confirmed" for row in ledger)
    return rang and answered >= len(EXPECTED) - 1
