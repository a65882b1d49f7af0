"""One following interceptor on one channel: at a durable place, until told to finish. [CH-10]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rapport.channel.channel import Channels
from rapport.channel.intercept.chain import note_fault
from rapport.channel.intercept.interceptor import FollowingInterceptor, Standing
from rapport.channel.reading import Care
from rapport.channel.reserved import READER_PREFIX
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of

_BATCH = 500


def reader_of(name: str) -> str:
    """The reader's name of a following interceptor."""
    return f"{READER_PREFIX}{name}"


class Following:
    """Feeds an interceptor. What it cannot do after three tries becomes a dead letter, and the
    events behind it go on; a target that is away is waited for.
    """

    def __init__(
        self,
        channels: Channels,
        channel: str,
        standing: Standing,
        clock: Clock,
        tell_off: Callable[[Standing], None],
    ) -> None:
        self._channels, self._channel, self._clock = channels, channel, clock
        self._standing, self._tell_off = standing, tell_off
        self._finish = asyncio.Event()
        self._until: int | None = None

    def finish(self) -> None:
        """Makes `run` return once everything that is durable by now was followed."""
        if self._until is None:
            self._until = self._channels.channel(self._channel).last_position()
        self._finish.set()

    async def run(self) -> None:
        """Follows until told to finish, or until the interceptor is switched off."""
        name = self._standing.declared.name
        subscription = await self._channels.subscribe(self._channel, reader_of(name))
        care = Care(self._channels, subscription, self._handle, self._clock)
        source = self._channels.channel(self._channel)
        while not self._standing.is_off:
            if self._until is not None and subscription.position >= self._until:
                return
            if self._until is None:
                await first_of(source.wait_after(subscription.position), self._finish.wait())
            batch = await subscription.next_batch(limit=_BATCH, timeout_ms=0)
            until = self._until
            chosen = [one for one in batch if until is None or one.position <= until]
            if chosen:
                await self._care_for(care, chosen)
            elif until is not None:
                return

    async def _care_for(self, care: Care, chosen: Sequence[StoredEvent]) -> None:
        """Handles a batch; switched off in the midst of it, the rest waits at its place."""
        try:
            await care.handle(chosen)
        except ChannelUnavailable:
            if not self._standing.is_off:
                raise

    async def _handle(self, batch: Sequence[StoredEvent]) -> bytes | None:
        standing = self._standing
        assert isinstance(standing.interceptor, FollowingInterceptor)
        if standing.is_off:
            raise ChannelUnavailable("the interceptor is off", code="channel.closed")
        try:
            await standing.interceptor.follow(self._channel, batch)
        except (StoreUnavailable, ChannelUnavailable) as error:
            standing.last_error = error.message
            raise
        except Exception as error:
            if len(batch) == 1:  # a larger one is halved until the fault has a name
                note_fault(standing, error)
                if standing.is_off:
                    self._tell_off(standing)
            raise
        standing.seen += len(batch)
        standing.faults_in_a_row = 0
        return None
