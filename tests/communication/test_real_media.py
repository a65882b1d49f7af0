"""Alarms to a real mail server and a real web server; the guard clicks the link in the mail."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager

from rapport.communication.adapters.mail import MailAdapter, MailSettings
from rapport.communication.adapters.webhook import WebhookAdapter, WebhookSettings
from rapport.communication.answers import AnswerData, record_answer
from rapport.communication.delivery_state import RetryPolicy
from rapport.communication.links import answer_link, answer_secret
from rapport.communication.peers import Peer
from rapport.kernel.clock import SystemClock
from rapport.kernel.tasks import Tasks
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.webhook_sink import WebhookSink

LINK = re.compile(r"http://node/answer/(\w+)/(\w+)/(\w+)")


@asynccontextmanager
async def alarm_room(new_room):
    """Ana by mail, ben by webhook, lea by inbox; everything running on the machine's clock."""
    async with LocalMailServer() as mail, WebhookSink() as hook:
        room = new_room()
        secret = answer_secret(room.channels.records)

        def link_for(message, peer):
            return answer_link("http://node", secret, message, peer)

        room.clock = SystemClock()
        room.retry = RetryPolicy(attempts=50, first_ms=20, longest_ms=100)
        room.adapters["mail"] = MailAdapter(
            MailSettings(port=mail.port, timeout_ms=3_000), link_for
        )
        room.adapters["webhook"] = WebhookAdapter(
            WebhookSettings(secret="s", timeout_ms=3_000), link_for
        )
        room.peers["ana"] = Peer(name="ana", addresses=("mail:ana@example.org",))
        room.peers["ben"] = Peer(name="ben", addresses=(f"webhook:{hook.url}?key=hidden",))
        await room.start()
        tasks = Tasks(room.clock)
        tasks.start("communication", room.engine.run)
        for dispatch in room.dispatches:
            tasks.start(dispatch.channel, dispatch.run)
        try:
            yield room, mail, hook
        finally:
            await tasks.stop()
            await room.adapters["webhook"].close()


async def until(room, condition):
    """Looks at the ledger whenever something was logged; fails after twenty seconds."""
    log = room.channels.channel("log")
    async with asyncio.timeout(20):
        seen = log.last_position()
        while not condition(await room.ledger()):
            await log.wait_after(seen)
            seen = log.last_position()


def states_by_adapter(ledger, message):
    return {row.adapter: row.state for row in ledger.rows(message=message)}


def test_an_alarm_reaches_both_media_and_a_click_in_the_mail_closes_it(new_room):
    async def scenario():
        async with alarm_room(new_room) as (room, mail, hook):
            await room.detect()
            await asyncio.wait_for(asyncio.gather(mail.wait_for(1), hook.wait_for(1)), 20)
            message, peer, token = LINK.search(mail.mails[0].get_content()).groups()
            assert peer == "ana"
            data = AnswerData(message=message, peer=peer, text="on my way", token=token)
            secret = answer_secret(room.channels.records)
            await record_answer(room.channels, secret, data, now_ms=room.clock.now_ms())
            await until(room, lambda ledger: ledger.message(message).state == "closed")
            ledger = await room.ledger()
            assert ledger.message(message).answered_by == "ana"
            # The click may be quicker than the server's own word; both are written down in the end.
            expected = {"mail": "handed", "webhook": "confirmed", "": "answered"}
            await until(room, lambda ledger: states_by_adapter(ledger, message) == expected)
            body = json.loads(hook.posted[0].body)
            assert LINK.match(body["data"]["answer_at"])[2] == "ben"
            for stored in await room.channels.channel("log").read_after(0):
                assert b"hidden" not in stored.event.data

    asyncio.run(scenario())


def test_a_mail_server_that_is_down_delays_its_own_mails_only_and_is_used_when_it_is_back(new_room):
    async def scenario():
        async with alarm_room(new_room) as (room, mail, hook):
            await mail.go_down()
            await room.detect()
            await asyncio.wait_for(hook.wait_for(1), 20)
            await until(room, lambda ledger: len(ledger.rows(peer="ana", state="failed")) == 1)
            await until(
                room, lambda ledger: any(row.attempt >= 3 for row in ledger.rows(peer="ana"))
            )
            await mail.come_up()
            await asyncio.wait_for(mail.wait_for(1), 20)
            await until(room, lambda ledger: ledger.rows(peer="ana", state="handed"))
            assert len(mail.mails) == 1
            ids = {stored["Message-ID"] for stored in mail.mails}
            assert len(ids) == 1

    asyncio.run(scenario())


def test_a_mail_server_that_refuses_for_good_is_final_and_the_others_still_know(new_room):
    async def scenario():
        async with alarm_room(new_room) as (room, mail, hook):
            mail.mood = "refuses"
            await room.detect()
            await asyncio.wait_for(hook.wait_for(1), 20)
            await until(room, lambda ledger: ledger.rows(peer="ana", state="failed"))
            await until(room, lambda ledger: ledger.rows(peer="ben", state="confirmed"))
            ledger = await room.ledger()
            reasons = [row.reason for row in ledger.rows(peer="ana", state="failed")]
            assert any("550" in reason for reason in reasons)
            assert ledger.messages()[0].state == "open"

    asyncio.run(scenario())
