"""Several engine processes on one NATS JetStream or PostgreSQL log and one PostgreSQL record store:
one is killed, one is frozen, others come. [CO-17]
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest

from rapport.communication.answers import AnswerData, record_answer
from rapport.communication.api import DeliveryOptions, Sent, adapter, open_communication
from rapport.communication.cluster_leases import LEASES, Lease
from rapport.communication.delivery_state import NextReceiver, with_options
from rapport.communication.ledger import Ledger
from rapport.communication.ledger_events import PROOF
from rapport.communication.links import answer_secret, answer_token
from rapport.core.errors import Unsupported
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import Chance, SystemClock
from support.servers.nats import nats_address, nats_prefix, nats_server  # noqa: F401
from support.servers.postgres import postgres, postgres_server  # noqa: F401

PROGRAM = Path(__file__).with_name("engine_among_several.py")
sys.path.insert(0, str(PROGRAM.parent))

from engine_among_several import PEERS, open_room  # noqa: E402

APP = Identifier("component", "app")
SITE = """
[channels]
log = "nats"
records = "postgres"
nats = "file:nats"
postgres = "file:postgres"

[engines]
several = true
lease = "1500 ms"

[peers.ana]
addresses = ["note:1"]
[peers.ben]
addresses = ["note:2"]
[peers.lea]
addresses = ["note:3"]
"""
pytestmark = pytest.mark.slow


class Site:
    """The processes, the application that sends, and the medium that they share."""

    def __init__(self, directory, log, postgres, nats):  # noqa: F811
        self.directory = directory
        (directory / "log-store").write_text(log)
        (directory / "postgres").write_text(f"{postgres.dsn}#{postgres.schema}")
        (directory / "nats").write_text(nats)
        self.clock = SystemClock()
        self.channels = open_room(directory, "application", self.clock)
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.expected: set[tuple[str, str]] = set()
        self.number = 0
        self.killed: set[str] = set()

    def start(self, name):
        self.processes[name] = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.directory), name],
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, name, what):
        if what == signal.SIGKILL:
            self.killed.add(name)
        self.processes[name].send_signal(what)

    def owners(self):
        """By process how many shares it holds."""
        found = self.channels.records.find(LEASES)
        leases = [msgspec.msgpack.decode(kept, type=Lease) for _, kept in found]
        return Counter(lease.owner for lease in leases if lease.owner)

    async def until(self, condition, seconds=20.0):
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, f"not within {seconds} s: {self.owners()}"
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert set(ended) <= self.killed, f"ended by themselves: {ended}"
            await self.clock.sleep(50)
        return time.monotonic() - began

    async def send_round(self):
        """One message to each peer, and one to some together, in one append."""
        batch = []
        for receiver in (*(f"peer:{name}" for name in PEERS), "collective:crew"):
            self.number += 1
            batch.append(self.message(f"m{self.number:05d}", receiver))
        await self.channels.channel("input").append(batch)

    async def ask(self, name, receiver, options):
        """A message of an application that wants an answer."""
        event = with_options(self.message(name, receiver), options)
        event.headers[PROOF] = "application"
        await self.channels.channel("input").append([event])

    async def answer(self, name, peer):
        """What the door does when a person answers."""
        secret = answer_secret(self.channels.records)
        said = AnswerData(message=name, peer=peer, token=answer_token(secret, name, peer))
        await record_answer(self.channels, secret, said, now_ms=self.clock.now_ms())

    async def row(self, name):
        """The message in the ledger."""
        ledger = Ledger(self.channels)
        await ledger.refresh()
        return ledger.message(name)

    def message(self, name, receiver):
        to = Identifier.parse(receiver)
        peers = PEERS[:3] if to.kind == "collective" else [to.name]
        self.expected |= {(name, peer) for peer in peers}
        message = Message(type="TASK", subtype="REQUEST", sender=APP, id=name, receiver=to)
        return message.to_event(source="application", time=self.clock.now_ms())

    def lines(self):
        """Key, message, peer and process of everything handed to the medium, in order."""
        path = self.directory / "medium"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def arrived(self):
        """What a medium that honours idempotency keys let through, in order."""
        known: dict[str, tuple[str, str]] = {}
        for key, message, peer, _instance in self.lines():
            known.setdefault(key, (message, peer))
        return list(known.values())

    async def close(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            process.stdout.close()
        await self.channels.close()


@pytest.fixture(params=[pytest.param("nats", marks=pytest.mark.long), "postgres"])
def open_site(request, tmp_path, postgres):  # noqa: F811
    nats = request.getfixturevalue("nats_address") if request.param == "nats" else ""
    return lambda: Site(tmp_path, request.param, postgres, nats)


def check_nothing_lost_doubled_or_reordered(site):
    arrived = site.arrived()
    assert len(arrived) == len(set(arrived))
    assert set(arrived) == site.expected
    for name in PEERS:
        messages = [message for message, peer in arrived if peer == name]
        assert messages == sorted(messages)


async def check_ledger(site):
    """Every message is closed as done, every delivery handed."""

    async def is_told():
        ledger = Ledger(site.channels)
        await ledger.refresh()
        messages = {message for message, _ in site.expected}
        rows = [ledger.message(message) for message in messages]
        return all(row is not None and row.result == "done" for row in rows)

    async with asyncio.timeout(15):
        while not await is_told():
            await site.clock.sleep(200)


def test_one_is_killed_one_is_frozen_and_nothing_is_lost_doubled_or_reordered(open_site):
    async def scenario():
        site = open_site()
        try:
            for name in ("one", "two"):
                site.start(name)
            await site.until(lambda: set(site.owners().values()) == {8})
            sending = asyncio.create_task(send_on(site))
            await site.until(lambda: len(site.arrived()) > 60)

            site.tell("one", signal.SIGKILL)
            taken_over = await site.until(lambda: site.owners() == {"two": 16})
            assert taken_over < 8

            site.start("three")
            await site.until(lambda: set(site.owners().values()) == {8})
            site.tell("two", signal.SIGSTOP)
            await site.until(lambda: site.owners() == {"three": 16})
            await site.clock.sleep(500)
            before = len(site.lines())
            site.tell("two", signal.SIGCONT)
            await site.until(lambda: set(site.owners().values()) == {8})
            await site.until(lambda: len(site.lines()) > before + 60)
            sending.cancel()
            await asyncio.wait([sending])
            await site.until(lambda: set(site.arrived()) >= site.expected, 30)
            check_nothing_lost_doubled_or_reordered(site)
            await check_ledger(site)
            again = len(site.lines()) - len(site.arrived())
            print(f"taken over after {taken_over:.1f} s; {again} sent again with a known key")
        finally:
            await site.close()

    asyncio.run(scenario())


async def send_on(site, rounds=10_000, pause_ms=150):
    """Sends until cancelled, or so many rounds; a round that has begun is sent whole."""
    for _ in range(rounds):
        await asyncio.shield(asyncio.ensure_future(site.send_round()))
        await site.clock.sleep(pause_ms)


@pytest.mark.parametrize("open_site", ["nats"], indirect=True)
def test_what_a_killed_process_waited_for_is_waited_for_by_the_next(open_site):
    """Answers and deadlines of messages whose engine died with them open."""

    async def scenario():
        site = open_site()
        try:
            for name in ("one", "two"):
                site.start(name)
            await site.until(lambda: set(site.owners().values()) == {8})
            asked = [f"q{number:02d}" for number in range(12)]
            options = DeliveryOptions(answer_within=6_000, escalate=(NextReceiver("peer:p11"),))
            for number, name in enumerate(asked):
                await site.ask(name, f"peer:{PEERS[number % 10]}", options)
            await site.until(lambda: len(site.arrived()) == 12)
            site.tell("one", signal.SIGKILL)
            for number, name in enumerate(asked[:6]):
                await site.answer(name, PEERS[number % 10])
            await site.until(lambda: site.owners() == {"two": 16})
            later = {(name, "p11") for name in asked[6:]}
            await site.until(lambda: later <= set(site.arrived()))
            await site.clock.sleep(500)
            assert set(site.arrived()) == site.expected | later
            for number, name in enumerate(asked[:6]):
                row = await site.row(name)
                assert (row.result, row.answered_by) == ("done", PEERS[number % 10])
        finally:
            await site.close()

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_killed_or_frozen_nothing_is_lost_doubled_or_reordered(open_site, seed):
    chance = Chance(seed)

    async def scenario():
        site = open_site()
        names = [f"e{number}" for number in range(20)]
        alive = [names.pop(0), names.pop(0)]
        try:
            for name in alive:
                site.start(name)
            await site.until(lambda: sum(site.owners().values()) == 16)
            sending = asyncio.create_task(send_on(site, 300, pause_ms=20))
            for _ in range(6):
                await site.clock.sleep(chance.uniform(500, 2_500))
                await trouble(site, alive, names, chance)
            await sending
            await site.until(lambda: set(site.arrived()) >= site.expected, 60)
            check_nothing_lost_doubled_or_reordered(site)
            await check_ledger(site)
        finally:
            await site.close()

    asyncio.run(scenario())


async def trouble(site, alive, names, chance):
    """Kills one and starts another, or freezes one for a while."""
    if chance.random() < 0.5:
        site.tell(alive.pop(0), signal.SIGKILL)
        alive.append(names.pop(0))
        site.start(alive[-1])
        return
    frozen = chance.choice(alive)
    site.tell(frozen, signal.SIGSTOP)
    await site.clock.sleep(chance.uniform(200, 4_000))
    site.tell(frozen, signal.SIGCONT)


def test_two_processes_of_one_site_share_the_work_by_the_public_api(request, tmp_path, postgres):  # noqa: F811
    """Each is opened on a directory of its own, the site says what they share."""
    (tmp_path / "postgres").write_text(f"{postgres.dsn}#{postgres.schema}")
    (tmp_path / "nats").write_text(request.getfixturevalue("nats_address"))
    (tmp_path / "site.toml").write_text(SITE)
    sent: list[tuple[str, str]] = []

    @adapter("note")
    class Notes:
        async def send(self, delivery):
            sent.append((delivery.message, delivery.peer))
            return Sent()

        async def close(self):
            return

    async def scenario():
        clock = SystemClock()
        open_one = partial(open_communication, site=tmp_path / "site.toml", outputs=[Notes])
        async with AsyncExitStack() as closing:
            first = await closing.enter_async_context(open_one(tmp_path / "first"))
            heard = []
            await first.add_notification_callback(heard.append)
            with pytest.raises(Unsupported):
                await first.remove_output_adapter("note")
            async with open_one(tmp_path / "second") as second:
                ids = []
                for number in range(60):
                    one = (first, second)[number % 2]
                    to = Identifier("peer", ("ana", "ben", "lea")[number % 3])
                    message = Message(type="TASK", subtype="REQUEST", sender=APP, receiver=to)
                    ids.append(await one.send(message))
                    await clock.sleep(50)
            async with asyncio.timeout(20):
                while len(heard) < 60:
                    await clock.sleep(50)
        assert sorted(name for name, _ in sent) == sorted(ids)
        assert {message.refers_to for message in heard} == set(ids)
        for peer in ("ana", "ben", "lea"):
            told = [ids.index(name) for name, to in sent if to == peer]
            assert told == sorted(told)

    asyncio.run(scenario())
