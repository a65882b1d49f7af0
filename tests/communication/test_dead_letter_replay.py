"""Dead letters of this room go back to the reader that failed, and to nobody else. [CH-14]"""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.dead_letters import DeadLetterAdmin, LetterFilter
from rapport.communication.adapters.base import Delivery
from rapport.communication.detection_actions import DetectionActions
from rapport.core.errors import InvalidInput
from rapport.core.event import make_event


def failing(what: str):
    def fail(*_arguments: object, **_more: object) -> None:
        raise InvalidInput(what, code="test.broken")

    return fail


async def states_of(office: DeadLetterAdmin) -> list[str]:
    return [letter.state for letter in await office.letters(LetterFilter(state=""))]


def test_a_detection_that_failed_is_handled_again_once_it_was_mended(room) -> None:
    async def scenario() -> None:
        await room.start()
        office = DeadLetterAdmin(room.channels, room.clock)
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(DetectionActions, "handle", failing("not yet"))
            await room.detect()
            await room.settle()
            (letter,) = await office.letters(LetterFilter())
            assert (letter.channel, letter.reader) == ("detections", "communication")
            await office.replay(LetterFilter(reader="communication"))
            await room.settle()
            assert await states_of(office) == ["open"], "it failed again"
        detections = room.channels.channel("detections").last_position()
        assert (await room.ledger()).messages() == []
        room.clock.set_ms(room.clock.now_ms() + 1)
        await office.replay(LetterFilter(reader="communication"))
        await room.start()  # as after a kill: what was asked for is durable
        await room.settle()
        await room.settle()
        assert await states_of(office) == ["replayed"]
        assert len((await room.ledger()).messages()) == 1
        assert room.channels.channel("detections").last_position() == detections, "nothing anew"
        assert [state for state, _, _ in await room.states()].count("queued") == 2

    asyncio.run(scenario())


def test_a_delivery_that_could_not_be_read_goes_back_to_its_adapter_alone(room) -> None:
    async def scenario() -> None:
        await room.start()
        office = DeadLetterAdmin(room.channels, room.clock)
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(Delivery, "from_event", failing("unknown form"))
            await room.detect()
            await room.settle()
        letters = await office.letters(LetterFilter())
        assert {(one.channel, one.reader) for one in letters} == {("output.inbox", "adapter.inbox")}
        queued = room.channels.channel("output.inbox").last_position()
        await office.replay(LetterFilter(reader="adapter.inbox"))
        dispatch = room.dispatches[0]
        assert await dispatch.take_back() == len(letters)
        assert await dispatch.take_back() == 0
        assert await states_of(office) == ["replayed"] * len(letters)
        await room.settle()
        told = [state for state, _, _ in await room.states()]
        assert told.count("handed") == len(letters)
        assert room.channels.channel("output.inbox").last_position() == queued, "nothing anew"

    asyncio.run(scenario())


def test_what_is_no_delivery_stays_a_dead_letter(room) -> None:
    async def scenario() -> None:
        await room.start()
        office = DeadLetterAdmin(room.channels, room.clock)
        nonsense = make_event(source="z", id="z", type="t", time=1, data=[])
        await room.channels.channel("output.inbox").append([nonsense])
        await room.settle()
        await office.replay(LetterFilter(reader="adapter.inbox"))
        assert await room.dispatches[0].take_back() == 1
        assert await states_of(office) == ["open"]

    asyncio.run(scenario())
