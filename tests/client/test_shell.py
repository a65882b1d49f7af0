"""The shell publisher: curl and an outbox directory, on a telling sink and a real node. [CH-5,
CH-12]
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from support.processes.node import NodeProcess
from support.written_log import WrittenLog

PROGRAM = Path(__file__).parents[2] / "clients" / "shell" / "rapport-publish"
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'


def publish(
    outbox: Path, url: str, *arguments: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the program with as little around it as a small machine has."""
    command = ["/bin/sh", str(PROGRAM), "-o", str(outbox), "-u", url, "-c", "lab"]
    return subprocess.run(
        [*command, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def lab(sink):
    """The sink; one event per request instead of a batch."""
    taken = sink.take
    sink.take = lambda body, token: taken(body if isinstance(body, list) else [body], token)
    return sink


def test_an_event_arrives_with_its_fields_and_nothing_is_left(lab, tmp_path) -> None:
    outbox, secret = tmp_path / "outbox", tmp_path / "secret"
    secret.write_text("t0ken\n")
    first = publish(
        outbox, lab.url, "-s", 'lab "7"', "-t", "sample.mass", "-k", str(secret), '{"grams": 12.5}'
    )
    second = publish(
        outbox, lab.url, "-s", "lab\\7", "-t", "sample.mass", "-j", "sample/7", given="[1, 2]\n"
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert [event["source"] for event in lab.stored] == ['lab "7"', "lab\\7"]
    assert [event["data"] for event in lab.stored] == [{"grams": 12.5}, [1, 2]]
    assert [event["sequence"] for event in lab.stored] == ["1", "2"]
    assert lab.stored[1]["subject"] == "sample/7"
    assert lab.tokens[0] == "Bearer t0ken"
    assert not list((outbox / "waiting").iterdir())
    assert not (outbox / "authorization").exists()


def test_what_cannot_be_delivered_waits_in_order(lab, tmp_path) -> None:
    lab.answer = lambda _batch: (503, {}, {})
    outbox = tmp_path / "outbox"
    for grams in range(3):
        done = publish(outbox, lab.url, "-s", "s", "-t", "t", str(grams))
        assert done.returncode == 1
        assert f"{grams + 1} waiting: the node answered 503" in done.stderr
    lab.answer = lambda _batch: None
    assert publish(outbox, lab.url, "-d").returncode == 0
    assert [event["data"] for event in lab.stored] == [0, 1, 2]


def test_a_refused_event_is_kept_with_the_reason_and_blocks_nobody(lab, tmp_path) -> None:
    outbox = tmp_path / "outbox"
    assert publish(outbox, lab.url, "-s", "s", "-t", "t", '{"broken": ').returncode == 0
    assert publish(outbox, lab.url, "-s", "s", "-t", "t", "2").returncode == 0
    assert [event["data"] for event in lab.stored] == [2]
    assert "not JSON" in next((outbox / "rejected").glob("*.reason")).read_text()


def test_wrong_use_is_told_and_accepts_nothing(tmp_path) -> None:
    outbox = tmp_path / "outbox"
    assert publish(outbox, "http://127.0.0.1:9", "-s", "s").returncode == 2
    bad = subprocess.run(
        ["/bin/sh", str(PROGRAM), "-o", str(outbox), "-u", "http://x", "-c", "a/b", "-d"],
        capture_output=True,
        text=True,
    )
    assert bad.returncode == 2
    assert "cannot be the name of a channel" in bad.stderr


def test_a_portal_that_says_200_to_everything_is_not_believed(lab, tmp_path) -> None:
    lab.answer = lambda _batch: (200, {}, {"welcome": "to the airport"})
    outbox = tmp_path / "outbox"
    assert publish(outbox, lab.url, "-s", "s", "-t", "t", "1").returncode == 1
    assert len(list((outbox / "waiting").iterdir())) == 1


@pytest.mark.slow
def test_killed_at_any_moment_every_accepted_event_is_stored_once(tmp_path) -> None:
    site, outbox = tmp_path / "site", tmp_path / "outbox"
    site.mkdir()
    (site / "site.toml").write_text(SITE)
    accepted = 1
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        url = "http://{}:{}".format(*node.doors)
        began = time.monotonic()
        assert publish(outbox, url, "-s", "s", "-t", "t", "0").returncode == 0
        whole = time.monotonic() - began  # on this machine, now
        for number in range(12):
            accepted += _publish_and_kill(outbox, url, number, whole * number / 8)
        assert publish(outbox, url, "-d").returncode == 0
        node.stop()
    kept = [stored.event for stored in WrittenLog(site / ".rapport/log")["lab"]]
    assert set(Counter(event.id for event in kept).values()) == {1}
    assert len(kept) >= accepted


def _publish_and_kill(outbox: Path, url: str, number: int, seconds: float) -> int:
    """1 when the event was surely accepted: the program ended by itself with 0 or 1."""
    command = ["/bin/sh", str(PROGRAM), "-o", str(outbox), "-u", url, "-c", "lab"]
    child = subprocess.Popen(
        [*command, "-s", "s", "-t", "t", str(number)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    time.sleep(seconds)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    return int(child.wait() in (0, 1))
