"""Webhooks as a real server gets them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json

import msgspec
import pytest

from rapport.channel.push import is_signed
from rapport.communication.adapters.base import Confirmed, Failed
from rapport.communication.adapters.webhook import WebhookAdapter, WebhookSettings, webhook_body
from rapport.scenarios.webhook_sink import WebhookSink
from rapport.testing.suites.adapter import make_delivery


def adapter_for(**settings):
    settings = {"secret": "shared", "timeout_ms": 5_000} | settings
    return WebhookAdapter(WebhookSettings(**settings), lambda m, p: f"http://here/answer/{m}/{p}/t")


async def send(sink, adapter, **changes):
    try:
        return await adapter.send(make_delivery(f"webhook:{sink.url}", **changes))
    finally:
        await adapter.close()


def test_the_body_is_a_signed_cloudevent_with_an_idempotency_key():
    async def scenario():
        async with WebhookSink() as sink:
            assert isinstance(await send(sink, adapter_for()), Confirmed)
            (posted,) = sink.posted
            body = json.loads(posted.body)
            expected = hmac.new(b"shared", posted.body, hashlib.sha256).hexdigest()
            assert posted.headers["x-rapport-signature"] == f"sha256={expected}"
            assert posted.headers["idempotency-key"] == body["id"]
            assert posted.headers["content-type"] == "application/cloudevents+json"
            assert body["specversion"] == "1.0"
            assert body["data"]["text"] == "Guest 5 alone in r1"
            assert body["data"]["answer_at"] == "http://here/answer/m1/ana/t"

    asyncio.run(scenario())


def test_a_second_signature_covers_the_time_so_that_copies_are_recognised():
    async def scenario():
        async with WebhookSink() as sink:
            await send(sink, adapter_for())
            (posted,) = sink.posted
            sent_at, given = (
                posted.headers["x-rapport-time"],
                posted.headers["x-rapport-timed-signature"],
            )
            now = int(sent_at)
            assert is_signed("shared", sent_at, given, posted.body, now + 299_000)
            assert not is_signed("shared", sent_at, given, posted.body, now + 301_000)
            assert not is_signed("shared", str(now + 1), given, posted.body, now)

    asyncio.run(scenario())


def test_what_the_message_says_of_itself_goes_along():
    delivery = make_delivery("webhook:http://x/")
    assert "sender" not in json.loads(webhook_body(delivery, ""))["data"]
    said = msgspec.structs.replace(delivery, type="TASK", sender="component:desk")
    data = json.loads(webhook_body(said, ""))["data"]
    assert (data["type"], data["sender"]) == ("TASK", "component:desk")


def test_without_a_secret_there_is_no_signature():
    async def scenario():
        async with WebhookSink() as sink:
            await send(sink, adapter_for(secret=""))
            assert "x-rapport-signature" not in sink.posted[0].headers

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "retry"),
    [(301, False), (400, False), (404, False), (408, True), (429, True), (500, True), (503, True)],
)
def test_a_status_decides_whether_trying_again_can_help(status, retry):
    async def scenario():
        async with WebhookSink() as sink:
            sink.status = status
            outcome = await send(sink, adapter_for())
            assert outcome == Failed(f"the server answered HTTP {status}", retry=retry)

    asyncio.run(scenario())


def test_a_server_that_never_answers_is_given_up_after_the_timeout():
    async def scenario():
        async with WebhookSink() as sink:
            sink.status = 0
            outcome = await send(sink, adapter_for(timeout_ms=200))
            assert outcome == Failed("the server did not answer in time", retry=True)

    asyncio.run(scenario())


def test_a_failure_does_not_show_the_address():
    async def scenario():
        adapter = adapter_for(timeout_ms=2_000)
        for address in ("webhook:http://127.0.0.1:1/?key=hidden", "webhook:nonsense://hidden"):
            outcome = await adapter.send(make_delivery(address))
            assert isinstance(outcome, Failed)
            assert "hidden" not in outcome.reason
        await adapter.close()

    asyncio.run(scenario())
