"""Publisher and node killed under load, the network cut: nothing accepted is lost, nothing is
stored twice. [CH-5, CH-6]
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.agents.outbox import inspect_outbox
from rapport.client import Publisher, PublisherSettings
from rapport.kernel.clock import Chance
from support.examples import examples
from support.faults.network import Network
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

ROUNDS = examples(20)
CHILD = Path(__file__).with_name("outbox_child.py")
SINK_CHILD = Path(__file__).with_name("sequence_child.py")
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'
QUICK = PublisherSettings(first_pause_ms=20, longest_pause_ms=200)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    (site / "site.toml").write_text(SITE)
    return site


@pytest.fixture
def node(site: Path) -> Iterator[NodeProcess]:
    with NodeProcess(site) as node:
        node.start()
        yield node


@pytest.fixture
def network(node: NodeProcess) -> Iterator[Network]:
    network = Network(node)
    yield network
    network.close()


def stored(site: Path) -> list[str]:
    return [one.event.id for one in WrittenLog(site / ".rapport" / "log")["lab"]]


def rapport(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rapport.cli.main", "outbox", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
    )


def wait_until(condition, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.02)
    return True


class Program:
    """The publishing child; notes what it said was accepted."""

    def __init__(self, *arguments: str) -> None:
        self.accepted: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def kill_after(self, count: int) -> None:
        assert wait_until(lambda: len(self.accepted) >= count), "the program accepts nothing"
        self._process.kill()
        self._process.wait(timeout=20)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                self.accepted.append(line.strip())


def test_publisher_and_node_killed_under_load_lose_and_double_nothing(
    tmp_path: Path, site: Path, node: NodeProcess, network: Network
) -> None:
    outbox, accepted, chance = tmp_path / "outbox", [], Chance(7)
    for number in range(ROUNDS):
        program = Program(str(CHILD), str(outbox), network.url, f"r{number}")
        if number % 5 == 2:
            assert wait_until(lambda one=program: len(one.accepted) >= 20)
            node.kill()
            node.start()
        elif number % 5 == 4:
            assert wait_until(lambda one=program: len(one.accepted) >= 20)
            network.cut()
            threading.Event().wait(0.2)
            network.heal()
        program.kill_after(len(program.accepted) + chance.randint(5, 150))
        accepted.append(program.accepted)
    drained = rapport("drain", str(outbox))
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout)["pending"] == 0
    assert node.stop()[0] == 0
    found = stored(site)
    said = [one for run in accepted for one in run]
    assert [one for one, times in Counter(found).items() if times > 1] == []
    assert set(said) <= set(found)
    kept = set(said)
    assert [one for one in found if one in kept] == said, "the order was not kept"


def test_a_program_goes_on_while_the_network_is_down_and_catches_up(
    tmp_path: Path, site: Path, network: Network
) -> None:
    with Publisher(
        tmp_path / "outbox", network.url, channel="lab", source="lab", settings=QUICK
    ) as publisher:
        ids = [publisher.publish(type="t", data=1)]
        assert publisher.flush(20)
        network.cut()
        ids += [publisher.publish(type="t", data=n) for n in range(200)]
        assert publisher.flush(0.3) is False
        assert publisher.status().pending == 200
        assert publisher.status().trouble is not None
        network.heal()
        assert publisher.flush(20)
    assert stored(site) == ids


def test_what_is_left_is_shown_and_delivered_after_the_program_has_ended(
    tmp_path: Path, site: Path, node: NodeProcess, network: Network
) -> None:
    outbox = tmp_path / "outbox"
    network.cut()
    program = Program(str(CHILD), str(outbox), network.url, "r")
    program.kill_after(100)
    waiting = inspect_outbox(outbox).pending
    assert waiting >= 100
    shown = rapport("status", str(outbox), "--json", "--limit", "3")
    told = json.loads(shown.stdout)
    assert (told["pending"], told["rejected"]) == (waiting, [])
    assert [one["state"] for one in told["events"]] == ["pending"] * 3
    in_vain = rapport("drain", str(outbox), "--timeout", "1s")
    assert in_vain.returncode == 1
    assert f"{waiting} events still wait" in in_vain.stderr
    assert "Traceback" not in in_vain.stderr
    assert node.doors is not None
    url = f"http://{node.doors[0]}:{node.doors[1]}"
    drained = rapport("drain", str(outbox), "--url", url)
    assert (drained.returncode, json.loads(drained.stdout)["settled"]) == (0, waiting)
    assert set(program.accepted) <= set(stored(site))
    assert len(stored(site)) == waiting


def test_a_second_process_is_refused_and_told_who_holds_the_outbox(
    tmp_path: Path, network: Network
) -> None:
    outbox = tmp_path / "outbox"
    with Publisher(outbox, network.url, channel="lab", source="lab") as publisher:
        publisher.publish(type="t")
        second = rapport("drain", str(outbox))
        assert second.returncode == 1
        assert f"is held by process {os.getpid()}" in second.stderr
        assert "error[outbox.locked]" in second.stderr
        looked = rapport("status", str(outbox))
        assert (looked.returncode, "pending" in looked.stdout) == (0, True)


def test_what_a_real_node_refuses_is_kept_with_what_it_said(
    tmp_path: Path, site: Path, network: Network
) -> None:
    outbox = tmp_path / "outbox"
    with Publisher(outbox, network.url, channel="lab", source="lab", settings=QUICK) as publisher:
        many = [{"type": "t", "data": n} for n in range(60)]
        many[17] = {"type": "t", "data": "x" * 2_000_000}  # more than a node takes in one event
        ids = publisher.publish_many(many)
        assert publisher.flush(20)
        (kept,) = publisher.rejected()
    assert (kept.event.id, kept.reason.code) == (ids[17], "event.too_large")
    assert stored(site) == [one for one in ids if one != ids[17]]
    shown = rapport("status", str(outbox))
    assert ids[17] in shown.stdout
    assert "event.too_large" in shown.stdout


def test_a_reserved_channel_stops_the_publisher_which_says_why(
    tmp_path: Path, network: Network
) -> None:
    outbox = tmp_path / "outbox"
    with Publisher(outbox, network.url, channel="log", source="lab", settings=QUICK) as publisher:
        publisher.publish(type="t")
        assert publisher.flush(20) is False
        told = publisher.status()
        assert (told.activity, told.pending) == ("stopped", 1)
        assert told.trouble is not None
        assert told.trouble.code == "channel.reserved"


def test_a_real_node_tells_repetitions_by_number_and_refuses_numbers_that_are_none(
    node: NodeProcess,
) -> None:
    assert node.doors is not None

    def post(**members: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(*node.doors, timeout=20)
        event = {"source": "s", "type": "t", "publisher": "p", "epoch": "1", **members}
        connection.request("POST", "/channels/lab/events", json.dumps([event]))
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.close()
        return answer.status, told

    assert post(id="a", sequence="5") == (200, {"positions": [1], "duplicates": 0})
    assert post(id="b", sequence="5") == (200, {"positions": [0], "duplicates": 1})
    assert post(id="c", sequence="6", sequencedin="elsewhere")[1]["duplicates"] == 0
    node.kill()
    node.start()
    assert post(id="d", sequence="6") == (200, {"positions": [0], "duplicates": 1})
    assert post(id="d", sequence="6", epoch="2") == (200, {"positions": [3], "duplicates": 0})
    status, told = post(id="e", sequence="six")
    assert (status, told["title"]) == (400, "event.bad_sequence")


def test_a_sink_killed_at_any_moment_stores_every_number_once(tmp_path: Path) -> None:
    first, chance = 1, Chance(3)
    for _round in range(examples(8)):
        program = Program(str(SINK_CHILD), str(tmp_path), str(first))
        program.kill_after(chance.randint(1, 60))
        first = int(program.accepted[-1]) + 1
    found = [int(one.event.id) for one in WrittenLog(tmp_path)["c"]]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= first - 1
