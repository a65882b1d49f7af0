"""Push adapters: started when added, cared for, and ended in order."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.dead_letters import DeadLetterAdmin, LetterFilter
from rapport.communication.adapters.input_base import (
    RejectedInput,
    dead_letter_inputs,
    refused_input,
)
from rapport.communication.adapters.inputs import Inputs
from rapport.core.errors import Conflict, InvalidInput, Unavailable, Unsupported
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock, SystemClock

HELLO = Message(type="TEXT", subtype="NEW", sender=Identifier("peer", "ana"), id="h1")


class Bell:
    """A push adapter that tells in which order things happened to it."""

    def __init__(self, *, fails=None, task=None):
        self.happened: list[str] = []
        self.fails, self.task = fails, task

    async def start(self, intake):
        self.intake = intake
        if self.task is not None:
            intake.schedule(self.task)
        if self.fails is not None:
            raise self.fails
        self.happened.append("started")

    async def stop(self):
        self.happened.append("stopped")


class Place:
    def __init__(self):
        self.clock = ManualClock(1_000)
        self.channels = open_memory(self.clock)
        self.arrived: list[tuple[str, str, bool]] = []
        self.refuses = False
        self.inputs = Inputs(self.publish, self.channels, self.channels.records, self.clock)

    async def publish(self, messages, *, adapter, trusted):
        self.arrived += [(adapter, one.id, trusted(one)) for one in messages]
        taken = not self.refuses
        return [
            SimpleNamespace(id=one.id, accepted=taken, reason="", why="no room") for one in messages
        ]


def play(scenario):
    async def run():
        async with asyncio.timeout(10):
            await scenario(Place())

    asyncio.run(run())


def test_it_is_started_when_added_and_publishes_under_its_name():
    async def scenario(place):
        bell = Bell()
        name = await place.inputs.add_push(bell, name="door", owner="app")
        assert bell.happened == ["started"]
        (arrival,) = await bell.intake.publish([HELLO])
        assert arrival.accepted
        await bell.intake([HELLO])  # the same by calling
        assert place.arrived == [("door", "h1", False)] * 2
        (status,) = place.inputs.status()
        assert (status.kind, status.owner, status.received) == ("push", "app", 2)
        assert await place.inputs.remove(name) is bell

    play(scenario)


def test_a_medium_that_is_trusted_says_so_of_every_message():
    async def scenario(place):
        bell = Bell()
        await place.inputs.add_push(bell, trusted=lambda message: message.sender.name == "ana")
        await bell.intake.publish([HELLO])
        assert place.arrived[0][2] is True

    play(scenario)


def test_without_a_name_every_input_gets_its_own():
    async def scenario(place):
        names = [await place.inputs.add_push(Bell()) for _ in range(3)]
        assert len(set(names)) == 3

    play(scenario)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (OSError("port taken"), Unavailable, "input.cannot_start"),
        (InvalidInput("no such topic", code="mqtt.bad_topic"), InvalidInput, "mqtt.bad_topic"),
    ],
)
def test_what_cannot_start_is_not_added_and_leaves_nothing_running(error, kind, code):
    async def scenario(place):
        ended = asyncio.Event()

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        with pytest.raises(kind) as caught:
            await place.inputs.add_push(Bell(fails=error, task=work), name="door")
        assert caught.value.code == code
        assert place.inputs.status() == []
        await place.inputs.add_push(Bell(), name="door")

    play(scenario)


def test_scheduled_work_that_fails_is_started_again_later_each_time():
    async def scenario(place):
        tries = []

        async def work():
            tries.append(place.clock.now_ms())
            raise OSError("gone")

        await place.inputs.add_push(Bell(task=work))
        await place.clock.advance(1_000)
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert pauses == [100, 200, 400]

    play(scenario)


def test_tasks_are_cancelled_before_it_is_stopped_and_then_nothing_can_be_published():
    async def scenario(place):
        bell = Bell()

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                bell.happened.append("task ended")

        bell.task = work
        name = await place.inputs.add_push(bell)
        await asyncio.sleep(0)
        assert await place.inputs.remove(name) is bell
        assert await place.inputs.remove(name) is None
        assert bell.happened == ["started", "task ended", "stopped"]
        with pytest.raises(Conflict) as caught:
            await bell.intake.publish([HELLO])
        assert caught.value.code == "input.removed"
        assert place.arrived == []

    play(scenario)


def test_an_adapter_whose_stop_raises_is_gone_all_the_same():
    class Stuck(Bell):
        async def stop(self):
            raise OSError("stuck")

    async def scenario(place):
        stuck = Stuck()
        name = await place.inputs.add_push(stuck)
        assert await place.inputs.remove(name) is stuck
        assert place.inputs.status() == []

    play(scenario)


def test_its_durable_state_is_its_own_and_is_there_again():
    async def scenario(place):
        one, two = Bell(), Bell()
        await place.inputs.add_push(one, name="one")
        await place.inputs.add_push(two, name="two")
        await one.intake.state.put("seen", b"7")
        await one.intake.state.put_many({"a/1": b"x", "a/2": b"y"}, forget=["nothing"])
        assert await two.intake.state.get("seen") is None
        await place.inputs.remove("one")
        again = Bell()
        await place.inputs.add_push(again, name="one")
        assert await again.intake.state.get("seen") == b"7"
        assert await again.intake.state.keys(prefix="a/") == [("a/1", b"x"), ("a/2", b"y")]
        assert await again.intake.state.keys(prefix="a/", after="a/1") == [("a/2", b"y")]
        await again.intake.state.forget("a/1", "a/2")
        assert await again.intake.state.keys(prefix="a/") == []

    play(scenario)


def test_dead_letters_of_an_input_go_through_it_again_once():
    async def scenario(place):
        bury = dead_letter_inputs("door", place.channels, place.clock)
        other = msgspec.structs.replace(HELLO, id="h2", session_token="secret")
        for message in (HELLO, other):
            await bury(refused_input(message, "message.bad_content: /x is missing"))
        await bury(RejectedInput(id="u1", code="mail.unreadable", reason="no mail", text="..."))
        await place.inputs.add_push(Bell(), name="door", trusted=lambda _message: True)
        office = DeadLetterAdmin(place.channels, place.clock)
        letters = await office.letters(LetterFilter(reader="input.door"))
        assert [letter.state for letter in letters] == ["open"] * 3
        shown = str([await office.show(letter.id) for letter in letters])
        assert "secret" not in shown
        with pytest.raises(Unsupported):
            await office.replay(LetterFilter(ids=(letters[0].id,)), republish=True)

        async def states():
            return [
                one.state
                for one in await office.letters(LetterFilter(reader="input.door", state=""))
            ]

        await until_taken(place, office, LetterFilter(reader="input.door"))
        assert place.arrived == [("door", "h1", True), ("door", "h2", True)]
        assert await states() == ["replayed", "replayed", "open"]
        with pytest.raises(Conflict):
            await office.replay(LetterFilter(ids=(letters[0].id,)))
        place.refuses = True
        await bury(refused_input(msgspec.structs.replace(HELLO, id="h3"), "again"))
        await until_taken(place, office, LetterFilter(reader="input.door"))
        assert (await states())[3:] == ["open"], "it was refused once more"
        await place.inputs.close()

    play(scenario)


def test_what_is_sent_back_while_its_input_is_away_waits_for_it():
    async def scenario(place):
        bury = dead_letter_inputs("door", place.channels, place.clock)
        await bury(refused_input(HELLO, "message.too_fast"))
        await place.inputs.add_push(Bell(), name="door")
        await SystemClock().sleep(20)  # it has said that it takes letters back
        await place.inputs.remove("door")
        office = DeadLetterAdmin(place.channels, place.clock)
        (letter,) = await office.replay(LetterFilter(reader="input.door"))
        assert (await office.show(letter.id)).state == "waiting"
        await place.inputs.add_push(Bell(), name="door")
        while not place.arrived:
            await SystemClock().sleep(1)
        await place.inputs.close()
        assert place.arrived == [("door", "h1", False)]

    play(scenario)


async def until_taken(place, office, wanted):
    """Sends letters back and waits until each has been tried."""
    while True:
        try:
            asked = await office.replay(wanted)
            break
        except Unsupported:  # the input has not said yet that it takes letters back
            await SystemClock().sleep(1)
    while "waiting" in [(await office.show(letter.id)).state for letter in asked]:
        await SystemClock().sleep(1)
