"""While nobody can say who is in a collective: what needs it waits within its deadline, everything
else goes on. [CO-7, CO-8]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rapport.channel.dead_letters import DeadLetterAdmin, LetterFilter
from rapport.communication.actions import Action
from rapport.communication.adapters.base import Failed
from rapport.communication.ledger_events import PROOF
from rapport.communication.messages import MessageHandler
from rapport.communication.peers import Collective, Peer, SiteDirectory
from rapport.core.errors import InvalidInput, SourceUnavailable
from rapport.core.message import Identifier, Message

PLANNER = Identifier("component", "planner")
MINUTE = 60_000


class Roster(SiteDirectory):
    """The people of a room; `down` are the collectives that it cannot tell now."""

    def __init__(self, room: Any, *down: str) -> None:
        super().__init__(room.peers, room.collectives)
        self.down, self.asked = set(down), 0

    def policy_of(self, name: str) -> Collective | None:
        self._check(name)
        return super().policy_of(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        self._check(name)
        return super().member_names(name, after=after, limit=limit)

    def _check(self, name: str) -> None:
        if name in self.down:
            self.asked += 1
            raise SourceUnavailable("the roster is down", code="people.directory_failed")


def play(room: Any, scenario: Callable[[Roster], Any], *down: str) -> None:
    async def run() -> None:
        room.directory = Roster(room, *down)
        await room.start()
        await scenario(room.directory)

    asyncio.run(run())


async def send(room: Any, to: Identifier, *, ttl: int = 0) -> str:
    id = f"m{room.channels.channel('input').last_position() + 1}"
    said = Message(
        id=id, type="TASK", subtype="", sender=PLANNER, receiver=to, content="hello", ttl=ttl
    )
    event = said.to_event(source="app", time=room.clock.now_ms())
    event.headers[PROOF] = "application"
    await room.channels.channel("input").append([event])
    return id


async def told(room: Any, message: str) -> list[str]:
    """How the sender was told about a message."""
    found = await room.channels.channel("control").read_after(0)
    return [
        stored.event.type.removeprefix("rapport.control.")
        for stored in found
        if stored.event.subject == "component:planner"
        and stored.event.payload()["refers_to"] == message
    ]


async def handed(room: Any, peer: str) -> int:
    """How many messages were handed to a peer."""
    return len((await room.ledger()).rows(peer=peer, state="handed"))


def test_a_message_past_its_time_to_live_fails_though_nobody_knows_its_receiver(room):
    async def scenario(_roster: Roster) -> None:
        late = await send(room, Identifier("collective", "guards"), ttl=MINUTE // 2)
        patient = await send(room, Identifier("collective", "guards"))
        await room.settle()
        ledger = await room.ledger()
        assert ledger.message(late).state == ledger.message(patient).state == "held"
        await room.pass_time(MINUTE // 2 - 1_000)
        assert (await room.ledger()).message(late).state == "held"
        await room.pass_time(1_000)
        row = (await room.ledger()).message(late)
        assert (row.state, row.result, row.reason) == (
            "closed",
            "timed_out",
            "its time to live is over",
        )
        assert await told(room, late) == ["timeout"]
        assert (await room.ledger()).message(patient).state == "held"
        assert room.lookups.put_off == 2
        assert room.lookups.tried_again > 2

    play(room, scenario, "guards")


def test_a_record_of_what_waits_that_cannot_be_read_stops_nobody(room):
    async def scenario(roster: Roster) -> None:
        broken = await send(room, Identifier("collective", "guards"))
        other = await send(room, Identifier("collective", "guards"))
        await room.settle()
        records = room.channels.records
        (key, kept), _ = records.find("communication.put_off")
        records.put("communication.put_off", key, b"nothing")
        roster.down.clear()
        await room.pass_time(MINUTE)
        assert (await room.ledger()).message(broken).state == "held"
        assert (await room.ledger()).message(other).result == "done"
        records.put("communication.put_off", key, kept)  # somebody mended it
        await room.pass_time(2 * MINUTE)
        assert (await room.ledger()).message(broken).result == "done"

    play(room, scenario, "guards")


@pytest.mark.parametrize("how", ["control", "direct"])
def test_an_outcome_that_leads_to_somebody_unknown_stops_nobody(room, scripted, how: str):
    """The first receiver cannot be reached, the next is not known now."""

    async def scenario(roster: Roster) -> None:
        await room.detect()
        await room.settle()
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert (message.state, message.reason) == (
            "held",
            "collective:security-leads: people.directory_failed",
        )
        await send(room, Identifier("peer", "lea"))
        await room.settle()
        assert await handed(room, "lea") == 1, "others go on"
        await room.restart()
        await room.pass_time(MINUTE)
        assert await handed(room, "lea") == 1
        roster.down.clear()
        await room.pass_time(MINUTE)
        assert await handed(room, "lea") == 2
        held = [line for line in await room.states() if line[:2] == ("held", "")]
        assert len(held) == 1, "said once, however often it is asked"

    room.direct = how == "direct"
    room.adapters["pager"] = scripted("pager", *[Failed("no such number", retry=False)] * 2)
    for name in ("ana", "ben"):
        room.peers[name] = Peer(name=name, addresses=(f"pager:{name}",))
    play(room, scenario, "security-leads")


def test_the_next_receiver_is_looked_up_at_growing_intervals(room):
    async def scenario(roster: Roster) -> None:
        await room.detect()
        await room.settle()
        await room.pass_time(MINUTE)
        asked: list[int] = []
        for second in range(1, 201):
            before = roster.asked
            await room.pass_time(1_000)
            if roster.asked > before:
                asked.append(second)
        assert asked == [2, 6, 14, 30, 62, 122, 182]

    play(room, scenario, "security-leads")


def test_a_message_is_held_no_longer_once_the_next_receiver_is_known(room):
    async def scenario(roster: Roster) -> None:
        await room.detect()
        await room.settle()
        await room.pass_time(MINUTE + 5_000)
        (message,) = (await room.ledger()).messages()
        assert message.state == "held"
        roster.down.clear()
        await room.pass_time(20_000)
        assert await handed(room, "lea") == 1
        (message,) = (await room.ledger()).messages()
        assert (message.state, message.reason) == ("escalated", "")

    play(room, scenario, "security-leads")


def test_an_answer_closes_a_message_whose_next_receiver_nobody_knows(room):
    async def scenario(roster: Roster) -> None:
        await room.detect()
        await room.settle()
        await room.pass_time(MINUTE)
        (message,) = (await room.ledger()).messages()
        assert message.state == "held"
        await room.answer(message.message, "ana")
        await room.settle()
        roster.down.clear()
        await room.pass_time(2 * MINUTE)
        (message,) = (await room.ledger()).messages()
        assert (message.state, message.result) == ("closed", "done")
        assert await handed(room, "lea") == 0

    play(room, scenario, "security-leads")


def test_of_a_detection_only_the_message_to_somebody_unknown_waits(room):
    room.phrases = {"secure-building": ("raise alarm", "tell lea")}
    room.actions["tell lea"] = Action(
        phrase="tell lea", send_to=Identifier("peer", "lea"), text="Guest {A} is alone"
    )

    async def scenario(roster: Roster) -> None:
        await room.detect()
        await room.settle()
        assert await handed(room, "lea") == 1
        assert await handed(room, "ana") == 0
        await room.restart()
        roster.down.clear()
        await room.pass_time(MINUTE)
        assert await handed(room, "ana") == 1
        assert [state for state in await room.states() if state[:2] == ("queued", "lea")] == [
            ("queued", "lea", "inbox")
        ], "what was done is not done again"

    play(room, scenario, "guards")


def test_the_time_to_live_of_an_action_counts_from_its_detection(room):
    room.actions["raise alarm"] = Action(
        phrase="raise alarm",
        send_to=Identifier("collective", "guards"),
        text="Guest {A}",
        ttl_ms=MINUTE,
    )

    async def scenario(_roster: Roster) -> None:
        await room.detect()
        await room.settle()
        await room.pass_time(3 * MINUTE)
        (message,) = (await room.ledger()).messages()
        assert (message.state, message.result) == ("closed", "timed_out")

    play(room, scenario, "guards")


def test_a_dead_letter_to_somebody_unknown_stays_a_letter_until_they_are_known(room):
    async def scenario(roster: Roster) -> None:
        office = DeadLetterAdmin(room.channels, room.clock)
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(MessageHandler, "handle", _broken)
            await send(room, Identifier("collective", "guards"))
            await room.settle()
        await office.replay(LetterFilter(reader="communication"))
        await room.settle()
        assert [one.state for one in await office.letters(LetterFilter(state=""))] == ["open"]
        roster.down.clear()
        room.clock.set_ms(room.clock.now_ms() + 1)
        await office.replay(LetterFilter(reader="communication"))
        await room.settle()
        await room.settle()
        assert [one.state for one in await office.letters(LetterFilter(state=""))] == ["replayed"]
        assert await handed(room, "ana") == 1

    play(room, scenario, "guards")


def _broken(*_arguments: object, **_named: object) -> None:
    raise InvalidInput("not yet", code="test.broken")


def test_an_answer_counts_at_once_while_its_other_receivers_are_unknown(room):
    watchers = Identifier("collective", "watchers")
    room.collectives["watchers"] = Collective(name="watchers", members=("lea",))
    room.route = lambda message: (watchers,) if message.refers_to else ()

    async def scenario(roster):
        await room.detect()
        await room.settle()
        (alarm,) = (await room.ledger()).messages()
        reply = Message(
            id="r1",
            type="REPLY",
            subtype="",
            sender=Identifier("peer", "ana"),
            receiver=PLANNER,
            refers_to=alarm.message,
            content="on my way",
        )
        event = reply.to_event(source="app", time=room.clock.now_ms())
        event.headers[PROOF] = "session"
        await room.channels.channel("input").append([event])
        await room.settle()
        await room.pass_time(3 * MINUTE)
        found = (await room.ledger()).message(alarm.message)
        assert (found.state, found.result, found.answered_by) == ("closed", "done", "ana")
        states = await room.states()
        assert [peer for state, peer, _ in states if state == "answered"] == ["ana"], "said once"
        assert not await handed(room, "lea")
        roster.down.clear()
        await room.pass_time(2 * MINUTE)
        assert await handed(room, "lea") == 1
        states = await room.states()
        assert [peer for state, peer, _ in states if state == "answered"] == ["ana"]

    play(room, scenario, "watchers")
