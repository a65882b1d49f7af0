"""The walk of a camera whose unit nobody declared: held back, mended, released, and the alarm that
should have been raised is raised, marked late. [ME-11, ME-16, PO-7, PO-11, UX-9]

A real node process, killed between the release and the second look; real doors, mail and commands.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

from rapport.communication.texts import shown_time
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.scenarios.json_client import post_json
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.secure_building.building_play import prepare_site
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

DYING = Path(__file__).parent / "dies_before_looking.py"
CLOCK = SystemClock()
ZONES = {"ben@example.org": "Europe/Berlin"}
UNSAID, SAID = 'field = "dist_ft" }', 'field = "dist_ft", unit = "ft" }'
LAB = {"cam": "c2", "face": "p07", "bearing_deg": 0, "dist_ft": 12}
"""A guest alone in the lab, and nobody else to tell."""
GALLERY = {"cam": "c1", "face": "p17", "bearing_deg": 0, "dist_ft": 14}
"""An employee in the gallery, beside a guest whose badge was read there."""
DEPOT = {"cam": "c3", "face": "p08", "bearing_deg": 0, "dist_ft": 12}
"""A guest in the depot, beside an employee whose badge was read there."""


class Building:
    """The node wherever it runs now, as a stranger sees it: by its doors and commands."""

    def __init__(self, site: Path) -> None:
        self.site, self.url = site, ""

    async def start(self, node: NodeProcess) -> None:
        await asyncio.to_thread(node.start)
        assert node.doors is not None
        self.url = "http://{}:{}".format(*node.doors)

    async def badge(self, reader: str, tag: str, time_ms: int) -> None:
        payload = {"reader": reader, "tag": tag, "dx": 0, "dy": 0, "t": format_time(time_ms)}
        await post_json(f"{self.url}/sources/readers", payload)

    async def camera(self, seen: dict[str, Any], time_ms: int) -> None:
        await post_json(f"{self.url}/sources/cameras", seen | {"ts": time_ms / 1_000})

    async def events(self, channel: str, type: str = "") -> list[dict[str, Any]]:
        def read() -> Any:
            with urlopen(f"{self.url}/channels/{channel}/events?limit=1000", timeout=20) as answer:
                return msgspec.json.decode(answer.read())["events"]

        return [one for one in await asyncio.to_thread(read) if type in ("", one["type"])]

    async def alarms(self) -> dict[str, dict[str, Any]]:
        """By room."""
        found = await self.events("detections", "rapport.policy.detected")
        assert len({one["data"]["bindings"]["R"] for one in found}) == len(found)
        return {one["data"]["bindings"]["R"]: one for one in found}

    async def rapport(self, *arguments: str, node: bool = False) -> tuple[int, Any, str]:
        """Exit code, JSON on stdout, and what was said on stderr."""

        def run() -> subprocess.CompletedProcess[str]:
            where = ["--site", str(self.site), *(("--url", self.url) if node else ())]
            return subprocess.run(
                [sys.executable, "-m", "rapport.cli.main", *arguments, *where],
                capture_output=True,
                check=False,
                text=True,
                env={**os.environ, "NO_COLOR": "1"},
            )

        done = await asyncio.to_thread(run)
        return (
            done.returncode,
            msgspec.json.decode(done.stdout) if done.stdout else None,
            done.stderr,
        )

    def change(self, old: str, new: str) -> None:
        file = self.site / "site.toml"
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await condition()):
            await CLOCK.sleep(50)
    return found


def types_below(node: dict[str, Any]) -> set[str]:
    return {node["type"]}.union(*(types_below(cause) for cause in node["causes"]))


def test_a_camera_without_a_unit_raises_its_alarm_late_once_it_is_mended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LocalMailServer() as mailbox:
            building = Building(
                prepare_site(
                    tmp_path,
                    mail_port=mailbox.port,
                    phone_url="http://127.0.0.1:9/phone",
                    answer_within="1h",
                )
            )
            building.change('lateness = "5s"', 'lateness = "200ms"')
            building.change('window = "5s"', 'window = "300ms"')
            building.change(SAID, UNSAID)
            with NodeProcess(building.site, program=DYING) as node:
                await building.start(node)
                seen_ms = await live(building, mailbox)
                await mended_and_released(building)
                assert await asyncio.to_thread(node.kill) == -signal.SIGKILL  # it is dead already
            with NodeProcess(building.site) as node:
                await building.start(node)
                await raised_late(building, mailbox, seen_ms)

    asyncio.run(scenario())


async def live(building: Building, mailbox: LocalMailServer) -> int:
    """What is known without the camera: a guest in the gallery seems to be alone."""
    seen_ms = CLOCK.now_ms()
    for seen in (LAB, GALLERY, DEPOT):
        await building.camera(seen, seen_ms)
    await building.badge("r8", "E200-01", seen_ms)
    await building.badge("r9", "E100-11", seen_ms)
    await until(lambda: mailbox_has(mailbox, "gallery"))
    assert set(await building.alarms()) == {"gallery"}
    await building.badge("r7", "E100-12", CLOCK.now_ms())
    return seen_ms


async def mended_and_released(building: Building) -> None:
    _code, held, _said = await building.rapport("mediate", "quarantine", "--json")
    (group,) = held
    assert (group["source"], group["reason"], group["count"]) == ("cameras", "unit.undeclared", 3)
    assert "3 values of dist_ft, always within 12..14" in group["hint"]
    assert "'ft'" in group["hint"]
    building.change(UNSAID, SAID.replace('ft" }', 'feets" }'))
    code, _none, said = await building.rapport("mediate", "reload", node=True)
    assert code != 0
    assert "feets" in said
    building.change("feets", "ft")
    code, changed, _said = await building.rapport("mediate", "reload", node=True)
    assert (code, changed["interpretations"]) == (0, ["cameras"])
    trial = await building.rapport("mediate", "release", "--dry-run", node=True)
    assert (trial[1]["released"], trial[1]["rejected"]) == (3, 0)
    code, _none, said = await building.rapport(
        "mediate", "release", "--source", "cameras", node=True
    )
    assert code == 1  # the node died before it looked again
    assert "no node answers" in said


async def raised_late(building: Building, mailbox: LocalMailServer, seen_ms: int) -> None:
    await until(lambda: mailbox_has(mailbox, "lab"))
    alarms = await building.alarms()
    assert set(alarms) == {"gallery", "lab"}  # in the depot an employee was near
    late = alarms["lab"]
    assert late["late"] == "true"
    assert "late" not in alarms["gallery"]
    (asked,) = await building.events("releases", "rapport.mediation.holding.release")
    assert late["secondlook"] == asked["id"]
    (wrong,) = await building.events("detections", "rapport.policy.unsupported")
    assert wrong["data"]["detection"] == alarms["gallery"]["id"]
    readings = [one for one in await building.events("events") if one["source"] == "cameras"]
    assert len(readings) == 3
    assert all("released" in one for one in readings)
    assert (await building.rapport("mediate", "quarantine", "--json"))[1] == []
    mails = [mail for mail in mailbox.mails if "lab" in mail["Subject"]]
    assert {mail["To"] for mail in mails} <= {"ana@example.org", "ben@example.org"}
    for mail in mails:
        late, _, subject = mail["Subject"].strip().partition("LATE, for ")
        assert late == ""
        zone = ZONES.get(mail["To"], "UTC")
        assert subject.split(": ")[0] in {
            shown_time(seen_ms, zone),
            shown_time(seen_ms + 1_000, zone),
        }
    await explained(building, mails[0]["X-Rapport-Message"], asked["id"])


async def explained(building: Building, message: str, release: str) -> None:
    _code, tree, _said = await building.rapport("explain", message, "--json")
    (detection,) = tree["causes"]
    (reading,) = detection["causes"]
    raw, released = sorted(reading["causes"], key=lambda node: node["channel"])
    assert (raw["channel"], raw["id"]) == ("raw.cameras", reading["id"])
    assert (released["channel"], released["id"]) == ("releases", release)
    assert types_below(tree) >= {"rapport.message", "rapport.policy.detected", "person.position"}


async def mailbox_has(mailbox: LocalMailServer, room: str) -> bool:
    return any(room in mail["Subject"] for mail in mailbox.mails)
