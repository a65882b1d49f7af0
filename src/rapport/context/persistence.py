"""Persistence of updates in the channel `context`, recovery after a restart, and history. [CX-8]

An update is on disk before it is acknowledged. A restarted broker reads the log from a low-water
position, before which nothing is needed but a few long-lived records stored with that position.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator, Callable

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.event_lookup import BACKWARDS_MS, position_before
from rapport.channel.log.sequences import HOPS
from rapport.context.audit import AUDIT_CHANNEL, AuditLine
from rapport.context.rights import RecordKey
from rapport.core.context_record import CONTEXT_RECORD, ContextRecord, EntityRef
from rapport.core.errors import InvalidInput, RapportError, Unavailable
from rapport.core.event import Event, StoredEvent, as_subject
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.transport.base import Address

_SLACK = 10_000
_TIMES = 4
_MOST_STRAGGLERS = 10_000

Key = tuple[str, str, str, str]


class LowWater(msgspec.Struct, frozen=True, array_like=True):
    """A position in the log, and the earlier records that are still needed."""

    position: int
    stragglers: tuple[tuple[int, ContextRecord], ...] = ()
    neighbours: tuple[Address, ...] = ()
    """Of the broker at that time: where it looks first after a restart."""
    owners: tuple[str, ...] = ()
    """Of the stragglers, in their order: the identity that each belongs to. None were written down
    before records had owners.
    """


class LowWaterTracker:
    """The records that a restart needs, by their place in the log.

    Nothing before the low-water position is needed, but for *stragglers*: few long-lived records
    that would otherwise make a restart read everything that came after them. So a restart reads at
    most about four times what is valid.
    """

    def __init__(self) -> None:
        self._held: dict[int, ContextRecord] = {}
        self._stragglers: dict[int, ContextRecord] = {}
        self._places: dict[Key, list[int]] = {}
        self._over: set[int] = set()
        """Needed although they are over, because of what they ended."""
        self._owed: dict[int, int] = {}
        """Until when they are needed at least: what came after them, too late, is valid so long."""
        self._ends: list[tuple[int, int]] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._held) + len(self._stragglers)

    def take(self, position: int, record: ContextRecord, wall_ms: int) -> None:
        """A record came into the log, at a position and at that time. The same rules as in the
        broker's table: what has begun ends all that began before it, also when it is over itself.
        """
        self._forget_ended(wall_ms)
        if position in self._held or position in self._stragglers:
            return
        if record.valid_until <= wall_ms or self._is_stale(position, record, wall_ms):
            return
        self._drop_before(record, equal_only=record.valid_from > wall_ms)
        # A repetition has the place of its first copy, which may lie before the others.
        (self._held if position > self._last else self._stragglers)[position] = record
        self._last = max(self._last, position)
        self._note(position, record)

    def recall(self, low: LowWater) -> None:
        """Restores a saved state; then `take` is called for all later records, in order."""
        self._last = max(self._last, low.position)
        for position, record in low.stragglers:
            self._stragglers[position] = record
            self._note(position, record)

    def records(self, wall_ms: int) -> list[ContextRecord]:
        """The records that a restart needs, in the order of the log."""
        self._forget_ended(wall_ms)
        return [*self._stragglers.values(), *self._held.values()]

    def low_water(self, last: int, wall_ms: int) -> LowWater:
        """Where a restart may begin, when the log ends at `last`."""
        self._forget_ended(wall_ms)
        while last - self._before_first(last) > _TIMES * len(self._held) + _SLACK:
            if not self._held or len(self._stragglers) >= _MOST_STRAGGLERS:
                break
            oldest = next(iter(self._held))
            self._stragglers[oldest] = self._held.pop(oldest)
        return LowWater(self._before_first(last), tuple(self._stragglers.items()))

    def _before_first(self, last: int) -> int:
        return next(iter(self._held)) - 1 if self._held else last

    def _forget_ended(self, wall_ms: int) -> None:
        while self._ends and self._ends[0][0] <= wall_ms:
            _, position = heapq.heappop(self._ends)
            record = self._record_at(position)
            if record is not None:
                self._end(position, record, wall_ms)
        if len(self._ends) > 2 * len(self) + _SLACK:  # most are of records that were replaced
            live = {**self._stragglers, **self._held}
            kept = [one for one in self._ends if one[1] in self._over]
            self._ends = kept + [(record.valid_until, place) for place, record in live.items()]
            heapq.heapify(self._ends)

    def _end(self, position: int, record: ContextRecord, wall_ms: int) -> None:
        """A record is over, and all that began before it. If one of these stands later in the log,
        a restart that did not read this one would take that one for valid: then it stays needed.
        """
        dropped = [] if position in self._over else self._drop_before(record)
        ends = [end for place, end, owed in dropped if place > position]
        ends += [owed for _place, _end, owed in dropped]
        ends.append(self._owed.pop(position, wall_ms))
        last = max(ends, default=wall_ms)
        if last > wall_ms:
            self._over.add(position)
            heapq.heappush(self._ends, (last, position))
        else:
            self._drop(position, record)

    def _is_stale(self, position: int, record: ContextRecord, wall_ms: int) -> bool:
        """Whether one that began later is known. A restart must know that one as long as it would
        take this one for valid.
        """
        is_stale = False
        for place in self._places.get(record.key(), ()):
            other = self._record_at(place)
            if other is None or place in self._over:
                continue
            if record.valid_from < other.valid_from <= wall_ms:
                is_stale = True
                if place < position:
                    self._owed[place] = max(record.valid_until, self._owed.get(place, 0))
        return is_stale

    def _note(self, position: int, record: ContextRecord) -> None:
        self._places.setdefault(record.key(), []).append(position)
        heapq.heappush(self._ends, (record.valid_until, position))

    def _record_at(self, position: int) -> ContextRecord | None:
        return self._held.get(position) or self._stragglers.get(position)

    def _drop_before(
        self, record: ContextRecord, *, equal_only: bool = False
    ) -> list[tuple[int, int, int]]:
        """Drops what of the same provider, entity and scope begins no later, or just then; says
        where each stood, until when it was valid and what it owed.
        """
        dropped: list[tuple[int, int, int]] = []
        least = record.valid_from if equal_only else -math.inf
        for place in list(self._places.get(record.key(), ())):
            other = self._record_at(place)
            if other is None or other is record or place in self._over:
                continue
            if least <= other.valid_from <= record.valid_from:
                dropped.append((place, other.valid_until, self._owed.get(place, 0)))
                self._drop(place, other)
        return dropped

    def _drop(self, position: int, record: ContextRecord) -> None:
        self._held.pop(position, None)
        self._stragglers.pop(position, None)
        self._over.discard(position)
        self._owed.pop(position, None)
        places = self._places[record.key()]
        places.remove(position)
        if not places:
            del self._places[record.key()]


CHANNEL = "context"
READER = "context-broker"
IDENTITY = "identity"
"""Header of an update: the identity of the key that sealed it."""
OWNER = "owner"
"""Header of an update by an identity other than the record's owner: the owner."""
_AT_ONCE = 2_000
_SHOWN_ENTITIES = 8
_SAVE_EVERY_MS = 10_000
_TELL_AUDIT_EVERY_MS = 1_000
_MOST_UNWRITTEN = 20_000

Done = Callable[[RapportError | None], None]

_log = get_logger(__name__)


class PendingUpdate(msgspec.Struct, frozen=True):
    """An update to be stored, and the callback for its outcome."""

    record: ContextRecord
    identity: str
    done: Done
    headers: dict[str, str]


class RecordPersistence:
    """Stores the updates of a broker; waiting updates are appended together, with one sync."""

    def __init__(self, channels: Channels, clock: Clock, place: Subscription) -> None:
        self._channels, self._clock, self._place = channels, clock, place
        self._channel = channels.channel(CHANNEL)
        self._needed = LowWaterTracker()
        self._waiting: list[PendingUpdate] = []
        self._wake = asyncio.Event()
        self._unwritten: list[Event] = []
        self._saved = LowWater(place.position)
        self.audit: Callable[[bool], list[AuditLine]] = lambda _all: []
        """Source of due audit lines; the argument requests all."""
        self.on_line: Callable[[AuditLine], None] = lambda _line: None
        """Called with an audit line for each batch of updates."""
        self.batch_kept: Callable[[], None] = lambda: None
        """Called after the callbacks of a batch."""
        self.owners: dict[RecordKey, str] = {}
        """The owners of what `recall` found."""
        self.owner_of: Callable[[RecordKey], str] = lambda _key: ""
        """Returns the owner of a record; stored with records that a restart may not read again."""
        self.neighbours: tuple[Address, ...] = ()
        """Neighbours of the broker; stored with the position, so that a restarted broker finds
        them.
        """

    @staticmethod
    async def open(channels: Channels, clock: Clock) -> RecordPersistence:
        """Opens the persistence of the node's broker."""
        return RecordPersistence(channels, clock, await channels.subscribe(CHANNEL, READER))

    async def recall(self) -> list[ContextRecord]:
        """The stored records that are still valid; reads a few times as many."""
        place = self._place
        if place.state:
            written = msgspec.msgpack.decode(place.state, type=LowWater)
            self._needed.recall(written)
            self._saved, self.neighbours = written, written.neighbours
            for straggler, owner in zip(written.stragglers, written.owners, strict=False):
                self.owners[straggler[1].key()] = owner
        position = place.position
        while batch := await self._channel.read_after(position, limit=_AT_ONCE):
            for stored in batch:
                record = _own_record(stored)
                if record is not None:
                    self._needed.take(stored.position, record, stored.received)
                    headers = stored.event.headers
                    self.owners.setdefault(
                        record.key(), headers.get(OWNER) or headers.get(IDENTITY, "")
                    )
            position = batch[-1].position
        return self._needed.records(self._clock.now_ms())

    def keep(
        self,
        record: ContextRecord,
        identity: str,
        done: Done,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Queues an update; `done` is called when it is on disk, or with the error."""
        self._waiting.append(PendingUpdate(record, identity, done, headers or {}))
        self._wake.set()

    @property
    def queued(self) -> int:
        """Updates that are not on disk yet."""
        return len(self._waiting)

    async def run(self) -> None:
        """Appends what waits, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._append_waiting()

    async def tend(self) -> None:
        """Appends due audit lines and saves the low-water position now and then, until
        cancelled.
        """
        slept_ms = 0
        while True:
            await self._clock.sleep(_TELL_AUDIT_EVERY_MS)
            await self.append_audit(all_of_it=False)
            slept_ms += _TELL_AUDIT_EVERY_MS
            if slept_ms >= _SAVE_EVERY_MS:
                slept_ms = 0
                await self.save()

    async def append_audit(self, *, all_of_it: bool) -> None:
        """Appends the audit lines that are due."""
        began = self._clock.steady_ns()
        self._unwritten += [
            line.to_event(source=CHANNEL, number=began + number)
            for number, line in enumerate(self.audit(all_of_it))
        ]
        if events := self._unwritten:
            # What the disk refuses is tried again; beyond so many the oldest are let go.
            self._unwritten = events[-_MOST_UNWRITTEN:]
            await self._channels.channel(AUDIT_CHANNEL).append(self._unwritten)
            self._unwritten = []

    async def save(self) -> None:
        """Writes down where a restart may begin, when that has moved."""
        low = self._needed.low_water(self._channel.last_position(), self._clock.now_ms())
        owners = tuple(self.owner_of(record.key()) for _position, record in low.stragglers)
        low = msgspec.structs.replace(low, neighbours=self.neighbours, owners=owners)
        moved = low.position > self._saved.position
        if moved or low.neighbours != self._saved.neighbours:
            await self._place.commit(low.position, msgspec.msgpack.encode(low))
            self._saved = low

    async def close(self) -> None:
        """Keeps what still waits, the rest of the audit and the low-water position."""
        while self._waiting:
            await self._append_first()
        await self.append_audit(all_of_it=True)
        await self.save()

    async def _append_waiting(self) -> None:
        try:
            await self._append_first()
        except Unavailable as error:
            # Neither confirmed nor refused: it will be kept.
            count = len(self._waiting)
            _log.error("context updates wait for the disk", count=count, error=str(error))
            await self._clock.sleep(error.retry_after_seconds * 1_000)

    async def _append_first(self) -> None:
        """The first of those that wait. They wait until they are on disk, whatever comes between:
        the log takes each once, however often it is appended.
        """
        batch = self._waiting[:_AT_ONCE]
        try:
            await self._append(batch)
        except InvalidInput as error:
            await self._append_one_by_one(batch, error)

    async def _append_one_by_one(self, batch: list[PendingUpdate], error: InvalidInput) -> None:
        """Stores a batch one by one, because one of its updates is refused; that one's callback
        gets the error.
        """
        if len(batch) == 1:
            self._refuse(batch[0], error)
            return
        for one in batch:
            try:
                await self._append([one])
            except InvalidInput as own:
                self._refuse(one, own)

    def _refuse(self, first: PendingUpdate, error: InvalidInput) -> None:
        _log.error("a context update cannot be kept", error=str(error))
        del self._waiting[0]
        first.done(error)
        self.batch_kept()

    async def _append(self, batch: list[PendingUpdate]) -> None:
        """Appends updates from the head of the queue."""
        appended = await self._channel.append([_as_event(one) for one in batch])
        del self._waiting[: len(batch)]
        now_ms = self._clock.now_ms()
        for one, position in zip(batch, appended.positions, strict=True):
            if position:
                self._needed.take(position, one.record, now_ms)
            one.done(None)
        for line in _audit_lines(batch, appended.positions, now_ms):
            self.on_line(line)
        self.batch_kept()


def _as_event(one: PendingUpdate) -> Event:
    return one.record.to_event(source=CHANNEL, headers={IDENTITY: one.identity, **one.headers})


def _own_record(stored: StoredEvent) -> ContextRecord | None:
    # What came over a link from another node is not this broker's.
    return None if HOPS in stored.event.headers else _record_in(stored)


def _record_in(stored: StoredEvent) -> ContextRecord | None:
    """None where the event is no record; logged where it should be one."""
    if stored.event.type != CONTEXT_RECORD:
        return None
    try:
        return ContextRecord.from_event(stored.event)
    except InvalidInput as error:
        _log.warning("not a context record", position=stored.position, error=str(error))
        return None


def _audit_lines(
    batch: list[PendingUpdate], positions: tuple[int, ...], now_ms: int
) -> list[AuditLine]:
    """A line per identity."""
    of: dict[str, list[int]] = {}
    for index, one in enumerate(batch):
        of.setdefault(one.identity, []).append(index)
    lines = []
    for identity, indexes in of.items():
        places = [positions[index] for index in indexes if positions[index]]
        entities = dict.fromkeys(str(batch[index].record.entity) for index in indexes)
        lines.append(
            AuditLine(
                what="write",
                identity=identity,
                since=now_ms,
                until=now_ms,
                count=len(indexes),
                entities=tuple(entities)[:_SHOWN_ENTITIES],
                positions=(min(places), max(places)) if places else None,
            )
        )
    return lines


_PAGE = 2_000


class PastUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A stored update: record, time of receipt, identity."""

    record: ContextRecord
    told: int
    """When the broker received it, ms UTC."""
    identity: str
    position: int


async def history(
    channels: Channels,
    entity: EntityRef,
    scope: str = "",
    *,
    since: int | None = None,
    until: int | None = None,
) -> AsyncIterator[PastUpdate]:
    """The updates of an entity (and scope, if one is given) that were told from `since` until
    before `until`, in the order of the log. The beginning is searched, the rest is read through.
    What cannot be read is left out, and logged.
    """
    channel, subject = channels.channel(CHANNEL), as_subject(str(entity))
    position = 0 if since is None else await position_before(channel, since)
    while batch := await channel.read_after(position, limit=_PAGE):
        for stored in batch:
            if until is not None and stored.received >= until:
                continue
            if stored.event.subject != subject or stored.received < (since or 0):
                continue
            record = _record_in(stored)
            if record is None or record.entity != entity or scope not in ("", record.scope):
                continue
            yield PastUpdate(
                record=record,
                told=stored.received,
                identity=stored.event.headers.get(IDENTITY, ""),
                position=stored.position,
            )
        position = batch[-1].position
        if until is not None and batch[-1].received >= until + BACKWARDS_MS:
            return
