"""The message info service: kept, changed at run time, asked by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.communication.message_info import (
    CHANGED,
    COMPONENT,
    InfoResponder,
    MessageInformation,
    MessageInfoService,
    read_request,
)
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import make_event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock

ANA = Identifier("peer", "ana")
TASK = MessageInformation(text="Please check a machine.", schema={"type": "string"})


def request(**fields: Any) -> Message:
    base = {"type": "MESSAGEINFO", "subtype": "REQUEST", "sender": ANA, "id": "r1"}
    return Message(**(base | fields))


class Outbox:
    """Takes what is sent, as `input` would: repetitions are dropped."""

    def __init__(self) -> None:
        self.sent: dict[str, Message] = {}

    async def __call__(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.sent.setdefault(message.id, message)


def test_added_information_outlives_a_restart_until_it_is_removed(
    tmp_path: Path, clock: ManualClock
) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, clock)
        infos = MessageInfoService(channels, channels.records, clock)
        await infos.open()
        with pytest.raises(UnknownName):
            await infos.info_for_message(type="TASK")
        await infos.add_message_info("TASK", "", TASK, by="admin")
        assert (await infos.info_for_message(type="TASK", subtype="X")).information == TASK
        shipped = await infos.info_for_message(type="CONTROL", subtype="ACK")
        await infos.add_message_info("CONTROL", "ACK", TASK)
        await channels.close()

        channels = open_embedded(tmp_path, clock)
        again = MessageInfoService(channels, channels.records, clock)
        await again.open()
        assert (await again.info_for_message(type="CONTROL", subtype="ACK")).information == TASK
        assert await again.remove_message_info("CONTROL", "ACK") is True
        assert await again.remove_message_info("CONTROL", "ACK") is False
        assert await again.info_for_message(type="CONTROL", subtype="ACK") == shipped
        events = [stored.event for stored in await channels.channel("log").read_after(0)]
        changes = [(event.subject, event.payload()["change"]) for event in events]
        assert [event.type for event in events] == [CHANGED] * 3
        assert changes == [("TASK", "added"), ("CONTROL/ACK", "added"), ("CONTROL/ACK", "removed")]
        await channels.close()

    asyncio.run(scenario())


def test_nodes_that_share_their_records_tell_the_same(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        one, other = (MessageInfoService(channels, channels.records, clock) for _ in range(2))
        await one.open()
        await other.open()
        await one.add_message_info("TASK", "", TASK)
        assert (await other.info_for_message(type="TASK")).information == TASK
        assert ("TASK", "added") in [(each.type, each.origin) for each in await other.all()]

    asyncio.run(scenario())


def test_types_and_subtypes_with_slashes_are_kept_apart(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        infos = MessageInfoService(channels, channels.records, clock)
        await infos.add_message_info("A/B", "C", TASK)
        await infos.add_message_info("A", "B/C", MessageInformation(text="other"))
        again = MessageInfoService(channels, channels.records, clock)
        await again.open()
        assert (await again.info_for_message(type="A/B", subtype="C")).information == TASK

    asyncio.run(scenario())


def test_a_message_is_looked_up_by_its_id(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        infos = MessageInfoService(channels, channels.records, clock, of_site={("TASK", ""): TASK})
        sent = Message(type="TASK", subtype="REQUEST", sender=ANA, id="m1")
        await channels.channel("log").append([sent.to_event(source="x", time=1)])
        assert (await infos.info_for_message(id="m1")).information == TASK
        with pytest.raises(UnknownName) as caught:
            await infos.info_for_message(id="m2")
        assert caught.value.code == "message.unknown"
        with pytest.raises(InvalidInput):
            await infos.info_for_message()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"content": "TASK"}, ("TASK", "", "")),
        ({"content": " TASK REQUEST "}, ("TASK", "REQUEST", "")),
        ({"content": "TASK/REQUEST"}, ("TASK", "REQUEST", "")),
        ({"content": "NOTIFICATION raise alarm"}, ("NOTIFICATION", "raise alarm", "")),
        ({"content": '{"type": "TASK"}'}, ("TASK", "", "")),
        ({"content": '{"id": "m1"}'}, ("", "", "m1")),
        ({"refers_to": "m1"}, ("", "", "m1")),
    ],
)
def test_requests_may_be_written_in_several_ways(
    fields: dict[str, str], wanted: tuple[str, str, str]
) -> None:
    found = read_request(request(**fields))
    assert (found.type, found.subtype, found.id) == wanted


def test_a_request_is_answered_to_who_asked_once_also_after_a_crash(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels, outbox = open_memory(clock), Outbox()
        infos = MessageInfoService(channels, channels.records, clock, of_site={("TASK", ""): TASK})
        asked = request(content="TASK REQUEST", conversation="c1")
        await channels.channel("info").append([asked.to_event(source="x", time=1)])
        first = InfoResponder(channels, infos, outbox)

        async def dies(*_arguments: object) -> None:
            raise ConnectionError("killed")

        first._subscription = await channels.subscribe("info", "message_info")
        first._subscription.commit = dies  # type: ignore[method-assign]
        with pytest.raises(ConnectionError):
            await first.step(timeout_ms=0)
        again = InfoResponder(channels, infos, outbox)
        assert await again.step(timeout_ms=0) == 1
        assert await again.step(timeout_ms=0) == 0
        (reply,) = outbox.sent.values()
        assert (reply.type, reply.subtype, reply.sender) == ("MESSAGEINFO", "REPLY", COMPONENT)
        assert (reply.receiver, reply.refers_to, reply.conversation) == (ANA, "r1", "c1")
        assert reply.content.startswith("TASK\nPlease check a machine.")

    asyncio.run(scenario())


def test_who_wants_json_gets_json_and_who_asks_nonsense_an_error(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        infos = MessageInfoService(channels, channels.records, clock, of_site={("TASK", ""): TASK})
        answers = InfoResponder(channels, infos, Outbox())
        reply = await answers.reply(request(content="TASK", language="application/json"))
        told = json.loads(reply.content)
        assert reply.language == "application/json"
        assert (told["type"], told["text"], told["schema"]) == ("TASK", TASK.text, TASK.schema)
        for content in ("TSAK", "{", '{"type": 1}', ""):
            error = await answers.reply(request(content=content))
            assert (error.type, error.subtype, error.receiver) == ("CONTROL", "ERROR", ANA)
        unknown = await answers.reply(request(content="TSAK"))
        assert unknown.content.startswith("message.unknown: ")
        assert "did you mean 'TASK'?" in unknown.content

    asyncio.run(scenario())


def test_a_reply_that_cannot_be_sent_does_not_hold_up_the_others(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels, outbox = open_memory(clock), Outbox()
        infos = MessageInfoService(channels, channels.records, clock)

        async def send(messages: Sequence[Message]) -> None:
            if messages[0].refers_to == "r1":
                raise InvalidInput("too long", code="message.too_long")
            await outbox(messages)

        asked = [request(id=f"r{n}", content="CONTROL") for n in (1, 2)]
        await channels.channel("info").append(
            [message.to_event(source="x", time=1) for message in asked]
        )
        assert await InfoResponder(channels, infos, send).step(timeout_ms=0) == 2
        assert [reply.refers_to for reply in outbox.sent.values()] == ["r2"]
        (letter,) = await channels.channel("dead_letters").read_after(0)
        assert "too long" in letter.event.data.decode()

    asyncio.run(scenario())


def test_what_is_no_request_or_has_no_known_sender_is_not_answered(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels, outbox = open_memory(clock), Outbox()
        infos = MessageInfoService(channels, channels.records, clock)
        answers = InfoResponder(channels, infos, outbox)
        forged = request(id="r2", content="CONTROL").to_event(source="x", time=1)
        forged.headers["proof"] = "none"
        events = [
            forged,
            request(id="r3", subtype="REPLY").to_event(source="x", time=1),
            make_event(source="x", id="r4", type="rapport.message", time=1, data=[]),
            make_event(source="x", id="r5", type="other", time=1),
            request(id="r6", content="CONTROL").to_event(source="x", time=1),
        ]
        await channels.channel("info").append(events)
        assert await answers.step(timeout_ms=0) == 5
        assert [reply.refers_to for reply in outbox.sent.values()] == ["r6"]
        assert channels.channel("dead_letters").last_position() == 1

    asyncio.run(scenario())
