"""Mails of people that name no mail of ours: the answer to the only open question, or nobody's
guess. [CO-16]
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from email.message import EmailMessage
from email.utils import formatdate

import pytest

from rapport.communication.adapters.imap import ImapInput, ImapSettings
from rapport.communication.adapters.input_base import AdapterState
from rapport.communication.adapters.mail import MailAdapter, MailSettings
from rapport.communication.adapters.mail_parser import MailLimits
from rapport.communication.adapters.mail_replies import (
    AddressBook,
    AmbiguousAnswer,
    MailContext,
    MailHandlers,
    MailQuestions,
    OpenQuestion,
    mail_context,
    meaning_of,
)
from rapport.communication.arrivals import Arrivals
from rapport.communication.ledger import Ledger
from rapport.communication.links import answer_secret, answer_token
from rapport.communication.peers import Peer, SiteDirectory
from rapport.communication.sessions.logins import Authenticator
from rapport.communication.sessions.sessions import Sessions, SessionSettings
from rapport.core.message import Message
from rapport.scenarios.mail_server import LocalMailServer
from support.servers.imap import PASSWORD

NOON = 1_772_452_800_000
LIMITS = MailLimits()


def knowing(*questions: OpenQuestion, vouched: bool = True) -> MailContext:
    return MailContext(
        proves=lambda *_: False,
        peer_of={"ana@example.org": "ana"}.get,
        open_questions=lambda peer: questions if peer == "ana" else (),
        vouched=vouched,
    )


def fresh_mail(text: str, *, date: int = 0, sender: str = "ana@example.org") -> EmailMessage:
    """A mail that somebody wrote anew, under a subject of their own."""
    mail = EmailMessage()
    mail["From"], mail["Subject"] = sender, "about tonight"
    if date:
        mail["Date"] = formatdate(date / 1_000)
    mail.set_content(text)
    return mail


def read(known: MailContext, text: str = "yes, I come", **more: int) -> object:
    return meaning_of(fresh_mail(text, **more).as_bytes(), known, LIMITS)


ONE, TWO = OpenQuestion("m1", NOON, "c1"), OpenQuestion("m2", NOON + 600_000)


def test_the_only_open_question_is_answered_in_its_conversation_by_the_words_of_the_mail() -> None:
    found = read(knowing(ONE))
    assert isinstance(found, Message)
    assert (found.type, found.refers_to, found.conversation) == ("ANSWER", "m1", "c1")
    assert found.content == "yes, I come", "the subject is no part of it: 'no' must stay a no"


def test_without_an_open_question_it_is_a_mail() -> None:
    found = read(knowing())
    assert isinstance(found, Message)
    assert (found.type, found.refers_to) == ("MAIL", "")


def test_of_two_open_questions_none_is_guessed_and_both_are_named_aside() -> None:
    found = read(knowing(TWO, ONE))
    assert isinstance(found, AmbiguousAnswer)
    assert (found.message.type, found.message.refers_to) == ("MAIL", "")
    assert found.letter.code == "mail.ambiguous_answer"
    assert "m2, m1" in found.letter.reason
    assert "yes, I come" in found.letter.text


def test_an_address_that_nobody_vouches_for_answers_nothing_but_is_seen() -> None:
    found = read(knowing(ONE, vouched=False))
    assert isinstance(found, AmbiguousAnswer)
    assert found.message.type == "MAIL"
    assert found.letter.code == "mail.unproven_answer"


def test_a_mail_that_was_written_before_the_question_does_not_answer_it() -> None:
    found = read(knowing(ONE, TWO), date=NOON + 300_000)
    assert isinstance(found, Message)
    assert found.refers_to == "m1"
    early = read(knowing(ONE), date=NOON - 300_000)
    assert isinstance(early, Message)
    assert early.type == "MAIL"


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Foo 2026 99:99:99", "-1"])
def test_a_date_that_says_nothing_excludes_nothing(date: str) -> None:
    mail = fresh_mail("yes")
    mail["Date"] = date
    found = meaning_of(mail.as_bytes(), knowing(ONE), LIMITS)
    assert isinstance(found, Message)
    assert found.refers_to == "m1"


# --- the whole way ---


class Post:
    """A room whose ana is reached by mail, and a mailbox that vouches for senders, or does not."""

    def __init__(self, room, smtp, imap, *, vouched: bool) -> None:
        self.room, self.smtp, self.imap, self.user = room, smtp, imap, imap.new_user()
        self.vouched = vouched
        records, clock, channels = room.channels.records, room.clock, room.channels
        secret = answer_secret(records)
        self.adapter = MailAdapter(
            MailSettings(port=smtp.port, reply_to="answers@example.org", timeout_ms=5_000),
            lambda message, peer: "",
            lambda message, peer: answer_token(secret, message, peer),
        )
        room.adapters["mail"] = self.adapter
        book = AddressBook(SiteDirectory(room.peers, room.collectives), clock)
        asked = MailQuestions()
        asked.ledger = Ledger(channels)
        self.mailbox = ImapInput(
            ImapSettings(port=imap.port, encryption="none", user=self.user, password=PASSWORD),
            mail_context(secret, book, questions=asked, vouched=vouched),
            MailHandlers("replies", channels, book, clock, asked),
        )
        sessions = Sessions(records, clock, SessionSettings())
        door = Authenticator(channels, records, clock, sessions, lambda _peer, _word: False)
        self.arrivals = Arrivals(channels, records, clock, door, secret=secret)

    async def fetch(self) -> None:
        await self.mailbox.open(AdapterState("replies", self.room.channels.records))
        if messages := await self.mailbox.pull():
            arrived = await self.arrivals.publish(
                messages, adapter="replies", trusted=lambda _message: self.vouched
            )
            await self.mailbox.pulled(messages, arrived)
        await self.room.settle()

    async def aside(self) -> list[str]:
        letters = await self.room.channels.channel("dead_letters").read_after(0)
        return [one.event.payload()["code"] for one in letters]


@asynccontextmanager
async def post_of(room, imap, *, vouched: bool = True):
    async with LocalMailServer() as smtp:
        room.peers["ana"] = Peer(name="ana", addresses=("mail:ana@example.org",))
        post = Post(room, smtp, imap, vouched=vouched)
        await room.start()
        await room.detect()
        await room.settle()
        try:
            yield post
        finally:
            await post.adapter.close()


@pytest.mark.slow
def test_a_fresh_mail_stops_the_only_alarm_and_of_two_alarms_none(room, imap_server) -> None:
    async def scenario() -> None:
        async with post_of(room, imap_server) as post:
            imap_server.deliver(post.user, fresh_mail("on my way"))
            await post.fetch()
            (alarm,) = (await room.ledger()).messages()[-1:]
            assert (alarm.state, alarm.answered_by, alarm.answer) == ("closed", "ana", "on my way")
            for event in ("e2", "e3"):
                await room.detect(event=event, guest=event)
                await room.settle()
            imap_server.deliver(post.user, fresh_mail("coming again"))
            await post.fetch()
            ledger = await room.ledger()
            alarms = [row for row in ledger.messages() if row.policy]
            assert sorted(row.state for row in alarms) == ["closed", "open", "open"]
            assert await post.aside() == ["mail.ambiguous_answer"]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_fresh_mail_by_a_mailbox_that_vouches_for_nobody_stops_nothing(room, imap_server) -> None:
    async def scenario() -> None:
        async with post_of(room, imap_server, vouched=False) as post:
            imap_server.deliver(post.user, fresh_mail("on my way"))
            await post.fetch()
            alarms = [row for row in (await room.ledger()).messages() if row.policy]
            assert [row.state for row in alarms] == ["open"]
            assert await post.aside() == ["mail.unproven_answer"]

    asyncio.run(scenario())
