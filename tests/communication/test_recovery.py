"""Killed between any two writes and started again: the ledger says the same as if nothing had
happened.

A wire over channels and records trips at the n-th write, before or after it took effect, which is
what a kill -9 does; then everything is made anew on what was kept. Every n is tried until the walk
gets through.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.communication.adapters.base import Failed, Sent
from rapport.communication.adapters.isolation import IsolatedCall
from rapport.communication.delivery_state import DeliveryOptions, with_options
from rapport.communication.peers import Collective, Peer
from rapport.core.message import Identifier, Message

BEGIN = 1_772_452_800_000


class Killed(BaseException):
    """The process ends here."""


class Wire:
    """Counts writes and trips at one of them."""

    def __init__(self, trip_at: int, *, after: bool):
        self.left, self.after, self.tripped = trip_at, after, False

    def before_write(self):
        if self.tripped:
            raise Killed  # a dead process writes nothing more
        self.left -= 1
        if self.left == 0 and not self.after:
            self.tripped = True
            raise Killed

    def after_write(self):
        if self.left == 0 and self.after:
            self.tripped = True
            raise Killed


class WiredRecords:
    def __init__(self, records, wire):
        self.records, self.wire = records, wire

    def __getattr__(self, name):
        found = getattr(self.records, name)
        if name not in ("put", "delete", "apply"):
            return found

        def write(*arguments):
            self.wire.before_write()
            found(*arguments)
            self.wire.after_write()

        return write


class WiredChannel:
    def __init__(self, channel, wire):
        self.channel, self.wire = channel, wire

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def append(self, events):
        self.wire.before_write()
        appended = await self.channel.append(events)
        self.wire.after_write()
        return appended


class WiredSubscription:
    def __init__(self, subscription, wire):
        self.subscription, self.wire = subscription, wire

    def __getattr__(self, name):
        return getattr(self.subscription, name)

    async def commit(self, position, state=None, *, changes=()):
        self.wire.before_write()
        await self.subscription.commit(position, state, changes=changes)
        self.wire.after_write()


class WiredChannels:
    def __init__(self, channels, wire):
        self.channels, self.wire = channels, wire
        self.records = WiredRecords(channels.records, wire)

    def channel(self, name):
        return WiredChannel(self.channels.channel(name), self.wire)

    async def subscribe(self, channel, reader, *, from_start=True):
        found = await self.channels.subscribe(channel, reader, from_start=from_start)
        return WiredSubscription(found, self.wire)


class BusyAtFirst:
    """A mail server that takes the second attempt."""

    name = "mail"

    def __init__(self):
        self.sent = []

    async def send(self, delivery):
        self.sent.append(delivery)
        return Failed("busy", retry=True) if delivery.attempt == 1 else Sent()


def people(room):
    """Ana by a mail that fails once, ben by his inbox; both belong to the guards."""
    room.adapters["mail"] = BusyAtFirst()
    room.peers["ana"] = Peer(name="ana", addresses=("mail:ana@example.org",))
    return room.adapters["mail"]


async def walk(room):
    """An alarm, a failed mail, its retry, a missed deadline, the lead's answer."""
    await room.settle()
    await room.pass_time(BEGIN + 65_000 - room.clock.now_ms())
    (message,) = (await room.ledger()).messages()
    if not message.answered_by:
        await room.answer(message.message, "lea", "I go")
    await room.settle()


async def undisturbed(new_room):
    room = new_room(now_ms=BEGIN)
    people(room)
    await room.detect()
    await room.start()
    await walk(room)
    return Counter(await room.states())


async def killed_at(new_room, trip_at, after):
    """The walk with one kill; returns the ledger, the mails and whether the wire was reached."""
    room = new_room(now_ms=BEGIN)
    channels = room.channels
    mail = people(room)
    await room.detect()
    wire = Wire(trip_at, after=after)
    room.channels = WiredChannels(channels, wire)
    try:
        await room.start()
        await walk(room)
    except Killed:
        assert wire.tripped
    except BaseExceptionGroup:
        assert wire.tripped
    room.channels = channels
    await room.restart()
    await walk(room)
    return Counter(await room.states()), mail.sent, wire.tripped


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_kill_at_any_write_loses_nothing_and_doubles_nothing_in_the_ledger(new_room, after):
    async def scenario():
        expected = await undisturbed(new_room)
        assert expected["answered", "lea", ""] == 1
        kills, tripped = 0, True
        while tripped:
            states, mails, tripped = await killed_at(new_room, kills + 1, after)
            kills += tripped
            unknown = Counter({line: n for line, n in states.items() if line[0] == "unknown"})
            assert states - unknown == expected, f"killed at write {kills}"
            assert sum(unknown.values()) <= 1
            assert len({delivery.key for delivery in mails}) == 1
            assert len(mails) <= 2 + sum(unknown.values()), "sent again only when nobody could know"
        assert kills > 30, "the wire should have reached every write of the walk"

    asyncio.run(scenario())


# --- messages of applications, with outcomes handed over directly ---


async def send_messages(room):
    """To one peer by a mail that fails once, to one whom nothing goes wrong for, to a collective,
    and one that is answered."""
    receivers = [Identifier("peer", "ana"), Identifier("peer", "ben")]
    receivers += [Identifier("collective", "guards"), Identifier("collective", "security-leads")]
    events = []
    for number, receiver in enumerate(receivers):
        message = Message(
            type="TASK",
            subtype="REQUEST",
            sender=Identifier("peer", "lea"),
            id=f"m{number}",
            receiver=receiver,
            content="look",
        )
        event = message.to_event(source="test", time=room.clock.now_ms())
        events.append(msgspec.structs.replace(event, headers={"proof": "application"}))
    events[-1] = with_options(
        events[-1], DeliveryOptions(done_when="answered", answer_within=60_000)
    )
    await room.channels.channel("input").append(events)


async def walk_messages(room):
    await room.settle()
    await room.pass_time(BEGIN + 10_000 - room.clock.now_ms())
    reply = Message(
        type="TASK", subtype="REPLY", sender=Identifier("peer", "lea"), id="r1", refers_to="m3"
    )
    event = reply.to_event(source="test", time=BEGIN)
    event = msgspec.structs.replace(event, headers={"proof": "session"})
    await room.channels.channel("input").append([event])
    await room.pass_time(BEGIN + 20_000 - room.clock.now_ms())


async def kept_of(room):
    """The ledger as people read it, and what went out by the inbox."""
    ledger = await room.ledger()
    rows = {row.key: row.state for row in ledger.rows()}
    messages = {row.message: (row.state, row.result, row.answered_by) for row in ledger.messages()}
    inbox = await room.channels.channel("output.inbox").read_after(0, limit=1_000)
    return rows, messages, Counter(stored.event.id for stored in inbox)


async def messages_killed_at(new_room, trip_at, after):
    room = new_room(now_ms=BEGIN)
    room.direct = True
    channels, mail = room.channels, people(room)
    guards = Collective(name="guards", members=("ana", "ben"), delivery="to-all-members")
    room.collectives["guards"] = guards
    await send_messages(room)
    wire = Wire(trip_at, after=after)
    room.channels = WiredChannels(channels, wire)
    try:
        await room.start()
        await walk_messages(room)
    except (Killed, BaseExceptionGroup):
        assert wire.tripped
    room.channels = channels
    await room.restart()
    await walk_messages(room)
    return await kept_of(room), mail.sent, wire.tripped


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_kill_at_any_write_loses_no_message_and_no_outcome(new_room, after):
    async def scenario():
        expected, _, tripped = await messages_killed_at(new_room, 1_000_000, after)
        assert not tripped
        assert expected[1]["m3"] == ("closed", "done", "lea")
        assert {result for state, result, _ in expected[1].values() if state == "closed"} == {
            "done"
        }
        kills, tripped = 0, True
        while tripped:
            kept, mails, tripped = await messages_killed_at(new_room, kills + 1, after)
            kills += tripped
            assert kept == expected, f"killed at write {kills}"
            assert len({delivery.key for delivery in mails}) == 2, "ana is told two messages"
        assert kills > 20, "the wire should have reached every write of the walk"

    asyncio.run(scenario())


def test_a_delivery_that_kills_the_process_each_time_is_given_up(new_room, scripted, monkeypatch):
    # An adapter cannot end the process by raising; here raising stands for what does.
    monkeypatch.setattr(IsolatedCall, "_guarded", lambda held: held._work())

    async def scenario():
        room = new_room()
        mail = scripted("mail", *[Killed() for _ in range(20)])
        room.adapters["mail"] = mail
        room.peers["ana"] = Peer(name="ana", addresses=("mail:ana@example.org",))
        room.collectives["guards"] = room.collectives["guards"].__class__(
            name="guards", members=("ana",)
        )
        await room.start()
        await room.detect()
        for _ in range(14):
            try:
                await room.settle()
            except (Killed, BaseExceptionGroup):
                await room.restart()
        assert len(mail.sent) == 10
        (row,) = (await room.ledger()).rows(state="failed", peer="ana")[:1]
        assert "10 times" in row.reason
        assert (await room.ledger()).inbox("lea"), "the next one is asked instead"

    asyncio.run(scenario())


def test_what_is_under_way_goes_on_after_the_node_was_stopped_and_opened_again(new_room, tmp_path):
    async def scenario():
        room = new_room()
        room.channels = open_embedded(tmp_path, room.clock)
        await room.start()
        await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        await room.channels.close()

        room.clock.set_ms(room.clock.now_ms() + 59_000)
        room.channels = open_embedded(tmp_path, room.clock)
        await room.restart()
        await room.settle()
        assert not (await room.ledger()).inbox("lea")
        await room.pass_time(1_000)
        assert (await room.ledger()).inbox("lea")
        await room.channels.close()

        room.channels = open_embedded(tmp_path, room.clock)
        await room.restart()
        await room.answer(message.message, "ana")
        await room.settle()
        (message,) = (await room.ledger()).messages()
        assert (message.state, message.result) == ("closed", "done")
        queued = [peer for state, peer, _ in await room.states() if state == "queued"]
        assert sorted(queued) == ["ana", "ben", "lea"]
        await room.channels.close()

    asyncio.run(scenario())


def test_the_secret_for_answers_is_made_once(new_room):
    async def scenario():
        room = new_room()
        room.channels = open_memory(room.clock)
        await room.start()
        first = room.channels.records.get("secrets", "answers")
        await room.restart()
        assert room.channels.records.get("secrets", "answers") == first
        assert first is not None
        assert len(first) == 32

    asyncio.run(scenario())
