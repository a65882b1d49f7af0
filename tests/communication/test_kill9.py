"""A real process, really killed: no acknowledged alarm is lost, no ledger line is doubled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.core.detection import Detection
from rapport.core.message import MESSAGE
from rapport.kernel.clock import Chance, SystemClock
from support.examples import examples

NODE = Path(__file__).with_name("node_to_kill.py")
ROUNDS = examples(5)


def run_and_kill(directory, round_number, after, *words):
    """Kills the node once it has acknowledged that many alarms; returns their ids."""
    command = [sys.executable, str(NODE), str(directory), f"round{round_number}", *words]
    acknowledged = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        for line in node.stdout:
            acknowledged.append(line.strip())
            if len(acknowledged) == after:
                node.kill()
    return acknowledged


async def what_was_kept(directory):
    channels = open_embedded(directory / "log", SystemClock())
    try:
        log = await channels.channel("log").read_after(0, limit=100_000)
        detections = await channels.channel("detections").read_after(0, limit=100_000)
        return [s.event for s in log], [Detection.from_event(s.event).id() for s in detections]
    finally:
        await channels.close()


@pytest.mark.slow
def test_killing_the_node_again_and_again_loses_no_alarm_and_doubles_no_line(tmp_path):
    chance = Chance(9)
    acknowledged = set()
    for round_number in range(ROUNDS):
        acknowledged.update(run_and_kill(tmp_path, round_number, after=chance.randint(3, 60)))
    subprocess.run([sys.executable, str(NODE), str(tmp_path), "finish"], check=True, timeout=60)

    log, detections = asyncio.run(what_was_kept(tmp_path))
    assert acknowledged <= set(detections)
    messages = [event for event in log if event.type == MESSAGE]
    assert Counter(event.causes()[0] for event in messages) == Counter(detections)

    lines = Counter(
        (event.type, event.payload()["message"], event.payload().get("peer", ""))
        for event in log
        if event.type.startswith("rapport.delivery.")
    )
    expected = Counter()
    for message in messages:
        for peer in ("ana", "ben", "lea"):
            expected["rapport.delivery.queued", message.id, peer] = 1
            expected["rapport.delivery.handed", message.id, peer] = 1
        expected["rapport.delivery.closed", message.id, ""] = 1
    unknown = Counter({line: n for line, n in lines.items() if line[0].endswith("unknown")})
    assert lines - unknown == expected

    sent = Counter((tmp_path / "medium").read_text().splitlines())
    assert len(sent) == 3 * len(messages), "everything went out"
    twice = sum(sent.values()) - len(sent)
    assert twice <= sum(unknown.values()), "sent again only where the ledger says unknown"


@pytest.mark.slow
def test_killing_the_node_loses_no_message_and_every_one_is_closed_once(tmp_path):
    chance = Chance(11)
    acknowledged = set()
    for round_number in range(ROUNDS):
        after = chance.randint(20, 400)
        acknowledged.update(run_and_kill(tmp_path, round_number, after, "messages"))
    command = [sys.executable, str(NODE), str(tmp_path), "finish", "messages"]
    subprocess.run(command, check=True, timeout=60)

    log, _ = asyncio.run(what_was_kept(tmp_path))
    messages = [event for event in log if event.type == MESSAGE]
    assert len({event.id for event in messages}) == len(messages), "each is logged once"
    assert acknowledged <= {event.id for event in messages}
    lines = [
        (event.type.rpartition(".")[2], event.payload())
        for event in log
        if event.type.startswith("rapport.delivery.")
    ]
    results = Counter((line["message"], line["result"]) for _, line in lines if line.get("result"))
    assert results == Counter({(event.id, "done"): 1 for event in messages})
    handed = Counter((line["message"], line["peer"]) for state, line in lines if state == "handed")
    assert set(handed.values()) == {1}

    sent = Counter((tmp_path / "medium").read_text().splitlines())
    assert len(sent) == len(handed), "everything went out"
    unknown = sum(state == "unknown" for state, _ in lines)
    assert sum(sent.values()) - len(sent) <= unknown, "again only where the ledger says unknown"
