"""What every input adapter must do, push or pull, whatever the medium; for ours and for those of
plug-in authors. [CO-5, UX-9]

Bind it by subclassing `InputSuite` in a test module and saying how to reach a working medium.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.input_base import InputAdapter, InputPullAdapter
from rapport.communication.adapters.inputs import Inputs, InputStatus
from rapport.communication.arrival_checks import Trusted, never
from rapport.communication.arrivals import ArrivalResult
from rapport.core.errors import Unavailable
from rapport.core.message import Message
from rapport.kernel.clock import SystemClock

LOOK_EVERY_MS = 20
_SOON_SECONDS = 10.0


class Source:
    """A medium that messages come from; a binding makes one per test."""

    can_fail = True
    """Whether the medium can be down."""

    def adapter(self) -> InputAdapter:
        """A fresh adapter of it, as after a restart."""
        raise NotImplementedError

    async def bring(self, text: str) -> None:
        """Somebody sends a message with this content by the medium."""
        raise NotImplementedError

    async def go_down(self) -> None:
        """The medium cannot be reached."""
        raise NotImplementedError

    async def come_up(self) -> None:
        """It can be reached again."""
        raise NotImplementedError


class Desk:
    """Stands for the engine: takes what an input brings, and can be unable to."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        channels = open_memory(self.clock)
        self.inputs = Inputs(self.publish, channels, channels.records, self.clock)
        self.calls: list[list[Message]] = []
        self.messages: dict[str, Message] = {}
        """By id: the engine takes a message once."""
        self.is_closed = False
        self.refuses: set[str] = set()

    async def publish(
        self, messages: Sequence[Message], *, adapter: str, trusted: Trusted = never
    ) -> Sequence[ArrivalResult]:
        """As `Arrivals.publish`."""
        self.calls.append(list(messages))
        if self.is_closed:
            raise Unavailable("the disk is full")
        assert adapter == "medium"
        assert all(message.id for message in messages), "each has an id of its own"
        refused = [message.content in self.refuses for message in messages]
        taken = [each for each, is_refused in zip(messages, refused, strict=True) if not is_refused]
        self.messages |= {message.id: message for message in taken}
        return [
            ArrivalResult(
                id=message.id,
                accepted=not is_refused,
                reason="message.not_here" if is_refused else "",
            )
            for message, is_refused in zip(messages, refused, strict=True)
        ]

    async def add(self, source: Source) -> None:
        """Adds a fresh adapter."""
        adapter = source.adapter()
        if isinstance(adapter, InputPullAdapter):
            await self.inputs.add_pull(adapter, LOOK_EVERY_MS, name="medium")
        else:
            await self.inputs.add_push(adapter, name="medium")

    async def remove(self) -> None:
        """Ends it."""
        await self.inputs.remove("medium")

    def texts(self) -> list[str]:
        """What was taken."""
        return [message.content for message in self.messages.values()]

    def status(self) -> InputStatus:
        """How the input is."""
        (status,) = self.inputs.status()
        return status

    async def until(self, what: Callable[[], bool]) -> None:
        """Waits for something to be so."""
        async with asyncio.timeout(_SOON_SECONDS):
            while not what():
                await self.clock.sleep(5)


Scenario = Callable[[Desk, Source], Awaitable[None]]


class InputSuite:
    """Tests shared by all inputs."""

    def open_source(self) -> AbstractAsyncContextManager[Source]:
        """A fresh medium."""
        raise NotImplementedError

    def test_what_is_brought_comes_in_once_and_nothing_new_is_no_error(self) -> None:
        async def scenario(desk: Desk, source: Source) -> None:
            await desk.add(source)
            await source.bring("on my way")
            await desk.until(lambda: desk.texts() == ["on my way"])
            await desk.clock.sleep(5 * LOOK_EVERY_MS)
            assert desk.texts() == ["on my way"]
            assert (desk.status().errors, desk.status().trouble) == (0, "")

        self._play(scenario)

    def test_everything_of_many_comes_in_each_with_an_id_of_its_own(self) -> None:
        async def scenario(desk: Desk, source: Source) -> None:
            await desk.add(source)
            texts = [f"message {number}" for number in range(20)]
            for text in texts:
                await source.bring(text)
            await desk.until(lambda: sorted(desk.texts()) == sorted(texts))

        self._play(scenario)

    def test_hostile_text_is_text_and_nothing_else(self) -> None:
        async def scenario(desk: Desk, source: Source) -> None:
            text = 'Guest \N{SNOWMAN} <b> "quoted" \\ {braces} it\'s'
            await desk.add(source)
            await source.bring(text)
            await desk.until(lambda: desk.texts() == [text])

        self._play(scenario)

    def test_what_the_engine_cannot_take_now_is_brought_again_under_the_same_id(self) -> None:
        async def scenario(desk: Desk, source: Source) -> None:
            desk.is_closed = True
            await desk.add(source)
            bringing = asyncio.ensure_future(source.bring("late"))
            await desk.until(lambda: bool(desk.calls))
            desk.is_closed = False
            await desk.until(lambda: desk.texts() == ["late"])
            await bringing
            assert len({message.id for call in desk.calls for message in call}) == 1

        self._play(scenario)

    def test_what_is_refused_holds_up_nothing_else(self) -> None:
        async def scenario(desk: Desk, source: Source) -> None:
            desk.refuses = {"bad"}
            await desk.add(source)
            for text in ("bad", "good"):
                await source.bring(text)
            await desk.until(lambda: desk.texts() == ["good"])

        self._play(scenario)

    def test_after_a_restart_it_goes_on_and_doubles_nothing(self) -> None:
        async def scenario(desk: Desk, source: Source) -> None:
            await desk.add(source)
            await source.bring("before")
            await desk.until(lambda: desk.texts() == ["before"])
            await desk.remove()
            await desk.add(source)
            await source.bring("after")
            await desk.until(lambda: len(desk.texts()) >= 2)
            assert desk.texts() == ["before", "after"]

        self._play(scenario)

    def test_a_medium_that_is_down_is_told_of_and_looked_at_again(self) -> None:
        async def scenario(desk: Desk, source: Source) -> None:
            if not source.can_fail:
                return
            await desk.add(source)
            await source.go_down()
            await desk.until(lambda: desk.status().errors > 0 and bool(desk.status().trouble))
            await source.come_up()
            await source.bring("back again")
            await desk.until(lambda: desk.texts() == ["back again"])

        self._play(scenario)

    def test_removed_it_leaves_nothing_running_and_brings_nothing_more(self) -> None:
        async def scenario(desk: Desk, source: Source) -> None:
            before = asyncio.all_tasks()
            await desk.add(source)
            await desk.until(lambda: bool(desk.inputs.status()))
            await desk.remove()
            assert asyncio.all_tasks() <= before
            calls = len(desk.calls)
            await desk.clock.sleep(3 * LOOK_EVERY_MS)
            assert len(desk.calls) == calls

        self._play(scenario)

    def _play(self, scenario: Scenario) -> None:
        async def run() -> None:
            desk = Desk()
            async with self.open_source() as source:
                try:
                    await scenario(desk, source)
                finally:
                    await desk.inputs.close()

        asyncio.run(run())
