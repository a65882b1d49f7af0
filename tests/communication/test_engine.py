"""The walk of a detection to people and back, on channels in memory and a clock moved by hand."""

from __future__ import annotations

import asyncio

from rapport.communication.privacy import PrivacyPolicy
from rapport.communication.peers import Peer


def test_an_alarm_is_put_before_every_guard_and_the_first_answer_closes_it(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert message.text == "Guest 5 alone in r1"
        assert message.state == "open"
        assert {row.peer: row.state for row in ledger.rows()} == {"ana": "handed", "ben": "handed"}

        await room.answer(message.message, "ben")
        await room.settle()
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert (message.state, message.result) == ("closed", "done")
        assert (message.answered_by, message.answer) == ("ben", "on my way")

    asyncio.run(scenario())


def test_the_lead_is_asked_when_nobody_answers_for_sixty_seconds(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(59_000)
        assert not (await room.ledger()).inbox("lea")
        await room.pass_time(1_000)
        ledger = await room.ledger()
        (message,) = ledger.inbox("lea")
        assert message.state == "escalated"
        assert {row.peer for row in ledger.rows(state="timed_out")} == {"ana", "ben"}

    asyncio.run(scenario())


def test_the_lead_is_not_asked_when_a_guard_answered(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(30_000)
        (message,) = (await room.ledger()).inbox("ana")
        await room.answer(message.message, "ana")
        await room.pass_time(600_000)
        ledger = await room.ledger()
        assert not ledger.rows(peer="lea")
        assert not ledger.rows(state="timed_out")

    asyncio.run(scenario())
