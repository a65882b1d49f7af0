"""A whole node killed twenty times under load: nothing acknowledged is lost, nothing is done twice.
[CH-13, UX-5]

`rapport up` runs as a child; publishers post over HTTP; guards get their mail from a real server in
the parent. What the log says afterwards is compared with what a clean run over `events` finds.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.readonly import open_readonly
from rapport.communication.ledger import DELIVERY_PREFIX
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import StoredEvent
from rapport.core.message import MESSAGE
from rapport.core.times import format_time
from rapport.kernel.chance import Chance
from rapport.kernel.clock import SystemClock
from rapport.policy.engine_events import LATE_TYPE
from rapport.policy.readings import readings_from_events
from rapport.policy.runners.local import LocalRunner
from rapport.scenarios.secure_building.play import prepare_site
from rapport.site.site import load_site
from rapport.testing.mail import LocalMailServer

pytestmark = pytest.mark.slow

ROUNDS = 20
PUBLISHERS = 3
SECONDS_BETWEEN_POSTS = 0.02
GUARDS = ("ana@example.org", "ben@example.org")
ALONE = (("r1", "E200-01"), ("r2", "E200-02"), ("r3", "E200-03"))
"""Per publisher a badge reader in a restricted room and the tag of a guest who is alone there."""
ESCORTED = (("r4", "E200-04"), ("r4", "E100-14"))
STRANGER = (("r4", "E999-99"), ("r7", "E100-11"))
PASSING = (("r7", "E100-12"),)
ADDRESS = re.compile(r"rapport is up: http://([\d.]+):(\d+)")
START_SECONDS, SETTLE_SECONDS = 30, 60


class NodeProcess:
    """`rapport up` as a child; `doors` is where it listens now, None while it is down."""

    def __init__(self, site: Path) -> None:
        self._site = site
        self.doors: tuple[str, int] | None = None
        self.told: list[str] = []

    def start(self) -> None:
        environment = {**os.environ, "NO_COLOR": "1"}
        command = [sys.executable, "-m", "rapport.cli.main", "up", "--port", "0", "--site"]
        self._process = subprocess.Popen(
            [*command, str(self._site)], stderr=subprocess.PIPE, text=True, env=environment
        )
        ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(ready,))
        self._listener.start()
        assert ready.wait(START_SECONDS), self.told
        assert self.doors, self.told

    def kill(self) -> None:
        self.doors = None
        self._process.kill()
        assert self._ended() == -signal.SIGKILL

    def stop(self) -> tuple[int, float]:
        """Exit code after SIGTERM, and the seconds it took."""
        self.doors = None
        began = time.monotonic()
        self._process.terminate()
        return self._ended(), time.monotonic() - began

    def _ended(self) -> int:
        code = self._process.wait(timeout=20)
        self._listener.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code

    def _listen(self, ready: threading.Event) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.told.append(line)
            if found := ADDRESS.search(line):
                self.doors = (found[1], int(found[2]))
                ready.set()
        ready.set()


class Publisher:
    """A small device: posts readings one by one and in batches, notes which were acknowledged.

    A request that got no answer is sent again after the restart, or given up, by chance.
    """

    def __init__(self, number: int, node: NodeProcess, chance: Chance) -> None:
        self._number, self._node, self._chance = number, node, chance
        self.acknowledged: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        for step in count():
            path, body, names = self._request(step)
            while not stop.is_set():
                if self._post(path, body):
                    self.acknowledged.update(names)
                    break
                if self._chance.randint(0, 1):
                    break
            if stop.wait(SECONDS_BETWEEN_POSTS):
                return

    def _post(self, path: str, body: Any) -> bool:
        doors = self._node.doors
        if doors is None:
            threading.Event().wait(SECONDS_BETWEEN_POSTS)
            return False
        connection = http.client.HTTPConnection(*doors, timeout=10)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            return True
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _request(self, step: int) -> tuple[str, Any, list[str]]:
        """The path, the body and the names of its readings."""
        name, now_ms = f"{self._number}-{step}", SystemClock().now_ms()
        if step % 5 == 4:
            seen = {"cam": "c2", "face": "p17", "bearing_deg": 1, "dist_ft": 0.5 * (step % 7)}
            event = {"id": name, "source": "cameras", "type": "seen", "specversion": "1.0"}
            event["data"] = seen | {"n": name, "ts": now_ms / 1_000}
            return "/channels/raw.cameras/events", [event], [name]
        kinds = {0: (ALONE[self._number],), 2: ESCORTED, 3: STRANGER}
        seen_by = kinds.get(step % 5, PASSING)
        payloads = [
            {"reader": reader, "tag": tag, "dx": 1, "dy": 1, "t": format_time(now_ms)}
            for reader, tag in seen_by
        ]
        names = [f"{name}-{place}" for place in range(len(payloads))]
        named = [one | {"n": n} for one, n in zip(payloads, names, strict=True)]
        return "/sources/readers", named if len(named) > 1 else named[0], names


class Written:
    """Everything the log holds, read as another process would."""

    def __init__(self, site: Path) -> None:
        self.events = asyncio.run(_read_all(site / ".rapport" / "log"))

    def __getitem__(self, channel: str) -> list[StoredEvent]:
        return self.events.get(channel, [])

    def raw(self) -> list[StoredEvent]:
        return [one for name in self.events if name.startswith("raw.") for one in self[name]]

    def detections(self) -> list[str]:
        return [one.event.id for one in self["detections"] if one.event.type == DETECTED]

    def late(self) -> list[str]:
        kept = (one.event for one in self["detections"])
        return [event.payload()["id"] for event in kept if event.type == LATE_TYPE]

    def messages(self) -> dict[str, str]:
        """Detection of each message."""
        kept = (one.event for one in self["log"])
        return {event.id: event.causes()[0] for event in kept if event.type == MESSAGE}

    def states(self) -> dict[tuple[str, str], list[str]]:
        """What the ledger said, in order, about each message at each address."""
        found: dict[tuple[str, str], list[str]] = {}
        for stored in self["log"]:
            line = stored.event.payload()
            if stored.event.type.startswith(DELIVERY_PREFIX) and line.get("address"):
                address = line["address"].removeprefix("mail:")
                state = stored.event.type.removeprefix(DELIVERY_PREFIX)
                found.setdefault((line["message"], address), []).append(state)
        return found


async def _read_all(log: Path) -> dict[str, list[StoredEvent]]:
    channels = open_readonly(log, SystemClock())
    try:
        return {
            name: await channels.channel(name).read_after(0, limit=10_000_000)
            for name in channels.names()
        }
    finally:
        await channels.close()


def found_by_a_clean_run(site: Path, written: Written) -> set[str]:
    """Ids of the detections in `events`, without the readings that came after their time."""
    loaded, late = load_site(site), set(written.late())
    readings = [one.event for one in written["events"] if one.event.id not in late]
    plans = [compiled.plan for compiled in loaded.policies.values()]
    runner = LocalRunner(plans, loaded.tables, lateness_ms=10**9)
    found: list[Detection] = runner.feed(readings_from_events(readings, loaded.ontology))
    return {detection.id() for detection in [*found, *runner.finish()]}


def mails_of(mailbox: LocalMailServer) -> Counter[tuple[str, str]]:
    """How often each guard got each message."""
    pairs = zip(mailbox.mails, mailbox.recipients, strict=True)
    return Counter((str(mail["X-Rapport-Message"]), to[0]) for mail, to in pairs)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Looks ten times a second; says whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.1)
    return True


@contextmanager
def publishing(node: NodeProcess, chance: Chance) -> Iterator[list[Publisher]]:
    stop = threading.Event()
    publishers = [
        Publisher(number, node, Chance(chance.randint(0, 2**30))) for number in range(PUBLISHERS)
    ]
    threads = [threading.Thread(target=one.run, args=(stop,)) for one in publishers]
    for thread in threads:
        thread.start()
    try:
        yield publishers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def acknowledged_by(publishers: list[Publisher]) -> set[str]:
    return set().union(*(one.acknowledged for one in publishers))


def run_rounds(node: NodeProcess, chance: Chance, rounds: int) -> set[str]:
    """Kills the node again and again; the names of all readings that were acknowledged."""
    with publishing(node, chance) as publishers:
        for _ in range(rounds):
            node.start()
            enough = len(acknowledged_by(publishers)) + chance.randint(5, 50)
            assert wait_until(lambda n=enough: len(acknowledged_by(publishers)) >= n, 30)
            node.kill()
        node.start()
        enough = len(acknowledged_by(publishers)) + 30
        assert wait_until(lambda: len(acknowledged_by(publishers)) >= enough, 30)
    return acknowledged_by(publishers)


def settle(site: Path, mailbox: LocalMailServer) -> None:
    """Waits until time has decided everything and both guards know; the checks say what is wrong."""

    def settled() -> bool:
        written = Written(site)
        expected = found_by_a_clean_run(site, written)
        told = {(written.messages().get(message), to) for message, to in mails_of(mailbox)}
        handed = [states[-1] == "handed" for states in written.states().values()]
        everybody = {(one, guard) for one in expected for guard in GUARDS}
        return set(written.detections()) >= expected and told >= everybody and all(handed)

    wait_until(settled, SETTLE_SECONDS)


def check_readings(written: Written, acknowledged: set[str]) -> None:
    """Each acknowledged reading is in the raw log once, and has one meaning or one refusal."""
    names = Counter(one.event.payload()["n"] for one in written.raw())
    assert acknowledged <= set(names)
    assert set(names.values()) == {1}
    raw = [(one.event.source, one.event.id) for one in written.raw()]
    meant = [(one.event.source, one.event.id) for one in written["events"]]
    refused = [
        (one.event.payload()["source"], one.event.headers["cause"]) for one in written["quarantine"]
    ]
    assert Counter(meant + refused) == Counter(raw)
    assert {one.event.payload()["reason"] for one in written["quarantine"]} == {"identity.unknown"}


def check_detections(written: Written, site: Path) -> None:
    """Found once, exactly what a clean run finds; each has its message."""
    found = written.detections()
    assert len(found) == len(set(found))
    assert set(found) == found_by_a_clean_run(site, written)
    assert sorted(written.messages().values()) == sorted(found)


def check_deliveries(written: Written, mailbox: LocalMailServer) -> None:
    """Everybody was told; a second mail only where the ledger says that the first was in doubt."""
    mails, states = mails_of(mailbox), written.states()
    everybody = {(message, guard) for message in written.messages() for guard in GUARDS}
    assert set(mails) == set(states) == everybody
    for delivery, said in states.items():
        assert [state for state in said if state != "unknown"] == ["queued", "handed"], said
        assert mails[delivery] == 1 or "unknown" in said
    assert written["dead_letters"] == []


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[[LocalMailServer], Path]:
    def make(mailbox: LocalMailServer) -> Path:
        site = prepare_site(
            tmp_path / "site",
            mail_port=mailbox.port,
            phone_url="http://127.0.0.1:9/phone",
            answer_within="1h",
        )
        file = site / "site.toml"
        file.write_text(file.read_text().replace('window = "5s"', 'window = "1s"'))
        return site

    return make


def test_twenty_kills_of_a_node_under_load_lose_and_repeat_nothing(
    prepare: Callable[[LocalMailServer], Path],
) -> None:
    async def scenario() -> None:
        async with LocalMailServer() as mailbox:
            site = prepare(mailbox)
            await asyncio.to_thread(play, site, mailbox)

    def play(site: Path, mailbox: LocalMailServer) -> None:
        node = NodeProcess(site)
        acknowledged = run_rounds(node, Chance(20260302), ROUNDS)
        settle(site, mailbox)
        assert node.stop()[0] == 0, node.told
        written = Written(site)
        check_readings(written, acknowledged)
        check_detections(written, site)
        check_deliveries(written, mailbox)
        assert len(written.detections()) >= ROUNDS

    asyncio.run(scenario())


def test_sigterm_under_load_drains_and_ends_well_and_nothing_is_lost(
    prepare: Callable[[LocalMailServer], Path],
) -> None:
    async def scenario() -> None:
        async with LocalMailServer() as mailbox:
            site = prepare(mailbox)
            await asyncio.to_thread(play, site, mailbox)

    def play(site: Path, mailbox: LocalMailServer) -> None:
        node = NodeProcess(site)
        with publishing(node, Chance(7)) as publishers:
            for _ in range(3):
                node.start()
                enough = len(acknowledged_by(publishers)) + 100
                assert wait_until(lambda n=enough: len(acknowledged_by(publishers)) >= n, 30)
                code, seconds = node.stop()
                assert (code, seconds < 5) == (0, True), (code, seconds, node.told)
        node.start()
        settle(site, mailbox)
        assert node.stop()[0] == 0, node.told
        assert not any("Traceback" in line for line in node.told), node.told
        written = Written(site)
        check_readings(written, acknowledged_by(publishers))
        check_detections(written, site)
        check_deliveries(written, mailbox)

    asyncio.run(scenario())
