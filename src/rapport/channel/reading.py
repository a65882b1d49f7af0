"""The loop around a handler: read, hand over, commit; set aside what breaks it. [CH-9, CH-14]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letters import DEAD_LETTERS, bury
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

ATTEMPTS = 3
"""Failures of a handler on one event before it becomes a dead letter."""

HandleBatch = Callable[[Sequence[StoredEvent]], Awaitable[bytes | None]]
"""Handles events and returns the reader's new state, or None to leave it. It may be called again
with events it has seen (after a failure or a crash): what it emits must have deterministic ids.
"""


async def serve(
    channels: Channels,
    channel: str,
    reader: str,
    handle: HandleBatch,
    clock: Clock,
    *,
    limit: int = 1000,
    from_start: bool = True,
) -> None:
    """Feeds a handler from a channel until it is cancelled; cursor and state are committed after
    each success.

    A batch that fails is halved until the failing event stands alone; after three failures of its
    own it goes to `dead_letters` and the ones behind it go on. Only an unavailable log or store
    stops the loop: it then waits and tries again, since a dead letter could not be written either.
    """
    subscription = await channels.subscribe(channel, reader, from_start=from_start)
    care = _Care(channels, subscription, handle, clock)
    while True:
        batch = await subscription.next_batch(limit=limit)
        await care.handle(batch)


class _Care:
    """One handler under care: retries, halving, burying."""

    def __init__(
        self, channels: Channels, subscription: Subscription, handle: HandleBatch, clock: Clock
    ) -> None:
        self._channels, self._subscription = channels, subscription
        self._handle, self._clock = handle, clock

    async def handle(self, batch: Sequence[StoredEvent]) -> None:
        """Returns when every event of the batch was handled or buried, and the cursor says so."""
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
        await self._bury(batch[0], error)

    async def _try(self, batch: Sequence[StoredEvent]) -> Exception | None:
        """One call and its commit; the handler's error as a value. Waits out an unavailable log."""
        while True:
            try:
                state = await self._handle(batch)
                await self._subscription.commit(batch[-1].position, state)
                return None
            except (StoreUnavailable, ChannelUnavailable) as error:
                await self._wait_out(error)
            except Exception as error:
                _log.warning("handler failed", **self._place(batch), error=repr(error))
                return error

    async def _bury(self, stored: StoredEvent, error: Exception) -> None:
        """A dead letter whose own handler fails stays where it is: burying it would never end."""
        subscription = self._subscription
        while True:
            try:
                if subscription.channel != DEAD_LETTERS:
                    await bury(
                        self._channels,
                        subscription.channel,
                        subscription.reader,
                        stored,
                        error,
                        ATTEMPTS,
                    )
                await subscription.commit(stored.position)
                return
            except (StoreUnavailable, ChannelUnavailable) as refusal:
                await self._wait_out(refusal)

    async def _wait_out(self, error: StoreUnavailable | ChannelUnavailable) -> None:
        if error.code == "channel.closed":
            raise error
        _log.warning("reader waits", reader=self._subscription.reader, error=error.message)
        await self._clock.sleep(error.retry_after_seconds * 1000)

    def _place(self, batch: Sequence[StoredEvent]) -> dict[str, object]:
        return {
            "channel": self._subscription.channel,
            "reader": self._subscription.reader,
            "first": batch[0].position,
            "last": batch[-1].position,
        }
