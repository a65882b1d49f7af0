"""People who are logged in reply to plain messages, which leave no record: their session proves
who they are, the engine's memory or the log that they were asked. [CO-10, CO-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.base import Sent
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.arrivals import Arrivals
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.engine import CommunicationEngine
from rapport.communication.ledger import Ledger
from rapport.communication.ledger_rows import LedgerRow
from rapport.communication.peers import Peer, SiteDirectory
from rapport.communication.sessions.logins import Authenticator
from rapport.communication.sessions.sessions import Sessions, SessionSettings
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock

NOON = 1_772_452_800_000
HOUR = 3_600_000
PEERS = {name: Peer(name=name, addresses=(f"mail:{name}@example.org",)) for name in ("ana", "ben")}
PLANNER = Identifier("component", "planner")


class Takes:
    """Takes every delivery."""

    name = "mail"

    async def send(self, _delivery: Any) -> Sent:
        return Sent("taken")

    async def close(self) -> None:
        return


class Office:
    """An engine, the way in, and who is logged in."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.channels = open_memory(self.clock)
        records = self.channels.records
        self.sessions = Sessions(records, self.clock, SessionSettings(lifetime_ms=HOUR))
        door = Authenticator(
            self.channels, records, self.clock, self.sessions, lambda _peer, _word: False
        )
        self.arrivals = Arrivals(self.channels, records, self.clock, door, secret=b"s" * 32)

    async def start(self) -> None:
        """A fresh process: what the engine only remembered is forgotten."""
        self.engine = CommunicationEngine(
            self.channels,
            self.channels.records,
            self.clock,
            EngineParts(
                directory=SiteDirectory(PEERS, {}), actions={}, phrases={}, adapters=("mail",)
            ),
        )
        await self.engine.open()
        self.dispatch = Dispatch(
            Takes(),
            self.channels,
            self.channels.records,
            self.clock,
            report=self.engine.apply_outcomes,
            is_decided=self.engine.is_decided,
        )
        await self.dispatch.open()

    async def settle(self) -> None:
        while await self.engine.settle() or await self.dispatch.settle():
            pass

    async def tell(self, peer: str) -> str:
        """Sends a plain message and returns its id."""
        said = Message(
            type="NOTE",
            subtype="",
            sender=PLANNER,
            receiver=Identifier("peer", peer),
            content="Shift at eight?",
        )
        (id,) = await self.arrivals.send([said])
        await self.settle()
        assert not self.channels.records.find("communication.messages"), "it is a plain one"
        return id

    def said(self, to: str, token: str, *, sender: str = "ana", text: str = "yes") -> Message:
        return Message(
            type="REPLY",
            subtype="",
            sender=Identifier("peer", sender),
            receiver=PLANNER,
            refers_to=to,
            content=text,
            session_token=token,
        )

    async def reply(self, to: str, token: str, *, sender: str = "ana", text: str = "yes") -> Any:
        said = self.said(to, token, sender=sender, text=text)
        (arrived,) = await self.arrivals.publish([said], adapter="app")
        await self.settle()
        return arrived

    async def ledger(self) -> Ledger:
        ledger = Ledger(self.channels)
        await ledger.refresh()
        return ledger

    async def answers(self, message: str) -> list[LedgerRow]:
        return (await self.ledger()).rows(message=message, state="answered")


def play(scenario: Callable[[Office], Awaitable[None]]) -> None:
    async def run() -> None:
        office = Office()
        await office.start()
        await scenario(office)

    asyncio.run(run())


@pytest.mark.parametrize(("text", "declined"), [("yes, gladly", False), ("no", True)])
def test_a_reply_with_a_session_is_the_answer_and_says_yes_or_no(text: str, declined: bool) -> None:
    async def scenario(office: Office) -> None:
        asked = await office.tell("ana")
        token = (await office.sessions.begin("ana")).token
        arrived = await office.reply(asked, token, text=text)
        assert (arrived.accepted, arrived.proof) == (True, "session")
        (row,) = await office.answers(asked)
        assert (row.peer, row.answer, row.declined) == ("ana", text, declined)
        told = (await office.ledger()).message(asked)
        assert told is not None
        assert told.answered_by == ("" if declined else "ana")

    play(scenario)


def test_a_session_answers_only_for_its_own_peer_and_its_own_messages() -> None:
    async def scenario(office: Office) -> None:
        asked = await office.tell("ana")
        of_ben = (await office.sessions.begin("ben")).token
        forged = await office.reply(asked, of_ben, sender="ana")
        assert (forged.accepted, forged.reason) == (False, "session.invalid")
        meddling = await office.reply(asked, of_ben, sender="ben")
        assert meddling.accepted, "ben may speak, but was not asked"
        assert await office.answers(asked) == []

    play(scenario)


def test_a_session_that_is_over_answers_nothing_and_its_peer_is_notified() -> None:
    async def scenario(office: Office) -> None:
        asked = await office.tell("ana")
        token = (await office.sessions.begin("ana")).token
        office.clock.set_ms(NOON + HOUR + 1)
        late = await office.reply(asked, token)
        assert (late.accepted, late.reason) == (False, "session.invalid")
        assert await office.answers(asked) == []
        told = [row for row in (await office.ledger()).messages() if row.type == "AUTH"]
        assert [(row.subtype, row.receiver) for row in told] == [("FAILED", "peer:ana")]

    play(scenario)


def test_the_same_reply_twice_is_one_answer_and_a_second_thought_counts() -> None:
    async def scenario(office: Office) -> None:
        asked = await office.tell("ana")
        token = (await office.sessions.begin("ana")).token
        for text in ("yes", "yes", "no"):
            await office.reply(asked, token, text=text)
        (row,) = await office.answers(asked)
        assert (row.answer, row.declined) == ("no", True)

    play(scenario)


def test_after_a_restart_the_reply_is_still_the_answer() -> None:
    async def scenario(office: Office) -> None:
        asked, other = await office.tell("ana"), await office.tell("ana")
        token = (await office.sessions.begin("ana")).token
        await office.start()
        arrived = await office.reply(asked, token)
        assert arrived.accepted
        replied = (await office.ledger()).message(arrived.id)
        assert replied is not None
        assert (replied.type, replied.refers_to, replied.state) == ("REPLY", asked, "no_receiver")
        (row,) = await office.answers(asked)
        assert (row.peer, row.answer, row.declined) == ("ana", "yes", False)
        assert await office.answers(other) == []

    play(scenario)


def test_after_a_restart_only_who_was_asked_answers() -> None:
    async def scenario(office: Office) -> None:
        asked = await office.tell("ana")
        of_ben = (await office.sessions.begin("ben")).token
        await office.start()
        for to in (asked, "no-such-message"):
            meddling = await office.reply(to, of_ben, sender="ben")
            assert meddling.accepted, "ben may speak, but was not asked"
            assert await office.answers(to) == []

    play(scenario)


def test_replies_among_other_messages_keep_their_order_and_are_looked_up_once_each() -> None:
    async def scenario(office: Office) -> None:
        asked = [await office.tell("ana") for _ in range(3)]
        token = (await office.sessions.begin("ana")).token
        await office.start()
        looked: list[str] = []
        find = office.channels.find_event

        async def counted(id: str) -> Any:
            looked.append(id)
            return await find(id)

        office.channels.find_event = counted  # type: ignore[method-assign]
        replies = [office.said(to, token, text=f"{number}") for number, to in enumerate(asked)]
        again = office.said(asked[0], token, text="again")
        plain = office.said("", token, text="by the way")
        await office.arrivals.publish([plain, *replies, plain, again], adapter="app")
        await office.settle()
        assert looked == asked
        heard = [
            stored.event.payload()["content"]
            for stored in await office.channels.channel("log").read_after(0)
            if stored.event.payload().get("type") == "REPLY"
        ]
        assert heard == ["by the way", "0", "1", "2", "by the way", "again"]
        found = [(await office.answers(to))[0].answer for to in asked]
        assert found == ["again", "1", "2"]

    play(scenario)
