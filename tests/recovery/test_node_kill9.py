"""A whole node killed twenty times under load: nothing acknowledged is lost, nothing is done twice.
[CH-13, UX-5]

`rapport up` runs as a child; publishers post over HTTP; guards get their mail from a real server in
the parent. What the log says afterwards is compared with what a clean run over `events` finds.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rapport.core.detection import Detection
from rapport.core.times import format_time
from rapport.kernel.clock import Chance, SystemClock
from rapport.policy.runner.local import LocalRunner
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.scenarios.secure_building.people import answer_link_of
from rapport.site.site import load_site
from support.event_readings import readings_from_events
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

ROUNDS = [3, pytest.param(20, marks=pytest.mark.long)]
PUBLISHERS = 3
SECONDS_BETWEEN_POSTS = 0.02
GUARDS = ("mail:ana@example.org", "mail:ben@example.org")
ALONE = (("r1", "E200-01"), ("r2", "E200-02"), ("r3", "E200-03"))
"""Per publisher a badge reader in a restricted room and the tag of a guest who is alone there."""
ESCORTED = (("r4", "E200-04"), ("r4", "E100-14"))
STRANGER = (("r4", "E999-99"), ("r7", "E100-11"))
PASSING = (("r7", "E100-12"),)
SETTLE_SECONDS = 60


def post(node: NodeProcess, path: str, body: Any, key: str = "") -> bool:
    """Whether the node acknowledged it; repeated under its key it is stored once."""
    doors = node.doors
    if doors is None:
        threading.Event().wait(SECONDS_BETWEEN_POSTS)
        return False
    connection = http.client.HTTPConnection(*doors, timeout=10)
    try:
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


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
                if post(self._node, path, body, names[0]):
                    self.acknowledged.update(names)
                    break
                if self._chance.randint(0, 1):
                    break
            if stop.wait(SECONDS_BETWEEN_POSTS):
                return

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


class Guard:
    """Ana: answers every second mail, and goes on trying until the node has taken the answer."""

    def __init__(self, node: NodeProcess, mailbox: LocalMailServer) -> None:
        self._node, self._mailbox = node, mailbox
        self.answered: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        read = 0
        while not stop.wait(SECONDS_BETWEEN_POSTS):
            for mail in self._mailbox.mails[read:]:
                read += 1
                link = answer_link_of(mail)
                if read % 2 == 0 and link is not None and "/ana/" in link:
                    self._answer(str(mail["X-Rapport-Message"]), urlsplit(link).path, stop)

    def _answer(self, message: str, path: str, stop: threading.Event) -> None:
        while not stop.is_set():
            if post(self._node, path, {"answer": "on my way"}):
                self.answered.add(message)
                return


def read_log(site: Path) -> WrittenLog:
    return WrittenLog(site / ".rapport" / "log")


def found_by_a_clean_run(site: Path, written: WrittenLog) -> set[str]:
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
    return Counter((str(mail["X-Rapport-Message"]), f"mail:{to[0]}") for mail, to in pairs)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Looks ten times a second; says whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.1)
    return True


@contextmanager
def at_work(*people: Publisher | Guard) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=one.run, args=(stop,)) for one in people]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def acknowledged_by(publishers: list[Publisher]) -> set[str]:
    return set().union(*(one.acknowledged for one in publishers))


def make_publishers(node: NodeProcess, chance: Chance) -> list[Publisher]:
    seeds = [chance.randint(0, 2**30) for _ in range(PUBLISHERS)]
    return [Publisher(number, node, Chance(seed)) for number, seed in enumerate(seeds)]


def wait_for_more(publishers: list[Publisher], count: int) -> None:
    """Returns when so many more readings were acknowledged."""
    enough = len(acknowledged_by(publishers)) + count
    assert wait_until(lambda: len(acknowledged_by(publishers)) >= enough, 30)


def settle(site: Path, mailbox: LocalMailServer) -> None:
    """Waits until time has decided everything and both guards know, or for too long."""

    def settled() -> bool:
        written = read_log(site)
        expected = found_by_a_clean_run(site, written)
        messages, states = written.messages(), written.states()
        told = {(messages.get(message), to) for message, to in mails_of(mailbox)}
        told |= {(messages[one], to) for (one, to), said in states.items() if said[-1] == "closed"}
        ended = [said[-1] in {"handed", "closed"} for said in states.values()]
        everybody = {(one, guard) for one in expected for guard in GUARDS}
        return set(written.detections()) >= expected and told >= everybody and all(ended)

    wait_until(settled, SETTLE_SECONDS)


def check_readings(written: WrittenLog, acknowledged: set[str]) -> None:
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


def check_detections(written: WrittenLog, site: Path) -> None:
    """Found once, exactly what a clean run finds; each has its message."""
    found = written.detections()
    assert len(found) == len(set(found))
    assert set(found) == found_by_a_clean_run(site, written)
    assert sorted(written.messages().values()) == sorted(found)


def check_deliveries(written: WrittenLog, mailbox: LocalMailServer) -> None:
    """Everybody was told; a second mail only where the ledger says that the first was in doubt.

    A mail that waits, or is in doubt, is not sent once the message is answered: its delivery ends
    as closed.
    """
    mails, states, answers = mails_of(mailbox), written.states(), written.said()
    everybody = {(message, guard) for message in written.messages() for guard in GUARDS}
    assert set(states) == everybody >= set(mails)
    for delivery, said in states.items():
        settled = [state for state in said if state != "unknown"]
        if said[-1] == "closed":
            assert answers[delivery[0]]["ana", "answered"]
            settled[-1] = "handed"
        else:
            assert delivery in mails
        assert settled == ["queued", "handed"], said
        assert mails[delivery] <= 1 or "unknown" in said
    assert written["dead_letters"] == []


def settle_answers(site: Path, answered: set[str]) -> None:
    """Waits until the ledger has every answer that was taken, or for too long."""

    def settled() -> bool:
        said = read_log(site).said()
        return all(said.get(message, {}).get(("ana", "answered")) for message in answered)

    wait_until(settled, SETTLE_SECONDS)


def check_answers(written: WrittenLog, answered: set[str]) -> None:
    """An answer that was taken stands, and closes its message once; the others stay open."""
    said = written.said()
    assert answered
    assert answered == {message for message, lines in said.items() if lines["ana", "answered"]}
    assert {message for message, lines in said.items() if lines["", "closed"]} == answered
    for lines in said.values():
        assert set(lines) == {("ana", "answered"), ("", "closed")}
        assert lines["", "closed"] == 1


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


def play(
    site_for: Callable[[LocalMailServer], Path], story: Callable[[Path, LocalMailServer], None]
) -> None:
    """Runs a blocking story beside a mail server."""

    async def scenario() -> None:
        async with LocalMailServer() as mailbox:
            await asyncio.to_thread(story, site_for(mailbox), mailbox)

    asyncio.run(scenario())


@pytest.mark.parametrize("rounds", ROUNDS)
def test_kills_of_a_node_under_load_lose_and_repeat_nothing(
    prepare: Callable[[LocalMailServer], Path], rounds: int
) -> None:
    def story(site: Path, mailbox: LocalMailServer) -> None:
        chance = Chance(20260302)
        with NodeProcess(site) as node:
            publishers, guard = make_publishers(node, chance), Guard(node, mailbox)
            with at_work(guard):
                with at_work(*publishers):
                    for _ in range(rounds):
                        node.start()
                        wait_for_more(publishers, chance.randint(5, 50))
                        assert node.kill() == -signal.SIGKILL
                    node.start()
                    wait_for_more(publishers, 30)
                    assert wait_until(lambda: bool(guard.answered), SETTLE_SECONDS)
                settle(site, mailbox)
            settle_answers(site, guard.answered)
            assert node.stop()[0] == 0, node.told
        written = read_log(site)
        check_readings(written, acknowledged_by(publishers))
        check_detections(written, site)
        check_deliveries(written, mailbox)
        check_answers(written, guard.answered)
        assert len(written.detections()) >= rounds

    play(prepare, story)


def test_sigterm_under_load_drains_and_ends_well_and_nothing_is_lost(
    prepare: Callable[[LocalMailServer], Path],
) -> None:
    def story(site: Path, mailbox: LocalMailServer) -> None:
        with NodeProcess(site) as node:
            publishers = make_publishers(node, Chance(7))
            with at_work(*publishers):
                for _ in range(2):
                    node.start()
                    wait_for_more(publishers, 100)
                    code, seconds = node.stop()
                    assert (code, seconds < 5) == (0, True), (code, seconds, node.told)
            node.start()
            settle(site, mailbox)
            assert node.stop()[0] == 0, node.told
            assert not any("Traceback" in line for line in node.told), node.told
        written = read_log(site)
        check_readings(written, acknowledged_by(publishers))
        check_detections(written, site)
        check_deliveries(written, mailbox)

    play(prepare, story)
