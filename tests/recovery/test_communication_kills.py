"""Killed at every single write of a delivery: every message still ends as it should, nothing is
dropped in silence, the ledger's lines come in an order that can be true.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import InlineWriter
from rapport.communication.ledger import Ledger
from rapport.core.message import MESSAGE
from rapport.kernel.clock import ManualClock
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from support.examples import examples
from support.faults.fuses import Fuse, Killed
from support.processes.delivery_walk import BEGIN, RESULTS, Walk

CHILD = Path(__file__).with_name("communication_child.py")
PREFIX = "rapport.delivery."


# --- what can be true ---


class Line(msgspec.Struct, frozen=True):
    """One ledger line, as far as its order is judged."""

    state: str
    peer: str = ""
    place: tuple[str, int] = ("", 0)
    result: str = ""
    is_queued: bool = False
    """It stands for that of the queueing, too."""


TAKEN = ("handed", "confirmed", "unknown")


def faults_of(lines):
    """Where the lines of one message are in an order that cannot be true, by CO-10."""
    begun, ended, refused, answered, closed, faults = set(), set(), set(), set(), False, []
    for line in lines:
        attempt = (line.peer, *line.place)
        is_attempt = bool(line.place[1])
        if line.is_queued:
            begun.add(attempt)
        if line.state == "queued":
            faults += [f"queued twice: {attempt}"] if attempt in begun else []
            begun.add(attempt)
        elif is_attempt and line.state in (*TAKEN, "failed"):
            faults += [f"{line.state}, but never queued: {attempt}"] if attempt not in begun else []
            faults += [f"{line.state} after its end: {attempt}"] if attempt in ended else []
            if line.state != "unknown":
                ended.add(attempt)
        if line.state in ("queued", "held", "escalated", "refused") and closed:
            faults.append(f"{line.state} after the message was closed: {attempt}")
        if line.peer in refused and line.state != "closed":
            faults.append(f"{line.state} to somebody who refused: {attempt}")
        if line.state == "refused":
            refused.add(line.peer)
        if line.state == "queued" and line.peer in answered:
            faults.append(f"queued to somebody who had answered: {attempt}")
        if line.state == "answered":
            answered.add(line.peer)
        if line.result:
            faults += ["closed twice"] if closed else []
            closed = True
    return faults if closed else [*faults, "never closed"]


ANA, BEN = ("post:ana", 1), ("post:ben", 1)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([Line("handed", "ana", ANA, "done")], "never queued"),
        ([Line("queued", "ana", ANA), Line("handed", "ana", ANA)], "never closed"),
        ([Line("closed", result="done"), Line("queued", "ana", ANA)], "after the message was"),
        ([Line("queued", "ana", ANA), Line("queued", "ana", ANA)], "queued twice"),
        ([Line("refused", "ana"), Line("queued", "ana", ANA)], "who refused"),
        ([Line("answered", "ana"), Line("queued", "ana", ANA)], "had answered"),
        ([Line("closed", result="done"), Line("closed", result="failed")], "closed twice"),
        (
            [Line("queued", "ana", ANA), Line("failed", "ana", ANA), Line("handed", "ana", ANA)],
            "after its end",
        ),
    ],
)
def test_the_judge_sees_an_order_that_cannot_be_true(lines, fault):
    assert any(fault in found for found in faults_of(lines))


def test_the_judge_lets_pass_what_can_be_true():
    assert not faults_of(
        [
            Line("held", "ana"),
            Line("queued", "ana", ANA),
            Line("unknown", "ana", ANA),
            Line("failed", "ana", ANA),
            Line("queued", "ben", BEN),
            Line("escalated"),
            Line("answered", "ana"),
            Line("closed", result="done"),
            Line("handed", "ben", BEN),
            Line("answered", "ben"),
        ]
    )


# --- what was kept ---


class Kept(msgspec.Struct):
    """What can be read after the end."""

    results: dict[str, str]
    rows: dict[object, str]
    lines: dict[str, list[Line]]
    dead: int


async def kept_in(channels):
    ledger = Ledger(channels)
    await ledger.refresh()
    lines = {}
    for stored in await channels.channel("log").read_after(0, limit=100_000):
        event, data = stored.event, stored.event.payload()
        if event.type == MESSAGE and data.get("peer"):
            # The plain lane: the message's own line says that it was queued.
            lines.setdefault(event.id, []).append(Line("queued", data["peer"], _place(data)))
        if event.type.startswith(PREFIX):
            lines.setdefault(data["message"], []).append(
                Line(
                    event.type.removeprefix(PREFIX),
                    data.get("peer", ""),
                    _place(data),
                    data.get("result", ""),
                )
            )
    return Kept(
        results={row.message: row.result for row in ledger.messages(limit=1_000)},
        rows={row.key: row.state for row in ledger.rows(limit=10_000)},
        lines=lines,
        dead=channels.channel("dead_letters").last_position(),
    )


def _place(data):
    return data.get("address", ""), data.get("attempt", 0) or (1 if "fate" in data else 0)


def judge(kept, undisturbed, sent, expected_sent):
    """Everything a kill must leave as it is."""
    assert {name: kept.results[name] for name in RESULTS} == RESULTS
    assert kept.rows == undisturbed.rows
    assert not kept.dead
    for message, lines in kept.lines.items():
        assert not faults_of(lines), message
    assert set(sent) == set(expected_sent), "everything went out"
    unknown = sum(line.state == "unknown" for lines in kept.lines.values() for line in lines)
    again = Counter(sent) - Counter(expected_sent)
    assert sum(again.values()) <= unknown, "sent again only where the ledger says unknown"


# --- killed by an exception: every write ---


class Node:
    """Stores that outlive the processes on them, and what the medium was given."""

    def __init__(self):
        self.clock = ManualClock(BEGIN)
        self.acknowledged, self.sent = set(), []
        self._log, self._records = MemoryLogStore(), MemoryRecordStore()

    def channels(self):
        parts = LogParts(
            clock=self.clock,
            log=self._log,
            records=self._records,
            history=MemoryHistory(),
            writer=InlineWriter(),
            pool=None,
        )
        return LoggedChannels(parts)

    async def run(self, fuse=None):
        """One process; True when it came to its end."""
        if fuse is not None:
            fuse.build_into(self._log)
            fuse.build_into(self._records)
        try:
            walk = Walk(self.channels(), self.clock, lambda one: self.sent.append(one.key))
            await walk.go(self.acknowledged, self.acknowledged.add)
        except (Killed, BaseExceptionGroup):
            assert fuse is not None
            assert fuse.blown
            return False
        finally:
            for store in (self._log, self._records):
                for name in ("append", "put", "delete", "apply"):
                    vars(store).pop(name, None)
        return True


async def undisturbed_walk():
    node, fuse = Node(), Fuse(0, after=False)
    assert await node.run(fuse)
    return node, fuse.writes, await kept_in(node.channels())


def test_undisturbed_every_message_ends_as_the_walk_says():
    async def scenario():
        node, writes, kept = await undisturbed_walk()
        judge(kept, kept, node.sent, node.sent)
        assert writes > 60
        assert node.acknowledged >= set(RESULTS)

    asyncio.run(scenario())


async def killed_at(moments, after):
    node, writes, undisturbed = await undisturbed_walk()
    for at in moments(writes):
        victim = Node()
        if await victim.run(Fuse(at, after=after)):
            # What is written together depends on the moment: this walk had a few writes less.
            assert at > writes * 0.9, f"no write {at} of {writes}"
            continue
        assert await victim.run()
        try:
            judge(await kept_in(victim.channels()), undisturbed, victim.sent, node.sent)
        except AssertionError as error:
            error.add_note(f"killed {'after' if after else 'before'} write {at} of {writes}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_kill_at_some_writes_changes_no_end(after):
    asyncio.run(killed_at(lambda writes: range(3, writes + 1, 9), after))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_kill_at_any_write_changes_no_end(after):
    asyncio.run(killed_at(lambda writes: range(1, writes + 1), after))


@pytest.mark.slow
def test_killed_again_and_again_while_it_recovers_it_ends_all_the_same():
    async def scenario():
        node, _writes, undisturbed = await undisturbed_walk()
        for step in (2, 3, 7):
            victim, kills = Node(), 0
            while not await victim.run(Fuse(step + 20 * (kills > 8), after=bool(kills % 2))):
                kills += 1
                assert kills < 200
            judge(await kept_in(victim.channels()), undisturbed, victim.sent, node.sent)
            assert kills > 5

    asyncio.run(scenario())


# --- killed for real ---


def run_child(directory, at, when):
    command = [sys.executable, str(CHILD), str(directory), str(at), when]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


async def kept_on_disk(directory):
    channels = open_embedded(directory / "log", ManualClock(BEGIN))
    try:
        return await kept_in(channels)
    finally:
        await channels.close()


def sent_by(directory):
    return [line.split()[0] for line in (directory / "medium").read_text().splitlines()]


@pytest.mark.slow
def test_a_process_that_is_really_killed_at_its_writes_ends_everything_when_it_is_back(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    finished = run_child(whole, 0, "before")
    assert finished.returncode == 0, finished.stderr
    writes = int(finished.stdout)
    undisturbed = asyncio.run(kept_on_disk(whole))
    kills = examples(10)
    for number in range(kills):
        at, when = 1 + number * (writes - 1) // kills, ("before", "after")[number % 2]
        directory = tmp_path / f"{at}"
        directory.mkdir()
        assert run_child(directory, at, when).returncode == -9
        again = run_child(directory, 0, "before")
        assert again.returncode == 0, again.stderr
        judge(asyncio.run(kept_on_disk(directory)), undisturbed, sent_by(directory), sent_by(whole))
