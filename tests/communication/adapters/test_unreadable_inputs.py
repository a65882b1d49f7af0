"""Unreadable inputs are kept as they came, so that their dead letters can be replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.dead_letters import DeadLetterAdmin, LetterFilter
from rapport.channel.mqtt.bridge import Broker, Packet
from rapport.communication.adapters.folder import FileEntry, FileInputSettings
from rapport.communication.adapters.ftp import FtpInput, FtpInputSettings, FtpServer
from rapport.communication.adapters.imap import FetchedMail, ImapInput, ImapSettings
from rapport.communication.adapters.input_base import LARGEST_RAW, RejectedInput, dead_letter_inputs
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.mail_replies import AddressBook, MailHandlers, mail_context
from rapport.communication.adapters.mqtt import (
    MqttInput,
    MqttInputSettings,
    TopicPattern,
    rejected_packet,
)
from rapport.communication.peers import Peer, SiteDirectory
from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.message import Message
from rapport.kernel.clock import ManualClock, SystemClock

NOT_A_MESSAGE = InvalidInput("no message", code="message.not_a_message")
MAIL = b"From: ana@example.org\r\nMessage-ID: <a@example.org>\r\n\r\nThe gate is open.\r\n"
SECRET = b"s" * 32


class Site:
    """Inputs with their dead letters; keeps what they publish."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000)
        self.channels = open_memory(self.clock)
        self.published: list[Message] = []
        self.inputs = Inputs(self.publish, self.channels, self.channels.records, self.clock)
        self.office = DeadLetterAdmin(self.channels, self.clock)
        self.bury = dead_letter_inputs("panels", self.channels, self.clock)

    async def publish(self, messages: Sequence[Message], **_about: Any) -> list[Any]:
        self.published += messages
        return [SimpleNamespace(id=one.id, accepted=True, reason="", why="") for one in messages]

    async def replay(self, adapter: Any) -> list[str]:
        """Replays all letters through this adapter; gives their states then."""
        await self.inputs.add_pull(adapter, name="panels")
        wanted = LetterFilter(reader="input.panels")
        async with asyncio.timeout(10):
            while True:
                try:
                    asked = await self.office.replay(wanted)
                    break
                except Unsupported:  # the input does not take letters back yet
                    await SystemClock().sleep(1)
            while "waiting" in [(await self.office.show(one.id)).state for one in asked]:
                await SystemClock().sleep(1)
        await self.inputs.close()
        return [(await self.office.show(one.id)).state for one in asked]


class Pulled:
    """Brings nothing by itself."""

    def __init__(self, adapter: Any) -> None:
        self.read_again = adapter.read_again

    async def pull(self) -> None:
        return None


def mqtt(topic: str) -> MqttInput:
    pattern = TopicPattern(topic=topic, is_text="{peer}" in topic)
    broker = Broker(host="broker.example.org", port=1883, secure=False)
    return MqttInput(MqttInputSettings(broker=broker, client="c", topics=(pattern,)))


def test_a_packet_is_read_again_by_the_topics_of_now() -> None:
    async def scenario() -> None:
        site = Site()
        packet = Packet(topic="panels/ana/said", payload=b"the gate is open", number=1)
        await site.bury(rejected_packet(packet, "p1", NOT_A_MESSAGE))
        assert await site.replay(Pulled(mqtt("panels/json"))) == ["open"]
        assert site.published == []
        assert await site.replay(Pulled(mqtt("panels/{peer}/said"))) == ["replayed"]
        (message,) = site.published
        assert (message.id, str(message.sender)) == ("p1", "peer:ana")
        assert message.content == "the gate is open"

    asyncio.run(scenario())


def test_a_mail_is_read_again_once_its_sender_is_known() -> None:
    async def scenario() -> None:
        site, peers = Site(), dict[str, Peer]()

        def adapter() -> ImapInput:
            book = AddressBook(SiteDirectory(peers, {}), site.clock)
            known = mail_context(SECRET, book)
            care = MailHandlers("panels", site.channels, book, site.clock)
            return ImapInput(ImapSettings(user="u", password="p"), known, care)

        mailbox: Any = SimpleNamespace(fetch=lambda uid: FetchedMail(uid, MAIL, cut=False))
        unusable = adapter()._reader._read(mailbox, 7)
        assert isinstance(unusable, RejectedInput)
        assert (unusable.code, unusable.raw) == ("mail.unknown_sender", MAIL)
        await site.bury(unusable)
        peers["ana"] = Peer(name="ana", addresses=("mail:ana@example.org",))
        assert await site.replay(Pulled(adapter())) == ["replayed"]
        (message,) = site.published
        assert (str(message.sender), message.content) == ("peer:ana", "The gate is open.")

    asyncio.run(scenario())


def test_a_file_is_read_again_by_the_settings_of_now() -> None:
    async def scenario() -> None:
        site = Site()

        def adapter(sender: str) -> FtpInput:
            server = FtpServer(host="ftp.example.org")
            settings = FtpInputSettings(server=server, files=FileInputSettings(sender=sender))
            return FtpInput(settings, site.clock, site.bury)

        folder: Any = SimpleNamespace(fetch=lambda _name, _most: b"4 doors", has=lambda _name: True)
        unusable = adapter("")._read(folder, FileEntry("a.txt", 7, "2026"))
        assert isinstance(unusable, RejectedInput)
        assert (unusable.code, unusable.raw) == ("input.no_sender", b"4 doors")
        await site.bury(unusable)
        again = adapter("peer:ana")
        assert await again.read_again(unusable) == await again.read_again(unusable)
        assert await site.replay(Pulled(again)) == ["replayed"]
        assert [(str(one.sender), one.content) for one in site.published] == [
            ("peer:ana", "4 doors")
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "payload",
    [b"x" * (LARGEST_RAW + 1), b'{"session-token": "secret", "type": 5}'],
    ids=["too large", "with a token"],
)
def test_what_is_too_large_or_shows_a_token_is_not_kept_and_not_replayed(payload: bytes) -> None:
    async def scenario() -> None:
        site = Site()
        packet = Packet(topic="panels/ana/said", payload=payload, number=1)
        unusable = rejected_packet(packet, "p1", NOT_A_MESSAGE)
        assert unusable.raw == b""
        await site.bury(unusable)
        assert await site.replay(Pulled(mqtt("panels/{peer}/said"))) == ["open"]
        assert site.published == []

    asyncio.run(scenario())


def test_the_largest_that_is_kept_fits_into_its_dead_letter() -> None:
    async def scenario() -> None:
        site = Site()
        packet = Packet(topic="panels/ana/said", payload=b"\xff" * LARGEST_RAW, number=1)
        await site.bury(rejected_packet(packet, "p1", NOT_A_MESSAGE))
        (letter,) = await site.channels.channel("dead_letters").read_after(0)
        assert letter.event.payload()["event"] is not None

    asyncio.run(scenario())
