"""One message that cannot be handled stops no other, and its sender hears of it. [CO-7, CO-10]"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.channel.dead_letters import DeadLetterAdmin, LetterFilter
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.communication.adapters.attempts import OutcomeData, outcome_data
from rapport.communication.adapters.base import Delivery, Failed
from rapport.communication.ledger_events import LARGEST_EVENT
from rapport.communication.records import DELIVERIES, DeliveryRecords
from rapport.communication.transaction import Transaction
from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.event import Event
from rapport.core.message import Identifier, Message
from rapport.store.memory import MemoryRecordStore

ANA, BEN, APP = Identifier("peer", "ana"), Identifier("peer", "ben"), Identifier("component", "app")


class Kept(msgspec.Struct):
    number: int


def sound(id: str = "e") -> Event:
    return Event("s", id, "t", "", 1, b"{}")


@pytest.mark.parametrize(
    ("value", "event"),
    [
        (Kept(2**70), sound()),
        (Kept(1), sound("two\nlines")),
        (Kept(1), Event("s", "e", "t", "", 2**70, b"{}")),
    ],
    ids=["record", "id", "time"],
)
def test_what_cannot_be_kept_is_found_before_the_commit(value: Kept, event: Event) -> None:
    transaction = Transaction(MemoryRecordStore())
    transaction.emit("log", sound("first"))
    mark = transaction.mark()
    transaction.put("t", "k", value)
    transaction.emit("log", event)
    with pytest.raises(InvalidInput):
        transaction.check(mark)
    transaction.roll_back(mark)
    transaction.check(0)
    assert [one.id for one in transaction.commit()["log"]] == ["first"]


def test_only_what_came_after_the_mark_is_looked_at() -> None:
    transaction = Transaction(MemoryRecordStore())
    transaction.emit("log", sound("two\nlines"))
    mark = transaction.mark()
    transaction.emit("log", sound("good"))
    transaction.check(mark)


@pytest.mark.parametrize("sender", [APP, BEN])
def test_a_message_that_cannot_be_kept_is_set_aside_and_its_sender_notified(
    room, monkeypatch: pytest.MonkeyPatch, sender: Identifier
) -> None:
    save = DeliveryRecords.save

    def too_long(self, before, record):
        is_bad = record.message == "bad"
        save(self, before, msgspec.structs.replace(record, forget_at=2**70) if is_bad else record)

    monkeypatch.setattr(DeliveryRecords, "save", too_long)

    async def read(channel: str) -> list[Event]:
        return [one.event for one in await room.channels.channel(channel).read_after(0)]

    async def scenario() -> None:
        await room.start()
        for id in ("before", "bad", "after"):
            message = Message(
                type="TASK",
                subtype="REQUEST",
                sender=sender,
                receiver=ANA,
                id=id,
                content="look",
                ttl=600_000,
            )
            event = message.to_event(source="test", time=room.clock.now_ms())
            headers = {"proof": "application", "adapter": "test"}
            event = msgspec.structs.replace(event, headers=headers)
            await room.channels.channel("input").append([event])
        await room.settle()
        await room.restart()
        await room.settle()
        (letter,) = await read("dead_letters")
        assert letter.payload()["event"]["id"] == "bad"
        assert letter.payload()["code"] == "communication.bad_record"
        handed = {one.subject for one in await read("log") if one.type.endswith(".handed")}
        assert {"before", "after"} <= handed
        told = [one for one in await read("control") if one.type == "rapport.control.comerror"]
        assert [(one.subject, one.payload()["refers_to"]) for one in told] == [(str(sender), "bad")]

    asyncio.run(scenario())


def task_of(room, id: str, size: int, ttl: int) -> Event:
    """A message for ana with a content of that size."""
    message = Message(
        type="TASK",
        subtype="REQUEST",
        sender=APP,
        receiver=ANA,
        id=id,
        content="x" * size,
        ttl=ttl,
    )
    return message.to_event(source="test", time=room.clock.now_ms())


@pytest.mark.parametrize("ttl", [0, 600_000], ids=["plain", "tracked"])
def test_a_message_that_leaves_no_room_for_what_the_log_adds_stops_nobody(room, ttl: int) -> None:
    """No door lets it in; a program of the node's own may append it all the same."""

    async def scenario() -> None:
        await room.start()
        events = []
        for id, size in (("before", 4), ("bad", MAX_DATA_BYTES - 300), ("after", 4)):
            events.append(task_of(room, id, size, ttl))
        assert len(events[1].data) <= MAX_DATA_BYTES
        await room.channels.channel("input").append(events)
        await room.settle()
        await room.restart()
        await room.settle()
        (letter,) = await DeadLetterAdmin(room.channels, room.clock).letters(LetterFilter())
        assert (letter.code, letter.channel) == ("message.too_long", "input")
        assert await handed_of(room) == ["after", "before"]

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["component", "peer"])
@pytest.mark.parametrize("ttl", [0, 600_000], ids=["plain", "tracked"])
def test_a_message_with_more_receivers_than_the_log_can_name_stops_nobody(
    room, ttl: int, kind: str
) -> None:
    others = [Identifier(kind, f"{number:04}{'x' * 190}") for number in range(200)]
    room.route = lambda message: others if message.id == "bad" else ()

    async def scenario() -> None:
        await room.start()
        for id, size in (("before", 4), ("bad", LARGEST_EVENT - 300), ("after", 4)):
            await room.channels.channel("input").append([task_of(room, id, size, ttl)])
        await room.settle()
        (letter,) = await DeadLetterAdmin(room.channels, room.clock).letters(LetterFilter())
        assert (letter.code, letter.channel) == ("message.too_long", "input")
        assert await handed_of(room) == ["after", "before"]

    asyncio.run(scenario())


def test_an_outbox_that_cannot_be_read_stops_the_start_and_says_what_to_do() -> None:
    """Going on without it would lose what nobody could name."""
    records = MemoryRecordStore()
    records.put("communication", "outbox", b"\x81\xa3log")
    with pytest.raises(Corrupt) as caught:
        Transaction(records).last_outbox()
    assert caught.value.code == "communication.bad_record"
    assert "'outbox'" in caught.value.hint


# --- outcomes that are handed over directly ---


async def broken_and_other(room) -> tuple[str, str]:
    """Two alarms whose deliveries wait, the record of the first of them unreadable."""
    room.direct = True
    await room.start()
    await room.detect(guest="5", event="e1")
    await room.detect(guest="6", event="e2")
    await room.engine.settle()
    broken, other = (row.message for row in (await room.ledger()).messages())
    room.channels.records.put(DELIVERIES, broken, b"not a case")
    return broken, other


async def handed_of(room) -> list[str]:
    ledger = await room.ledger()
    return sorted(row.message for row in ledger.rows() if row.state == "handed")


def test_an_outcome_whose_case_cannot_be_read_holds_up_no_other(room) -> None:
    async def scenario() -> None:
        broken, other = await broken_and_other(room)
        await room.settle()
        assert await handed_of(room) == [other, other], "both guards of the other alarm"
        letters = await DeadLetterAdmin(room.channels, room.clock).letters(LetterFilter())
        assert [(one.channel, one.reader, one.code) for one in letters] == [
            ("control", "communication", "communication.bad_record")
        ] * 2
        assert all(broken in one.message for one in letters)
        await room.restart()
        await room.settle()
        assert len(await room.channels.channel("dead_letters").read_after(0)) == 2, "said once"

    asyncio.run(scenario())


def test_an_outcome_is_taken_once_the_record_of_its_case_was_mended(room) -> None:
    async def scenario() -> None:
        room.direct = True
        await room.start()
        await room.detect()
        await room.engine.settle()
        (row,) = (await room.ledger()).messages()
        kept = room.channels.records.get(DELIVERIES, row.message)
        room.channels.records.put(DELIVERIES, row.message, b"not a case")
        await room.settle()
        assert await handed_of(room) == []
        room.channels.records.put(DELIVERIES, row.message, kept)
        await DeadLetterAdmin(room.channels, room.clock).replay(LetterFilter(channel="control"))
        await room.settle()
        assert await handed_of(room) == [row.message] * 2

    asyncio.run(scenario())


def plain_failure(**fields) -> OutcomeData:
    given = {"message": "m1", "peer": "ana", "address": "inbox:", "attempt": 1, "text": "look"}
    delivery = Delivery(**given | fields, plain=True)
    return outcome_data(delivery, Failed("busy", retry=True), 7)


@pytest.mark.parametrize("name", ["m" * 300, "two\nlines"], ids=["long", "unprintable"])
def test_an_outcome_of_what_can_be_no_message_holds_up_no_other(room, name) -> None:
    """No channel takes an event about it: the program's own log alone tells of it."""

    async def scenario() -> None:
        await room.start()
        outcomes = [plain_failure(message=name), plain_failure(message="good")]
        await room.engine.apply_outcomes(outcomes)
        await room.restart()
        await room.settle()
        assert [row.message for row in (await room.ledger()).rows()] == ["good"]

    asyncio.run(scenario())


def test_a_long_delivery_whose_outcome_cannot_be_taken_stops_nobody(room) -> None:
    async def scenario() -> None:
        await room.start()
        room.channels.records.put(DELIVERIES, "m1", b"not a case")
        long = plain_failure(text="x" * MAX_DATA_BYTES)
        await room.engine.apply_outcomes([long, plain_failure(message="good")])
        await room.settle()
        assert [row.message for row in (await room.ledger()).rows()] == ["good"]
        assert len(await room.channels.channel("dead_letters").read_after(0)) == 1

    asyncio.run(scenario())
