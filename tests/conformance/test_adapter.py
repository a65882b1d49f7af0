"""The shared adapter suite bound to every built-in adapter, each against a real server."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

from rapport.communication.adapters.inbox import InboxAdapter
from rapport.communication.adapters.mail import MailAdapter, MailSettings
from rapport.communication.adapters.webhook import WebhookAdapter, WebhookSettings
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.webhook_sink import WebhookSink
from rapport.testing.suites.adapter import AdapterSuite, Medium
from support.adapters import ManyAdapter


def no_link(_message: str, _peer: str) -> str:
    return ""


class TestMail(AdapterSuite):
    @asynccontextmanager
    async def open_medium(self):
        async with LocalMailServer() as server:
            settings = MailSettings(port=server.port, timeout_ms=5_000)
            medium = Medium(MailAdapter(settings, no_link), "mail:ana@example.org")

            async def received():
                return [(key_of(mail), text_of(mail)) for mail in server.mails]

            medium.received = received
            medium.go_down, medium.come_up = server.go_down, server.come_up
            yield medium


class TestWebhook(AdapterSuite):
    @asynccontextmanager
    async def open_medium(self):
        async with WebhookSink() as sink:
            settings = WebhookSettings(secret="s", timeout_ms=5_000)
            medium = Medium(WebhookAdapter(settings, no_link), f"webhook:{sink.url}")

            async def received():
                return [
                    (posted.headers["idempotency-key"], json.loads(posted.body)["data"]["text"])
                    for posted in sink.posted
                ]

            medium.received = received
            medium.go_down, medium.come_up = sink.go_down, sink.come_up
            yield medium


class TestInbox(AdapterSuite):
    @asynccontextmanager
    async def open_medium(self):
        adapter = Remembering()
        medium = Medium(adapter, "inbox:", can_fail=False)

        async def received():
            return [(delivery.key, delivery.text) for delivery in adapter.taken]

        medium.received = received
        yield medium


class TestMany(AdapterSuite):
    @asynccontextmanager
    async def open_medium(self):
        adapter = ManyAdapter()
        medium = Medium(adapter, "many:ana", can_fail=False)

        async def received():
            return [(one.key, one.text) for call in adapter.calls for one in call]

        medium.received = received
        yield medium


class Remembering(InboxAdapter):
    """The inbox has no other side than the log: keep what it took."""

    def __init__(self):
        self.taken = []

    async def send(self, delivery):
        self.taken.append(delivery)
        return await super().send(delivery)

    async def send_many(self, deliveries):
        self.taken += deliveries
        return await super().send_many(deliveries)


def key_of(mail):
    return mail["Message-ID"].strip("<>").partition("@")[0]


def text_of(mail):
    """What the mail says, without the lines that tell sender, kind and date."""
    return mail.get_content().replace("\r\n", "\n").rpartition("\nFrom: ")[0].rstrip("\n")
