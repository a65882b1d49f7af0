"""People of a site file that one engine has read again: all others read theirs. [CO-17, CO-3]

A record says what was taken over last, as a digest. Every engine looks at it and, when it is not
what the engine itself has, reads its own site files again. Where those are not the same files (yet)
it says so and looks again, further and further apart. Files stay what a site says: a process that
is started goes by its own, and tells when others have something else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial

import msgspec

from rapport.communication.aside import run_aside
from rapport.communication.declare import Communication
from rapport.communication.delivering.tracking import Retry
from rapport.core.errors import RapportError, Unavailable
from rapport.core.ids import content_id
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

TABLE, KEY = "communication.site", "people"
_PAUSES = Retry(first_ms=1_000, longest_ms=60_000)
_FOLLOWING: ContextVar[bool] = ContextVar("following", default=False)
"""Of a task: somebody else may ask this process to read its files at the same time."""
_log = get_logger(__name__)

Follow = Callable[[], Awaitable[object]]
"""Reads the site files of this process again and takes them over."""


class TakenOver(msgspec.Struct, frozen=True, array_like=True):
    """What the record says; new fields go at the end with a default."""

    number: int
    digest: str
    by: str
    """The process that read its files again."""
    at_ms: int


def people_digest(declared: Communication) -> str:
    """Names what a site says about people and actions; costs what it says."""
    said = msgspec.json.encode(
        (declared.peers, declared.collectives, declared.actions), order="sorted"
    )
    return content_id("people of a site", said.decode())


class Reloads:
    """One engine's part of it. Looks at the record every `every_ms`; one read each time."""

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        declared: Communication,
        *,
        instance: str,
        every_ms: int,
    ) -> None:
        """`declared`: what this process began with."""
        self._records, self._clock = records, clock
        self._instance, self._every_ms = instance, every_ms
        self._digest = people_digest(declared)
        self._seen: int | None = None
        self._tries, self._again_ms = 0, 0
        self.follow: Follow | None = None

    @property
    def is_following(self) -> bool:
        """Whether who asks reads files because another engine did, which has told of it."""
        return _FOLLOWING.get()

    def has(self, declared: Communication) -> None:
        """These are in force in this process."""
        self._digest = people_digest(declared)

    async def announce(self) -> None:
        """Others are to have what this process has; nothing to say when that is on record, or when
        this process follows another: old files must not come back.
        """
        if self.is_following:
            return
        kept = await self._kept()
        number = 0 if kept is None else kept.number
        if kept is None or kept.digest != self._digest:
            number += 1
            said = TakenOver(number, self._digest, self._instance, self._clock.now_ms())
            put = partial(self._records.put, TABLE, KEY, msgspec.msgpack.encode(said))
            await run_aside(put)
        self._seen = number

    async def run(self) -> None:
        """Follows the record until cancelled; a store that cannot be reached is asked again."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                _log.warning("reloads of others not looked at", error=error.message)
            await self._clock.sleep(self._every_ms)

    async def look(self) -> None:
        """One look: reads the files again when others have others."""
        kept = await self._kept()
        number = 0 if kept is None else kept.number
        if self._seen is None:
            # Perhaps its files changed between its start and now; else it goes by them.
            if kept is not None and kept.digest != self._digest and self.follow is not None:
                await self._follow(kept)
            self._done(number)
            return
        if kept is None or number <= self._seen:
            return
        if kept.digest == self._digest:
            self._done(number)
        elif self._clock.now_ms() >= self._again_ms:
            await self._follow(kept)

    async def _follow(self, kept: TakenOver) -> None:
        why = "nothing here can read them again"
        if self.follow is not None:
            following = _FOLLOWING.set(True)
            try:
                await self.follow()
                why = "the site files of this process say something else"
            except RapportError as error:
                why = f"{error.code}: {error.message}"
            finally:
                _FOLLOWING.reset(following)
        if self._digest == kept.digest:
            _log.info("people taken over", by=kept.by, number=kept.number)
            self._done(kept.number)
            return
        self._tries += 1
        self._again_ms = self._clock.now_ms() + _PAUSES.pause_ms(self._tries)
        if self._tries == 1:
            self._tell_difference(kept, why)

    def _done(self, number: int) -> None:
        self._seen, self._tries, self._again_ms = number, 0, 0

    def _tell_difference(self, kept: TakenOver, why: str) -> None:
        _log.error(
            "other engines have other people",
            code="reload.differs",
            by=kept.by,
            at_ms=kept.at_ms,
            error=why,
            hint="bring the same site files to every engine; what only a restart can change needs "
            "a restart here",
        )

    async def _kept(self) -> TakenOver | None:
        kept = await run_aside(partial(self._records.get, TABLE, KEY))
        return msgspec.msgpack.decode(kept, type=TakenOver) if kept else None
