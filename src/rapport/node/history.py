"""Queries about the past of a running node: first the log, then the lake for events that the log no
longer holds. [PO-11, CH-16]

The lake is opened only when the log lacks something. Its files are read in threads of their own,
never in the event loop or in the threads that the log needs. A query has a deadline; unfinished
parts are reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.event_lookup import CauseNode, cause_tree
from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    RapportError,
    Unavailable,
    UnknownName,
)
from rapport.core.event import StoredEvent
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import run_in_thread
from rapport.lake.channels import LakeChannels, open_lake
from rapport.lake.log_and_lake import LakeRange, LogAndLake, lake_ranges_text

T = TypeVar("T")

USUAL_MS = 30_000
LONGEST_MS = 300_000
NOT_FINISHED = "explain.not_finished"
_AT_ONCE = 2
"""Threads that read the lake; a third question waits for one of them."""
_NS_PER_MS = 1_000_000


class HistoryNotes(msgspec.Struct, frozen=True):
    """Where an answer comes from."""

    found: list[LakeRange]
    notes: list[str]
    """What people should know about it: what came from the lake, what could not be read."""


class History:
    """The past of a node, for reading. Belongs to its event loop."""

    def __init__(self, channels: LoggedChannels, lake: Path, clock: Clock) -> None:
        self._channels, self._lake, self._clock = channels, lake, clock
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(
        self, work: Callable[[Channels], Awaitable[T]], *, within_ms: int = USUAL_MS
    ) -> tuple[T, HistoryNotes]:
        """What `work` finds in the log with its lake behind it; raises Unavailable
        (`explain.not_finished`) when that takes longer.
        """
        limit = _Limit(self._clock, within_ms)
        both, notes = await self._open(limit)
        async with limit.kept():
            found = await work(self._channels if both is None else both)
        return found, HistoryNotes([], notes) if both is None else _looked(both, notes)

    async def causes(
        self, event_id: str, identity: str, *, within_ms: int = USUAL_MS
    ) -> tuple[CauseNode, HistoryNotes]:
        """The chain of causes as an identity sees it, each event with where it was found. What
        there was no time for is among `missing`, with a note.

        Raises UnknownName, or Unavailable when the event itself was not found in time.
        """
        limit = _Limit(self._clock, within_ms)
        both, notes = await self._open(limit)
        partly = _Partly(self._channels, both, identity)
        try:
            tree = await cause_tree(partly, event_id)
        except UnknownName:
            if partly.unfinished is not None:
                raise partly.unfinished from None
            raise
        looked = HistoryNotes([], notes) if both is None else _looked(both, notes)
        if partly.unfinished is not None:
            looked.notes.append(
                f"{partly.unfinished.message}: what is missing may be there, ask again"
            )
        _mark_origin(tree, partly.in_lake)
        return tree, looked

    async def _open(self, limit: _Limit) -> tuple[LogAndLake | None, list[str]]:
        """The log with its lake; None where the log has everything, or there is no lake."""
        names = self._channels.names()
        if all(self._channels.channel(name).first_position() <= 1 for name in names):
            return None, []
        aside = partial(self._aside, limit)
        try:
            return LogAndLake(self._channels, await aside(partial(self._listed, limit))), []
        except UnknownName:
            return None, []
        except (Conflict, Corrupt) as fault:  # a former or damaged lake; the log may well have it
            return None, [damage_note(fault)]

    def _listed(self, limit: _Limit) -> LakeChannels:
        lake = open_lake(self._lake, aside=partial(self._aside, limit), look_up=limit.check)
        lake.names()  # lists all files, so that nobody has to in the loop
        return lake

    async def _aside(self, limit: _Limit, work: Callable[[], T]) -> T:
        """Does work in a thread of its own, waited for until the time is over. A thread that does
        not come back by then keeps its turn until it does.
        """
        async with limit.kept():
            await self._turns.acquire()
            thread = asyncio.ensure_future(run_in_thread(work, name="lake"))
            thread.add_done_callback(self._end_turn)
            return await asyncio.shield(thread)

    def _end_turn(self, thread: asyncio.Future[T]) -> None:
        self._turns.release()
        if not thread.cancelled():
            thread.exception()  # nobody may be waiting for it any more


class _Limit:
    """The time of one question."""

    def __init__(self, clock: Clock, within_ms: int) -> None:
        if not 0 < within_ms <= LONGEST_MS:
            raise InvalidInput(
                f"a question may take up to {format_duration(LONGEST_MS)}",
                code="explain.bad_time",
                hint="such as within=30s",
            )
        self._clock, self._within_ms = clock, within_ms
        self._end_ns = clock.steady_ns() + within_ms * _NS_PER_MS

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Raises Unavailable when the time is over, or when the block takes longer."""
        self.check()
        try:
            async with asyncio.timeout((self._end_ns - self._clock.steady_ns()) / 1e9):
                yield
        except TimeoutError:
            raise self.over() from None

    def check(self) -> None:
        """Raises Unavailable when the time is over; in any thread."""
        if self._clock.steady_ns() >= self._end_ns:
            raise self.over()

    def over(self) -> Unavailable:
        """The note for a query that did not finish in time."""
        return Unavailable(
            f"the past was not read to its end within {format_duration(self._within_ms)}",
            code=NOT_FINISHED,
            hint="ask again, with within=5m, or the lake itself: rapport explain --lake DIR",
        )


class _Partly:
    """Finds events as an identity sees them; without the lake once its time is over."""

    def __init__(self, log: LoggedChannels, both: LogAndLake | None, identity: str) -> None:
        self._log, self._both, self._identity = log, both, identity
        self.in_lake: set[tuple[str, int]] = set()
        self.unfinished: Unavailable | None = None

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        seen: list[tuple[str, StoredEvent]] = []
        for name, stored in await self._found(event_id):
            given = self._log.delivered(name, self._identity, (stored,))
            seen += [(name, one) for one in given]
        return seen

    async def _found(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        if self._both is None or self.unfinished is not None:
            return await self._log.find_event(event_id)
        try:
            found = await self._both.find_event(event_id)
        except Unavailable as error:
            if error.code != NOT_FINISHED:
                raise
            self.unfinished = error
            return await self._log.find_event(event_id)
        for name, stored in found:
            if stored.position < await self._both.oldest_in_log(name):
                self.in_lake.add((name, stored.position))
        return found


def _mark_origin(tree: CauseNode, in_lake: set[tuple[str, int]]) -> None:
    tree.found_in = "lake" if (tree.channel, tree.position) in in_lake else "log"
    for cause in tree.causes:
        _mark_origin(cause, in_lake)


def _looked(both: LogAndLake, notes: list[str]) -> HistoryNotes:
    found = both.found()
    if from_lake := lake_ranges_text(found):
        notes = [*notes, f"no longer in the log and read from the lake: {from_lake}"]
    return HistoryNotes(found, [*notes, *map(damage_note, both.lake.damaged())])


def damage_note(fault: RapportError) -> str:
    """The note on a damaged file of the lake."""
    return f"{fault.message}; what it holds is not shown here"
