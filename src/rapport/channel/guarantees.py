"""Guarantees by name: how often a handler meets an event when things break. [CH-9]

best-effort    mostly handled: in memory, skips when too far behind
at-most-once   never twice, perhaps not: the cursor is committed before
at-least-once  always, perhaps twice: the cursor is committed after
exactly-once   one effect: what a handler returns is committed with the cursor, or appended under an
               id that follows from its cause
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, get_args

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.delivering import as_given
from rapport.channel.reading import Care
from rapport.core.errors import ChannelUnavailable, UnknownName
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

Guarantee = Literal["best-effort", "at-most-once", "at-least-once", "exactly-once"]
GUARANTEES: tuple[str, ...] = get_args(Guarantee)
MOST_BEHIND = 10_000
"""Events a best-effort reader may lag before it leaves them out."""


class Emit(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a handler wants appended; its source, id, time and cause follow from the event
    handled, so that emitting it twice is emitting it once.
    """

    channel: str
    type: str
    data: Any = None
    subject: str = ""
    headers: dict[str, str] = {}


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What handling one event comes to: the reader's new state (None = as before), and events."""

    state: bytes | None = None
    emits: tuple[Emit, ...] = ()


NOTHING = Effect()
Handler = Callable[[StoredEvent, bytes], Awaitable[Effect]]
"""Handles one event, given the reader's state. For exactly-once it must say everything it does by
what it returns, and return the same for the same event and state.
"""


async def serve_with(
    guarantee: str,
    channels: Channels,
    channel: str,
    reader: str,
    handle: Handler,
    clock: Clock,
    *,
    limit: int = 1000,
    from_start: bool = True,
) -> None:
    """Feeds a handler from a channel under a guarantee until cancelled; see above.

    A handler that raises: best-effort and at-most-once leave the event behind, at-least-once and
    exactly-once try it three times, then bury it. At-most-once loses up to `limit` events in a
    crash. Raises UnknownName for a guarantee there is not.
    """
    if guarantee not in GUARANTEES:
        raise UnknownName("guarantee", guarantee, GUARANTEES)
    if guarantee == "best-effort":
        position = 0 if from_start else channels.channel(channel).last_position()
        await _BestEffort(channels, channel, reader, handle, clock).run(position, limit)
        return
    subscription = await channels.subscribe(channel, reader, from_start=from_start)
    if guarantee == "at-most-once":
        await _AtMostOnce(channels, subscription, handle, clock).run(limit)
        return
    work = _Committed(channels, subscription, handle)
    await Care(channels, subscription, work.handle, clock).run(limit)


def emitted(channel: str, reader: str, cause: StoredEvent, emits: Sequence[Emit]) -> list[Event]:
    """The events that a handler emits because of another; the same again when asked again."""
    return [
        make_event(
            source=f"reader:{reader}",
            id=content_id("emit", channel, reader, str(cause.position), str(number)),
            type=emit.type,
            subject=emit.subject,
            time=cause.event.time,
            data=emit.data,
            headers={**emit.headers, CAUSE: cause_text(cause.event.id)},
        )
        for number, emit in enumerate(emits)
    ]


async def _append(
    channels: Channels, channel: str, reader: str, effects: Sequence[tuple[StoredEvent, Effect]]
) -> None:
    """Appends what handlers emitted, one append per channel."""
    by_channel: dict[str, list[Event]] = {}
    for stored, effect in effects:
        events = emitted(channel, reader, stored, effect.emits)
        for emit, event in zip(effect.emits, events, strict=True):
            by_channel.setdefault(emit.channel, []).append(event)
    for name, found in by_channel.items():
        await channels.channel(name).append(found)


class _Committed:
    """At least once and exactly once: everything that follows is durable before the cursor moves,
    and what was done before a crash is recognised when it is done again.
    """

    def __init__(self, channels: Channels, subscription: Subscription, handle: Handler) -> None:
        self._channels, self._subscription, self._handle = channels, subscription, handle

    async def handle(self, batch: Sequence[StoredEvent]) -> bytes:
        """See HandleBatch."""
        state = self._subscription.state
        effects: list[tuple[StoredEvent, Effect]] = []
        for stored in batch:
            effect = await self._handle(stored, state)
            state = state if effect.state is None else effect.state
            effects.append((stored, effect))
        subscription = self._subscription
        await _append(self._channels, subscription.channel, subscription.reader, effects)
        return state


class _Loosely:
    """Handles events one by one; what fails is told and left behind."""

    def __init__(
        self, channels: Channels, channel: str, reader: str, handle: Handler, clock: Clock
    ) -> None:
        self._channels, self._channel, self._reader = channels, channel, reader
        self._handle, self._clock = handle, clock
        self.state = b""

    async def handle(self, stored: StoredEvent) -> None:
        """Never raises for the handler's fault; raises when the channels are closed."""
        try:
            effect = await self._handle(stored, self.state)
            await _append(self._channels, self._channel, self._reader, [(stored, effect)])
        except Exception as error:
            if isinstance(error, ChannelUnavailable) and error.code == "channel.closed":
                raise
            place = {"channel": self._channel, "position": stored.position}
            _log.warning("event left behind", reader=self._reader, error=repr(error), **place)
            return
        if effect.state is not None:
            self.state = effect.state

    async def _wait_out(self, error: ChannelUnavailable) -> None:
        """Pauses as long as the error asks; raises it when the channels are closed."""
        if error.code == "channel.closed":
            raise error
        _log.warning("reader waits", reader=self._reader, error=error.message)
        await self._clock.sleep(error.retry_after_seconds * 1000)


class _BestEffort(_Loosely):
    """No cursor: a new start begins anew; whoever is too slow misses some."""

    async def run(self, position: int, limit: int) -> None:
        """Follows the channel until cancelled."""
        source = self._channels.channel(self._channel)
        while True:
            await source.wait_after(position)
            behind = source.last_position() - position
            if behind > MOST_BEHIND:
                position = source.last_position() - min(limit, MOST_BEHIND)
                _log.warning("reader skips", reader=self._reader, channel=self._channel, of=behind)
            try:
                read = await source.read_after(position, limit=limit)
                given = as_given(self._channels, self._channel, self._reader, read)
            except ChannelUnavailable as error:
                await self._wait_out(error)
                continue
            position = read[-1].position if read else position
            for stored in given:
                await self.handle(stored)


class _AtMostOnce(_Loosely):
    """The cursor is durable before the first event of a batch is handled."""

    def __init__(
        self, channels: Channels, subscription: Subscription, handle: Handler, clock: Clock
    ) -> None:
        super().__init__(channels, subscription.channel, subscription.reader, handle, clock)
        self._subscription = subscription
        self.state = subscription.state

    async def run(self, limit: int) -> None:
        """Follows the channel until cancelled; the state is saved with the next commit."""
        while True:
            try:
                batch = await self._subscription.next_batch(limit=limit)
            except ChannelUnavailable as error:
                await self._wait_out(error)
                continue
            while not await self._commit(batch[-1].position):
                continue
            for stored in batch:
                await self.handle(stored)

    async def _commit(self, position: int) -> bool:
        try:
            await self._subscription.commit(position, self.state)
        except ChannelUnavailable as error:
            await self._wait_out(error)
            return False
        return True
