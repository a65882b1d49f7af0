"""Files of a site taken over again and again while messages and detections flow, and a node killed
right after: nothing acknowledged is lost, nobody is told twice, and the node is as the files say.
[UX-2, UX-5, CO-3, PO-9]
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rapport.cli.local_site import read_channels
from rapport.communication.ledger_events import UNMAPPED
from rapport.communication.ledger_rows import LedgerEntry, read_entries
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.scenarios.secure_building.building_play import prepare_site
from support.faults.rounds import wait_until
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

RELOADS, KILLS = 6, 2
PEOPLE = """
[peers.joe]
addresses = ["inbox:"]
[peers.new{n}]
addresses = ["inbox:"]
[collectives.watch]
members = ["joe", "new{n}"]
delivery = "to-any"
[actions."look{n}"]
send_to = "peer:joe"
text = "look{n} at {{A}}"
"""
POLICY = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
actions
  look{n}
"""


class Site:
    """Its files, each time others: a person, a collective, an action and the policy with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = prepare_site(
            directory, mail_port=9, phone_url="http://127.0.0.1:9/x", answer_within="60s"
        )
        (directory / "secure-building.dpl").unlink()
        self._file = directory / "site.toml"
        self._text, self.number = self._file.read_text(), 0
        self.write(0)

    def write(self, number: int) -> None:
        self._file.write_text(self._text + PEOPLE.format(n=number))
        (self.directory / "watch.dpl").write_text(POLICY.format(n=number))
        self.number = number


def ask(node: NodeProcess, method: str, path: str, body: Any = None) -> Any:
    """The answer; None when the node did not acknowledge it."""
    doors = node.doors
    if doors is None:
        threading.Event().wait(0.05)
        return None
    connection = http.client.HTTPConnection(*doors, timeout=60)
    try:
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        return json.loads(said) if answer.status < 300 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Sender:
    """Messages to somebody who stays, and guests who are seen; knows what was acknowledged."""

    def __init__(self, node: NodeProcess) -> None:
        self._node, self._clock = node, SystemClock()
        self.messages: list[str] = []
        self.seen = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(0.01):
            number = len(self.messages)
            message = {
                "type": "TASK",
                "subtype": "COME",
                "sender": "component:app",
                "receiver": "collective:watch" if number % 2 else "peer:joe",
                "content": f"number {number}",
            }
            sent = ask(self._node, "POST", "/messages", message)
            if sent is not None:
                self.messages += sent["ids"]
            at = format_time(self._clock.now_ms())
            body = {"reader": "r1", "tag": "E200-01", "dx": 2.0, "dy": 3.0, "t": at}
            self.seen += ask(self._node, "POST", "/sources/readers", body) is not None


def lines_of(site: Path) -> list[LedgerEntry]:
    log = read_channels(site, lambda c: c.channel("log").read_after(0, limit=1_000_000))
    return [said for stored in log for said in read_entries(stored)]


def handed(site: Path) -> Counter[tuple[str, str]]:
    """By message and person how often a medium took it."""
    return Counter(
        (said.message, said.line.peer)
        for said in lines_of(site)
        if said.line is not None and said.state == "handed"
    )


def unmapped(site: Path) -> list[str]:
    """Detections that nothing was done about."""
    lines = [said.line for said in lines_of(site) if said.line is not None]
    return [line.reason for line in lines if line.reason.startswith(UNMAPPED)]


def test_nothing_is_lost_by_reloads_under_load_and_kills_right_after(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    with NodeProcess(site.directory) as node:
        node.start()
        sender, stop = Sender(node), threading.Event()
        thread = threading.Thread(target=sender.run, args=(stop,))
        thread.start()
        try:
            reload_and_kill(site, node)
            assert wait_until(lambda: len(sender.messages) > 20)
        finally:
            stop.set()
            thread.join()
        assert ask(node, "GET", f"/peers/new{site.number}") is not None
        assert ask(node, "GET", f"/peers/new{site.number - 1}") is None
        ids = set(sender.messages)
        assert len(ids) > 20
        assert wait_until(lambda: ids <= {id for id, _peer in handed(site.directory)})
        node.stop()
    times = handed(site.directory)
    assert not {key for key in times if times[key] > 1}
    assert len(times) > len(ids), "no detection was told of"
    assert not unmapped(site.directory)


def reload_and_kill(site: Site, node: NodeProcess) -> None:
    for number in range(1, RELOADS + 1):
        site.write(number)
        done = ask(node, "POST", "/reload")
        assert done is not None, node.told[-5:]
        assert f"peer new{number} added" in done["people"]
        assert f"peer new{number - 1} removed" in done["people"]
        assert set(done["actions"]) == {f"look{number}", f"look{number - 1}"}
        if number % (RELOADS // KILLS) == 0:
            node.kill()
            node.start()
            assert ask(node, "GET", f"/peers/new{number}") is not None
