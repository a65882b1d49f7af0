"""Situations of policies killed with -9: each begins and ends once, at the right event time.
[SI-5, SI-14]
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.core.detection import DETECTED, ENDED, Detection
from rapport.policy.engine.shadow_episodes import (
    SHADOW_DETECTED,
    SHADOW_ENDED,
    SHADOW_TYPE,
    ShadowDifference,
)
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("policy_child.py")
SITE = Path(__file__).parents[1] / "data" / "situations"
T0 = 1_750_000_000_000
SECOND = 1_000
STATIONS = ("n1", "n2", "n3")
WARM = """concepts
  station S
situation
  temperature of S above 30 degC for 2 s
cleared by
  temperature of S below 28 degC
actions
  tell the guards
actions when cleared
  all is well
"""
WARMER = WARM.replace("above 30", "above 29")


class Running:
    """A child at work; killed it finishes nothing."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *command: Any, wait: bool = True) -> None:
        """Returns when the child has done it, or at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        if wait:
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


def lives(directory: Path) -> list[tuple[str, int, int | None, str]]:
    """Station, seconds of the beginning and of the end (None while open), reason of the end."""
    open_since: dict[str, int] = {}
    found: list[tuple[str, int, int | None, str]] = []
    kept = [one.event for one in WrittenLog(directory)["detections"]]
    for event in kept:
        if event.type not in (DETECTED, ENDED):
            continue
        one = Detection.from_event(event)
        station = one.bindings["S"]
        if one.began is None:
            assert station not in open_since, "a second beginning"
            open_since[station] = one.time
        else:
            assert open_since.pop(station) == one.began, "an end without its beginning"
            found.append((station, one.began - T0, one.time - T0, one.reason))
    return found + [(name, since - T0, None, "") for name, since in open_since.items()]


def test_a_deleted_policy_ends_what_is_open_once_with_the_reason_though_killed(
    tmp_path: Path,
) -> None:
    with running(tmp_path, T0, 10**9) as child:
        child.tell("register", "warm", WARM)
        for second in range(4):
            child.tell("time", T0 + second * SECOND)
            child.tell("temperature", f"a{second}", T0 + second * SECOND, "n1", 35.0)
        child.tell("delete", "warm")
    for after in (5, 6):
        with running(tmp_path, T0 + after * SECOND, 10**9):
            pass
    [(station, began, ended, reason)] = lives(tmp_path)
    assert (station, began, reason) == ("n1", 2 * SECOND, "the policy was deleted")
    assert ended is not None
    assert ended > began


def rounds(directory: Path, seed: int, kills: int) -> None:
    """Temperatures go up and down while processes die; then the lives are those of the readings."""
    chance = random.Random(seed)  # a trial, not a secret
    expected: list[tuple[str, int, int | None, str]] = []
    warm_since: dict[str, int] = {}
    begun: dict[str, int] = {}
    now, number = T0, 0
    with running(directory, now) as child:
        child.tell("register", "warm", WARM)
    for _ in range(kills):
        commit_every_ms = chance.choice((0, 0, 10**9))
        with running(directory, now, commit_every_ms) as child:
            for _ in range(chance.randrange(1, 6)):
                now, number = now + SECOND, number + 1
                station = chance.choice(STATIONS)
                degrees = chance.choice((20.0, 29.5, 35.0, 35.0))
                child.tell("time", now)
                for name in STATIONS:  # nothing is stale
                    own = degrees if name == station else 35.0 if name in warm_since else 20.0
                    child.tell("temperature", f"t{number}.{name}", now, name, own)
                    if own < 30:
                        warm_since.pop(name, None)
                    else:
                        warm_since.setdefault(name, now)
                    if own < 28 and name in begun:
                        expected.append((name, begun.pop(name) - T0, now - T0, ""))
                    since = warm_since.get(name)
                    if name not in begun and since is not None and now >= since + 2 * SECOND:
                        begun[name] = since + 2 * SECOND
            if chance.random() < 0.2:
                child.tell("time", now + 1, wait=False)  # killed while it works
    with running(directory, now + SECOND) as child:
        child.tell("time", now + 2 * SECOND)
        for name, since in warm_since.items():
            if name not in begun and now + SECOND >= since + 2 * SECOND:
                begun[name] = since + 2 * SECOND
    expected += [(name, since - T0, None, "") for name, since in begun.items()]
    assert sorted(lives(directory), key=str) == sorted(expected, key=str)


def test_killed_again_and_again_every_situation_begins_and_ends_once(tmp_path: Path) -> None:
    rounds(tmp_path, seed=1, kills=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_thirty_times_every_situation_begins_and_ends_once(
    tmp_path: Path, seed: int
) -> None:
    rounds(tmp_path, seed=100 + seed, kills=30)


def test_a_replaced_version_goes_on_with_what_is_open_though_killed(tmp_path: Path) -> None:
    with running(tmp_path, T0, 10**9) as child:
        child.tell("register", "warm", WARM)
        for second in range(4):
            child.tell("time", T0 + second * SECOND)
            child.tell("temperature", f"a{second}", T0 + second * SECOND, "n1", 35.0)
        child.tell("replace", "warm", WARMER)
    with running(tmp_path, T0 + 4 * SECOND, 10**9) as child:
        child.tell("temperature", "b", T0 + 4 * SECOND, "n1", 35.0)
        child.tell("time", T0 + 8 * SECOND)
        child.tell("temperature", "c", T0 + 8 * SECOND, "n1", 35.0)
    with running(tmp_path, T0 + 9 * SECOND) as child:
        child.tell("temperature", "d", T0 + 9 * SECOND, "n1", 20.0)
        child.tell("time", T0 + 10 * SECOND)
    assert lives(tmp_path) == [("n1", 2 * SECOND, 9 * SECOND, "")]


def shadow_turns(directory: Path) -> list[tuple[str, str, int]]:
    """Station, `+` or `-`, and seconds of what the version in the shadow would have told."""
    signs = {SHADOW_DETECTED: "+", SHADOW_ENDED: "-"}
    found = [
        (one.bindings["S"], signs[kept.event.type], one.time - T0)
        for kept in WrittenLog(directory)["detections"]
        if kept.event.type in signs
        for one in [Detection.from_event(kept.event)]
    ]
    return sorted(found, key=lambda each: each[2])


def test_a_situation_in_the_shadow_tells_nobody_and_is_compared_once_though_killed(
    tmp_path: Path,
) -> None:
    later = WARM.replace("for 2 s", "for 3 s").replace("below 28", "below 26")
    with running(tmp_path, T0, 10**9) as child:
        child.tell("register", "warm", WARM)
        child.tell("temperature", "a", T0, "n1", 20.0)
        child.tell("shadow", "warm", later)
    degrees = [20.0, 35.0, 35.0, 35.0, 35.0, 35.0, 27.0, 27.0, 20.0, 35.0, 35.0, 35.0, 27.0, 20.0]
    for start in range(0, len(degrees), 3):  # killed after each three readings
        with running(tmp_path, T0 + start * SECOND, 10**9 if start % 2 else 0) as child:
            for second, own in enumerate(degrees[start : start + 3], start + 1):
                child.tell("time", T0 + second * SECOND)
                child.tell("temperature", f"b{second}", T0 + second * SECOND, "n1", own)
    with running(tmp_path, T0 + 20 * SECOND) as child:
        child.tell("temperature", "c", T0 + 20 * SECOND, "n1", 20.0)
        child.tell("promote", "warm")
        child.tell("time", T0 + 21 * SECOND)
    assert shadow_turns(tmp_path) == [("n1", "+", 5 * SECOND), ("n1", "-", 9 * SECOND)]
    assert lives(tmp_path) == [
        ("n1", 4 * SECOND, 7 * SECOND, ""),
        ("n1", 12 * SECOND, 13 * SECOND, ""),
    ]
    lone = [
        one.event for one in WrittenLog(tmp_path)["detections"] if one.event.type == SHADOW_TYPE
    ]
    [only] = [event.payload_as(ShadowDifference) for event in lone]
    assert (only.found_by, only.time) == ("running", T0 + 12 * SECOND)
