"""The mediation of one source: read, transform, append, commit. [ME-6, ME-16]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.core.errors import InterpretationError, InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.release import HISTORY, without_release_headers
from rapport.core.signature import without_raw_signature
from rapport.kernel.telemetry import get_logger
from rapport.mediation.memory import SourceMemory
from rapport.mediation.quarantine.rejection_events import QUARANTINE, rejection_event
from rapport.mediation.reading_times import RepeatedHours, split_plausible
from rapport.mediation.rejections import Rejection, reason_of
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.store.base import RecordStore

SignReading = Callable[[Event, Event], Event]
"""Signs a reading, given its raw event."""

READER = "mediation"
EVENTS = "events"
RAW_POSITION = "rawposition"
_LIMIT = 1_000
_BLOCKING_LIMIT = 20
"""Batches are short if each event may block up to a deadline, so that results appear early."""

_log = get_logger(__name__)


class EventTransformer(Protocol):
    """Transforms the raw events of a source."""

    stamp: str
    may_block: bool
    into: str
    """The channel for the results."""
    depends_on_present: bool
    """Whether mediating an event later may give another result."""
    local_zone: str
    """The zone of local times; empty if times carry an offset."""

    def apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        """Readings and rejections, each in order; never raises."""


class RejectingTransformer:
    """Rejects everything for one reason."""

    may_block = depends_on_present = False
    into, local_zone = EVENTS, ""

    def __init__(self, code: str, message: str, hint: str, stamp: str = "") -> None:
        self.code, self.message, self.hint, self.stamp = code, message[:500], hint[:500], stamp

    def apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        return [], [
            Rejection(self.code, self.message, self.hint, one.event, one.position, self.stamp)
            for one in events
        ]


class SourceCounts(msgspec.Struct):
    """Counts for one source since the start of the process."""

    read: int = 0
    accepted: int = 0
    duplicates: int = 0
    """Readings that `events` already had, for instance after a crash between append and commit."""
    rejected: dict[str, int] = {}


class _TransformedBatch(msgspec.Struct):
    """A batch that is in the source's memory but not yet stored completely."""

    batch: list[StoredEvent]
    into: str
    readings: list[Event]
    rejections: list[Rejection]


class Lane:
    """Moves events from `raw.<source>` to `events` and `quarantine`, then commits: a crash
    loses nothing. `choose` is called before every batch, so a change takes effect between
    batches. A batch that could not be stored is stored later unchanged: conversions with memory
    must not process its events twice.
    """

    def __init__(
        self,
        channels: Channels,
        source: str,
        choose: Callable[[], EventTransformer],
        *,
        choose_isolated: Callable[[], EventTransformer] | None = None,
        sign: SignReading | None = None,
        records: RecordStore | None = None,
    ) -> None:
        """`choose_isolated`: builds a transformer with a separate memory for imported events;
        None: they share the memory of live events. `records`: keeps the memory across
        restarts.
        """
        self._choose_isolated = choose_isolated
        self._isolated: tuple[EventTransformer, EventTransformer] | None = None
        """The transformer for imported events, after the live transformer it was built for."""
        self.source, self.counts = source, SourceCounts()
        self._sign, self._records = sign, records
        self.memory = SourceMemory.restore(records, source)
        self._channels, self._choose = channels, choose
        self._subscription: Subscription | None = None
        self._turn = asyncio.Lock()
        self._unfinished: _TransformedBatch | None = None
        self._is_midway = False
        """Whether the memory may include events that are not stored completely."""
        self._hours: tuple[str, RepeatedHours] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def is_behind(self) -> bool:
        """Whether raw events are pending."""
        done = self._subscription.position if self._subscription else 0
        return self._channels.channel(RAW_PREFIX + self.source).last_position() > done

    async def run(self) -> None:
        """Runs until cancelled; after a failure it restarts after the last commit."""
        self._subscription = None
        while True:
            await self.step()

    async def step(self, *, timeout_ms: int | None = None) -> int:
        """Mediates one batch and returns its size; 0 after the timeout."""
        if self._subscription is None:
            self._subscription = await self._channels.subscribe(RAW_PREFIX + self.source, READER)
        if self._unfinished is not None:
            return await self._retry_store(self._unfinished, self._subscription)
        limit = _BLOCKING_LIMIT if self._choose().may_block else _LIMIT
        batch = await self._subscription.next_batch(limit=limit, timeout_ms=timeout_ms)
        if not batch:
            return 0
        async with self._turn:
            chosen, self._is_midway = self._choose(), True
            readings, rejections = await self._apply_all(chosen, self._without_remembered(batch))
            readings, implausible = split_plausible(
                self._resolve_repeated_hours(chosen, readings), batch, chosen.stamp
            )
            self._unfinished = _TransformedBatch(
                batch, chosen.into, readings, [*rejections, *implausible]
            )
            return await self._finish(self._unfinished, self._subscription)

    async def save_learned(self) -> bool:
        """Saves what conversions learned from other sources; returns False without saving
        while a batch is pending, since its events are in the memory, too.
        """
        if self._turn.locked() or self._is_midway:
            return False
        async with self._turn:
            await self._remember(self.memory.position)
        return True

    async def _retry_store(self, applied: _TransformedBatch, subscription: Subscription) -> int:
        """Stores an unfinished batch; reading resumes from there."""
        async with self._turn:
            done = await self._finish(applied, subscription)
            self._subscription = None
            return done

    async def _finish(self, applied: _TransformedBatch, subscription: Subscription) -> int:
        """Stores the results of a batch; idempotent."""
        batch, last = applied.batch, applied.batch[-1].position
        try:
            readings = await self._signed(applied.readings, batch)
            refused_ones = await self._append_readings(readings, batch, applied.into)
            await self._append_rejections([*applied.rejections, *refused_ones])
        except InvalidInput:  # needs a correction; retried with the interpretation in force then
            self._unfinished = None
            raise
        await self._remember(last)
        await subscription.commit(last)
        self._unfinished, self._is_midway = None, False
        self.counts.read += len(batch)
        return len(batch)

    def _resolve_repeated_hours(
        self, chosen: EventTransformer, readings: list[Event]
    ) -> list[Event]:
        """Resolves repeated hours by the order of imported rows."""
        if self._hours is None or self._hours[0] != chosen.local_zone:
            self._hours = (chosen.local_zone, RepeatedHours(chosen.local_zone))
        return self._hours[1].settle(readings)

    def _without_remembered(self, batch: list[StoredEvent]) -> list[StoredEvent]:
        """Skips events in the memory, whose readings were stored before it was saved."""
        return [one for one in batch if one.position > self.memory.position]

    async def _remember(self, position: int) -> None:
        saving = self.memory.save(position) if self._records is not None else None
        if saving is None or self._records is None:
            return
        try:
            await asyncio.to_thread(self._records.apply, saving.records)
        except Exception:
            saving.failed()
            raise

    def close(self) -> None:
        """Releases the thread without waiting for its work."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _apply_all(
        self, chosen: EventTransformer, batch: list[StoredEvent]
    ) -> tuple[list[Event], list[Rejection]]:
        """Live events use the source's memory, imported ones a copy: counters and last
        values of the past must not affect the present.
        """
        imported = [one for one in batch if HISTORY in one.event.headers]
        if not imported or self._choose_isolated is None:
            self._isolated = None
            return await self._apply(chosen, batch)
        if self._isolated is None or self._isolated[0] is not chosen:
            self._isolated = chosen, self._choose_isolated()
        live = [one for one in batch if HISTORY not in one.event.headers]
        readings, rejections = await self._apply(chosen, live) if live else ([], [])
        more, rejected = await self._apply(self._isolated[1], imported)
        return [*readings, *more], [*rejections, *rejected]

    async def _apply(
        self, chosen: EventTransformer, batch: list[StoredEvent]
    ) -> tuple[list[Event], list[Rejection]]:
        if not chosen.may_block:
            return chosen.apply_many(batch)
        if self._thread is None:
            # Its own thread: a hanging source must not use up shared threads.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"mediation-{self.source}")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, chosen.apply_many, batch)

    async def _signed(self, readings: list[Event], batch: list[StoredEvent]) -> list[Event]:
        """Replaces signatures by the node's own, in a thread since signing is slow."""
        raw = {str(one.position): one.event for one in batch}
        seal = self._sign or without_raw_signature

        def seal_all() -> list[Event]:
            return [
                seal(without_release_headers(reading), raw[reading.headers[RAW_POSITION]])
                for reading in readings
            ]

        return seal_all() if self._sign is None else await asyncio.to_thread(seal_all)

    async def _append_readings(
        self, readings: list[Event], batch: list[StoredEvent], into: str
    ) -> list[Rejection]:
        """Appends all; a refused reading is rejected and the others are still appended."""
        if not readings:
            return []
        channel = self._channels.channel(into)
        try:
            appended = await channel.append(readings)
        except InvalidInput:
            return await self._append_one_by_one(readings, batch, into)
        self.counts.accepted += len(readings) - appended.duplicates
        self.counts.duplicates += appended.duplicates
        return []

    async def _append_one_by_one(
        self, readings: list[Event], batch: list[StoredEvent], into: str
    ) -> list[Rejection]:
        raw = {str(one.position): one for one in batch}
        rejections = []
        for reading in readings:
            try:
                appended = await self._channels.channel(into).append([reading])
                self.counts.accepted += 1 - appended.duplicates
                self.counts.duplicates += appended.duplicates
            except InvalidInput as error:
                stored = raw[reading.headers[RAW_POSITION]]
                stamp = reading.headers.get("interpretation", "")
                rejections.append(
                    Rejection(*reason_of(error), stored.event, stored.position, stamp)
                )
        return rejections

    async def _append_rejections(self, rejections: list[Rejection]) -> None:
        if not rejections:
            return
        channel = self._channels.channel(QUARANTINE)
        try:
            await channel.append([rejection_event(one, self.source) for one in rejections])
        except InvalidInput:  # one is too large to be copied; the raw channel still has it
            bare = [rejection_event(one, self.source, copy_raw=False) for one in rejections]
            await channel.append(bare)
        for rejection in rejections:
            self.counts.rejected[rejection.code] = self.counts.rejected.get(rejection.code, 0) + 1


def rejecting_transformer(
    error: InterpretationError | InvalidInput, stamp: str = ""
) -> RejectingTransformer:
    """The replacement for an interpretation that is unknown or does not fit its source."""
    problems = error.problems_found()
    _log.warning("interpretation refused", reason=error.message, interpretation=stamp)
    hint = error.hint or (problems[0].hint if problems else "")
    return RejectingTransformer(error.code, error.message, hint, stamp)
