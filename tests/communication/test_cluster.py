"""Two engines of one room: each message handled once, by whoever holds its share. [CO-17]"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rapport.channel.backends.local import open_memory
from rapport.communication.actions import Action
from rapport.communication.answers import AnswerData, record_answer
from rapport.communication.cluster import Cluster
from rapport.communication.cluster_leases import ShareSettings
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.delivery_state import NextReceiver
from rapport.communication.ledger import Ledger
from rapport.communication.links import answer_secret, answer_token
from rapport.communication.peers import Collective, Peer, SiteDirectory
from rapport.core.detection import Detection
from rapport.core.errors import StoreUnavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from support.adapters import GatedAdapter, ScriptedAdapter

PEERS = {name: Peer(name=name, addresses=("mail:",)) for name in ("ana", "ben", "lea", "tom")}
GUARDS = Collective(name="guards", members=("ana", "ben"), delivery="to-all-members")
WATCH = Collective(name="watch", members=("ana", "ben"))
LEADS = Collective(name="leads", members=("lea",))
ALARM = Action(
    phrase="alarm",
    send_to=Identifier("collective", "watch"),
    text="{A}",
    done_when="answered",
    answer_within_ms=600,
    escalate=(NextReceiver("collective:leads"),),
)
SETTINGS = ShareSettings(count=4, lease_ms=600)


def route(sent):
    """News for whomever reach lea, too."""
    return (Identifier("peer", "lea"),) if sent.type == "NEWS" else ()


PARTS = EngineParts(
    directory=SiteDirectory(PEERS, {"guards": GUARDS, "watch": WATCH, "leads": LEADS}),
    actions={"alarm": ALARM},
    phrases={"p": ("alarm",)},
    adapters=("mail",),
    route=route,
)


class Room:
    """Several parts over channels and records in common."""

    def __init__(self):
        self.clock = SystemClock()
        self.channels = open_memory(self.clock)
        self.medium = ScriptedAdapter("mail")
        self.tasks = {}

    def start(self, instance, lease_records=None):
        sharing = Cluster(
            self.channels,
            self.channels.records,
            self.clock,
            instance=instance,
            parts=PARTS,
            adapters=lambda: [self.medium],
            settings=SETTINGS,
            lease_records=lease_records,
            acts=True,
        )
        self.tasks[instance] = asyncio.create_task(sharing.run())
        return sharing

    async def send(self, *messages):
        events = [m.to_event(source="application", time=self.clock.now_ms()) for m in messages]
        await self.channels.channel("input").append(events)

    async def until(self, condition):
        async with asyncio.timeout(15):
            while not condition():
                await self.clock.sleep(20)

    async def stop(self):
        for task in self.tasks.values():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.channels.close()

    async def ledger(self):
        ledger = Ledger(self.channels)
        await ledger.refresh()
        return ledger


class Absent:
    """Records that cannot be reached for a while."""

    def __init__(self, records):
        self._records, self.is_away = records, False

    def __getattr__(self, name):
        if self.is_away:
            raise StoreUnavailable("gone for lunch", code="store.unreachable")
        return getattr(self._records, name)


def message(number, receiver, **more):
    sender = Identifier("component", "app")
    to = Identifier.parse(receiver)
    return Message(
        **{"type": "TASK"} | more, subtype="REQUEST", sender=sender, id=f"m{number}", receiver=to
    )


async def send_some(room, numbers):
    names = list(PEERS)
    for number in numbers:
        to = f"peer:{names[number % 4]}" if number % 5 else "collective:guards"
        await room.send(message(number, to, **({} if number % 6 else {"type": "NEWS"})))


def receivers(number):
    """Whom `send_some` tells."""
    first = {list(PEERS)[number % 4]} if number % 5 else {"ana", "ben"}
    return first if number % 6 else first | {"lea"}


def test_every_message_goes_out_once_and_in_order_while_engines_come_and_go():
    async def scenario():
        room = Room()
        one = room.start("one")
        await room.until(lambda: len(one.held) == 5)
        await send_some(room, range(10))
        two = room.start("two")
        await room.until(lambda: len(two.held) >= 2 <= len(one.held) <= 3)
        await send_some(room, range(10, 30))
        room.tasks.pop("one").cancel()
        await send_some(room, range(30, 40))
        await room.until(lambda: len(two.held) == 5)
        expected = sum(len(receivers(number)) for number in range(40))
        await room.until(lambda: len(room.medium.sent) >= expected)
        sent = [(delivery.message, delivery.peer) for delivery in room.medium.sent]
        assert len(sent) == len(set(sent)) == expected
        for peer in PEERS:
            told = [int(m[1:]) for m, to in sent if to == peer]
            assert told == sorted(told)
        await room.stop()

    asyncio.run(scenario())


def test_an_alarm_is_answered_or_escalated_wherever_its_case_is_kept():
    async def scenario():
        room = Room()
        one, two = room.start("one"), room.start("two")
        await room.until(lambda: sorted((len(one.held), len(two.held))) == [2, 3])
        found = []
        for number in range(6):
            now_ms = room.clock.now_ms()
            found.append(Detection(policy="p", time=now_ms, bindings={"A": str(number)}, causes=()))
        events = [detection.to_event(source="policy") for detection in found]
        await room.channels.channel("detections").append(events)
        await room.until(lambda: len(room.medium.sent) == 12)
        secret = answer_secret(room.channels.records)
        answered = {d.message for d in room.medium.sent if int(d.text) % 2 == 0}
        for name in answered:
            data = AnswerData(
                message=name, peer="ana", text="yes", token=answer_token(secret, name, "ana")
            )
            await record_answer(room.channels, secret, data, now_ms=room.clock.now_ms())
        await room.until(lambda: len(room.medium.sent) >= 12 + 3)
        later = {delivery.message for delivery in room.medium.sent[12:]}
        assert later == {d.message for d in room.medium.sent} - answered
        ledger = await room.ledger()
        for name in answered:
            row = ledger.message(name)
            assert (row.result, row.answered_by, row.answer) == ("done", "ana", "yes")
        await room.stop()

    asyncio.run(scenario())


def test_a_call_that_is_broken_off_while_the_share_is_in_doubt_is_made_again_in_its_place():
    """The share was nobody else's meanwhile: what was broken off has not failed."""

    async def scenario():
        room = Room()
        medium = room.medium = GatedAdapter()
        leases = Absent(room.channels.records)
        one = room.start("one", lease_records=leases)
        await room.until(lambda: len(one.held) == 5)
        await room.send(message(1, "peer:ana"), message(2, "peer:ana"))
        await medium.has_begun(1)
        leases.is_away = True
        await room.until(lambda: medium.at_once == 0)
        medium.gate("ana").set()
        await room.clock.sleep(2 * SETTINGS.lease_ms)
        assert medium.ended == []
        leases.is_away = False
        await room.until(lambda: len(medium.ended) == 2)
        assert [delivery.message for delivery in medium.ended] == ["m1", "m2"]
        await room.clock.sleep(100)
        ledger = await room.ledger()
        assert ledger.message("m1").result == "done"
        (row,) = [row for row in ledger.rows(message="m1") if row.address]
        assert (row.state, row.attempt) == ("handed", 1)
        lines = await room.channels.channel("log").read_after(0)
        said = [line.event.type.rpartition(".")[2] for line in lines if line.event.subject == "m1"]
        assert "unknown" in said
        assert "failed" not in said
        await room.stop()

    asyncio.run(scenario())
