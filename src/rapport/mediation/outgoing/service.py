"""Outgoing mediation: consumers read canonical events in their own interpretation. [ME-9]

An event is converted when the first consumer of an interpretation needs it, and cached for the
others. An event that arrived in the consumer's interpretation is delivered as received. Results are
counted per interpretation, logged once per reason, and listed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import msgspec

from rapport.channel.access.identities import Rights
from rapport.channel.channel import Channels
from rapport.channel.query.query_kinds import InterpretationView
from rapport.core.errors import InterpretationError, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.tasks import ClosableComponent, close_all
from rapport.kernel.telemetry import get_logger
from rapport.mediation.conversion.lookups import ConversionEnvironment, SiteTables
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.outgoing.consumer_transformer import (
    ConsumerResult,
    ConsumerTransformer,
    DeclaredTypes,
    RawConsumerTransformer,
    RawLocation,
    is_original,
    original_event,
    raw_location,
    read_raws,
    site_functions_of,
)
from rapport.mediation.outgoing.terms import query_view
from rapport.mediation.reader import MediationReader
from rapport.mediation.site_functions import SiteFunctions
from rapport.mediation.source_bindings import RAW_PREFIX

_MOST_TOLD = 100
_log = get_logger(__name__)


class ConsumerCounts(msgspec.Struct):
    """Counts for the consumers of one interpretation since the start."""

    transformed: int = 0
    from_cache: int = 0
    """Delivered from the cache."""
    originals: int = 0
    """Delivered as received."""
    rejected: dict[str, int] = {}
    """By code: events that cannot be converted and are not delivered."""


class UndeliverableEvent(msgspec.Struct, frozen=True):
    """An event that consumers of an interpretation do not receive, and why."""

    channel: str
    position: int
    interpretation: str
    code: str
    message: str


class ConsumerStatistics:
    """The counts of all interpretations, and the last undeliverable events."""

    def __init__(self) -> None:
        self.counts: dict[str, ConsumerCounts] = {}
        self.undeliverable: deque[UndeliverableEvent] = deque(maxlen=_MOST_TOLD)
        self._logged: set[tuple[str, str]] = set()

    def of(self, interpretation: str) -> ConsumerCounts:
        """The live counts of one interpretation."""
        if interpretation not in self.counts:
            self.counts[interpretation] = ConsumerCounts()
        return self.counts[interpretation]

    def events(self) -> dict[str, int]:
        """The number of delivered events by interpretation."""
        return {
            name: each.transformed + each.from_cache + each.originals
            for name, each in self.counts.items()
        }

    def made(
        self, interpretation: str, channel: str, stored: StoredEvent, result: ConsumerResult
    ) -> None:
        """Counts a new result."""
        counts = self.of(interpretation)
        if result.is_made and (result.events or not result.code):
            counts.transformed += 1
        if not result.code:
            return
        counts.rejected[result.code] = counts.rejected.get(result.code, 0) + 1
        undeliverable = UndeliverableEvent(
            channel, stored.position, interpretation, result.code, result.message
        )
        self.undeliverable.append(undeliverable)
        if (interpretation, result.code) not in self._logged:
            self._logged.add((interpretation, result.code))
            _log.warning(
                "event cannot be converted for consumers", **msgspec.structs.asdict(undeliverable)
            )


MAX_CACHE_BYTES = 32 * 1024 * 1024
_OVERHEAD_BYTES = 1_000
"""Overhead per entry besides its data."""


class ResultCache:
    """Results of events by a key of everything they depend on. Evicts the least recently used.
    Cost: `most_bytes`, half of it for keys.
    """

    def __init__(self, most_bytes: int = MAX_CACHE_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._known: OrderedDict[Hashable, tuple[ConsumerResult, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Hashable) -> ConsumerResult | None:
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, result: ConsumerResult, key_bytes: int) -> None:
        """Stores a result unless it is larger than a quarter of the cache."""
        size = key_bytes + sum(len(event.data) for event in result.events) + _OVERHEAD_BYTES
        if size > self._most_bytes // 4 or key in self._known:
            return
        self._known[key] = (result, size)
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._bytes -= self._known.popitem(last=False)[1][1]

    def clear(self) -> None:
        self._known.clear()
        self._bytes = 0


def cache_key(transformer: Hashable, stored: StoredEvent) -> tuple[Hashable, ...]:
    """Everything that the result of an event in this interpretation depends on."""
    event = stored.event
    return (
        *(transformer, stored.position, event.source, event.id, event.type, event.subject),
        *(event.time, event.data, *event.headers, *event.headers.values()),
    )


_AT_ONCE = 200
"""Events converted before other tasks run."""

AnyTransformer = ConsumerTransformer | RawConsumerTransformer


class OutgoingMediation:
    """Delivers events in the interpretation of each consumer. For one event loop. Positions are
    those of the channel, so positions and tokens mean the same in every interpretation.
    Undeliverable events are left out and listed in `statistics`. Transformers are rebuilt when
    the repository changes; results are also dropped when tables change.
    """

    def __init__(
        self,
        repository: Repository,
        channels: Channels,
        *,
        clock: Clock | None = None,
        rights: Rights | None = None,
        sources: MediationReader | None = None,
        tables: Callable[[], SiteTables | None] | None = None,
        functions: Callable[[Iterable[str]], SiteFunctions] | None = None,
        cache_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        """`rights`: originals go only to readers of the raw channel (None: to all);
        `sources`: mediates raw channels; `functions`: opens site functions.
        """
        self.repository, self._channels, self._rights = repository, channels, rights
        self._clock: Clock = clock or SystemClock()
        self.hides: Callable[[str], bool] = lambda _channel: False
        """Whether readers of a channel get filtered content, so that an original would
        reveal too much.
        """
        self._sources, self._tables, self._open_functions = sources, tables, functions
        self._cache, self.statistics = ResultCache(cache_bytes), ConsumerStatistics()
        self._generation, self._rows = repository.generation, self._revision()
        self._consumers: dict[str, ConsumerTransformer] = {}
        self._raw_consumers: dict[tuple[str, str], RawConsumerTransformer] = {}
        self._views: dict[str, InterpretationView] = {}
        self._types: dict[str, DeclaredTypes] = {}
        self._turns: dict[AnyTransformer, asyncio.Lock] = {}
        """Concurrent readers of an interpretation share results instead of making them twice."""
        self._opened: dict[ConsumerTransformer, SiteFunctions] = {}
        self._at_work: Counter[ConsumerTransformer] = Counter()
        self._closing: dict[ConsumerTransformer, SiteFunctions] = {}
        """Site functions of dropped transformers that are still in use."""
        self._thread: ThreadPoolExecutor | None = None

    def transformer_for(self, interpretation: str) -> ConsumerTransformer:
        """The present transformer of the interpretation; raises UnknownName,
        InterpretationError.
        """
        if self._generation != self.repository.generation:
            self._forget()
        if self._rows != self._revision():
            self._rows = self._revision()
            self._cache.clear()
        if interpretation not in self._consumers:
            self._consumers[interpretation] = self._begin(interpretation)
        return self._consumers[interpretation]

    async def view(
        self,
        channel: str,
        stored: Sequence[StoredEvent],
        interpretation: str,
        *,
        identity: str = "",
    ) -> list[StoredEvent]:
        """Events of a channel as a consumer gets them: fewer, or several with the same
        position. Raises UnknownName, InterpretationError, ChannelUnavailable, and
        Unsupported for a raw channel whose events depend on their order.
        """
        consumer = self.transformer_for(interpretation)
        with self._in_use(consumer):
            if channel.startswith(RAW_PREFIX):
                results = await self._results_of_raw(channel, stored, consumer)
            elif consumer.is_canonical:
                return list(stored)
            else:
                results = await self._results(channel, stored, consumer, identity)
        return [
            StoredEvent(one.position, one.received, event)
            for one, each in zip(stored, results, strict=True)
            for event in each.events
        ]

    def query_view(self, interpretation: str) -> InterpretationView:
        """Resolves conditions in the consumer's terms; for `Views.use`."""
        consumer = self.transformer_for(interpretation)
        if interpretation not in self._views:

            def convert(stored: StoredEvent) -> ConsumerResult:
                key = cache_key(consumer, stored)
                result = self._cache.get(key)
                if result is None:
                    result = consumer.transform(stored)
                    self._keep("", stored, result, consumer.name, key)
                return result

            self._views[interpretation] = query_view(consumer, self.repository.in_force, convert)
        return self._views[interpretation]

    def prepare(
        self, in_force: ActiveInterpretations, tables: SiteTables | None
    ) -> Callable[[], None]:
        """Builds transformers for the next interpretations in the background; call the
        result on the loop in one step with the repository's swap. Transformers with site
        functions are built at the first event, in the thread of the functions.
        """
        consumers: dict[str, ConsumerTransformer] = {}
        for name, former in self._consumers.copy().items():
            try:
                if site_functions_of(in_force, name):
                    continue
                consumer = ConsumerTransformer(in_force, name, None, ConversionEnvironment(tables))
            except (UnknownName, InterpretationError):
                continue  # its readers get the error
            consumer.prepare(former.transformed_types())
            consumers[name] = consumer

        def take_over() -> None:
            self._forget()
            self._consumers = consumers

        return take_over

    async def close(self) -> None:
        """Ends workers and threads; pending calls of site functions are rejected."""
        await close_all(self._endings())

    def _endings(self) -> Iterator[ClosableComponent]:
        opened = [*self._opened.values(), *self._closing.values()]
        self._opened, self._closing = {}, {}
        for functions in opened:
            # Waits for a process to end.
            yield "functions", partial(asyncio.to_thread, functions.close)
        if self._thread is not None:
            yield "thread", partial(self._thread.shutdown, wait=False)

    # --- canonical events -------------------------------------------------------------------------

    async def _results(
        self,
        channel: str,
        stored: Sequence[StoredEvent],
        consumer: ConsumerTransformer,
        identity: str,
    ) -> list[ConsumerResult]:
        results: list[ConsumerResult | None] = [
            ConsumerResult((one.event,), is_made=False) if consumer.passes(one.event) else None
            for one in stored
        ]
        raws = {
            number: raw
            for number, one in enumerate(stored)
            if (raw := raw_location(one.event, consumer.stamp))
            and self._may_read(identity, raw.channel)
            and not (self.hides(channel) or self.hides(raw.channel))
        }
        if raws:
            originals = await self._originals(stored, raws, consumer)
            for number, original in originals.items():
                results[number] = original
        others = [number for number, one in enumerate(results) if one is None]
        made = await self._get_results(
            channel, [stored[number] for number in others], consumer, consumer.name
        )
        for number, one in zip(others, made, strict=True):
            results[number] = one
        return [one for one in results if one is not None]

    async def _originals(
        self,
        stored: Sequence[StoredEvent],
        raws: dict[int, RawLocation],
        consumer: ConsumerTransformer,
    ) -> dict[int, ConsumerResult]:
        """Originals by index, as far as they exist. An original with several readings is
        delivered once, for the first of them.
        """
        counts = self.statistics.of(consumer.name)
        keys = {number: ("original", *cache_key(consumer, stored[number])) for number in raws}
        results = {n: found for n, key in keys.items() if (found := self._cache.get(key))}
        counts.from_cache += len(results)
        missing = [number for number in raws if number not in results]
        read = await read_raws(self._channels, [raws[number] for number in missing])
        for number in missing:
            event, result = stored[number].event, ConsumerResult((), "raw.gone")
            raw = read.get(raws[number])
            if raw is not None and is_original(raw, event):
                counts.originals += 1
                received = self._as_received(raw, raws[number], consumer)
                result = ConsumerResult((received,), is_made=False)
            results[number] = result
            self._cache.put(keys[number], result, len(event.data))
        there = [number for number in raws if results[number].events]
        first = {raws[number]: number for number in reversed(there)}
        nothing = ConsumerResult((), is_made=False)
        return {n: results[n] if first[raws[n]] == n else nothing for n in there}

    def _as_received(self, raw: Event, place: RawLocation, consumer: ConsumerTransformer) -> Event:
        source = place.channel.removeprefix(RAW_PREFIX)
        binding = self._sources.binding(source) if self._sources is not None else None
        if consumer.name not in self._types:
            self._types[consumer.name] = DeclaredTypes(self.repository.in_force, consumer.name)
        return original_event(raw, consumer.stamp, self._types[consumer.name].type_of(raw, binding))

    def _may_read(self, identity: str, channel: str) -> bool:
        return self._rights is None or self._rights.allows(identity, "subscribe", channel)

    # --- raw channels -----------------------------------------------------------------------------

    async def _results_of_raw(
        self, channel: str, stored: Sequence[StoredEvent], consumer: ConsumerTransformer
    ) -> list[ConsumerResult]:
        if self._sources is None:
            raise Unsupported("reading raw channels in an interpretation", "this program")
        source = channel.removeprefix(RAW_PREFIX)
        if (source, consumer.name) not in self._raw_consumers:
            in_force = self.repository.in_force
            raw_consumer = RawConsumerTransformer(source, consumer, self._sources, in_force)
            self._raw_consumers[source, consumer.name] = raw_consumer
        raw_consumer = self._raw_consumers[source, consumer.name]
        is_new = [self._cache.get(cache_key(raw_consumer, one)) is None for one in stored]
        results = await self._get_results(channel, stored, raw_consumer, consumer.name)
        originals = (new and not one.is_made for new, one in zip(is_new, results, strict=True))
        self.statistics.of(consumer.name).originals += sum(originals) if raw_consumer.is_own else 0
        return results

    # --- once for all -----------------------------------------------------------------------------

    async def _get_results(
        self,
        channel: str,
        stored: Sequence[StoredEvent],
        transformer: AnyTransformer,
        name: str,
    ) -> list[ConsumerResult]:
        """The result of each event, cached or made now, with a pause after every part."""
        if len(stored) <= _AT_ONCE and not transformer.may_block:
            return await self._get_part(channel, stored, transformer, name)  # it awaits nothing
        results: list[ConsumerResult] = []
        async with self._turns.setdefault(transformer, asyncio.Lock()):
            for begin in range(0, len(stored), _AT_ONCE):
                if begin:
                    await self._clock.sleep(0)
                part = stored[begin : begin + _AT_ONCE]
                results += await self._get_part(channel, part, transformer, name)
        return results

    async def _get_part(
        self,
        channel: str,
        stored: Sequence[StoredEvent],
        transformer: AnyTransformer,
        name: str,
    ) -> list[ConsumerResult]:
        """Makes all missing results in one call; the same event may occur twice."""
        keys = [cache_key(transformer, one) for one in stored]
        results = {key: found for key in keys if (found := self._cache.get(key)) is not None}
        new = {key: one for key, one in zip(keys, stored, strict=True) if key not in results}
        self.statistics.of(name).from_cache += len(keys) - len(new)
        if not new:
            return [results[key] for key in keys]
        transform = partial(transformer.transform_all, list(new.values()))
        if transformer.may_block:
            loop = asyncio.get_running_loop()
            made = await loop.run_in_executor(self._own_thread(), transform)
        else:
            made = transform()
        for (key, one), result in zip(new.items(), made, strict=True):
            self._keep(channel, one, result, name, key)
            results[key] = result
        return [results[key] for key in keys]

    def _keep(
        self, channel: str, stored: StoredEvent, result: ConsumerResult, name: str, key: Hashable
    ) -> None:
        self.statistics.made(name, channel, stored, result)
        self._cache.put(key, result, len(stored.event.data))

    # --- what holds until the next change ---------------------------------------------------------

    def _begin(self, interpretation: str) -> ConsumerTransformer:
        in_force = self.repository.in_force
        names = site_functions_of(in_force, interpretation)
        functions: SiteFunctions | None = None
        if names and self._open_functions is not None:
            functions = self._open_functions(names)
        tables = self._tables() if self._tables is not None else None
        consumer = ConsumerTransformer(
            in_force, interpretation, functions, ConversionEnvironment(tables)
        )
        if functions is not None:
            self._opened[consumer] = functions
        return consumer

    def _revision(self) -> int:
        """The revision of the tables."""
        tables = self._tables() if self._tables is not None else None
        return tables.revision if tables is not None else 0

    def _forget(self) -> None:
        self._generation = self.repository.generation
        self._consumers, self._raw_consumers, self._views, self._types = {}, {}, {}, {}
        self._turns = {}
        self._cache.clear()
        opened, self._opened = self._opened, {}
        for consumer, functions in opened.items():
            if consumer in self._at_work:
                self._closing[consumer] = functions
            else:
                self._own_thread().submit(functions.close)

    @contextmanager
    def _in_use(self, consumer: ConsumerTransformer) -> Iterator[None]:
        """Keeps site functions open until pending work is done, whatever changes meanwhile."""
        self._at_work[consumer] += 1
        try:
            yield
        finally:
            self._at_work[consumer] -= 1
            if not self._at_work[consumer]:
                del self._at_work[consumer]
                if consumer in self._closing:
                    self._own_thread().submit(self._closing.pop(consumer).close)

    def _own_thread(self) -> ThreadPoolExecutor:
        """Site functions need a single thread."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="outgoing")
        return self._thread
