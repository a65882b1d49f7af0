"""Which versions of its components a node may have given: kept in the records ahead of their use,
so that after a restart versions go on above them, wherever the clock is. [EN-10, EN-14]
"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import RapportError
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Put

AHEAD_MS = 60_000
"""So far ahead versions are set aside while they follow the clock: one write in half of it."""
COUNTED = 1_000
"""So many while they count on above a clock that is behind. Fewer: a node that is restarted again
and again, and leaves most of them unused each time, is not to run away from the clock.
"""
_TABLE = "ensemble.versions"

_log = get_logger(__name__)


class GivenVersions:
    """The greatest version that may have been given, on disk before it is. Belongs to one loop.

    A version is never held up: should the disk refuse for longer than what was set aside lasts, a
    kill just then leaves it to the other nodes to tell this one how far it was.
    """

    def __init__(self, channels: LoggedChannels, clock: Clock, node: str) -> None:
        self._channels, self._clock, self._node = channels, clock, node
        self._reserved = self._given = 0
        self._came = asyncio.Event()

    async def begin(self) -> int:
        """What versions have to begin above; more are set aside when this returns."""
        kept = await self._channels.look(lambda records: records.get(_TABLE, self._node))
        before: int = msgspec.msgpack.decode(kept, type=int) if kept is not None else 0
        self._given = 0
        await self._keep(reserved(before, self._clock.now_ms()))
        return before

    def gave(self, version: int) -> None:
        """A version was given; costs a comparison unless it is time to set more aside."""
        self._given = version
        if is_short(self._reserved, version, self._clock.now_ms()):
            self._came.set()

    async def run(self) -> None:
        """Works until cancelled; what the disk refuses is tried again by who runs it."""
        while True:
            await self._came.wait()
            self._came.clear()
            await self._keep(reserved(self._given, self._clock.now_ms()))

    async def finish(self) -> None:
        """No more are given: what was set aside and not used is free again."""
        if not self._given:
            return
        try:
            await self._keep(self._given)
        except RapportError as error:
            _log.warning("last version not kept", code=error.code, reason=error.message)

    async def _keep(self, version: int) -> None:
        value = msgspec.msgpack.encode(version)
        await self._channels.apply([Put(_TABLE, self._node, value)])
        self._reserved = version


def reserved(given: int, now_ms: int) -> int:
    """Up to where versions are set aside when one was given; pure."""
    return given + COUNTED if given > now_ms else now_ms + AHEAD_MS


def is_short(reserved_up_to: int, given: int, now_ms: int) -> bool:
    """Whether half of them are used up; or they are from a time when the clock was far ahead, which
    versions have come back from. Pure.
    """
    left = reserved_up_to - given
    return left < (reserved(given, now_ms) - given) / 2 or left > 2 * AHEAD_MS
