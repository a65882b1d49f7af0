"""Whole nodes killed with -9 while policies wait: alarms come at the right event time and once,
and what an action did is not done twice. [PO-8, PO-9, PO-10]
"""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.core.detection import DETECTED, Detection
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.policy.engine.stream_steps import QUARANTINED_TYPE
from rapport.scenarios.webhook_sink import WebhookSink
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

TIMED = Path(__file__).with_name("timed_node.py")
HOUR = 3_600_000
GUEST, OTHER = "E200-01", "E200-02"
CONCEPTS = "concepts\n  person A (status='guest')\n  room R (security='restricted')\n"
STAYS = CONCEPTS + "conditions\n  A is inside R for 2 hours\nactions\n  raise alarm\n"
INSIDE = CONCEPTS + "conditions\n  A is inside R\nactions\n  raise alarm\n"
SILENT = "concepts\n  person A (status='guest')\n"
SILENT += 'conditions\n  no position of A for 3 s\nactions\n  look\n    to ana\n    say "{A}"\n'


@pytest.fixture
def make_site(building_site: Path) -> Callable[..., Path]:
    """The secure building with one policy of ours, a short lateness, and two guests."""

    def make(policy: str, more: str = "") -> Path:
        site = building_site
        (site / "secure-building.dpl").write_text(policy)
        (site / "ahead").write_text("0")
        text = (site / "site.toml").read_text().replace('lateness = "5s"', 'lateness = "200ms"')
        (site / "site.toml").write_text(text + more)
        rows = (site / "persons.csv").read_text().splitlines()
        guests = [row for row in rows if GUEST in row or OTHER in row]
        (site / "persons.csv").write_text("\n".join([rows[0], *guests]) + "\n")
        return site

    return make


def post(node: NodeProcess, time_ms: int, *, reader: str = "r1", tag: str = GUEST) -> None:
    assert node.doors is not None
    connection = http.client.HTTPConnection(*node.doors, timeout=20)
    seen = {"reader": reader, "tag": tag, "dx": 0, "dy": 0, "t": format_time(time_ms)}
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/sources/readers", json.dumps(seen), headers)
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def log_of(site: Path) -> WrittenLog:
    return WrittenLog(site / ".rapport" / "log")


def found(site: Path) -> list[Detection]:
    kept = [one.event for one in log_of(site)["detections"]]
    return [Detection.from_event(event) for event in kept if event.type == DETECTED]


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        threading.Event().wait(0.1)


def test_killed_while_two_hours_pass_the_alarm_comes_at_the_right_event_time_and_once(
    make_site: Callable[..., Path],
) -> None:
    site = make_site(STAYS)
    began = SystemClock().now_ms()

    def set_ahead(by_ms: int) -> None:
        (site / "ahead").write_text(str(by_ms))

    with NodeProcess(site, program=TIMED) as node:
        node.start()
        post(node, began)
        until(lambda: len(log_of(site)["events"]) == 1)
        assert node.kill() == -signal.SIGKILL
        # Half of the time passes while it is down; what comes then does not begin anew.
        set_ahead(HOUR)
        node.start()
        post(node, began + HOUR)
        post(node, began + HOUR, reader="r7", tag=OTHER)
        until(lambda: len(log_of(site)["events"]) == 3)
        assert found(site) == []
        node.kill()
        set_ahead(2 * HOUR - 600_000)
        node.start()
        post(node, began + 2 * HOUR - 600_000)
        until(lambda: len(log_of(site)["events"]) == 4)
        assert found(site) == []
        # The rest passes while it runs, and nobody says anything any more.
        set_ahead(2 * HOUR + 1_000)
        until(lambda: found(site))
        node.kill()
        for _ in range(2):
            set_ahead(3 * HOUR)
            node.start()
            node.kill()
    [alarm] = found(site)
    assert (alarm.time, alarm.bindings["A"]) == (began + 2 * HOUR, "p01")


def test_a_silence_is_found_by_the_clock_after_a_kill_though_nothing_comes(
    make_site: Callable[..., Path],
) -> None:
    site = make_site(SILENT)
    with NodeProcess(site) as node:
        node.start()
        began = SystemClock().now_ms()
        post(node, began)
        until(lambda: len(log_of(site)["events"]) == 1)
        node.kill()
        assert found(site) == []
        node.start()
        until(lambda: len(found(site)) == 2)
        node.kill()
        node.start()
        node.kill()
    assert {(one.bindings["A"], one.time - began) for one in found(site)} == {
        ("p01", 3_000),
        ("p02", 3_000),
    }
    assert len(found(site)) == 2


def test_an_event_of_tomorrow_harms_nothing_and_is_told_once(
    make_site: Callable[..., Path],
) -> None:
    """One of 2099 does not get so far: it is implausible when it gets its meaning."""
    site = make_site(INSIDE)
    with NodeProcess(site) as node:
        node.start()
        now = SystemClock().now_ms()
        post(node, now)
        post(node, now + 20 * 3_600_000)
        post(node, now + 20 * 3_600_000 + 1, tag=OTHER)
        post(node, 4_070_908_800_000)
        post(node, now + 10, tag=OTHER)
        until(lambda: len(found(site)) == 2)
        until(lambda: warnings_of(node) == 1)
        node.kill()
        node.start()
        late = SystemClock().now_ms()
        post(node, late)
        until(lambda: len(found(site)) == 3)
        assert node.stop()[0] == 0, node.told
    assert [one.time for one in found(site)] == [now, now + 10, late]
    aside = [one.event for one in log_of(site)["quarantine"] if one.event.type == QUARANTINED_TYPE]
    assert [one.payload()["reason"] for one in aside] == ["policy.ahead_of_clock"] * 2
    assert warnings_of(node) <= 2, "once by each process that read it"


def warnings_of(node: NodeProcess) -> int:
    return sum("reading quarantined" in line for line in node.told)


def test_killed_between_an_action_and_its_ledger_line_it_is_not_done_twice(
    make_site: Callable[..., Path],
) -> None:
    async def story() -> None:
        async with WebhookSink() as doors:
            hook = f'\n[actions."lock it"]\nwebhook = "{doors.url}"\ndata = {{ room = "{{R}}" }}\n'
            policy = INSIDE.replace("raise alarm", "lock it")
            await asyncio.to_thread(play, make_site(policy, hook), doors)

    def play(site: Path, doors: WebhookSink) -> None:
        doors.status = 0  # it locks, and nobody hears of it
        with NodeProcess(site) as node:
            node.start()
            post(node, SystemClock().now_ms())
            until(lambda: len(doors.posted) == 1)
            node.kill()
            doors.status = 204
            node.start()
            until(lambda: "confirmed" in states(site))
            node.kill()
            node.start()
            node.kill()
        first, *again = doors.posted
        assert len(again) == 1
        assert {one.headers["idempotency-key"] for one in again} == {
            first.headers["idempotency-key"]
        }
        assert {one.body for one in again} == {first.body}
        assert len(found(site)) == 1
        assert states(site) == ["queued", "unknown", "confirmed"]

    asyncio.run(story())


def states(site: Path) -> list[str]:
    """What the ledger says of the one delivery; nothing while the first line is on its way."""
    said = list(log_of(site).states().values())
    assert len(said) <= 1
    return said[0] if said else []
