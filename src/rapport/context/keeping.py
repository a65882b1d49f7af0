"""Updates as events of the channel `context`: on disk before they are acknowledged, and read again
after a restart as far as they are still valid. [CX-8]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.log.sequences import HOPS
from rapport.context.audit import AUDIT_CHANNEL, AuditLine
from rapport.context.ownership import RecordKey
from rapport.context.still_needed import LowWater, StillNeeded
from rapport.core.context_record import CONTEXT_RECORD, ContextRecord
from rapport.core.errors import InvalidInput, RapportError, Unavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.transport.base import Address

CHANNEL = "context"
READER = "context-broker"
IDENTITY = "identity"
"""Header of an update: whose key brought it."""
OWNER = "owner"
"""Header of an update that another than the owner of the record made: who owns it."""
_AT_ONCE = 2_000
_SHOWN_ENTITIES = 8
_SAVE_EVERY_MS = 10_000
_TELL_AUDIT_EVERY_MS = 1_000
_MOST_UNWRITTEN = 20_000

Done = Callable[[RapportError | None], None]

_log = get_logger(__name__)


class Waiting(msgspec.Struct, frozen=True):
    """An update that is to be kept, and who wants to know."""

    record: ContextRecord
    identity: str
    done: Done
    headers: dict[str, str]


class Keeping:
    """The durable side of a broker. What waits is appended together: one sync for many updates."""

    def __init__(self, channels: Channels, clock: Clock, place: Subscription) -> None:
        self._channels, self._clock, self._place = channels, clock, place
        self._channel = channels.channel(CHANNEL)
        self._needed = StillNeeded()
        self._waiting: list[Waiting] = []
        self._wake = asyncio.Event()
        self._unwritten: list[Event] = []
        self._saved = LowWater(place.position)
        self.audit: Callable[[bool], list[AuditLine]] = lambda _all: []
        """Where due audit lines come from; the argument asks for all."""
        self.told: Callable[[AuditLine], None] = lambda _line: None
        """Who is told of each batch of updates."""
        self.batch_kept: Callable[[], None] = lambda: None
        """Is called when those of a batch were told."""
        self.owners: dict[RecordKey, str] = {}
        """The owners of what `recall` found."""
        self.owner_of: Callable[[RecordKey], str] = lambda _key: ""
        """Who owns a record now; written down with what a restart may not read again."""
        self.neighbours: tuple[Address, ...] = ()
        """Of the broker; kept with the place, so that a restarted broker finds its way back."""

    @staticmethod
    async def open(channels: Channels, clock: Clock) -> Keeping:
        """The keeping of a node's one broker."""
        return Keeping(channels, clock, await channels.subscribe(CHANNEL, READER))

    async def recall(self) -> list[ContextRecord]:
        """What is still valid of what was ever kept; reads a few times as much as that."""
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
        """Queues an update; `done` is called when it is on disk, or with what went wrong."""
        self._waiting.append(Waiting(record, identity, done, headers or {}))
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
            # Nobody is told that it is kept, nor that it is not: it will be.
            count = len(self._waiting)
            _log.error("context updates wait for the disk", count=count, error=str(error))
            await self._clock.sleep(error.retry_after_seconds * 1_000)

    async def _append_first(self) -> None:
        """The first of those that wait. They wait until they are on disk, whatever comes between:
        the log takes each once, however often it is told.
        """
        batch = self._waiting[:_AT_ONCE]
        try:
            await self._append(batch)
        except InvalidInput as error:
            await self._append_one_by_one(batch, error)

    async def _append_one_by_one(self, batch: list[Waiting], error: InvalidInput) -> None:
        """One of them cannot be kept; that one's sender is told."""
        if len(batch) == 1:
            self._refuse(batch[0], error)
            return
        for one in batch:
            try:
                await self._append([one])
            except InvalidInput as own:
                self._refuse(one, own)

    def _refuse(self, first: Waiting, error: InvalidInput) -> None:
        _log.error("a context update cannot be kept", error=str(error))
        del self._waiting[0]
        first.done(error)
        self.batch_kept()

    async def _append(self, batch: list[Waiting]) -> None:
        """Of the first that wait."""
        appended = await self._channel.append([_as_event(one) for one in batch])
        del self._waiting[: len(batch)]
        now_ms = self._clock.now_ms()
        for one, position in zip(batch, appended.positions, strict=True):
            if position:
                self._needed.take(position, one.record, now_ms)
            one.done(None)
        for line in _audit_lines(batch, appended.positions, now_ms):
            self.told(line)
        self.batch_kept()


def _as_event(one: Waiting) -> Event:
    return one.record.to_event(source=CHANNEL, headers={IDENTITY: one.identity, **one.headers})


def _own_record(stored: StoredEvent) -> ContextRecord | None:
    event = stored.event
    if event.type != CONTEXT_RECORD or HOPS in event.headers:
        return None  # what came over a link from another node is not this broker's
    try:
        return ContextRecord.from_event(event)
    except InvalidInput as error:
        _log.warning("not a context record", position=stored.position, error=str(error))
        return None


def _audit_lines(batch: list[Waiting], positions: tuple[int, ...], now_ms: int) -> list[AuditLine]:
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
