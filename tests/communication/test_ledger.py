"""The ledger as people ask for it: what the log says, newest state per person and address."""

from __future__ import annotations

import asyncio

from msgspec import structs

from rapport.communication.ledger import Ledger
from rapport.communication.peers import Peer
from rapport.communication.privacy import parse_hours, quiet_rule
from rapport.core.event import make_event
from rapport.core.message import Identifier


def test_the_states_of_media_and_of_people_are_kept_apart(room, scripted):
    async def scenario():
        room.adapters["mail"] = scripted("mail")
        room.peers["ana"] = Peer(name="ana", addresses=("mail:ana@example.org", "inbox:"))
        await room.start()
        await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        await room.answer(message.message, "ana")
        await room.settle()
        rows = (await room.ledger()).rows(peer="ana")
        assert {(row.address, row.state) for row in rows} == {
            ("mail:ana@example.org", "handed"),
            ("inbox:", "handed"),
            ("", "answered"),
        }
        assert [row.peer for row in (await room.ledger()).rows(state="answered")] == ["ana"]

    asyncio.run(scenario())


def test_a_late_answer_replaces_the_time_out_of_the_person_but_not_the_result(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(120_000)
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert (message.state, message.result) == ("closed", "timed_out")
        await room.answer(message.message, "ana", "sorry")
        await room.settle()
        await ledger.refresh()
        (message,) = ledger.messages()
        assert (message.state, message.result) == ("closed", "timed_out")
        assert message.answered_by == "ana"
        states = {row.peer: row.state for row in ledger.rows() if not row.address}
        assert states == {"ana": "answered", "ben": "timed_out", "lea": "timed_out"}

    asyncio.run(scenario())


def test_refreshing_reads_only_what_is_new(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        ledger = Ledger(room.channels)
        assert await ledger.refresh() > 0
        assert await ledger.refresh() == 0
        await room.detect(guest="6", event="e2")
        await room.settle()
        assert await ledger.refresh() > 0
        assert [row.text for row in ledger.messages()] == [
            "Guest 6 alone in r1",
            "Guest 5 alone in r1",
        ]

    asyncio.run(scenario())


def test_an_inbox_holds_open_messages_until_they_are_answered(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        ledger = await room.ledger()
        assert [row.text for row in ledger.inbox("ana")] == ["Guest 5 alone in r1"]
        assert ledger.inbox("lea") == []
        (message,) = ledger.messages()
        await room.answer(message.message, "ben")
        await room.settle()
        await ledger.refresh()
        assert ledger.inbox("ana") == ledger.inbox("ben") == []

    asyncio.run(scenario())


def test_of_many_rows_those_that_changed_last_are_given_oldest_first(room):
    async def scenario():
        await room.start()
        for number in range(10):
            await room.detect(guest=str(number), event=f"e{number}")
        await room.settle()
        ledger = await room.ledger()
        assert [row.text[6] for row in ledger.messages(limit=3)] == ["9", "8", "7"]
        rows = ledger.rows(limit=4)
        assert [row.first for row in rows] == sorted(row.first for row in rows)
        assert {row.message for row in rows} <= {m.message for m in ledger.messages(limit=4)}
        assert len(ledger.rows()) == 20

    asyncio.run(scenario())


def test_a_hold_is_over_once_the_message_is_queued_for_the_person(new_room):
    async def scenario():
        room = new_room(now_ms=1_772_492_400_000)  # 2026-03-02T23:00:00Z
        quiet = quiet_rule([parse_hours("22:00-07:00")])
        room.peers["ana"] = Peer(name="ana", addresses=("inbox:",), privacy=(quiet,))
        room.actions["raise alarm"] = structs.replace(
            room.actions["raise alarm"],
            send_to=Identifier("peer", "ana"),
            urgent=False,
            answer_within_ms=0,
            escalate=(),
        )
        await room.start()
        await room.detect()
        await room.settle()
        ledger = await room.ledger()
        (held,) = ledger.rows(state="held")
        assert (held.peer, held.address) == ("ana", "")
        room.clock.set_ms(held.until)
        await room.settle()
        await ledger.refresh()
        assert ledger.rows(state="held") == []
        assert [row.address for row in ledger.rows(peer="ana")] == ["inbox:"]
        states = [line.state for line in await ledger.timeline(held.message)]
        assert states.index("held") < states.index("queued")

    asyncio.run(scenario())


def test_what_is_no_ledger_line_is_passed_over(room):
    async def scenario():
        odd = [
            make_event(source="x", id="1", type="rapport.delivery.handed", time=1, data=[1]),
            make_event(source="x", id="2", type="rapport.message", time=1, data={"a": 1}),
            make_event(source="x", id="3", type="something.else", time=1),
        ]
        await room.channels.channel("log").append(odd)
        ledger = await room.ledger()
        assert ledger.rows() == []
        assert ledger.messages() == []

    asyncio.run(scenario())
