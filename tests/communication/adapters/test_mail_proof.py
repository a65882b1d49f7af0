"""The Message-ID that a reply names, connections that are kept, texts that are too long."""

from __future__ import annotations

import asyncio
from email import message_from_bytes
from email.policy import default

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.adapters.base import Failed, Sent
from rapport.communication.adapters.mail import (
    MailAdapter,
    MailSettings,
    make_mail,
    message_id,
    read_message_id,
)
from rapport.communication.links import answer_token
from rapport.communication.peers import address_fault
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import ManualClock
from rapport.scenarios.mail_server import LocalMailServer
from rapport.testing.suites.adapter import make_delivery

SECRET = b"s" * 32


class CountingServer(LocalMailServer):
    """Counts the connections that were made to it."""

    def __init__(self):
        super().__init__()
        self.connections = 0

    def make_protocol(self):
        self.connections += 1
        return super().make_protocol()


def token_for(message, peer):
    return answer_token(SECRET, message, peer)


def adapter_for(server, clock=None, **settings):
    settings = {"sender": "alarm@example.org", "timeout_ms": 5_000} | settings
    mail = MailSettings(port=server.port, **settings)
    return MailAdapter(mail, lambda message, peer: "", token_for, clock=clock or ManualClock())


names = st.text(min_size=1, max_size=60)


@given(message=names, peer=names)
def test_a_message_id_is_one_plain_token_and_says_who_was_sent_what(message, peer):
    delivery = make_delivery("mail:ana@example.org", message=message, peer=peer)
    token = token_for(message, peer)
    written = message_id(delivery, token)
    assert written.isascii()
    assert written.isprintable()
    assert " " not in written
    read = read_message_id(written)
    if read is None:  # too long a name: only the key, as without a token
        assert written == message_id(delivery, "")
    else:
        assert (read.key, read.message, read.peer, read.token) == (
            delivery.key,
            message,
            peer,
            token,
        )


@given(
    text=st.text(max_size=300),
    message=names,
    peer=names,
    policy=st.text(max_size=40),
    reply_to=st.text(max_size=40),
)
def test_no_text_adds_a_header_or_leaves_the_body(text, message, peer, policy, reply_to):
    if reply_to and address_fault(f"mail:{reply_to}", ("mail",)):
        with pytest.raises(InvalidInput):
            MailAdapter(MailSettings(reply_to=reply_to), lambda message, peer: "")
        reply_to = "answers@example.org"
    delivery = make_delivery("mail:ana@example.org", message=message, peer=peer, text=text)
    delivery = msgspec.structs.replace(delivery, policy=policy)
    mail = make_mail(
        delivery,
        sender="alarm@example.org",
        link="http://node/answer",
        token=token_for(message, peer),
        reply_to=reply_to,
    )
    raw = bytes(mail)
    assert b"\0" not in raw
    assert max(map(len, raw.split(b"\r\n"))) <= 998
    head = raw.partition(b"\r\n\r\n")[0].replace(b"\r\n ", b" ").split(b"\r\n")
    found = sorted(line.partition(b":")[0].decode().lower() for line in head)
    allowed = {
        "from",
        "to",
        "reply-to",
        "subject",
        "date",
        "message-id",
        "auto-submitted",
        "x-rapport-message",
        "importance",
        "content-type",
        "content-transfer-encoding",
        "mime-version",
    }
    assert len(found) == len(set(found))
    assert set(found) <= allowed
    again = message_from_bytes(raw, policy=default)
    assert not again.is_multipart()
    assert again["To"] == "ana@example.org"


def test_halves_of_characters_do_not_stop_a_mail():
    delivery = make_delivery("mail:ana@example.org", text="a\ud800b")
    assert b"a?b" in bytes(make_mail(delivery, sender="alarm@example.org", link=""))


def test_the_mail_of_a_server_carries_the_whole_id_and_where_to_reply():
    async def scenario():
        async with CountingServer() as server:
            adapter = adapter_for(server, reply_to="answers@example.org")
            delivery = make_delivery("mail:ana@example.org", message="0197-" + "a" * 31)
            assert isinstance(await adapter.send(delivery), Sent)
            (mail,) = server.mails
            assert mail["Reply-To"] == "answers@example.org"
            assert read_message_id(mail["Message-ID"]).peer == "ana"
            assert "reply" in mail.get_content()
            await adapter.close()

    asyncio.run(scenario())


def test_several_mails_need_one_connection_while_they_follow_each_other():
    async def scenario():
        async with CountingServer() as server:
            clock = ManualClock()
            adapter = adapter_for(server, clock)
            for number in range(5):
                delivery = make_delivery("mail:ana@example.org", message=f"m{number}")
                assert isinstance(await adapter.send(delivery), Sent)
            assert server.connections == 1
            await clock.advance(60_000)
            await asyncio.wait_for(adapter._connections._sweeper, 10)
            assert isinstance(await adapter.send(delivery), Sent)
            assert server.connections == 2
            await adapter.close()
            await adapter.close()

    asyncio.run(scenario())


def test_a_kept_connection_that_the_server_closed_is_no_failure():
    async def scenario():
        async with CountingServer() as server:
            adapter = adapter_for(server)
            assert isinstance(await adapter.send(make_delivery("mail:ana@example.org")), Sent)
            await server.go_down()
            await server.come_up()
            again = make_delivery("mail:ana@example.org", message="m2")
            assert isinstance(await adapter.send(again), Sent)
            assert len(server.mails) == 2
            await adapter.close()

    asyncio.run(scenario())


def test_many_mails_at_once_leave_few_connections_open():
    async def scenario():
        async with CountingServer() as server:
            adapter = adapter_for(server)
            deliveries = [make_delivery("mail:ana@example.org", message=f"m{n}") for n in range(12)]
            outcomes = await asyncio.gather(*map(adapter.send, deliveries))
            assert all(isinstance(outcome, Sent) for outcome in outcomes)
            assert len(adapter._connections._idle) <= 4
            await adapter.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["x" * 50_000_000, "\N{SNOWMAN}" * 400_000])
def test_a_text_that_is_too_long_fails_at_once_and_is_not_tried(text):
    async def scenario():
        async with CountingServer() as server:
            outcome = await adapter_for(server).send(
                make_delivery("mail:ana@example.org", text=text)
            )
            assert isinstance(outcome, Failed)
            assert not outcome.retry
            assert outcome.reason.startswith("message.too_long")
            assert server.connections == 0

    asyncio.run(scenario())
