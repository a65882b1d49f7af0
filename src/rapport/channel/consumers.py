"""Handler loops on a channel: read, handle, commit; retries and dead letters. [CH-9, CH-14]

`serve` feeds a batch handler at least once. `serve_with` feeds an event handler under a guarantee:

best-effort    mostly handled: in memory, skips when too far behind
at-most-once   never twice, perhaps not at all: the cursor is committed before
at-least-once  always, perhaps twice: the cursor is committed after
exactly-once   one effect: the handler's result is committed with the cursor, or appended under an
               id that follows from its cause
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, get_args

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letters import (
    DEAD_LETTERS,
    FAILED_AGAIN,
    REPLAYED,
    TAKERS,
    KeepsRecords,
    Replay,
    append_dead_letter,
    event_of,
    letter_note,
    next_replays,
    note,
    open_again,
    settled,
    taker_key,
)
from rapport.channel.interceptors.reader_view import delivered_events
from rapport.core.errors import ChannelUnavailable, StoreUnavailable, UnknownName
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Change, Put

_log = get_logger(__name__)

ATTEMPTS = 3
"""Failures of a handler on one event before it is dead-lettered."""

HandleBatch = Callable[[Sequence[StoredEvent]], Awaitable[bytes | None]]
"""Handles events and returns the reader's new state, or None to keep it. It may be called again
with the same events (after a failure or a crash): events it emits need deterministic ids.
"""
Guarantee = Literal["best-effort", "at-most-once", "at-least-once", "exactly-once"]
GUARANTEES: tuple[str, ...] = get_args(Guarantee)
MOST_BEHIND = 10_000
"""Events a best-effort reader may lag before it leaves them out."""


async def serve(
    channels: Channels,
    channel: str,
    reader: str,
    handle: HandleBatch,
    clock: Clock,
    *,
    limit: int = 1000,
) -> None:
    """Feeds a handler from a channel until cancelled; cursor and state are committed after each
    success.

    A failing batch is halved down to the failing event; after three failures of its own that event
    goes to `dead_letters` and the next ones follow. Only an unavailable log or store stops the
    loop: it then waits and retries, since a dead letter could not be written either.
    """
    subscription = await channels.subscribe(channel, reader)
    await RetryingConsumer(channels, subscription, handle, clock).run(limit)


async def _wait_out(
    error: StoreUnavailable | ChannelUnavailable, reader: str, clock: Clock
) -> None:
    if error.code == "channel.closed":
        raise error
    _log.warning("reader waits", reader=reader, error=error.message)
    await clock.sleep(error.retry_after_seconds * 1000)


class RetryingConsumer:
    """Runs one handler: retries, halving, dead-lettering and replays of dead letters."""

    def __init__(
        self, channels: Channels, subscription: Subscription, handle: HandleBatch, clock: Clock
    ) -> None:
        self._channels, self._subscription = channels, subscription
        self._handle, self._clock = handle, clock
        self._one_at_a_time = asyncio.Lock()

    async def run(self, limit: int) -> None:
        """Handles new events and replayed dead letters, one after the other."""
        work = [self._follow(limit)]
        if isinstance(self._channels, KeepsRecords):
            work.append(ReplayConsumer(self, self._channels, self._subscription, self._clock).run())
        await first_of(*work)

    async def _follow(self, limit: int) -> None:
        while True:
            try:
                batch = await self._subscription.next_batch(limit=limit)
            except (StoreUnavailable, ChannelUnavailable) as error:
                await self.wait_out(error)
                continue
            async with self._one_at_a_time:
                await self.handle(batch)

    async def handle_again(self, stored: StoredEvent, changes: Sequence[Change]) -> str:
        """Handles an event out of order and commits the result together with `changes`; returns the
        error's text after three failures.
        """
        async with self._one_at_a_time:
            error: Exception | None = None
            for _attempt in range(ATTEMPTS):
                error = await self._try((stored,), changes=changes)
                if error is None:
                    return ""
        return f"{type(error).__name__}: {error}"

    async def handle(self, batch: Sequence[StoredEvent]) -> None:
        """Returns when each event is handled or dead-lettered and the cursor committed."""
        error = await self._try(batch)
        if error is None:
            return
        if len(batch) > 1:
            middle = len(batch) // 2
            await self.handle(batch[:middle])
            await self.handle(batch[middle:])
            return
        for _again in range(ATTEMPTS - 1):
            error = await self._try(batch)
            if error is None:
                return
        await self._dead_letter(batch[0], error)

    async def _try(
        self, batch: Sequence[StoredEvent], *, changes: Sequence[Change] = ()
    ) -> Exception | None:
        """One call and its commit; the handler's error as a value. Waits out an unavailable log.

        With `changes` the event is out of its turn: the cursor stays where it is.
        """
        while True:
            try:
                state = await self._handle(batch)
                await self._commit(batch[-1].position, state, changes)
                return None
            except (StoreUnavailable, ChannelUnavailable) as error:
                await self.wait_out(error)
            except Exception as error:
                _log.warning("handler failed", **self._place(batch), error=repr(error))
                return error

    async def _commit(self, position: int, state: bytes | None, changes: Sequence[Change]) -> None:
        place = self._subscription.position if changes else position
        await self._subscription.commit(place, state, changes=changes)

    async def _dead_letter(self, stored: StoredEvent, error: Exception) -> None:
        """Dead-letters an event. A dead letter whose own handler fails is only skipped: another
        dead letter would never end.
        """
        subscription = self._subscription
        while True:
            try:
                if subscription.channel == DEAD_LETTERS:
                    await subscription.commit(stored.position)
                    return
                letter = await append_dead_letter(
                    self._channels,
                    subscription.channel,
                    subscription.reader,
                    stored,
                    error,
                    ATTEMPTS,
                )
                # The reader may have been moved back: a settled letter is open again.
                await subscription.commit(stored.position, changes=(open_again(letter),))
                return
            except (StoreUnavailable, ChannelUnavailable) as refusal:
                await self.wait_out(refusal)

    async def wait_out(self, error: StoreUnavailable | ChannelUnavailable) -> None:
        """Pauses as long as the error demands; raises it when the channels are closed."""
        await _wait_out(error, self._subscription.reader, self._clock)

    def _place(self, batch: Sequence[StoredEvent]) -> dict[str, object]:
        return {
            "channel": self._subscription.channel,
            "reader": self._subscription.reader,
            "first": batch[0].position,
            "last": batch[-1].position,
        }


class ReplayConsumer:
    """Handles the replayed dead letters of one reader."""

    def __init__(
        self,
        consumer: RetryingConsumer,
        channels: Channels,
        subscription: Subscription,
        clock: Clock,
    ) -> None:
        assert isinstance(channels, KeepsRecords)
        self._consumer, self._channels, self._records = consumer, channels, channels
        self._subscription, self._clock = subscription, clock

    async def run(self) -> None:
        """Registers this reader for replays, then handles them until cancelled. Starts over after
        an outage of the log or the store: replays are queued in the records.
        """
        while True:
            try:
                await self._take_all()
            except (StoreUnavailable, ChannelUnavailable) as error:
                await self._consumer.wait_out(error)

    async def _take_all(self) -> None:
        channel, reader = self._subscription.channel, self._subscription.reader
        await self._records.apply((Put(TAKERS, taker_key(channel, reader), b"1"),))
        letters = self._channels.channel(DEAD_LETTERS)
        while True:
            seen = letters.last_position()  # before looking, so that later requests are seen
            while waiting := await self._records.look(
                lambda records: next_replays(records, channel, reader)
            ):
                for replay in waiting:
                    await self._take(replay)
            await letters.wait_after(seen)

    async def _take(self, replay: Replay) -> None:
        stored = await event_of(self._channels, replay)
        if stored is None:
            await self._record(replay, "the event is in no log any more")
            return
        error = await self._consumer.handle_again(stored, settled(replay, "replayed"))
        await self._record(replay, error)

    async def _record(self, replay: Replay, error: str) -> None:
        subject = f"{replay.channel}/{replay.reader}"
        now_ms, tried = self._clock.now_ms(), str(replay.asked_ms)
        kind = FAILED_AGAIN if error else REPLAYED
        outcome = letter_note(
            kind, replay.letter, subject, time_ms=now_ms, tried=tried, error=error[:2000]
        )
        while True:
            try:
                await note(self._channels, [outcome])
                if error:
                    await self._records.apply(settled(replay, ""))
                return
            except (StoreUnavailable, ChannelUnavailable) as refusal:
                await self._consumer.wait_out(refusal)


class Emit(msgspec.Struct, frozen=True, kw_only=True):
    """An event for a handler to append; its source, id, time and cause follow from the handled
    event, so that a repetition is deduplicated.
    """

    channel: str
    type: str
    data: Any = None
    subject: str = ""
    headers: dict[str, str] = {}


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of handling one event: the reader's new state (None = unchanged), and events."""

    state: bytes | None = None
    emits: tuple[Emit, ...] = ()


NOTHING = Effect()
Handler = Callable[[StoredEvent, bytes], Awaitable[Effect]]
"""Handles one event, given the reader's state. For exactly-once its whole effect must be what it
returns, and equal for the same event and state.
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
) -> None:
    """Feeds a handler from a channel under a guarantee until cancelled; see above.

    When the handler raises, best-effort and at-most-once skip the event, at-least-once and
    exactly-once try it three times, then dead-letter it. At-most-once loses up to `limit` events in
    a crash. Raises UnknownName for an unknown guarantee.
    """
    if guarantee not in GUARANTEES:
        raise UnknownName("guarantee", guarantee, GUARANTEES)
    if guarantee == "best-effort":
        await _BestEffortConsumer(channels, channel, reader, handle, clock).run(0, limit)
        return
    subscription = await channels.subscribe(channel, reader)
    if guarantee == "at-most-once":
        await _AtMostOnceConsumer(channels, subscription, handle, clock).run(limit)
        return
    work = _CommittedHandler(channels, subscription, handle)
    await RetryingConsumer(channels, subscription, work.handle, clock).run(limit)


def emitted(channel: str, reader: str, cause: StoredEvent, emits: Sequence[Emit]) -> list[Event]:
    """The events that a handler emits for a cause; deterministic."""
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
    by_channel: dict[str, list[Event]] = {}
    for stored, effect in effects:
        events = emitted(channel, reader, stored, effect.emits)
        for emit, event in zip(effect.emits, events, strict=True):
            by_channel.setdefault(emit.channel, []).append(event)
    for name, found in by_channel.items():
        await channels.channel(name).append(found)


class _CommittedHandler:
    """At least once and exactly once: all effects are durable before the cursor moves, and
    repetitions after a crash are deduplicated.
    """

    def __init__(self, channels: Channels, subscription: Subscription, handle: Handler) -> None:
        self._channels, self._subscription, self._handle = channels, subscription, handle

    async def handle(self, batch: Sequence[StoredEvent]) -> bytes:
        state = self._subscription.state
        effects: list[tuple[StoredEvent, Effect]] = []
        for stored in batch:
            effect = await self._handle(stored, state)
            state = state if effect.state is None else effect.state
            effects.append((stored, effect))
        subscription = self._subscription
        await _append(self._channels, subscription.channel, subscription.reader, effects)
        return state


class _LenientConsumer:
    """Handles events one by one; failures are logged and skipped."""

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


class _BestEffortConsumer(_LenientConsumer):
    """No cursor: a restart begins anew; a reader that is too slow misses events."""

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
                given = delivered_events(self._channels, self._channel, self._reader, read)
            except ChannelUnavailable as error:
                await _wait_out(error, self._reader, self._clock)
                continue
            position = read[-1].position if read else position
            for stored in given:
                await self.handle(stored)


class _AtMostOnceConsumer(_LenientConsumer):
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
                await _wait_out(error, self._reader, self._clock)
                continue
            while not await self._commit(batch[-1].position):
                continue
            for stored in batch:
                await self.handle(stored)

    async def _commit(self, position: int) -> bool:
        try:
            await self._subscription.commit(position, self.state)
        except ChannelUnavailable as error:
            await _wait_out(error, self._reader, self._clock)
            return False
        return True
