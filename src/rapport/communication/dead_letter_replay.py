"""Dead letters of one reader that an operator replays once the fault is repaired.
[CH-14, CO-10]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from rapport.channel.channel import Channels
from rapport.channel.dead_letters import (
    DEAD_LETTERS,
    FAILED_AGAIN,
    REPLAYED,
    TAKERS,
    Replay,
    event_of,
    letter_note,
    next_replays,
    settled,
    taker_key,
)
from rapport.core.event import Event, StoredEvent
from rapport.kernel.tasks import run_blocking
from rapport.store.base import Put, RecordStore

_LONGEST_ERROR = 2_000


@runtime_checkable
class PartialChannels(Protocol):
    """Channels of which several readers of one name each see a part."""

    whole: Channels

    async def is_ours(self, channel: str, stored: StoredEvent | None) -> bool:
        """Whether an event, also a deleted one, belongs to this part."""


class DeadLetterReplays:
    """The replays of one reader. Looking costs nothing while nothing was appended to `dead_letters`
    since the last look.
    """

    def __init__(
        self, channels: Channels, records: RecordStore, reader: str, inputs: Sequence[str]
    ) -> None:
        self._channels, self._records = channels, records
        self._reader, self._inputs = reader, inputs
        self._looked_until = -1

    async def open(self) -> None:
        """Registers this reader for replays; durable when it returns."""
        takes = [Put(TAKERS, taker_key(name, self._reader), b"1") for name in self._inputs]
        await run_blocking(partial(self._records.apply, takes))
        self._looked_until = -1

    async def waiting(self) -> list[tuple[Replay, StoredEvent | None]]:
        """Pending replays, each with its event; None when that is in no log any more."""
        last = self._channels.channel(DEAD_LETTERS).last_position()
        if last == self._looked_until:
            return []
        found = [await self._with_event(replay) for replay in await run_blocking(self._find)]
        ours = [(replay, stored) for replay, stored, is_ours in found if is_ours]
        if not ours:
            self._looked_until = last
        return ours

    async def _with_event(self, replay: Replay) -> tuple[Replay, StoredEvent | None, bool]:
        """A replay, its event, and whether it belongs to this part."""
        channels = self._channels
        if not isinstance(channels, PartialChannels):
            return replay, await event_of(channels, replay), True
        stored = await event_of(channels.whole, replay)
        return replay, stored, await channels.is_ours(replay.channel, stored)

    async def finish(self, replay: Replay, error: str, now_ms: int) -> None:
        """Notes that a letter was replayed; with an error it stays open."""
        note = replay_note(replay, error, now_ms)
        await self._channels.channel(DEAD_LETTERS).append([note])
        changes = settled(replay, "" if error else "replayed")
        await run_blocking(partial(self._records.apply, changes))

    async def wait(self) -> None:
        """Waits until something is appended after the last look."""
        await self._channels.channel(DEAD_LETTERS).wait_after(max(self._looked_until, 0))

    def _find(self) -> list[Replay]:
        return [
            replay
            for name in self._inputs
            for replay in next_replays(self._records, name, self._reader)
        ]


def replay_note(replay: Replay, error: str, now_ms: int) -> Event:
    """The note about a replayed letter; with an error it stays open."""
    return letter_note(
        FAILED_AGAIN if error else REPLAYED,
        replay.letter,
        f"{replay.channel}/{replay.reader}",
        time_ms=now_ms,
        tried=str(replay.asked_ms),
        error=error[:_LONGEST_ERROR],
    )
