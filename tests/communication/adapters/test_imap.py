"""Mail in from a real Dovecot: by looking, by being told, across crashes, new numbers and harm."""

from __future__ import annotations

import asyncio
import socket
import threading
from email.message import EmailMessage
from types import SimpleNamespace

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters import imap
from rapport.communication.adapters.imap import (
    ImapInput,
    ImapPushInput,
    ImapSettings,
    Mailbox,
    quoted,
)
from rapport.communication.adapters.input_base import AdapterState
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.mail import make_mail
from rapport.communication.adapters.mail_replies import AddressBook, MailHandlers, mail_context
from rapport.communication.arrivals import ArrivalResult
from rapport.communication.links import answer_secret, answer_token
from rapport.communication.peers import Peer, SiteDirectory
from rapport.core.errors import NotAuthenticated, SourceUnavailable, StoreUnavailable
from rapport.core.message import Message
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.testing.suites.adapter import make_delivery
from support.servers.certificates import write_certificate
from support.servers.imap import PASSWORD, ImapServer, ensure_dovecot

pytestmark = pytest.mark.slow

PEERS = {
    "ana": Peer(name="ana", addresses=("mail:ana@old.example", "mail:Ana@example.org")),
    "ben": Peer(name="ben", addresses=("inbox:", "mail:ben@example.org")),
}


class Desk:
    """A node's side of a mailbox; an adapter opened again knows only what is durable."""

    def __init__(self, server, **settings):
        self.server, self.user = server, server.new_user()
        self.settings = ImapSettings(
            **{
                "port": server.port,
                "encryption": "none",
                "user": self.user,
                "password": PASSWORD,
                "timeout_ms": 10_000,
            }
            | settings
        )
        self.clock = SystemClock()
        self.channels = open_memory(self.clock)
        self.secret = answer_secret(self.channels.records)
        self.book = AddressBook(SiteDirectory(PEERS, {}), self.clock)

    def sent(self, message="m-1", peer="ana", address="mail:Ana@example.org"):
        delivery = make_delivery(address, message=message, peer=peer)
        token = answer_token(self.secret, message, peer)
        return make_mail(delivery, sender="alarm@example.org", link="", token=token)

    def reply(self, text, *, sender="ana@example.org", message="m-1", peer="ana"):
        mail = EmailMessage()
        mail["From"] = sender
        mail["Subject"] = "Re: alarm"
        mail["Message-ID"] = f"<{text.split()[0]}@example.org>"
        if message:
            mail["In-Reply-To"] = self.sent(message, peer)["Message-ID"]
        mail.set_content(text)
        self.server.deliver(self.user, mail)

    def adapter(self, kind):
        known = mail_context(self.secret, self.book)
        return kind(
            self.settings, known, MailHandlers("replies", self.channels, self.book, self.clock)
        )

    async def opened(self):
        adapter = self.adapter(ImapInput)
        await adapter.open(AdapterState("replies", self.channels.records))
        return adapter

    async def events(self, channel):
        return [stored.event for stored in await self.channels.channel(channel).read_after(0)]

    async def letters(self):
        return [event.payload() for event in await self.events("dead_letters")]


def taken(messages):
    return [SimpleNamespace(id=one.id, accepted=True, reason="") for one in messages]


def contents(messages):
    return [message.content for message in messages]


def test_replies_are_taken_in_order_and_each_once(imap_server):
    async def scenario():
        desk = Desk(imap_server)
        desk.reply("first\n\nOn Mon Rapport wrote:\n> Guest 5")
        desk.reply("second", message="m-2", peer="ben", sender="ben@example.org")
        adapter = await desk.opened()
        found = await adapter.pull()
        assert contents(found) == ["first", "second"]
        assert [(one.sender.name, one.refers_to) for one in found] == [
            ("ana", "m-1"),
            ("ben", "m-2"),
        ]
        assert found[0].session_token == answer_token(desk.secret, "m-1", "ana")
        await adapter.pulled(found, taken(found))
        assert await adapter.pull() == []
        desk.reply("third")
        assert contents(await adapter.pull()) == ["third"]

    asyncio.run(scenario())


def test_what_was_fetched_but_not_published_before_a_crash_comes_again_with_the_same_id(
    imap_server,
):
    async def scenario():
        desk = Desk(imap_server)
        desk.reply("first")
        lost = await (await desk.opened()).pull()  # and the process ends here
        again = await desk.opened()
        found = await again.pull()
        assert [one.id for one in found] == [one.id for one in lost]
        await again.pulled(found, taken(found))
        assert await (await desk.opened()).pull() == []

    asyncio.run(scenario())


def test_a_mailbox_with_new_numbers_is_read_again_and_ids_stay(imap_server):
    async def scenario():
        desk = Desk(imap_server)
        desk.reply("first")
        adapter = await desk.opened()
        before = await adapter.pull()
        await adapter.pulled(before, taken(before))
        imap_server.renumber(desk.user)
        desk.reply("second")
        after = await adapter.pull()
        assert sorted(contents(after)) == ["first", "second"]
        assert before[0].id in {one.id for one in after}

    asyncio.run(scenario())


def test_only_what_comes_later_is_taken_when_the_site_says_so(imap_server):
    async def scenario():
        desk = Desk(imap_server, from_start=False)
        desk.reply("old")
        adapter = await desk.opened()
        assert await adapter.pull() == []
        desk.reply("new")
        assert contents(await adapter.pull()) == ["new"]

    asyncio.run(scenario())


@pytest.mark.parametrize("after", ["leave", "flag", "move"])
def test_taken_mails_are_left_marked_or_moved_only_after_they_are_durable(imap_server, after):
    async def scenario():
        desk = Desk(imap_server, after=after, move_to="Erledigt & gelöst")
        desk.reply("first")
        adapter = await desk.opened()
        found = await adapter.pull()
        ((flags, _raw),) = imap_server.mails(desk.user)
        assert "Seen" not in flags
        await adapter.pulled(found, taken(found))
        left = imap_server.mails(desk.user)
        assert len(left) == (0 if after == "move" else 1)
        if after == "flag":
            assert "Seen" in left[0][0]
        if after == "move":
            assert len(imap_server.mails(desk.user, quoted(desk.settings.move_to))) == 1
        assert await adapter.pull() == []

    asyncio.run(scenario())


def test_a_bounce_fails_its_delivery_by_address_and_a_stranger_becomes_a_dead_letter(imap_server):
    async def scenario():
        desk = Desk(imap_server)
        notice = EmailMessage()
        notice["From"] = "MAILER-DAEMON@mx.example.org"
        notice["Subject"] = "Undelivered Mail Returned to Sender"
        notice.set_content(f"550 no such user\n\nMessage-ID: {desk.sent()['Message-ID']}\n")
        imap_server.deliver(desk.user, notice)
        desk.reply("spam", sender="eve@example.org", message="")
        desk.reply("plain", sender="ben@example.org", message="")
        adapter = await desk.opened()
        found = await adapter.pull()
        assert contents(found) == ["Re: alarm\n\nplain"]
        (outcome,) = await desk.events("control")
        data = outcome.payload()
        assert (data["message"], data["peer"], data["state"]) == ("m-1", "ana", "failed")
        assert data["address"] == "mail:Ana@example.org"
        assert "550 no such user" in data["reason"]
        (letter,) = await desk.letters()
        assert letter["code"] == "mail.unknown_sender"
        await (await desk.opened()).pull()  # again after a crash: told once all the same
        assert len(await desk.events("control")) == 1
        assert len(await desk.letters()) == 1

    asyncio.run(scenario())


def test_a_huge_mail_is_read_to_its_limit_and_one_that_harms_harms_only_itself(imap_server):
    async def scenario():
        desk = Desk(imap_server, largest_mail=20_000)
        picture = EmailMessage()
        picture["From"] = "ana@example.org"
        picture["In-Reply-To"] = desk.sent()["Message-ID"]
        picture.set_content("see the picture")
        picture.add_attachment(b"x" * 3_000_000, maintype="image", subtype="png", filename="x.png")
        imap_server.deliver(desk.user, picture)
        imap_server.deliver(desk.user, b"From: ana@example.org\r\n\r\n" + b"words " * 50_000)
        bomb = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n" * 390
        imap_server.deliver(desk.user, b"From: ana@example.org\r\n" + bomb)
        desk.reply("still here")
        adapter = await desk.opened()
        assert contents(await adapter.pull()) == [
            "see the picture\n\n[not kept: x.png]",
            "still here",
        ]
        codes = [letter["code"] for letter in await desk.letters()]
        assert codes == ["mail.too_long", "mail.too_many_parts"]

    asyncio.run(scenario())


def test_a_mail_that_the_server_cannot_give_keeps_back_the_others_for_a_while_only(
    imap_server, monkeypatch
):
    given = Mailbox.fetch

    def fetch(mailbox, uid):
        if uid == 1:
            raise SourceUnavailable("mail 1 cannot be fetched", code="imap.refused")
        return given(mailbox, uid)

    monkeypatch.setattr(Mailbox, "fetch", fetch)

    async def scenario():
        desk = Desk(imap_server)
        desk.reply("first")
        desk.reply("second")
        adapter = await desk.opened()
        for _look in range(2):
            with pytest.raises(SourceUnavailable):
                await adapter.pull()
        assert contents(await adapter.pull()) == ["second"]
        assert [letter["code"] for letter in await desk.letters()] == ["mail.refused_by_server"]

    asyncio.run(scenario())


@pytest.mark.parametrize("after", ["leave", "flag", "move"])
def test_a_mail_at_which_the_connection_ends_keeps_back_neither_earlier_nor_later_ones(
    imap_server, monkeypatch, after
):
    given = Mailbox.fetch

    def fetch(mailbox, uid):
        if uid == 2:
            mailbox.interrupt()
        return given(mailbox, uid)

    monkeypatch.setattr(Mailbox, "fetch", fetch)

    async def scenario():
        desk = Desk(imap_server, after=after)
        for text in ("first", "second", "third"):
            desk.reply(text)
        adapter = await desk.opened()
        found = await adapter.pull()
        assert contents(found) == ["first"]
        await adapter.pulled(found, taken(found))
        for _look in range(8):
            with pytest.raises(SourceUnavailable):
                await adapter.pull()
        assert await adapter.pull() == []  # what follows comes by the next connection
        assert contents(await adapter.pull()) == ["third"]
        assert [letter["code"] for letter in await desk.letters()] == ["mail.refused_by_server"]

    asyncio.run(scenario())


def test_a_mail_that_trickles_in_keeps_back_later_ones_for_a_while_only(imap_server, monkeypatch):
    """Each piece comes in time, the mail as a whole never does."""
    given, interrupt = Mailbox.fetch, Mailbox.interrupt
    cut = threading.Event()

    def fetch(mailbox, uid):
        if uid == 1:
            cut.clear()
            assert cut.wait(10)
        return given(mailbox, uid)

    def interrupted(mailbox):
        interrupt(mailbox)
        cut.set()

    monkeypatch.setattr(Mailbox, "fetch", fetch)
    monkeypatch.setattr(Mailbox, "interrupt", interrupted)

    async def scenario():
        desk = Desk(imap_server, timeout_ms=100)
        desk.reply("first")
        desk.reply("second")
        adapter = await desk.opened()
        for _look in range(9):
            with pytest.raises(SourceUnavailable):
                await adapter.pull()
        assert await adapter.pull() == []  # what follows comes by the next connection
        assert contents(await adapter.pull()) == ["second"]
        assert [letter["code"] for letter in await desk.letters()] == ["mail.refused_by_server"]

    asyncio.run(scenario())


def test_a_directory_that_is_away_makes_no_dead_letter_of_a_mail(imap_server, monkeypatch):
    plain = AddressBook.peer_of
    away = [StoreUnavailable("the database is away")]

    def peer_of(book, address):
        if away:
            raise away.pop()
        return plain(book, address)

    monkeypatch.setattr(AddressBook, "peer_of", peer_of)

    async def scenario():
        desk = Desk(imap_server)
        desk.reply("yes")
        adapter = await desk.opened()
        with pytest.raises(StoreUnavailable):
            await adapter.pull()
        assert await desk.letters() == []
        assert contents(await adapter.pull()) == ["yes"]

    asyncio.run(scenario())


def test_an_empty_mail_is_kept_aside_not_passed_over(imap_server):
    async def scenario():
        desk = Desk(imap_server)
        imap_server.deliver(desk.user, b"\r\n")
        assert await (await desk.opened()).pull() == []
        assert [letter["code"] for letter in await desk.letters()] == ["mail.unknown_sender"]

    asyncio.run(scenario())


def test_a_large_mailbox_is_taken_in_portions(imap_server):
    async def scenario():
        desk = Desk(imap_server, most_mails=2)
        for number in range(5):
            desk.reply(f"n{number}")
        adapter = await desk.opened()
        portions = []
        while found := await adapter.pull():
            portions.append(contents(found))
            await adapter.pulled(found, taken(found))
        assert portions == [["n0", "n1"], ["n2", "n3"], ["n4"]]

    asyncio.run(scenario())


def test_a_message_that_the_engine_refuses_is_kept_aside_and_one_too_fast_comes_again(imap_server):
    async def scenario():
        desk = Desk(imap_server)
        desk.reply("first")
        adapter = await desk.opened()
        found = await adapter.pull()
        fast = [ArrivalResult(accepted=False, reason="message.too_fast")]
        await adapter.pulled(found, fast)
        assert contents(await adapter.pull()) == ["first"]
        refused = [ArrivalResult(accepted=False, reason="session.invalid")]
        await adapter.pulled(found, refused)
        assert [letter["code"] for letter in await desk.letters()] == ["input.not_accepted"]
        assert await adapter.pull() == []

    asyncio.run(scenario())


def test_a_wrong_password_and_a_missing_folder_say_so_without_secrets(imap_server):
    async def scenario():
        wrong = Desk(imap_server, password="hunter2")
        with pytest.raises(NotAuthenticated) as refused:
            await (await wrong.opened()).pull()
        assert refused.value.code == "imap.login_refused"
        assert "hunter2" not in str(refused.value)
        assert "hunter2" not in repr(wrong.settings)
        absent = Desk(imap_server, folder="Nowhere")
        with pytest.raises(SourceUnavailable) as missing:
            await (await absent.opened()).pull()
        assert "Nowhere" in missing.value.message
        away = Desk(imap_server, port=1)
        with pytest.raises(SourceUnavailable):
            await (await away.opened()).pull()

    asyncio.run(scenario())


def test_a_server_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        settings = ImapSettings(port=port, encryption="none", timeout_ms=200)
        with pytest.raises(SourceUnavailable):
            Mailbox(settings).open()


def test_push_brings_mails_at_once_and_ends_at_once(imap_server):
    async def scenario():
        desk = Desk(imap_server)
        desk.reply("before")
        arrived: asyncio.Queue[str] = asyncio.Queue()

        async def publish(messages, **_options):
            for message in messages:
                arrived.put_nowait(message.content)
            return taken(messages)

        inputs = Inputs(publish, desk.channels, desk.channels.records, desk.clock)
        await inputs.add_push(desk.adapter(ImapPushInput), name="replies")
        async with asyncio.timeout(20):
            assert await arrived.get() == "before"
            for number in range(3):
                await asyncio.to_thread(desk.reply, f"n{number}")
                assert await arrived.get() == f"n{number}"
            await inputs.remove("replies")
        for thread in [one for one in threading.enumerate() if one.name.startswith("imap_")]:
            thread.join(5)
            assert not thread.is_alive()
        again = Inputs(publish, desk.channels, desk.channels.records, desk.clock)
        await again.add_push(desk.adapter(ImapPushInput), name="replies")
        async with asyncio.timeout(20):
            await asyncio.to_thread(desk.reply, "later")
            # What was published as it was removed may come again, as itself; nothing older does.
            while (content := await arrived.get()) != "later":
                assert content == "n2"
            await again.remove("replies")

    asyncio.run(scenario())


def test_a_pull_by_interval_goes_through_the_life_cycle(imap_server):
    async def scenario():
        desk = Desk(imap_server)
        arrived: asyncio.Queue[str] = asyncio.Queue()

        async def publish(messages, **_options):
            for message in messages:
                arrived.put_nowait(message.content)
            return taken(messages)

        inputs = Inputs(publish, desk.channels, desk.channels.records, desk.clock)
        await inputs.add_pull(desk.adapter(ImapInput), 50, name="replies")
        async with asyncio.timeout(20):
            for number in range(3):
                await asyncio.to_thread(desk.reply, f"n{number}")
                assert await arrived.get() == f"n{number}"
            await inputs.remove("replies")
        assert arrived.empty()

    asyncio.run(scenario())


@pytest.mark.parametrize("encryption", ["tls", "starttls"])
def test_an_encrypted_login_and_a_server_nobody_vouches_for(tmp_path, monkeypatch, encryption):
    ensure_dovecot()
    certificate = write_certificate(tmp_path)
    server = ImapServer(certificate=certificate)

    async def scenario():
        port = server.tls_port if encryption == "tls" else server.port
        desk = Desk(server, encryption=encryption, port=port)
        with pytest.raises(SourceUnavailable):
            await (await desk.opened()).pull()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        desk.reply("first")
        assert contents(await (await desk.opened()).pull()) == ["first"]

    try:
        server.start()
        asyncio.run(scenario())
    finally:
        server.remove()


def test_a_server_that_goes_away_and_comes_back_is_used_again_and_nothing_is_lost():
    ensure_dovecot()
    server = ImapServer()

    async def scenario():
        desk = Desk(server)
        arrived: asyncio.Queue[str] = asyncio.Queue()

        async def publish(messages, **_options):
            for message in messages:
                arrived.put_nowait(message.content)
            return taken(messages)

        inputs = Inputs(publish, desk.channels, desk.channels.records, desk.clock)
        await inputs.add_push(desk.adapter(ImapPushInput), name="replies")
        async with asyncio.timeout(30):
            await asyncio.to_thread(desk.reply, "before")
            assert await arrived.get() == "before"
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(desk.reply, "after")
            while await arrived.get() != "after":
                continue
            await inputs.remove("replies")

    try:
        server.start()
        asyncio.run(scenario())
    finally:
        server.remove()


@pytest.mark.slow
def test_a_slow_server_is_read_piece_by_piece_and_nothing_is_left_out(imap_server, monkeypatch):
    monkeypatch.setattr(imap, "_PULL_SECONDS", 0)  # every server is too slow

    async def scenario():
        desk = Desk(imap_server)
        for text in ("first", "second", "third"):
            desk.reply(text)
        adapter, read = await desk.opened(), []
        while found := await adapter.pull():
            assert len(found) == 1
            await adapter.pulled(found, taken(found))
            read += contents(found)
        assert read == ["first", "second", "third"]

    asyncio.run(scenario())


def test_one_peer_with_an_address_in_two_spellings_is_still_one():
    ana = Peer(name="ana", addresses=("mail:Ana@example.org", "mail:ana@Example.org"))
    ben = Peer(name="ben", addresses=("mail:both@example.org",))
    eva = Peer(name="eva", addresses=("mail:Both@example.org",))
    people = {peer.name: peer for peer in (ana, ben, eva)}
    book = AddressBook(SiteDirectory(people, {}), ManualClock())
    assert book.peer_of("ana@example.org") == "ana"
    assert book.peer_of("both@example.org") is None


def test_a_reply_with_files_is_taken_without_them_and_its_sender_hears_that(imap_server):
    async def scenario():
        desk = Desk(imap_server)
        mail = EmailMessage()
        mail["From"], mail["Message-ID"] = "ana@example.org", "<photo@example.org>"
        mail["In-Reply-To"] = desk.sent()["Message-ID"]
        mail.set_content("yes, see the picture")
        mail.add_attachment(b"x" * 5_000, maintype="image", subtype="jpeg", filename="door.jpg")
        imap_server.deliver(desk.user, mail)
        adapter = await desk.opened()
        (found,) = await adapter.pull()
        assert found.content == "yes, see the picture\n\n[not kept: door.jpg]"
        assert await desk.events("input") == []
        await adapter.pulled([found], taken([found]))
        (told,) = [Message.from_event(event) for event in await desk.events("input")]
        assert (told.type, told.subtype, str(told.receiver)) == ("CONTROL", "ERROR", "peer:ana")
        assert "door.jpg" in told.content
        assert told.refers_to == found.id

    asyncio.run(scenario())
