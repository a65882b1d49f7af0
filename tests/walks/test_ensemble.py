"""The walk of a badge reader without a link: it gossips its readings over a neighbour who loses,
doubles and is killed; they arrive late but once, and the policy decides by their own time. [EN-10,
EN-14, PO-7]

Real processes: the node, `rapport ensemble run` for the reader, a carrier between them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

from rapport.communication.texts import shown_time
from rapport.core.times import format_time, parse_time
from rapport.ensemble.device_readings import Backlog
from rapport.kernel.clock import SystemClock
from rapport.scenarios.json_client import post_json
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.secure_building.building_play import prepare_site
from support.processes.context import BrokerProcess
from support.processes.ensemble_nodes import node_process
from support.processes.node import NodeProcess
from support.servers.ports import free_port

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
ZONES = {"ben@example.org": "Europe/Berlin"}
HERE = Path(__file__).parent
GUEST, EMPLOYEE = "E200-01", "E100-14"
ENSEMBLE = """
[ensemble]
listen = "127.0.0.1:{port}"
gossip = {{ knowledge_ms = 200, probability = 1.0 }}
membership = {{ period_ms = 300, ack_ms = 75, gossip_ms = 60 }}
[[ensemble.carried]]
component = "reader-*"
source = "readers"
"""


class Gallery:
    """The reader in the gallery, its radio, and whoever carries what it says."""

    def __init__(self, folder: Path, node_port: int) -> None:
        self.lines, self.backlog = folder / "lines", folder / "backlog"
        self.lines.touch()
        self._node, self._group = f"127.0.0.1:{node_port}", free_port(is_udp=True)
        self.seen: list[tuple[str, int]] = []

    def badge(self, reader: str, tag: str) -> int:
        """The hardware sees a badge."""
        now_ms = CLOCK.now_ms()
        payload = {"reader": reader, "tag": tag, "dx": 0, "dy": 0, "t": format_time(now_ms)}
        with self.lines.open("a") as file:
            file.write(json.dumps({**payload, "ms": now_ms, "n": len(self.seen)}) + "\n")
        self.seen.append((tag, len(self.seen)))
        return now_ms

    def reader(self) -> BrokerProcess:
        """`rapport ensemble run`: in range of the carrier only, without an address of the node."""
        group = ("--group", f"239.77.4.12:{self._group}")
        return node_process(HERE / "badge_reader.py", "gallery", options=group)

    @contextmanager
    def carrier(self) -> Iterator[subprocess.Popen[str]]:
        """Killed at the end, whatever it was about."""
        process = subprocess.Popen(
            [sys.executable, str(HERE / "carrier_that_loses.py"), self._node, str(self._group)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def waiting(self) -> int:
        """Readings that the reader has not forgotten yet, by its file."""
        copy = self.backlog.with_suffix(".look")
        shutil.copy(self.backlog, copy)
        backlog = Backlog(copy)
        backlog.close()
        return len(backlog)


class Building:
    """The node, as a stranger sees it."""

    def __init__(self, site: Path, node: NodeProcess) -> None:
        assert node.doors is not None
        self.site, self.url = site, "http://{}:{}".format(*node.doors)

    async def events(self, channel: str, type: str = "") -> list[dict[str, Any]]:
        def read() -> Any:
            with urlopen(f"{self.url}/channels/{channel}/events?limit=1000", timeout=20) as answer:
                return msgspec.json.decode(answer.read())["events"]

        return [one for one in await asyncio.to_thread(read) if type in ("", one["type"])]

    async def carried(self) -> list[tuple[str, int]]:
        raw = await self.events("raw.readers", "rapport.ensemble.carried")
        return [(one["data"]["tag"], one["data"]["n"]) for one in raw]

    async def alarms(self) -> list[dict[str, Any]]:
        found = await self.events("detections", "rapport.policy.detected")
        return [one for one in found if one["data"]["bindings"]["R"] == "gallery"]

    async def others_are_heard(self) -> None:
        """A reader with a link: time moves on past what the other one has."""
        now = format_time(CLOCK.now_ms())
        payload = {"reader": "r9", "tag": "E100-11", "dx": 0, "dy": 0, "t": now}
        await post_json(f"{self.url}/sources/readers", payload)

    def explained(self, event: str) -> Any:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "rapport.cli.main", "explain", event, "--json"),
                *("--site", str(self.site)),
            ],
            capture_output=True,
            check=True,
        )
        return msgspec.json.decode(done.stdout)


async def until(look: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await CLOCK.sleep(50)
    return found


def make_site(folder: Path, mail_port: int, node_port: int) -> Path:
    site = prepare_site(
        folder, mail_port=mail_port, phone_url="http://127.0.0.1:9/phone", answer_within="1h"
    )
    file = site / "site.toml"
    text = file.read_text(encoding="utf-8")
    text = text.replace('lateness = "5s"', 'lateness = "200ms"')
    text = text.replace('window = "5s"', 'window = "300ms"')
    file.write_text(text + ENSEMBLE.format(port=node_port), encoding="utf-8")
    return site


def test_a_reader_without_a_link_is_heard_late_but_once_and_the_alarm_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        port = free_port(is_udp=True)
        gallery = Gallery(tmp_path, port)
        monkeypatch.setenv("BADGE_LINES", str(gallery.lines))
        monkeypatch.setenv("BADGE_BACKLOG", str(gallery.backlog))
        async with LocalMailServer() as mailbox:
            site = make_site(tmp_path / "site", mailbox.port, port)
            with ExitStack() as stack:
                node = stack.enter_context(NodeProcess(site))
                await asyncio.to_thread(node.start)
                reader = gallery.reader()
                stack.callback(lambda: reader.__exit__(None, None, None))
                await asyncio.to_thread(reader.start)
                await walk(Building(site, node), gallery, reader, mailbox)

    asyncio.run(scenario())


async def walk(
    building: Building, gallery: Gallery, reader: BrokerProcess, mailbox: LocalMailServer
) -> None:
    guest_ms = gallery.badge("r8", GUEST)
    await CLOCK.sleep(600)
    await building.others_are_heard()
    with gallery.carrier():
        await until(building.carried)
    # The carrier is dead; the reader goes on, dies itself, and nobody is there to hear.
    for _ in range(20):
        gallery.badge("r4", EMPLOYEE)
    await until(lambda: has_noted(gallery))
    await asyncio.to_thread(reader.kill)
    await asyncio.to_thread(reader.start)
    assert await building.carried() == [(GUEST, 0)]
    with gallery.carrier():
        await until(lambda: all_arrived(building, gallery))
        await until(lambda: is_forgotten(gallery))
    assert await building.carried() == gallery.seen
    await raised_late(building, mailbox, guest_ms)


async def raised_late(building: Building, mailbox: LocalMailServer, guest_ms: int) -> None:
    (alarm,) = await until(building.alarms)
    assert alarm["late"] == "true"
    # The policy waits its window for an employee, then the alarm holds: by the reading's own time.
    assert parse_time(alarm["time"]) == guest_ms + 300
    mails = await until(lambda: mails_about(mailbox, "gallery"))
    when = mails[0]["Subject"].strip().removeprefix("LATE, for ").split(": ")[0]
    zone = ZONES.get(mails[0]["To"], "UTC")
    assert when in {shown_time(guest_ms, zone), shown_time(guest_ms + 1_000, zone)}
    assert len(await building.alarms()) == 1
    tree = await asyncio.to_thread(building.explained, alarm["id"])
    way = [tree["channel"]]
    while tree["causes"]:
        tree = tree["causes"][0]
        way.append(tree["channel"])
    assert way == ["detections", "events", "raw.readers"]


async def has_noted(gallery: Gallery) -> bool:
    return gallery.waiting() >= 20


async def is_forgotten(gallery: Gallery) -> bool:
    return gallery.waiting() == 0


async def all_arrived(building: Building, gallery: Gallery) -> bool:
    return len(await building.carried()) >= len(gallery.seen)


async def mails_about(mailbox: LocalMailServer, room: str) -> list[Any]:
    return [mail for mail in mailbox.mails if room in mail["Subject"]]
