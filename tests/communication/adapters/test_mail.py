"""Mail as a real server gets it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.adapters.base import Delivery, Failed, Sent, no_token
from rapport.communication.adapters.factory import AdapterContext, make_adapters
from rapport.communication.adapters.inbox import OpenPages
from rapport.communication.adapters.mail import MailAdapter, MailSettings, make_mail
from rapport.communication.config import communication_from_site
from rapport.communication.peers import address_fault
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile
from rapport.scenarios.mail_server import LocalMailServer
from rapport.testing.suites.adapter import make_delivery

LINK = "http://127.0.0.1:8484/answer/m1/ana/abc"


async def zone_of(_peer):
    return "UTC"


def adapter_for(server, **settings):
    settings = {"sender": "alarm@example.org", "timeout_ms": 5_000} | settings
    return MailAdapter(MailSettings(port=server.port, **settings), lambda message, peer: LINK)


def test_a_mail_has_text_link_and_an_id_made_from_the_idempotency_key():
    async def scenario():
        async with LocalMailServer() as server:
            delivery = make_delivery("mail:ana@example.org")
            assert isinstance(await adapter_for(server).send(delivery), Sent)
            (mail,) = server.mails
            assert mail["From"] == "alarm@example.org"
            assert mail["To"] == "ana@example.org"
            assert mail["Subject"] == "Guest 5 alone in r1"
            assert mail["Message-ID"] == f"<{delivery.key}@rapport.invalid>"
            assert mail["Importance"] == "high"
            assert mail["Auto-Submitted"] == "auto-generated"
            assert LINK in mail.get_content()
            assert server.recipients == [["ana@example.org"]]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("mood", "retry", "code"), [("refuses", False, "550"), ("busy", True, "451")]
)
def test_a_refusal_for_good_is_final_and_a_busy_server_is_tried_again(mood, retry, code):
    async def scenario():
        async with LocalMailServer() as server:
            server.mood = mood
            outcome = await adapter_for(server).send(make_delivery("mail:ana@example.org"))
            assert isinstance(outcome, Failed)
            assert outcome.retry is retry
            assert code in outcome.reason

    asyncio.run(scenario())


@pytest.mark.parametrize(("code", "retry"), [(535, False), (454, True)])
def test_a_login_that_cannot_be_checked_now_is_worth_a_retry(code, retry):
    """By RFC 4954 454 is a temporary failure: the server's own directory is away, say."""

    left = asyncio.Event()

    async def refuse(reader, writer):
        writer.write(b"220 hi\r\n")
        while line := await reader.readline():
            said = b"250-hi\r\n250 AUTH PLAIN" if line.startswith(b"EHLO") else b"%d no" % code
            writer.write(said + b"\r\n")
        writer.close()
        await writer.wait_closed()
        left.set()

    async def scenario():
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server:
            settings = MailSettings(
                port=server.sockets[0].getsockname()[1], user="u", password="hunter2"
            )
            adapter = MailAdapter(settings, lambda message, peer: "")
            outcome = await adapter.send(make_delivery("mail:ana@example.org"))
            reason = f"the mail server refused the login ({code})"
            assert outcome == Failed(reason, retry=retry)
            await left.wait()

    asyncio.run(scenario())


def test_a_server_that_hangs_is_given_up_after_the_timeout():
    async def scenario():
        async with LocalMailServer() as server:
            server.mood = "hangs"
            adapter = adapter_for(server, timeout_ms=200)
            outcome = await adapter.send(make_delivery("mail:ana@example.org"))
            assert outcome == Failed("the mail server did not answer in time", retry=True)

    asyncio.run(scenario())


def test_a_host_that_does_not_exist_is_worth_a_retry():
    async def scenario():
        settings = MailSettings(host="mail.invalid", port=25, timeout_ms=3_000)
        adapter = MailAdapter(settings, lambda message, peer: "")
        outcome = await adapter.send(make_delivery("mail:ana@example.org"))
        assert isinstance(outcome, Failed)
        assert outcome.retry

    asyncio.run(scenario())


targets = st.text(max_size=40) | st.builds(
    "{}@{}".format,
    st.text(min_size=1, max_size=10),
    st.sampled_from(["b.org", "b>,e@c", "b\r\nX: y"]),
)


@given(text=st.text(max_size=200), target=targets | st.just("ana@example.org"))
def test_no_text_and_no_address_can_add_a_header_or_a_line_to_one(text, target):
    delivery = make_delivery(f"mail:{target}", text=text)
    if address_fault(delivery.address, ("mail",)):
        return  # the adapter refuses it, see below
    raw = bytes(make_mail(delivery, sender="alarm@example.org", link=LINK))
    head = raw.partition(b"\r\n\r\n")[0].replace(b"\r\n ", b" ").split(b"\r\n")
    names = [line.partition(b":")[0].lower() for line in head]
    assert sorted(names) == sorted(set(names))
    assert b"bcc" not in names
    assert names.count(b"subject") == names.count(b"to") == 1


@pytest.mark.parametrize(
    "address", ["mail:", "mail:ana", "mail:a@b>, eve@c", "mail:a@b\r\nBcc: e@c"]
)
def test_an_address_that_is_none_fails_for_good_and_is_not_tried(address):
    async def scenario():
        async with LocalMailServer() as server:
            outcome = await adapter_for(server).send(make_delivery(address))
            assert outcome == Failed("the address cannot be used", retry=False)
            assert server.mails == []

    asyncio.run(scenario())


def test_a_line_break_in_the_text_stays_out_of_the_subject():
    delivery = make_delivery("mail:ana@example.org", text="hi\r\nBcc: eve@example.org\r\n\r\nx")
    mail = make_mail(delivery, sender="alarm@example.org", link="")
    assert mail["Subject"] == "hi"
    assert mail["Bcc"] is None


def test_settings_do_not_show_the_password():
    settings = MailSettings(user="u", password="hunter2")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)


def delivered(text: str, **fields: Any) -> Delivery:
    return msgspec.structs.replace(
        make_delivery("mail:ana@example.org", text=text), policy="", detection="", **fields
    )


def test_a_mail_says_who_sends_what_kind_in_which_conversation_and_when_on_the_readers_clock():
    async def scenario():
        async with LocalMailServer() as server:

            async def zone_of(peer: str) -> str:
                return {"ana": "Europe/Vienna"}[peer]

            settings = MailSettings(port=server.port, sender="alarm@example.org")
            adapter = MailAdapter(settings, lambda *_names: LINK, zone_of=zone_of)
            fields = {"sender": "peer:max", "type": "TASK", "subtype": "REQUEST"}
            await adapter.send(delivered("Please come", conversation="c7", **fields))
            lines = server.mails[0].get_content().splitlines()
            assert lines[2:6] == [
                "From: max",
                "Kind: Task: request",
                "Conversation: c7",
                "Date: 2 Mar 2026, 13:00 CET",
            ]

    asyncio.run(scenario())


def test_a_policys_mail_names_the_policy_and_the_action():
    delivery = msgspec.structs.replace(
        make_delivery("mail:ana@example.org"), type="NOTIFICATION", subtype="raise alarm"
    )
    text = make_mail(delivery, sender="alarm@example.org", link="").get_content()
    assert "From: policy secure-building\nKind: Notification: raise alarm\n" in text
    assert "Date: 2 Mar 2026, 12:00 UTC" in text


@pytest.mark.parametrize(
    ("subtype", "reason", "subject"),
    [
        ("ACK", "", "Your message was delivered."),
        ("COMERROR", "no address", "Your message could not be delivered: no address"),
        ("TIMEOUT", "", "Nobody answered your message in time."),
    ],
)
def test_a_delivery_report_is_a_sentence_and_asks_for_no_answer(subtype, reason, subject):
    delivery = delivered(reason, type="CONTROL", subtype=subtype, sender="component:communication")
    mail = make_mail(delivery, sender="alarm@example.org", link=LINK, token="0" * 40)
    assert mail["Subject"] == subject
    assert mail.get_content().startswith(subject)
    assert "nswer here" not in mail.get_content()
    assert "reply" not in mail.get_content()


def test_a_mail_without_words_has_its_kind_as_the_subject():
    mail = make_mail(delivered("", type="TASK", subtype="DONE"), sender="a@example.org", link="")
    assert mail["Subject"] == "Task: done"


@pytest.mark.parametrize("reads_replies", [True, False])
def test_a_reply_is_asked_for_only_where_replies_are_read(reads_replies):
    mail = make_mail(
        make_delivery("mail:ana@example.org"),
        sender="alarm@example.org",
        link=LINK,
        token="0" * 40,
        reads_replies=reads_replies,
    )
    assert ("reply to this mail" in mail.get_content()) is reads_replies


@pytest.mark.parametrize(("mailbox", "reads_replies"), [("", False), ("imap", True)])
def test_a_site_without_a_mailbox_asks_nobody_to_reply(tmp_path, mailbox, reads_replies):
    site = tmp_path / "site.toml"
    text = '[adapters.mail]\nsender = "a@example.org"\n[peers.ana]\naddresses=["mail:b@x.org"]\n'
    if mailbox:
        (tmp_path / "s").write_text("secret")
        text += f'[inputs.r]\nadapter = "{mailbox}"\nhost = "h"\nuser = "u"\npassword = "file:s"\n'
    site.write_text(text)
    declared, _problems = communication_from_site(TomlFile.load(site), tmp_path)
    context = AdapterContext(no_token, no_token, OpenPages(), SystemClock(), zone_of)
    mail = make_adapters(declared, context)["mail"]
    assert mail._reads_replies is reads_replies
