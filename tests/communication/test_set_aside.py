"""One message that cannot be handled stops no other, and its sender hears of it. [CO-7, CO-10]"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.communication.delivering.receiving import Receiving
from rapport.communication.delivering.transaction import Transaction
from rapport.core.errors import InvalidInput
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
def test_a_message_that_cannot_be_kept_is_set_aside_and_its_sender_told(
    room, monkeypatch: pytest.MonkeyPatch, sender: Identifier
) -> None:
    made = Receiving._case

    def too_long(self, key, id, message, event, wishes):
        case = made(self, key, id, message, event, wishes)
        return msgspec.structs.replace(case, forget_at=2**70) if id == "bad" else case

    monkeypatch.setattr(Receiving, "_case", too_long)

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
