"""From the way in to the person: answers count when they are proven, and who is out is told."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.base import Failed
from rapport.communication.arrival_checks import ArrivalSettings
from rapport.communication.arrivals import Arrivals
from rapport.communication.links import answer_secret, answer_token
from rapport.communication.peers import Peer
from rapport.communication.privacy import PrivacyRule
from rapport.communication.routing import RoutingRule, RoutingTable
from rapport.communication.sessions.logins import Authenticator
from rapport.communication.sessions.sessions import Sessions, SessionSettings
from rapport.core.errors import StoreUnavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock

HOUR = 3_600_000
ANA, BEN = Identifier("peer", "ana"), Identifier("peer", "ben")


def way_into(channels: Any, clock: Any, **settings: Any) -> tuple[Arrivals, Authenticator]:
    """Arrivals over a room's channels; the password of everybody is `right`."""
    records = channels.records
    sessions = Sessions(records, clock, SessionSettings(lifetime_ms=HOUR))
    door = Authenticator(channels, records, clock, sessions, lambda _peer, word: word == "right")
    chosen = ArrivalSettings(**settings)
    secret = answer_secret(records)
    return Arrivals(channels, records, clock, door, secret=secret, settings=chosen), door


async def alarm(room: Any) -> str:
    """An alarm that waits for an answer; its message."""
    await room.start()
    await room.detect()
    await room.settle()
    return (await room.ledger()).messages()[0].message


@pytest.mark.parametrize("entry", ["door", "medium", "session", "append"])
def test_rules_about_a_sender_see_only_the_proven_sender(room, entry):
    async def scenario():
        rule = RoutingRule(type="", sender=ANA, to=(BEN,))
        room.route = RoutingTable([rule]).recipients
        arrivals, door = way_into(room.channels, room.clock)
        await room.start()
        token = (await door.log_in("ana", "right")).token if entry == "session" else ""
        note = Message(type="NOTE", subtype="", sender=ANA, content="hi", session_token=token)
        if entry == "append":
            named = msgspec.structs.replace(note, id="n1")
            event = named.to_event(source="anybody", time=room.clock.now_ms())
            await room.channels.channel("input").append([event])
        else:
            await arrivals.publish(
                [note], adapter="door", trusted=lambda _message: entry == "medium"
            )
        await room.settle()
        reached = [peer for state, peer, _adapter in await room.states() if state == "handed"]
        assert reached == (["ben"] if entry in ("medium", "session") else [])

    asyncio.run(scenario())


def test_an_application_is_to_rules_who_it_proved_to_be_not_who_it_says(room):
    async def scenario():
        app = Identifier("component", "policy")
        rules = [
            RoutingRule(sender=Identifier("component", name), to=(to,))
            for name, to in (("policy", BEN), ("shop", ANA))
        ]
        room.route = RoutingTable(rules).recipients
        refuses = PrivacyRule(senders=("component:shop",))
        room.peers["lea"] = Peer(name="lea", addresses=("inbox:",), privacy=(refuses,))
        arrivals, _door = way_into(room.channels, room.clock)
        await room.start()
        to_lea = Message(
            type="T", subtype="", sender=app, receiver=Identifier("peer", "lea"), content="hi"
        )
        await arrivals.send([to_lea], identity="shop")
        await room.settle()
        states = {(state, peer) for state, peer, _adapter in await room.states()}
        assert ("handed", "ana") in states
        assert ("refused", "lea") in states
        assert not [peer for _state, peer in states if peer == "ben"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("rule", "expected"), [("unproven", []), ("peer:ana", ["lea"])])
def test_privacy_policies_see_an_unproven_sender_as_such(room, scripted, rule, expected):
    """Also at the second look, after the message waited."""

    async def scenario():
        refuses = PrivacyRule(senders=(rule,))
        room.adapters["mail"] = scripted("mail", Failed("not now", retry=True))
        room.peers["lea"] = Peer(name="lea", addresses=("mail:lea@x.org",), privacy=(refuses,))
        arrivals, _door = way_into(room.channels, room.clock, unproven="accept")
        await room.start()
        lea = Identifier("peer", "lea")
        note = Message(type="NOTE", subtype="", sender=ANA, receiver=lea, content="hi")
        await arrivals.publish([note], adapter="door")
        await room.settle()
        await room.pass_time(20_000)
        sent = [peer for state, peer, _adapter in await room.states() if state == "handed"]
        assert [peer for peer in sent if peer == "lea"] == expected

    asyncio.run(scenario())


@pytest.mark.parametrize("proof", ["session", "answer", "medium"])
def test_a_proven_answer_stops_the_alarm(room, proof):
    async def scenario():
        arrivals, door = way_into(room.channels, room.clock)
        message = await alarm(room)
        token = ""
        if proof == "session":
            token = (await door.log_in("ana", "right")).token
        elif proof == "answer":
            token = answer_token(answer_secret(room.channels.records), message, "ana")
        answer = Message(
            type="ANSWER", subtype="", sender=ANA, refers_to=message, session_token=token
        )
        [arrived] = await arrivals.publish(
            [answer], adapter="door", trusted=lambda _message: proof == "medium"
        )
        assert arrived.proof == proof
        await room.settle()
        states = {(state, peer) for state, peer, _adapter in await room.states()}
        assert ("answered", "ana") in states
        await room.pass_time(120_000)
        assert not [row for row in await room.states() if row[1] == "lea"]

    asyncio.run(scenario())


def test_an_answer_that_nothing_proves_stops_nothing(room):
    async def scenario():
        arrivals, door = way_into(room.channels, room.clock)
        message = await alarm(room)
        of_ben = (await door.log_in("ben", "right")).token
        plain = Message(type="ANSWER", subtype="", sender=ANA, refers_to=message)
        stolen = msgspec.structs.replace(plain, session_token=of_ben)
        await arrivals.publish([plain, stolen], adapter="mail")
        await room.pass_time(120_000)
        states = await room.states()
        assert "answered" not in {state for state, _peer, _adapter in states}
        assert [row for row in states if row[1] == "lea"]

    asyncio.run(scenario())


def test_a_peer_whose_session_is_over_reads_in_its_inbox_that_it_has_to_renew(room):
    async def scenario():
        arrivals, door = way_into(room.channels, room.clock, on_expired="hold")
        await room.start()
        opened = await door.log_in("ana", "right")
        await room.pass_time(2_000)
        room.clock.set_ms(room.clock.now_ms() + HOUR)
        late = Message(
            type="HELLO", subtype="", sender=ANA, receiver=BEN, session_token=opened.token
        )
        await arrivals.publish([late], adapter="door")
        await room.settle()
        ledger = await room.ledger()
        assert [row.text[:5] for row in ledger.messages()] == ["renew"]
        assert {row.peer for row in ledger.rows()} == {"ana"}
        await door.log_in("ana", "right")
        await room.settle()
        assert {row.peer for row in (await room.ledger()).rows()} == {"ana", "ben"}

    asyncio.run(scenario())


class ForgetfulOnce:
    """Records that refuse one change: what a crash between two writes leaves."""

    def __init__(self, records: Any) -> None:
        self._records, self.refuse = records, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def apply(self, changes: Any) -> None:
        if self.refuse:
            self.refuse = False
            raise StoreUnavailable("the disk is full")
        self._records.apply(changes)


def test_a_crash_between_letting_in_and_forgetting_lets_nothing_in_twice():
    async def scenario():
        clock = ManualClock(1_772_452_800_000)
        channels = open_memory(clock)
        records = ForgetfulOnce(channels.records)
        sessions = Sessions(records, clock, SessionSettings(lifetime_ms=HOUR))
        door = Authenticator(channels, records, clock, sessions, lambda _peer, _word: True)
        chosen = ArrivalSettings(on_expired="hold")
        arrivals = Arrivals(channels, records, clock, door, secret=b"s" * 32, settings=chosen)
        opened = await sessions.begin("ana")
        clock.set_ms(clock.now_ms() + HOUR)
        hello = Message(type="HELLO", subtype="", sender=ANA, session_token=opened.token)
        await arrivals.publish([hello, hello], adapter="door")
        records.refuse = True
        with pytest.raises(StoreUnavailable):
            await arrivals.release("ana")
        assert await arrivals.release("ana") == 2
        events = [one.event for one in await channels.channel("input").read_after(0)]
        assert len([event for event in events if event.headers["adapter"] == "door"]) == 2

    asyncio.run(scenario())


anything = st.text(max_size=30)
any_identifier = st.builds(
    Identifier, st.sampled_from(["peer", "collective", "component"]), anything
)
any_message = st.builds(
    Message,
    type=anything | st.sampled_from(["AUTH", "CONTROL", "MESSAGEINFO"]),
    subtype=anything | st.just("REQUEST"),
    sender=any_identifier,
    receiver=st.none() | any_identifier,
    id=anything,
    conversation=anything,
    content=anything | st.just('{"password": "right"}'),
    ttl=st.integers(-(2**63), 2**63),
    session_token=anything | anything.map("rst1.k.{}.x".format) | anything.map("rss1.{}".format),
    refers_to=anything,
    urgent=st.booleans(),
)


@given(st.lists(any_message, max_size=8), st.booleans(), st.sampled_from(["hold", "refuse"]))
def test_whatever_comes_each_message_is_taken_or_refused_with_a_reason(messages, back, expired):
    async def scenario():
        clock = ManualClock(1_772_452_800_000)
        channels = open_memory(clock)
        arrivals, _door = way_into(channels, clock, on_expired=expired)
        found = await arrivals.publish(messages, adapter="door", answers_back=back)
        assert len(found) == len(messages)
        for message, arrived in zip(messages, found, strict=True):
            assert arrived.accepted or arrived.reason
            assert not arrived.accepted or message.sender.kind == "peer"
        events = [one.event for one in await channels.channel("input").read_after(0)]
        assert {event.id for event in events} == {one.id for one in found if one.id}

    asyncio.run(scenario())
