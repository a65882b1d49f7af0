"""The whole way of mail: out by SMTP, back as a reply or bounce through a real mailbox."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from email.message import EmailMessage

import pytest

from rapport.communication.adapters.imap import ImapInput, ImapSettings
from rapport.communication.adapters.input_base import AdapterState
from rapport.communication.adapters.mail import MailAdapter, MailSettings
from rapport.communication.adapters.mail_replies import AddressBook, MailHandlers, mail_context
from rapport.communication.arrivals import Arrivals
from rapport.communication.links import answer_secret, answer_token
from rapport.communication.peers import Peer, SiteDirectory
from rapport.communication.sessions.logins import Authenticator
from rapport.communication.sessions.sessions import Sessions, SessionSettings
from rapport.scenarios.mail_server import LocalMailServer
from support.servers.imap import PASSWORD

pytestmark = pytest.mark.slow


class Post:
    """A room whose ana is reached by mail, and the mailbox in which her replies arrive."""

    def __init__(self, room, smtp, imap):
        self.room, self.smtp, self.imap, self.user = room, smtp, imap, imap.new_user()
        records, clock, channels = room.channels.records, room.clock, room.channels
        secret = answer_secret(records)
        self.adapter = MailAdapter(
            MailSettings(port=smtp.port, reply_to="answers@example.org", timeout_ms=5_000),
            lambda message, peer: "",
            lambda message, peer: answer_token(secret, message, peer),
        )
        room.adapters["mail"] = self.adapter
        book = AddressBook(SiteDirectory(room.peers, room.collectives), clock)
        settings = ImapSettings(
            port=imap.port, encryption="none", user=self.user, password=PASSWORD
        )
        care = MailHandlers("replies", channels, book, clock)
        self.mailbox = ImapInput(settings, mail_context(secret, book), care)
        sessions = Sessions(records, clock, SessionSettings())
        door = Authenticator(channels, records, clock, sessions, lambda _peer, _word: False)
        self.arrivals = Arrivals(channels, records, clock, door, secret=secret)

    async def fetch(self):
        """One look, as the runtime does it."""
        await self.mailbox.open(AdapterState("replies", self.room.channels.records))
        if messages := await self.mailbox.pull():
            arrived = await self.arrivals.publish(messages, adapter="replies")
            await self.mailbox.pulled(messages, arrived)
        await self.room.settle()

    def deliver(self, text, *, to, sender="ana@example.org"):
        mail = EmailMessage()
        mail["From"], mail["Subject"] = sender, f"Re: {to['Subject']}"
        mail["In-Reply-To"] = to["Message-ID"]
        mail.set_content(text)
        self.imap.deliver(self.user, mail)


@asynccontextmanager
async def post_of(room, imap):
    async with LocalMailServer() as smtp:
        room.peers["ana"] = Peer(
            name="ana",
            addresses=("mail:ana@old.example", "inbox:"),
            delivery="preferred",
            fallback=True,
        )
        post = Post(room, smtp, imap)
        await room.start()
        await room.detect()
        await room.settle()
        try:
            yield post
        finally:
            await post.adapter.close()


def test_a_reply_by_mail_stops_the_alarm(room, imap_server):
    async def scenario():
        async with post_of(room, imap_server) as post:
            (mail,) = post.smtp.mails
            post.deliver("On my way!\n\nOn Mon alarm wrote:\n> Guest 5\n", to=mail)
            await post.fetch()
            ledger = await room.ledger()
            alarm = ledger.message(str(mail["X-Rapport-Message"]))
            assert (alarm.state, alarm.answered_by) == ("closed", "ana")
            (row,) = ledger.rows(message=alarm.message, peer="ana", state="answered")
            assert row.answer == "On my way!"
            await room.pass_time(120_000)
            assert not [row for row in await room.states() if row[1] == "lea"]

    asyncio.run(scenario())


def test_an_out_of_office_reply_and_a_forged_one_stop_nothing(room, imap_server):
    async def scenario():
        async with post_of(room, imap_server) as post:
            (mail,) = post.smtp.mails
            away = EmailMessage()
            away["From"], away["Auto-Submitted"] = "ana@example.org", "auto-replied"
            away["In-Reply-To"] = mail["Message-ID"]
            away.set_content("I am away.")
            imap_server.deliver(post.user, away)
            token = mail["Message-ID"].rpartition(".")[0]
            forged = {"Subject": "x", "Message-ID": mail["Message-ID"].replace(token[-9:], "0" * 9)}
            post.deliver("sure", to=forged, sender="eve@example.org")
            await post.fetch()
            assert (await room.ledger()).messages()[0].state == "open"
            await room.pass_time(120_000)
            assert [row for row in await room.states() if row[1] == "lea"]

    asyncio.run(scenario())


def bounce_of(mail):
    notice = EmailMessage()
    notice["From"] = "MAILER-DAEMON@mx.example.org"
    notice["Subject"] = "Undelivered Mail Returned to Sender"
    notice.set_content(f"550 5.1.1 no such user\n\nMessage-ID: {mail['Message-ID']}\n")
    return notice


def test_a_mail_that_comes_back_is_failed_after_handed_and_the_next_address_is_tried(
    room, imap_server
):
    async def scenario():
        async with post_of(room, imap_server) as post:
            (mail,) = post.smtp.mails
            imap_server.deliver(post.user, bounce_of(mail))
            await post.fetch()
            states = [
                (state, adapter) for state, peer, adapter in await room.states() if peer == "ana"
            ]
            assert states == [
                ("queued", "mail"),
                ("handed", "mail"),
                ("failed", "mail"),
                ("queued", "inbox"),
                ("handed", "inbox"),
            ]
            (row,) = (await room.ledger()).rows(peer="ana", state="failed")
            assert row.reason == "the mail came back: 550 5.1.1 no such user"
            await post.fetch()
            await room.restart()
            await room.settle()
            assert len([one for one in await room.states() if one[1] == "ana"]) == 5

    asyncio.run(scenario())


def test_a_mail_that_comes_back_when_all_is_over_still_stands_in_the_ledger(room, imap_server):
    async def scenario():
        async with post_of(room, imap_server) as post:
            (mail,) = post.smtp.mails
            message = (await room.ledger()).messages()[0].message
            await room.answer(message, "ben")
            await room.settle()
            imap_server.deliver(post.user, bounce_of(mail))
            await post.fetch()
            assert ("failed", "ana", "mail") in await room.states()
            assert (await room.ledger()).messages()[0].state == "closed"

    asyncio.run(scenario())


def test_a_reply_that_is_published_twice_after_a_crash_is_in_the_log_once(room, imap_server):
    async def scenario():
        async with post_of(room, imap_server) as post:
            (mail,) = post.smtp.mails
            post.deliver("On my way!", to=mail)
            for _crash in range(2):
                await post.mailbox.open(AdapterState("replies", room.channels.records))
                messages = await post.mailbox.pull()
                (arrived,) = await post.arrivals.publish(messages, adapter="replies")
                assert (arrived.accepted, arrived.proof) == (True, "answer")
            await post.fetch()
            assert len(await room.channels.channel("input").read_after(0)) == 1
            assert await post.mailbox.pull() == []
            (row,) = (await room.ledger()).rows(peer="ana", state="answered")
            assert row.answer == "On my way!"
            for name in ("input", "log", "control"):
                for stored in await room.channels.channel(name).read_after(0):
                    assert mail["Message-ID"].split(".")[3][:40].encode() not in stored.event.data

    asyncio.run(scenario())
