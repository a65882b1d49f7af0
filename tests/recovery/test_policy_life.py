"""Policies killed with -9 while they wait: alarms come at the right event time, and each change is
where it was. [PO-8, PO-9]
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.core.detection import DETECTED, Detection
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("policy_child.py")
SITE = Path(__file__).parents[1] / "data" / "checks" / "small-policies"
T0 = 1_750_000_000_000
HOUR = 3_600_000
CONCEPTS = "concepts\n  person A (status='guest')\n  room R (security='restricted')\n"
INSIDE = CONCEPTS + "conditions\n  A is inside R\nactions\n  raise alarm\n"
STAYS = CONCEPTS + "conditions\n  A is inside R for 2 hours\nactions\n  raise alarm\n"
SILENT = CONCEPTS.split("  room")[0]
SILENT += "conditions\n  no position of A for 2 hours\nactions\n  raise alarm\n"
UNESCORTED = CONCEPTS.replace("  room", "  person B (status='employee')\n  room")
UNESCORTED += (
    "conditions\n  A is inside R\n  B is not inside R\n  within 2 h\nactions\n  raise alarm\n"
)


class Running:
    """A child at work; killed it finishes nothing."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *command: Any) -> None:
        """Returns when the child has done it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self.heard("done")

    def heard(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def kill(self) -> None:
        self._process.kill()
        assert self._process.wait(30) == -signal.SIGKILL


@contextmanager
def running(directory: Path, now_ms: int, commit_every_ms: int = 0) -> Iterator[Running]:
    """A new process on the same log, killed at the end."""
    command = [sys.executable, str(CHILD), str(directory), str(SITE), str(now_ms)]
    with subprocess.Popen(
        [*command, str(commit_every_ms)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        child = Running(process)
        try:
            child.heard("ready")
            yield child
        finally:
            child.kill()


def found(directory: Path) -> list[tuple[str, int]]:
    kept = [one.event for one in WrittenLog(directory)["detections"]]
    told = [Detection.from_event(event) for event in kept if event.type == DETECTED]
    return [(one.policy, one.time - T0) for one in told]


@pytest.mark.parametrize(
    ("text", "commit_every_ms"),
    [
        (STAYS, 0),
        pytest.param(STAYS, 10**9, marks=pytest.mark.long),
        pytest.param(UNESCORTED, 10**9, marks=pytest.mark.long),
        (SILENT, 10**9),
    ],
)
def test_killed_while_two_hours_pass_the_alarm_comes_at_the_right_time_though_no_data_flows(
    tmp_path: Path, text: str, commit_every_ms: int
) -> None:
    with running(tmp_path, T0, commit_every_ms) as child:
        child.tell("register", "watch", text)
        child.tell("reading", "a", T0, "2", 5, 5)
        if text == SILENT:
            child.tell("reading", "b", T0, "10", 5, 5)
    for after in (HOUR, 2 * HOUR - 1):
        with running(tmp_path, T0 + after, commit_every_ms) as child:
            child.tell("time", T0 + after + 1)
        assert found(tmp_path) == []
    for _ in range(2):
        with running(tmp_path, T0 + 2 * HOUR + 600, commit_every_ms) as child:
            child.tell("time", T0 + 2 * HOUR + 1_200)
        assert set(found(tmp_path)) == {("watch", 2 * HOUR)}
        assert len(found(tmp_path)) == (2 if text == SILENT else 1)


def test_an_event_of_the_year_2099_harms_nothing_and_is_set_aside(tmp_path: Path) -> None:
    with running(tmp_path, T0) as child:
        child.tell("register", "watch", UNESCORTED)
        child.tell("reading", "a", T0, "2", 5, 5)
        child.tell("reading", "far", 4_070_908_800_000, "2", 5, 5)
        child.tell("reading", "b", T0 + 1, "3", 50, 50)
    with running(tmp_path, T0 + 2 * HOUR + 600):
        pass
    assert found(tmp_path) == [("watch", 2 * HOUR)]
    [aside] = [one.event.payload() for one in WrittenLog(tmp_path)["quarantine"]]
    assert aside["reason"] == "policy.ahead_of_clock"


def test_killed_between_registering_and_the_first_event_it_sees_that_event(tmp_path: Path) -> None:
    with running(tmp_path, T0, 10**9) as child:
        child.tell("register", "watch", INSIDE)
    with running(tmp_path, T0 + 1_000, 10**9) as child:
        child.tell("reading", "a", T0 + 1_000, "2", 5, 5)
        child.tell("time", T0 + 3_000)
    assert found(tmp_path) == [("watch", 1_000)]


@pytest.mark.long
def test_killed_after_every_change_each_policy_finds_what_came_while_it_ran(tmp_path: Path) -> None:
    steps = [
        ("register", "watch", INSIDE),
        ("pause", "watch"),
        ("resume", "watch"),
        ("register", "other", INSIDE),
        ("delete", "watch"),
        ("replace", "other", UNESCORTED),
        ("replace", "other", INSIDE),
    ]
    for number, step in enumerate(steps):
        now = T0 + number * 10_000
        with running(tmp_path, now, 10**9) as child:
            child.tell(*step)
        with running(tmp_path, now + 3_000, 10**9) as child:
            child.tell("reading", f"e{number}", now + 3_000, "2", 5, 5)
            child.tell("time", now + 5_000)
    watch, other = (0, 2, 3), (3, 4, 6)
    expected = [("watch", n * 10_000 + 3_000) for n in watch]
    expected += [("other", n * 10_000 + 3_000) for n in other]
    assert sorted(found(tmp_path)) == sorted(expected)
