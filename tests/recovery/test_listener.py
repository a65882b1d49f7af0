"""Listener and node killed under load, the network cut: with positions kept beside the results,
every event is there exactly once. [CH-7]
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rapport.client import AsyncListener, Listener, ListenerSettings, Publisher, PublisherSettings
from rapport.core.errors import Unavailable
from rapport.kernel.clock import Chance
from support.faults.network import Network
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("listener_child.py")
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'
QUICK = ListenerSettings(first_pause_ms=10, longest_pause_ms=100, batch_events=20, wait_seconds=2)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.02)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "site.toml").write_text(SITE)
    with NodeProcess(site) as node:
        node.start()
        yield node


@pytest.fixture
def url(node: NodeProcess) -> Iterator[str]:
    network = Network(node)
    yield network.url
    network.close()


@pytest.fixture
def publisher(tmp_path: Path, url: str) -> Iterator[Publisher]:
    quick = PublisherSettings(first_pause_ms=10, longest_pause_ms=100)
    with Publisher(
        tmp_path / "outbox", url, channel="lab", source="lab", settings=quick
    ) as publisher:
        yield publisher


def publish(publisher: Publisher, name: str, count: int) -> list[str]:
    """Every third event is of a type that is not listened to."""
    many = [{"type": "u" if n % 3 == 2 else "t", "id": f"{name}-{n}"} for n in range(count)]
    publisher.publish_many(many)
    return [one["id"] for one in many if one["type"] == "t"]


def results_in(file: Path) -> list[str]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.split()[1] for line in lines if len(line.split()) == 2]


def run_rounds(tmp_path: Path, node: NodeProcess, url: str, publisher: Publisher, rounds: int):
    chance, expected, file = Chance(5), [], tmp_path / "results"
    for number in range(rounds):
        expected += publish(publisher, f"r{number}", chance.randint(20, 80))
        mode = "push" if number % 2 else "pull"
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(tmp_path / "place"), url, str(file), mode],
            stdout=subprocess.PIPE,
        )
        goal = len(results_in(file)) + chance.randint(1, 15)
        wait_until(lambda goal=goal: len(results_in(file)) >= goal)
        if number % 5 == 2:
            node.kill()
            node.start()
            goal = min(goal + 3, len(expected))
            wait_until(lambda goal=goal: len(results_in(file)) >= goal)
        child.kill()
        child.communicate(timeout=20)
    assert publisher.flush(30)
    last = subprocess.Popen(
        [sys.executable, str(CHILD), str(tmp_path / "place"), url, str(file), "push"],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(results_in(file)) >= len(expected), 60)
        threading.Event().wait(0.3)  # nothing more may come
    finally:
        last.kill()
        last.wait(20)
    assert results_in(file) == expected


def test_a_listener_killed_at_any_moment_has_every_event_exactly_once(
    tmp_path: Path, node: NodeProcess, url: str, publisher: Publisher
) -> None:
    run_rounds(tmp_path, node, url, publisher, 4)


@pytest.mark.long
def test_a_listener_killed_many_times_has_every_event_exactly_once(
    tmp_path: Path, node: NodeProcess, url: str, publisher: Publisher
) -> None:
    run_rounds(tmp_path, node, url, publisher, 100)


def test_a_listener_outlives_its_node_and_goes_on_live_without_gap_or_repetition(
    node: NodeProcess, url: str, publisher: Publisher
) -> None:
    got: list[str] = []
    with Listener(url, "lab", {"type": "t"}, handback="mine", settings=QUICK) as listener:
        expected = publish(publisher, "a", 100)
        listener.push(lambda received: got.append(f"{received.event.id} {received.handback}"))
        wait_until(lambda: len(got) == len(expected))
        node.kill()
        wait_until(lambda: listener.status().trouble is not None)
        expected += publish(publisher, "b", 100)
        node.start()
        wait_until(lambda: len(got) == len(expected))
        assert listener.status().remote_lease_minutes == 10
    assert got == [f"{one} mine" for one in expected]


def test_a_real_node_that_refuses_stops_the_listener_which_says_why(url: str) -> None:
    with (
        Listener(url, "lab", "anything", kind="no-such-kind", settings=QUICK) as listener,
        pytest.raises(Unavailable) as told,
    ):
        listener.pull(1, timeout=20)
    assert told.value.code == "name.unknown"


def rapport(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rapport.cli.main", "listen", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1"},
    )


def test_the_command_prints_history_resumes_and_says_what_is_wrong(
    tmp_path: Path, url: str, publisher: Publisher
) -> None:
    ids = publish(publisher, "c", 9)
    assert publisher.flush(20)
    said = ("lab", "--url", url, "--query", "type = 't'", "--directory", str(tmp_path / "here"))
    first = rapport(*said, "--count", "4", "--json", "--handback", "h", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    shown: list[Any] = [json.loads(line) for line in first.stdout.splitlines()]
    assert [one["id"] for one in shown] == ids[:4]
    assert {one["handback"] for one in shown} == {"h"}
    second = rapport(*said, "--count", "2", "--handback", "h", cwd=tmp_path)
    assert [line.split("\t")[3] for line in second.stdout.splitlines()] == ["id", *ids[4:6]]
    other = rapport(*said, "--count", "1", cwd=tmp_path)
    assert (other.returncode, "error[listener.other_place]" in other.stderr) == (1, True)
    wrong = rapport("lab", "--url", url, "--query", "type =", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr + other.stderr


def test_the_command_waits_for_new_events_and_ends_cleanly_at_ctrl_c(
    tmp_path: Path, url: str, publisher: Publisher
) -> None:
    publish(publisher, "old", 3)
    assert publisher.flush(20)
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "rapport.cli.main", "listen", "lab", "--url", url),
            *("--new", "--json", "--directory", str(tmp_path / "here")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has Ctrl-C ignored, and so would the child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until((tmp_path / "here" / "place.json").exists)
    publisher.publish(type="t", id="new")
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["id"] == "new"
    child.send_signal(2)
    _out, told = child.communicate(timeout=20)
    assert (child.returncode, told) == (0, "")


def test_many_listeners_in_one_loop_share_a_node(url: str, publisher: Publisher) -> None:
    expected = publish(publisher, "m", 60)

    async def listen() -> list[str]:
        found: list[str] = []
        async with AsyncListener(url, "lab", "type = 't'", settings=QUICK) as listener:
            while len(found) < len(expected):
                found += [one.event.id for one in await listener.pull(50, timeout=20)]
        return found

    async def scenario() -> list[list[str]]:
        return await asyncio.gather(*(listen() for _ in range(4)))

    assert asyncio.run(scenario()) == [expected] * 4
