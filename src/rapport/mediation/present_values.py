"""Present values: the latest reading of every attribute, and the feed that keeps them up to date.
[ME-4]

The feed also updates reference points that conversions learn from readings of other sources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import Corrupt
from rapport.core.event import Event, StoredEvent, content_id
from rapport.core.release import HISTORY
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.mediation.concepts import Concepts, canonical_value
from rapport.mediation.conversion.conversions import Conversion, plain_steps
from rapport.mediation.conversion.lookups import ContextLookup
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.memory import MEMORY_TABLE, feed_types
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.source_bindings import EVENTS
from rapport.mediation.typed_source import TypedTransformer
from rapport.store.base import Change, Delete, Put, RecordStore

MOST_VALUES = 1_000_000
"""Maximum number of values (about 300 bytes each); the least recently updated is dropped."""


class _ReadingData(msgspec.Struct):
    key: str
    value: list[Any]


class PresentValue(msgspec.Struct, array_like=True):
    """One stored value; `number` is a sequence number that gives the order of updates."""

    stream: str
    key: str
    time_ms: int
    parts: list[Any]
    number: int = 0


_READ = msgspec.json.Decoder(_ReadingData)
_READ_VALUE = msgspec.json.Decoder(PresentValue)


class PresentValues:
    """The latest value by event time of each attribute of each instance, in memory. Fed with
    readings of the channel `events`; a `PresentContext` for typed conversions.
    """

    def __init__(self, *, most: int = MOST_VALUES) -> None:
        self._values: dict[tuple[str, str], tuple[int, list[Any]]] = {}
        self._most = most
        self._changed: dict[tuple[str, str], int] = {}
        self._updates = 0

    def __len__(self) -> int:
        return len(self._values)

    def feed(self, reading: Event) -> bool:
        """Stores a reading; False if it is not a reading or older than the stored one."""
        try:
            data = _READ.decode(reading.data)
        except msgspec.MsgspecError:
            return False
        return self._put(reading.type, data.key, reading.time, data.value)

    def value(self, concept: str, key: str, attribute: str) -> Sequence[Any] | None:
        """The parts of the present value; None if unknown."""
        found = self._values.get((f"{concept}.{attribute}", key))
        return None if found is None else found[1]

    def changed(self) -> Iterator[tuple[tuple[str, str], PresentValue | None]]:
        """Values changed since `saved`, by stream and key; None for dropped values."""
        for place, number in self._changed.items():
            kept = self._values.get(place)
            yield place, None if kept is None else PresentValue(*place, *kept, number)

    def saved(self) -> None:
        """Marks all changes as saved; nothing may be fed in between."""
        self._changed.clear()

    @staticmethod
    def of(
        values: Iterable[PresentValue], *, most: int = MOST_VALUES, are_saved: bool = True
    ) -> PresentValues:
        """Restores values in the order of their updates."""
        found = PresentValues(most=most)
        for each in sorted(values, key=lambda one: one.number):
            found._updates = max(found._updates, each.number - 1)
            found._put(each.stream, each.key, each.time_ms, each.parts)
        if are_saved:
            found.saved()
        return found

    def _put(self, stream: str, key: str, time_ms: int, parts: list[Any]) -> bool:
        place = stream, key
        known = self._values.pop(place, None)
        newer = known is None or known[0] <= time_ms
        self._values[place] = (time_ms, parts) if newer or known is None else known
        self._updates += 1
        self._changed[place] = self._updates
        if len(self._values) > self._most:
            forgotten = next(iter(self._values))
            del self._values[forgotten]
            self._changed[forgotten] = self._updates
        return newer


def read_present(saved: Iterable[bytes]) -> list[PresentValue]:
    """Decodes stored values; raises Corrupt."""
    try:
        return [_READ_VALUE.decode(each) for each in saved]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"present values cannot be read: {error}"
        raise Corrupt(message, code="mediation.bad_memory") from None


_LIMIT = 1_000
_SAVE_EVERY_MS = 10_000
_LOOK_EVERY_MS = 1_000
PRESENT_TABLE = "mediation.present"
_KEY = "*present"
"""Not a valid source name."""

_log = get_logger(__name__)


class _FeedHead(msgspec.Struct, omit_defaults=True):
    """The position of the feed; `values` is the former format with all values in one record."""

    position: int
    values: list[PresentValue] | None = None


def needs_feed(interpretations: InterpretationRegistry, concepts: Concepts) -> bool:
    """Whether some conversion looks up present values or learns from readings; checks nothing,
    so it is safe on the event loop.
    """
    declared = [each.interpretation for each in interpretations.registered.values()]
    return any(
        _asks(conversion, concepts)
        for each in (*interpretations.canonical_versions, *declared)
        for conversion in each.conversions
    )


class PresentValueFeed:
    """Follows `events` while some conversion needs it; its state survives a restart. The state
    is saved every ten seconds, after the memory of the sources. After a crash some readings are
    processed again, which only affects site functions that count their inputs.
    """

    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        is_needed: Callable[[], bool],
        learners: Callable[[], Iterable[TypedTransformer]],
        concepts: Callable[[], Concepts],
        records: RecordStore | None = None,
        *,
        keep: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`keep`: saves what the learners know; returns False if that must wait."""
        self.present = PresentValues()
        self.refused = 0
        self._channels, self._clock, self._records = channels, clock, records
        self._is_needed, self._learners, self._concepts = is_needed, learners, concepts
        self._keep = keep
        self._position = self._saved_position = 0
        self._restore()

    async def run(self) -> None:
        """Runs until cancelled."""
        saved_ns = self._clock.steady_ns()
        while True:
            if not self._is_needed():
                await self._clock.sleep(_LOOK_EVERY_MS)
                continue
            await self._channels.channel(EVENTS).wait_after(
                self._position, timeout_ms=_LOOK_EVERY_MS
            )
            await self.step()
            if self._clock.steady_ns() - saved_ns > _SAVE_EVERY_MS * 1_000_000:
                saved_ns = self._clock.steady_ns() if await self.save() else saved_ns

    async def step(self) -> int:
        """Processes at most a thousand readings; returns their number."""
        batch = await self._channels.channel(EVENTS).read_after(self._position, limit=_LIMIT)
        learners = [each for each in self._learners() if each.feeds]
        if any(each.may_block for each in learners):
            await asyncio.to_thread(self._take_in, batch, learners)
        else:
            self._take_in(batch, learners)
        self._position = batch[-1].position if batch else self._position
        return len(batch)

    async def save(self) -> bool:
        """Saves the state durably; returns False without saving while a learner is in the
        middle of a batch, since a restart does not replay readings before a saved position.
        """
        if self._records is None or self._position == self._saved_position:
            return True
        if self._keep is not None and not await self._keep():
            return False
        await asyncio.to_thread(self._write, self._records, self._position)
        self._saved_position = self._position
        return True

    def _write(self, records: RecordStore, position: int) -> None:
        """Runs in a thread, for as long as values changed; nothing is fed meanwhile."""
        changes: list[Change] = [
            Delete(PRESENT_TABLE, content_id(*place))
            if value is None
            else Put(PRESENT_TABLE, content_id(*place), msgspec.json.encode(value))
            for place, value in self.present.changed()
        ]
        head = msgspec.json.encode(_FeedHead(position))
        records.apply([*changes, Put(MEMORY_TABLE, _KEY, head)])
        self.present.saved()

    def _take_in(self, batch: list[StoredEvent], learners: list[TypedTransformer]) -> None:
        for stored in batch:
            if HISTORY in stored.event.headers:
                continue  # imported readings are not present values
            self.present.feed(stored.event)
            for learner in learners:
                self._teach(learner, stored)

    def _teach(self, learner: TypedTransformer, stored: StoredEvent) -> None:
        concept, _, attribute = stored.event.type.partition(".")
        declared = self._concepts().get(concept, {}).get(attribute)
        if declared is None or concept not in learner.feeds:
            return
        event = stored.event
        try:
            value = canonical_value(attribute, declared.type, event.payload(), event.time)
            learner.feed(concept, value)
        except (RejectedValue, KeyError, TypeError, ValueError) as error:
            self.refused += 1
            _log.warning("reading refused by conversions", id=event.id, reason=str(error)[:200])

    def _restore(self) -> None:
        record = self._records.get(MEMORY_TABLE, _KEY) if self._records is not None else None
        if record is None or self._records is None:
            return
        saved = _read_saved(record)
        self._position = self._saved_position = saved.position
        if saved.values is not None:
            numbered = enumerate(saved.values, start=1)
            values = [msgspec.structs.replace(each, number=place) for place, each in numbered]
            self.present = PresentValues.of(values, are_saved=False)
        else:
            self.present = PresentValues.of(read_present(_present_records(self._records)))


def _read_saved(record: bytes) -> _FeedHead:
    try:
        return msgspec.json.decode(record, type=_FeedHead)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"present values cannot be read: {error}"
        raise Corrupt(message, code="mediation.bad_memory") from None


def _present_records(records: RecordStore) -> Iterator[bytes]:
    after = ""
    while page := records.find(PRESENT_TABLE, after=after, limit=_LIMIT):
        yield from (value for _key, value in page)
        after = page[-1][0]


def _asks(conversion: Conversion, concepts: Concepts) -> bool:
    if any(name in concepts for name, _ in feed_types(conversion)):
        return True
    return any(isinstance(step.how, ContextLookup) for step in plain_steps(conversion))
