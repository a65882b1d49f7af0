"""The mediation reader: for each source a lane that reads, transforms, appends and commits, and the
transformer in use. [ME-5, ME-6, ME-8, ME-13, ME-16, design 19]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.core.errors import InterpretationError, InvalidInput, UnknownName, did_you_mean
from rapport.core.event import Event, StoredEvent
from rapport.core.release import HISTORY, RELEASE_HEADERS, without_release_headers
from rapport.core.signature import SIGNATURE_HEADERS, without_raw_signature
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import ClosableComponent, Tasks, close_all
from rapport.kernel.telemetry import get_logger
from rapport.mediation.conversion.lookups import (
    ConversionEnvironment,
    NoTables,
    PresentContext,
    SiteTables,
)
from rapport.mediation.fields_transformer import FieldsTransformer, FormattedTransformer
from rapport.mediation.interpretations.model import FieldsInterpretation, FormatChoice
from rapport.mediation.interpretations.registry import functions_needed
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.memory import SourceMemory
from rapport.mediation.present_values import PresentValueFeed, needs_feed
from rapport.mediation.quarantine.rejection_events import QUARANTINE, rejection_event
from rapport.mediation.reading_times import RepeatedHours, split_plausible
from rapport.mediation.rejections import Rejection, reason_of
from rapport.mediation.site_functions import SiteFunctions, WorkerConversions
from rapport.mediation.source_bindings import EVENTS, RAW_POSITION, RAW_PREFIX, SourceBinding
from rapport.mediation.typed_source import TypedTransformer
from rapport.store.base import RecordStore

SignReading = Callable[[Event, Event], Event]
"""Signs a reading, given its raw event."""

READER = "mediation"
_LIMIT = 1_000
_BLOCKING_LIMIT = 20
_NOT_COPIED = RELEASE_HEADERS | SIGNATURE_HEADERS
"""Headers of a raw event that its readings do not keep."""
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
    into, local_zone, stamp = EVENTS, "", ""

    def __init__(self, code: str, message: str, hint: str) -> None:
        self.code, self.message, self.hint = code, message[:500], hint[:500]

    def apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        return [], [
            Rejection(self.code, self.message, self.hint, one.event, one.position) for one in events
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
            # Readings of events in the memory were stored before it was saved.
            new = [one for one in batch if one.position > self.memory.position]
            readings, rejections = await self._apply_all(chosen, new)
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
        if self._sign is None and all(_NOT_COPIED.isdisjoint(one.headers) for one in readings):
            return readings
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
        try:
            appended = await self._channels.channel(into).append(readings)
        except InvalidInput as error:
            if len(readings) > 1:
                alone = [await self._append_readings([one], batch, into) for one in readings]
                return [rejection for each in alone for rejection in each]
            headers = readings[0].headers
            stored = next(one for one in batch if str(one.position) == headers[RAW_POSITION])
            stamp = headers.get("interpretation", "")
            return [Rejection(*reason_of(error), stored.event, stored.position, stamp)]
        self.counts.accepted += len(readings) - appended.duplicates
        self.counts.duplicates += appended.duplicates
        return []

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


def rejecting_transformer(error: InterpretationError | InvalidInput) -> RejectingTransformer:
    """The replacement for an interpretation that is unknown or does not fit its source."""
    problems = error.problems_found()
    _log.warning("interpretation refused", reason=error.message)
    hint = error.hint or (problems[0].hint if problems else "")
    return RejectingTransformer(error.code, error.message, hint)


class TransformerInputs(NamedTuple):
    """Everything that the transformer of a source depends on."""

    in_force: ActiveInterpretations
    bindings: Mapping[str, SourceBinding]
    lookups: SiteTables

    def of(self, source: str) -> tuple[object, ...]:
        """A key that is equal for equal transformers."""
        binding = self.bindings.get(source)
        name = binding.interpretation if binding is not None else ""
        version = self.in_force.stamps.get(name) or self.in_force.refused.get(name)
        return binding, version, self.in_force.concepts, id(self.lookups)


SourceTransformer = FieldsTransformer | FormattedTransformer | TypedTransformer
"""Each gives a meaning and can show the code by which it does."""


def build_transformer(
    binding: SourceBinding,
    in_force: ActiveInterpretations,
    *,
    memory: SourceMemory | None = None,
    lookups: SiteTables | None = None,
    conversions: WorkerConversions | None = None,
    context: PresentContext | None = None,
) -> SourceTransformer:
    """Checks, generates, compiles; raises InterpretationError or UnknownName. `conversions`:
    the worker for site functions; `context`: present values for conversions.
    """
    name = binding.interpretation
    if name in in_force.refused:
        raise InterpretationError(in_force.refused[name])
    if name in in_force.typed:
        needed = functions_needed(in_force.typed, name)
        return TypedTransformer(
            binding,
            in_force,
            memory=memory,
            functions=SiteFunctions(needed, conversions) if conversions else None,
            surroundings=ConversionEnvironment(lookups or NoTables(), context),
        )
    interpretation = in_force.fields.get(name)
    if name and interpretation is None:
        known = [*in_force.fields, *in_force.typed.names]
        raise UnknownName("interpretation", name, known, code="interpretation.unknown")

    def build(variant: FieldsInterpretation | None) -> FieldsTransformer:
        return FieldsTransformer.build(variant, binding, lookups=lookups, conversions=conversions)

    if interpretation is None or interpretation.format == FormatChoice():
        return build(interpretation)
    return FormattedTransformer(interpretation, build, memory or SourceMemory())


_LOOK_EVERY_MS = 1_000
_PATIENCE_MS = 10_000
"""How long the clock waits for a source that is behind; a hanging source must not delay the others.
"""

Prepared = Mapping[str, EventTransformer | None]
"""The new transformer by source; None: unchanged."""


class MediationReader:
    """Turns every present and future `raw.<source>` into `events` and `quarantine`. Holds per
    source a lane (position and counts), the transformer in use, and a worker process for
    plug-in conversions. For the event loop's thread only.
    """

    def __init__(
        self,
        channels: Channels,
        bindings: Iterable[SourceBinding],
        repository: Repository,
        clock: Clock,
        *,
        lookups: SiteTables | None = None,
        import_paths: Sequence[str] = (),
        sign: SignReading | None = None,
        records: RecordStore | None = None,
    ) -> None:
        """`import_paths`: further paths of plug-in conversions; `sign`: signs each reading;
        `records`: keeps the memory of conversions.
        """
        self._sign, self._records = sign, records
        self._channels, self._repository, self._clock = channels, repository, clock
        self._bindings = {binding.source: binding for binding in bindings}
        self._lookups: SiteTables = lookups or NoTables()
        self._bound_generation = 0
        self._import_paths = import_paths
        self._tasks = Tasks(clock)
        self._lanes: dict[str, Lane] = {}
        self._watched: set[str] = set()
        self._in_use: dict[str, tuple[tuple[int, int], EventTransformer]] = {}
        self._conversions: dict[str, WorkerConversions] = {}
        self._behind_since_ns: dict[str, int] = {}
        self._root_needed: tuple[ActiveInterpretations | None, bool] = (None, False)
        self.present_feed = PresentValueFeed(
            channels,
            clock,
            self._needs_root,
            self._typed_in_use,
            lambda: repository.in_force.concepts,
            records,
            keep=self._save_learned,
        )

    async def start(self) -> None:
        """Starts to mediate all raw channels; new ones are found within a second. Call
        once.
        """
        for source in list(self._bindings):
            await self.watch_new(source)
        self._tasks.start("mediation.look_for_sources", self._look_for_sources)
        self._tasks.start("mediation.learn_from_root", self.present_feed.run)

    def watch(self, source: str) -> None:
        """Ensures that a source is mediated; cheap, HTTP inputs call it for every event."""
        if source not in self._watched:  # the lane may exist without being started
            self._watched.add(source)
            self._tasks.start(f"mediation.{source}", self.lane(source).run)

    async def stop(self) -> None:
        """Stops at once; uncommitted events are processed again after the next start."""
        await close_all(self._endings())

    def _endings(self) -> Iterator[ClosableComponent]:
        yield "mediation.tasks", self._tasks.stop
        yield "mediation.present_feed", self.present_feed.save
        for source, conversions in list(self._conversions.items()):
            # Waits for a process to end.
            yield f"conversions.{source}", partial(asyncio.to_thread, conversions.close)
        for source, lane in list(self._lanes.items()):
            yield f"lane.{source}", lane.close

    async def watch_new(self, source: str) -> None:
        """Like `watch`; reads the memory of a new source off the event loop."""
        if source not in self._watched:
            await asyncio.to_thread(self.lane, source)
            self.watch(source)

    def lane(self, source: str) -> Lane:
        """The lane of a source; `step` it by hand if nothing is started. The first call
        reads records.
        """
        if source not in self._lanes:
            lane = Lane(
                self._channels,
                source,
                lambda: self.transformer(source),
                choose_isolated=lambda: self.isolated_transformer(source),
                sign=self._sign,
                records=self._records,
            )
            self._lanes.setdefault(source, lane)
        return self._lanes[source]

    def is_idle(self) -> bool:
        """Whether everything received is mediated; only then may the clock advance. A
        source that is behind for ten seconds is no longer waited for.
        """
        now_ns = self._clock.steady_ns()
        behind = [source for source, lane in self._lanes.items() if lane.is_behind()]
        self._behind_since_ns = {
            source: self._behind_since_ns.get(source, now_ns) for source in behind
        }
        patient_ns = _PATIENCE_MS * 1_000_000
        return all(now_ns - since > patient_ns for since in self._behind_since_ns.values())

    def unwell(self) -> list[str]:
        """Tasks of sources that keep failing."""
        return self._tasks.unwell()

    def counts(self) -> dict[str, SourceCounts]:
        """Counts per source since the start."""
        return {source: lane.counts for source, lane in sorted(self._lanes.items())}

    def transformer(self, source: str) -> EventTransformer:
        """The transformer in use; rebuilt after a change. If a changed interpretation does
        not fit the source, the former transformer stays; events of a source that is no
        longer bound are rejected.
        """
        now = (self._repository.generation, self._bound_generation)
        known = self._in_use.get(source)
        if known is not None and known[0] == now:
            return known[1]
        built = self._build(source)
        if known is not None and self._keeps(source, known[1], built):
            built = known[1]
        self._in_use[source] = (now, built)
        return built

    def _keeps(self, source: str, former: EventTransformer, built: EventTransformer) -> bool:
        """Whether the former transformer stays because the new one rejects everything."""
        is_worse = isinstance(built, RejectingTransformer) and not isinstance(
            former, RejectingTransformer
        )
        return is_worse and source in self._bindings

    def prepare(
        self,
        in_force: ActiveInterpretations,
        bindings: Mapping[str, SourceBinding],
        lookups: SiteTables,
    ) -> Prepared:
        """Builds transformers for the sources in use; None for unchanged ones. Called from
        another thread while lanes run.
        """
        former = TransformerInputs(self._repository.in_force, self._bindings, self._lookups)
        wanted = TransformerInputs(in_force, bindings, lookups)
        found: dict[str, EventTransformer | None] = {}
        for source in self._in_use.copy():
            found[source] = None
            if former.of(source) != wanted.of(source):
                meaning = found[source] = self._build(source, given=wanted)
                if isinstance(meaning, TypedTransformer):
                    meaning.prepare()
        return found

    def take_over(
        self,
        prepared: Prepared,
        bindings: Mapping[str, SourceBinding],
        lookups: SiteTables,
    ) -> None:
        """Uses prepared transformers from the next batch on; call it in one step with the
        repository's swap.
        """
        if lookups is not self._lookups or bindings != self._bindings:
            self._bound_generation += 1
        self._bindings, self._lookups = dict(bindings), lookups
        now = (self._repository.generation, self._bound_generation)
        for source, built in prepared.items():
            former = self._in_use[source][1]
            if built is None or self._keeps(source, former, built):
                built = former
            self._in_use[source] = (now, built)

    @property
    def in_force(self) -> ActiveInterpretations:
        return self._repository.in_force

    @property
    def bindings(self) -> Mapping[str, SourceBinding]:
        return self._bindings

    def isolated_transformer(self, source: str) -> EventTransformer:
        """A transformer with a copy of the memory, for events mediated out of order."""
        return self._build(source, deepcopy(self.lane(source).memory))

    def binding(self, source: str) -> SourceBinding | None:
        return self._bindings.get(source)

    @property
    def lookups(self) -> SiteTables:
        return self._lookups

    def _build(
        self,
        source: str,
        memory: SourceMemory | None = None,
        given: TransformerInputs | None = None,
    ) -> EventTransformer:
        grounds = given or TransformerInputs(
            self._repository.in_force, self._bindings, self._lookups
        )
        binding = grounds.bindings.get(source)
        if binding is None:
            return self._unbound(source)
        try:
            return build_transformer(
                binding,
                grounds.in_force,
                memory=memory or self.lane(source).memory,
                lookups=grounds.lookups,
                conversions=self._conversions_of(source),
                context=self.present_feed.present,
            )
        except (InterpretationError, InvalidInput) as error:
            return rejecting_transformer(error)

    def _needs_root(self) -> bool:
        """Cached per change, since it is called for every round."""
        now = self._repository.in_force
        if self._root_needed[0] is not now:
            self._root_needed = (now, needs_feed(now.typed, now.concepts))
        return self._root_needed[1]

    def _typed_in_use(self) -> list[TypedTransformer]:
        """Includes sources without events so far: they learn as well."""
        meanings = [self.transformer(source) for source in {**self._bindings, **self._in_use}]
        return [each for each in meanings if isinstance(each, TypedTransformer)]

    async def _save_learned(self) -> bool:
        """Saves what sources learned from the feed; False if one is in the middle of a
        batch.
        """
        learning = [
            source
            for source, (_, meaning) in self._in_use.items()
            if isinstance(meaning, TypedTransformer) and meaning.feeds
        ]
        return all([await self.lane(source).save_learned() for source in learning])

    def _conversions_of(self, source: str) -> WorkerConversions:
        if source not in self._conversions:
            self._conversions[source] = WorkerConversions(self._clock, self._import_paths)
        return self._conversions[source]

    def _unbound(self, source: str) -> RejectingTransformer:
        return RejectingTransformer(
            "source.unbound",
            f"the site binds no source named {source!r}",
            did_you_mean(source, self._bindings, "declare it: [sources.NAME]"),
        )

    async def _look_for_sources(self) -> None:
        while True:
            for name in self._channels.names():
                if name.startswith(RAW_PREFIX):
                    await self.watch_new(name.removeprefix(RAW_PREFIX))
            await self._clock.sleep(_LOOK_EVERY_MS)
