"""Adapters that want to end the process, or do not want to end: the node stays up, and closes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters import isolation
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.isolation import IsolatedCall, end_isolated
from rapport.core.errors import Unavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock

HELLO = Message(type="TEXT", subtype="NEW", sender=Identifier("peer", "ana"), id="h1")


class Fatal(BaseException):
    """An error of a library that is no Exception."""


QUITS = [SystemExit(3), KeyboardInterrupt(), Fatal("over")]


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "PATIENCE_SECONDS", 0.3)


class Place:
    def __init__(self) -> None:
        self.clock = ManualClock(1_000)
        self.channels = open_memory(self.clock)
        self.arrived: list[str] = []
        self.inputs = Inputs(self.publish, self.channels, self.channels.records, self.clock)

    async def publish(self, messages: Any, *, adapter: str, trusted: Any) -> list[Any]:
        self.arrived += [one.id for one in messages]
        return [SimpleNamespace(id=one.id, accepted=True, reason="") for one in messages]

    async def until(self, condition: Any) -> None:
        for _ in iter(condition, True):
            await asyncio.sleep(0)


def play(scenario: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await scenario(Place())

    asyncio.run(run())


class Pulled:
    """A pull adapter that does as told, one thing after the other."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)

    async def pull(self) -> list[Message]:
        step = self.steps.pop(0) if self.steps else []
        if isinstance(step, BaseException):
            raise step
        return await step() if callable(step) else step

    async def close(self) -> None:
        raise SystemExit(4)


class Pushed:
    """A push adapter with one scheduled work."""

    def __init__(self, work: Any, *, starts: Any = None) -> None:
        self.work, self.starts, self.has_stopped = work, starts, False

    async def start(self, intake: Any) -> None:
        self.intake = intake
        intake.schedule(self.work)
        if self.starts is not None:
            raise self.starts

    async def stop(self) -> None:
        self.has_stopped = True


async def swallows() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def swallows_everything() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            continue


# --- it cannot end the process ---


@pytest.mark.parametrize("quit", QUITS, ids=repr)
def test_a_pull_that_wants_to_end_the_process_has_failed_and_is_tried_again(quit: Any) -> None:
    async def scenario(place: Place) -> None:
        await place.inputs.add_pull(Pulled(quit, [HELLO]), 60_000, name="box")
        await place.until(lambda: place.inputs.status()[0].errors == 1)
        (status,) = place.inputs.status()
        assert "wanted to end the process" in status.trouble
        assert type(quit).__name__ in status.trouble
        await place.clock.advance(60_000)
        await place.until(lambda: bool(place.arrived))
        assert place.inputs.status()[0].trouble == ""
        await place.inputs.close()

    play(scenario)


@pytest.mark.parametrize("quit", [*QUITS, asyncio.CancelledError()], ids=repr)
def test_scheduled_work_that_wants_to_end_the_process_is_marked_and_started_again(
    quit: BaseException,
) -> None:
    async def scenario(place: Place) -> None:
        began = []

        async def work() -> None:
            began.append(place.clock.now_ms())
            if len(began) == 1:
                raise quit
            await pushed.intake.publish([HELLO])

        pushed = Pushed(work)
        await place.inputs.add_push(pushed, name="bell")
        await place.until(lambda: place.inputs.status()[0].errors == 1)
        assert "the adapter" in place.inputs.status()[0].trouble
        await place.clock.advance(100)
        await place.until(lambda: bool(place.arrived))
        assert place.inputs.status()[0].trouble == ""
        await place.inputs.close()

    play(scenario)


@pytest.mark.parametrize("quit", QUITS, ids=repr)
def test_an_adapter_that_wants_to_end_the_process_when_started_is_not_added(quit: Any) -> None:
    async def scenario(place: Place) -> None:
        with pytest.raises(Unavailable, match="wanted to end the process"):
            await place.inputs.add_push(Pushed(swallows, starts=quit), name="bell")
        assert place.inputs.status() == []

    play(scenario)


# --- it cannot refuse to end ---


# Python says of a coroutine that catches everything that it cannot be collected; so it should.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [swallows, swallows_everything])
def test_closing_cuts_off_work_that_swallows_its_cancellation(work: Any) -> None:
    async def scenario(place: Place) -> None:
        pushed = Pushed(work)
        await place.inputs.add_push(pushed, name="bell")
        await place.inputs.add_pull(Pulled(work), 60_000, name="box")
        await place.until(lambda: place.inputs.status()[1].pulls == 1)
        await place.inputs.close()
        assert pushed.has_stopped
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, "nothing of it runs any more"

    play(scenario)


def test_work_that_fails_instead_of_being_cancelled_is_not_started_again_while_closing() -> None:
    async def scenario(place: Place) -> None:
        began = []

        async def work() -> None:
            began.append(1)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("not now") from None

        await place.inputs.add_push(Pushed(work), name="bell")
        await place.until(lambda: bool(began))
        await place.inputs.close()
        assert began == [1]

    play(scenario)


def test_a_pull_that_hangs_and_swallows_is_cut_off_and_the_next_one_comes() -> None:
    async def scenario(place: Place) -> None:
        adapter = Pulled(swallows, [HELLO])
        await place.inputs.add_pull(adapter, 60_000, name="box", within_ms=1_000)
        await place.until(lambda: place.inputs.status()[0].pulls == 1)
        await place.clock.advance(1_000)
        await place.until(lambda: place.inputs.status()[0].errors == 1)
        await place.clock.advance(60_000)
        await place.until(lambda: bool(place.arrived))
        await place.inputs.close()

    play(scenario)


# --- what is not cut is as it was ---


def test_contained_work_can_use_timeouts_and_clean_up_after_a_cancellation() -> None:
    async def scenario(_place: Place) -> None:
        happened = []

        async def work() -> str:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                happened.append("timed out")
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                happened.append("cleaned up")
            return ""

        held = IsolatedCall(work)
        running = asyncio.ensure_future(held)
        await asyncio.wait({running}, timeout=0.1)
        await end_isolated(running, held)
        assert happened == ["timed out", "cleaned up"]
        assert running.cancelled()
        assert await IsolatedCall(lambda: asyncio.sleep(0, "given")) == "given"

    play(scenario)
