"""What each guarantee promises, with a reader that dies at every step. [CH-9]

A class that inherits the suite gives the fixture `channel_place`, as for the channel suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rapport.channel.channel import AppendResult, Channel, Channels, Subscription
from rapport.channel.consumers import GUARANTEES, Effect, Emit, serve_with
from rapport.core.errors import UnknownName
from rapport.core.event import Event, StoredEvent
from support.suites.channel import ChannelPlace, numbered, play

COUNT = 12
STEPS = (
    "before handling",
    "after handling",
    "before append",
    "after append",
    "before commit",
    "after commit",
)


class Crash(BaseException):
    """The process ends here: nobody catches this."""


class Fate:
    """Lets the reader die at the n-th time that it comes to a step."""

    def __init__(self, step: str, time: int) -> None:
        self._step, self._left = step, time

    def come_to(self, step: str) -> None:
        """A step of the reader."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                raise Crash


class MortalChannels:
    """Channels whose reader may die before and after each append and commit."""

    def __init__(self, channels: Channels, fate: Fate) -> None:
        self._channels, self._fate = channels, fate

    def channel(self, name: str) -> Channel:
        return _MortalChannel(self._channels.channel(name), self._fate)

    def names(self) -> list[str]:
        return self._channels.names()

    async def subscribe(self, channel: str, reader: str, *, from_start: bool = True) -> Any:
        subscription = await self._channels.subscribe(channel, reader, from_start=from_start)
        return _MortalSubscription(subscription, self._fate)

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        return await self._channels.find_event(event_id)

    async def close(self) -> None:
        await self._channels.close()


class _MortalChannel:
    def __init__(self, channel: Channel, fate: Fate) -> None:
        self._channel, self._fate = channel, fate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def append(self, events: Sequence[Event]) -> AppendResult:
        self._fate.come_to("before append")
        appended = await self._channel.append(events)
        self._fate.come_to("after append")
        return appended


class _MortalSubscription:
    def __init__(self, subscription: Subscription, fate: Fate) -> None:
        self._subscription, self._fate = subscription, fate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subscription, name)

    async def commit(self, position: int, state: bytes | None = None, **more: Any) -> None:
        self._fate.come_to("before commit")
        await self._subscription.commit(position, state, **more)
        self._fate.come_to("after commit")


class CountingHandler:
    """A handler: notes what it meets, adds up in its state, and emits one event for each."""

    def __init__(self) -> None:
        self.met: list[int] = []
        self.fate = Fate("never", 0)

    async def __call__(self, stored: StoredEvent, state: bytes) -> Effect:
        self.fate.come_to("before handling")
        self.met.append(stored.position)
        total = int(state or b"0") + stored.position
        self.fate.come_to("after handling")
        return Effect(
            state=str(total).encode(),
            emits=(Emit(channel="out", type="suite.met", data=stored.position),),
        )


async def live_until_death(
    channels: Channels, handler: CountingHandler, guarantee: str, step: str, time: int
) -> None:
    """Runs the reader until it dies or has had everything."""
    handler.fate = Fate(step, time)
    mortal = MortalChannels(channels, handler.fate)
    work = serve_with(guarantee, mortal, "c", "reader", handler, _clock_of(channels), limit=3)
    try:
        await _until_quiet(work, channels, handler)
    except Crash:
        return


async def _until_quiet(work: Any, channels: Channels, handler: CountingHandler) -> None:
    """The reader is stopped when it has met the last event and committed or given up."""
    task = asyncio.ensure_future(_as_result(work))
    turns = 0
    while not task.done() and turns < 50:
        await asyncio.wait({task}, timeout=0.002)
        turns = turns + 1 if COUNT in handler.met else 0
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return
    if task.result():
        raise Crash


async def _as_result(work: Any) -> bool:
    """A crash is carried as a value: the event loop itself must outlive it."""
    try:
        await work
    except Crash:
        return True
    return False


def _clock_of(channels: Any) -> Any:
    return channels.parts.clock


async def emitted_in(channels: Channels) -> list[int]:
    """What the reader emitted, in order."""
    return [item.event.payload() for item in await channels.channel("out").read_after(0)]


class GuaranteeSuite:
    """Needs the fixture `channel_place`."""

    @pytest.mark.parametrize("step", STEPS)
    def test_at_most_once_never_repeats_and_may_lose(
        self, channel_place: ChannelPlace, step: str
    ) -> None:
        async def scenario(channels: Channels) -> None:
            handler = CountingHandler()
            await _live_and_die(channels, handler, "at-most-once", step)
            assert len(handler.met) == len(set(handler.met))
            assert handler.met == sorted(handler.met)
            emitted = await emitted_in(channels)
            assert len(emitted) == len(set(emitted))

        play(channel_place, scenario)

    @pytest.mark.parametrize("step", STEPS)
    def test_at_least_once_never_loses_and_may_repeat(
        self, channel_place: ChannelPlace, step: str
    ) -> None:
        async def scenario(channels: Channels) -> None:
            handler = CountingHandler()
            await _live_and_die(channels, handler, "at-least-once", step)
            assert set(handler.met) == set(range(1, COUNT + 1))
            assert set(await emitted_in(channels)) == set(range(1, COUNT + 1))

        play(channel_place, scenario)

    @pytest.mark.parametrize("step", STEPS)
    def test_exactly_once_has_one_effect_whatever_happens(
        self, channel_place: ChannelPlace, step: str
    ) -> None:
        async def scenario(channels: Channels) -> None:
            await _live_and_die(channels, CountingHandler(), "exactly-once", step)
            assert await emitted_in(channels) == list(range(1, COUNT + 1))
            subscription = await channels.subscribe("c", "reader")
            assert subscription.position == COUNT
            assert int(subscription.state) == COUNT * (COUNT + 1) // 2

        play(channel_place, scenario)

    def test_best_effort_keeps_no_place_and_leaves_behind_what_fails(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            met: list[int] = []

            async def handle(stored: StoredEvent, state: bytes) -> Effect:
                met.append(stored.position)
                if stored.position == 5:
                    raise ValueError("no")
                return Effect()

            await channels.channel("c").append(numbered(1, COUNT))
            for _life in range(2):
                work = serve_with(
                    "best-effort", channels, "c", "reader", handle, _clock_of(channels)
                )
                task = asyncio.ensure_future(work)
                while COUNT not in met[-1:]:
                    await asyncio.wait({task}, timeout=0.002)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert met == list(range(1, COUNT + 1))
                met.clear()
            assert channels.channel("dead_letters").last_position() == 0

        play(channel_place, scenario)

    def test_a_guarantee_there_is_not_is_refused_with_the_names_there_are(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            with pytest.raises(UnknownName, match="guarantee") as refused:
                await serve_with(
                    "at-leest-once", channels, "c", "r", CountingHandler(), _clock_of(channels)
                )
            assert refused.value.nearest[0] in GUARANTEES

        play(channel_place, scenario)


async def _live_and_die(
    channels: Channels, handler: CountingHandler, guarantee: str, step: str
) -> None:
    """A reader that dies at the first, second and third time of a step, then lives on."""
    await channels.channel("c").append(numbered(1, COUNT))
    for time in (1, 2, 3):
        await live_until_death(channels, handler, guarantee, step, time)
    await live_until_death(channels, handler, guarantee, "never", 0)
