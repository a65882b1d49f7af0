"""Apprise against a real broker, a real mail server and real HTTP servers: a JSON receiver, and one
that is spoken to as ntfy.
"""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.adapters.apprise import (
    AppriseAdapter,
    AppriseSettings,
    notice,
    secret_parts,
)
from rapport.communication.adapters.base import Failed, Sent
from rapport.communication.peers import is_service_address, shown_address
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.webhook_sink import WebhookSink
from rapport.testing.suites.adapter import make_delivery
from support.servers.mqtt import Device, mqtt_broker, mqtt_name  # noqa: F401
from support.servers.ports import free_port

# The library loads all its services at first use, some of which use old parts of Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def adapter_for(*, link: str = "", **changes) -> AppriseAdapter:
    return AppriseAdapter(AppriseSettings(timeout_ms=2_000, **changes), lambda _m, _p: link)


async def sent(adapter: AppriseAdapter, address: str, **changes):
    try:
        return await adapter.send(make_delivery(address, **changes))
    finally:
        await adapter.close()


def test_a_service_gets_the_text_and_the_link_to_answer():
    async def scenario():
        async with WebhookSink() as sink:
            sink.status = 200
            adapter = adapter_for(link="http://here/answer/m1/ana/t")
            outcome = await sent(adapter, f"apprise:json://127.0.0.1:{sink.port}/hook")
            assert isinstance(outcome, Sent)
            told = json.loads(sink.posted[0].body)
            assert told["message"].startswith("Guest 5 alone in r1")
            assert "Please answer here: http://here/answer/m1/ana/t" in told["message"]
            assert told["type"] == "warning"

    asyncio.run(scenario())


def test_a_broker_gets_what_is_sent_to_a_topic(mqtt_broker, mqtt_name):  # noqa: F811
    topic = f"{mqtt_name}/alarms"
    with Device(mqtt_broker.mqtt_port, topic, client_id=mqtt_name) as device:
        address = f"apprise:mqtt://127.0.0.1:{mqtt_broker.mqtt_port}/{topic}?qos=1"
        assert isinstance(asyncio.run(sent(adapter_for(), address, text="Wasser ☃")), Sent)
        heard, payload = device.heard.get(timeout=15)
        assert (heard, payload.decode()) == (topic, "Wasser ☃")


def test_a_broker_that_is_not_there_is_a_failure_worth_a_retry():
    outcome = asyncio.run(sent(adapter_for(), f"apprise:mqtt://127.0.0.1:{free_port()}/t"))
    assert isinstance(outcome, Failed)
    assert outcome.retry


@pytest.mark.parametrize(("mood", "kind"), [("takes", Sent), ("refuses", Failed), ("busy", Failed)])
def test_a_mail_server_takes_a_mail_or_refuses_it(mood, kind):
    async def scenario():
        async with LocalMailServer() as server:
            server.mood = mood
            to = f"mailto://127.0.0.1:{server.port}/?from=node@here.org&to=ana@there.org"
            outcome = await sent(adapter_for(link="http://here/a"), f"apprise:{to}")
            assert isinstance(outcome, kind)
            assert len(server.mails) == (mood == "takes")
            for mail in server.mails:
                assert mail["To"] == "ana@there.org"
                said = mail.get_body(("plain", "html")).get_content()
                assert "Guest 5 alone in r1" in said
                assert "http://here/a" in said

    asyncio.run(scenario())


def test_a_named_target_is_spoken_to_as_ntfy():
    async def scenario():
        async with WebhookSink() as sink:
            sink.status = 200
            targets = {"ana": f"ntfy://127.0.0.1:{sink.port}/alarms"}
            outcome = await sent(adapter_for(targets=targets), "apprise:ana")
            assert isinstance(outcome, Sent)
            assert json.loads(sink.posted[0].body)["topic"] == "alarms"

    asyncio.run(scenario())


def test_hostile_text_arrives_as_it_was_written():
    text = 'Guest ☃ <b>\r\nTopic: other\r\n\r\n{"a": 1} \\n :smile: `x`'

    async def scenario():
        async with WebhookSink() as sink:
            sink.status = 200
            await sent(adapter_for(), f"apprise:json://127.0.0.1:{sink.port}/", text=text)
            assert json.loads(sink.posted[0].body)["message"].split() == text.split()

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [403, 500])
def test_a_refusal_is_reported_with_what_the_library_logged_and_without_the_address(status):
    async def scenario():
        async with WebhookSink() as sink:
            sink.status = status
            address = f"apprise:json://user:hidden-word@127.0.0.1:{sink.port}/secret-path"
            outcome = await sent(adapter_for(), address)
            assert isinstance(outcome, Failed)
            assert outcome.retry
            assert f"error={status}" in outcome.reason
            assert "hidden-word" not in outcome.reason
            assert "secret-path" not in outcome.reason

    asyncio.run(scenario())


def test_a_service_that_hangs_is_given_up_and_its_thread_is_free_again():
    async def scenario():
        async with WebhookSink() as sink:
            sink.status = 0
            adapter = AppriseAdapter(AppriseSettings(timeout_ms=300, threads=1), lambda _m, _p: "")
            address = f"apprise:json://127.0.0.1:{sink.port}/?rto=600&retry=9"
            assert isinstance(await adapter.send(make_delivery(address)), Failed)
            sink.status = 200
            assert isinstance(await adapter.send(make_delivery(address)), Sent)
            await adapter.close()
            await adapter.close()

    asyncio.run(scenario())


def test_sends_side_by_side_each_hear_their_own_reason():
    async def scenario():
        async with WebhookSink() as good, WebhookSink() as bad:
            good.status, bad.status = 200, 500
            adapter = adapter_for()
            deliveries = [
                make_delivery(f"apprise:json://127.0.0.1:{sink.port}/", message=f"m{number}")
                for number in range(10)
                for sink in (good, bad)
            ]
            outcomes = await asyncio.gather(*(adapter.send(one) for one in deliveries))
            await adapter.close()
            assert [type(one) for one in outcomes] == [Sent, Failed] * 10
            assert all("error=500" in one.reason for one in outcomes[1::2])

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["apprise:nobody", "apprise:", "apprise:nonsense://x"])
def test_an_address_that_leads_nowhere_fails_for_good(address):
    outcome = asyncio.run(sent(adapter_for(), address))
    assert isinstance(outcome, Failed)
    assert not outcome.retry


def test_the_library_has_nobody_listening_to_it_afterwards():
    handlers = list(logging.getLogger("apprise").handlers)
    asyncio.run(sent(adapter_for(), "apprise:nonsense://x"))
    assert logging.getLogger("apprise").handlers == handlers


def test_the_ledger_shows_neither_token_nor_chat():
    shown = shown_address("apprise:tgram://123456:ABCDEF/chat")
    assert shown.startswith("apprise:tgram://")
    assert "123456" not in shown
    assert "chat" not in shown


def test_settings_do_not_show_targets():
    assert "hidden" not in repr(AppriseSettings(targets={"ana": "ntfy://hidden"}))


@given(st.text(max_size=30))
def test_an_address_of_a_service_is_one_printable_word(text):
    if is_service_address(text):
        assert text.isprintable()
        assert " " not in text
    assert all(part in text for part in secret_parts(text))


def test_without_a_link_only_the_text_is_sent():
    assert notice(make_delivery("apprise:ana"), "") == "Guest 5 alone in r1"
