"""Readings that devices without a link sent by gossip: published once, confirmed, and reviewed when
late. [EN-14, PO-7]

Order for each version: the readings, then the receipt, then the confirmation to the device. After a
crash in between the device sends them again, and the channel recognises their ids.

The policy engine records every reading that is too late. Late carried readings are recorded in
`releases` like released quarantined readings; the re-evaluation that follows any release gives
detections with the time of the reading, marked late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead_letters import append_dead_letter
from rapport.channel.federation import Append
from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.core.knowledge import Knowledge
from rapport.core.release import (
    BATCH_RELEASED,
    CARRIED,
    RELEASE_DONE,
    RELEASES,
    ReleasedBatch,
    ReleaseDone,
    TouchedReadings,
)
from rapport.ensemble.device_readings import (
    Carried,
    Receipt,
    new_readings,
    parse_device_knowledge,
    reading_id,
)
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.mediation.source_bindings import RAW_POSITION, RAW_PREFIX
from rapport.node.ensemble_ties import KnowledgeQueue
from rapport.policy.engine.stream_steps import LATE_TYPE
from rapport.site.ensemble import SourceTie
from rapport.store.base import Put, RecordStore

TYPE = "rapport.ensemble.carried"
_TABLE = "ensemble.receipts"
_PUBLISHED = 500
"""Receipts in the node's knowledge: those of the latest devices."""
_BESIDE = 64
"""Bytes of knowledge beside them."""

_log = get_logger(__name__)


class CarriedCounts(msgspec.Struct):
    """Since the start."""

    readings: int = 0
    repeated: int = 0
    """Readings that the channel had already."""
    missing: int = 0
    """Readings that devices gave up, as they had too many."""
    refused: int = 0
    """Readings that a channel refused: dead letters have the reasons."""
    not_read: int = 0
    """Versions with malformed readings."""


class CarriedReadings:
    """Takes readings from what devices publish."""

    def __init__(
        self,
        ties: Sequence[SourceTie],
        channels: LoggedChannels,
        append: Append,
        *,
        collector: str,
        confirm: Callable[[dict[str, Receipt]], None],
        most_bytes: int = 65_536,
    ) -> None:
        """`collector`: the id of the component that confirms; `confirm` gives it receipts;
        `most_bytes`: of what a component may publish.
        """
        self.inbox = KnowledgeQueue()
        self.counts = CarriedCounts()
        self._ties, self._channels, self._append = ties, channels, append
        self._collector, self._confirm = collector, confirm
        self._room = most_bytes - _BESIDE
        self._receipts: dict[str, Receipt] = {}
        """By device, latest last."""
        self._told: frozenset[str] = frozenset()
        """Whose receipts the node's knowledge holds."""

    @property
    def sources(self) -> frozenset[str]:
        """The sources whose readings come so."""
        return frozenset(tie.source for tie in self._ties)

    def put(self, knowledge: Knowledge) -> None:
        """Hears of a version; whether it is a device's is looked at here."""
        if Carried.__name__ in knowledge.roles and self._tie(knowledge) is not None:
            self.inbox.put(knowledge)

    async def run(self) -> None:
        """Works until cancelled; first confirms what it had before."""
        self._receipts = await self._channels.look(_kept)
        self._publish_receipts()
        while True:
            await self.inbox.wait()
            versions = self.inbox.take_all()
            try:
                for one in versions:
                    await self.take(one)
            except BaseException:
                self.inbox.put_back(versions)
                raise

    async def take(self, knowledge: Knowledge) -> None:
        """Publishes the new readings of a version."""
        tie, component = self._tie(knowledge), knowledge.component
        try:
            known = parse_device_knowledge(knowledge.values)
        except InvalidInput as error:
            self.counts.not_read += 1
            _log.warning("readings cannot be read", component=component, reason=error.message)
            return
        if tie is None or known.to not in ("", self._collector):
            return
        fresh = new_readings(known, self._receipts.get(component, Receipt()))
        if not fresh.readings:
            if known.readings:
                self._confirm_again(component)
            return
        await self._publish(
            tie.source,
            [
                Event(
                    source=tie.source,
                    id=reading_id(component, known.life, one.number),
                    type=TYPE,
                    subject=component,
                    time=one.time_ms,
                    data=_as_json(one.data),
                    headers={CARRIED: component},
                )
                for one in fresh.readings
            ],
        )
        self.counts.missing += fresh.missing
        await self._channels.apply([Put(_TABLE, component, msgspec.msgpack.encode(fresh.receipt))])
        self._keep_last(component, fresh.receipt)
        self._publish_receipts()

    async def _publish(self, source: str, events: list[Event]) -> None:
        """All of them, or one by one those that the channel takes; the others are buried."""
        channel = RAW_PREFIX + source
        try:
            appended = await self._append(channel, events)
        except InvalidInput as error:
            if len(events) > 1:
                for event in events:
                    await self._publish(source, [event])
                return
            self.counts.refused += 1
            await append_dead_letter(
                self._channels, channel, "ensemble", StoredEvent(0, 0, events[0]), error, attempts=1
            )
            return
        self.counts.repeated += appended.duplicates
        self.counts.readings += len(events) - appended.duplicates

    def _confirm_again(self, component: str) -> None:
        """A device still says what is here: it did not hear so, and its receipt may have made room
        for those of others.
        """
        self._keep_last(component, self._receipts[component])
        if component not in self._told:
            self._publish_receipts()

    def _keep_last(self, component: str, receipt: Receipt) -> None:
        self._receipts.pop(component, None)
        self._receipts[component] = receipt

    def _publish_receipts(self) -> None:
        known = fitting(self._receipts, _PUBLISHED, self._room)
        self._told = frozenset(known)
        self._confirm(known)

    def _tie(self, knowledge: Knowledge) -> SourceTie | None:
        return next((tie for tie in self._ties if tie.of.fits(knowledge)), None)


def fitting(receipts: dict[str, Receipt], most: int, room: int) -> dict[str, Receipt]:
    """The last of them, as many as may be published: with one too many none would be; pure."""
    chosenn: dict[str, Receipt] = {}
    for name in islice(reversed(receipts), most):
        needed = len(msgspec.msgpack.encode((name, receipts[name])))
        if needed <= room:
            chosenn[name] = receipts[name]
            room -= needed
    return dict(reversed(chosenn.items()))


def collector_id(node: str) -> str:
    """The component that confirms what a node has."""
    return f"collector of {node}"[:200]


def _as_json(text: str) -> bytes:
    """The payload of a device; other text than JSON as a JSON string, which is quarantined."""
    raw = text.encode("utf-8", "replace")
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.json.encode(raw.decode())
    return raw


def _kept(records: RecordStore) -> dict[str, Receipt]:
    found: dict[str, Receipt] = {}
    after = ""
    while page := records.find(_TABLE, after=after):
        for key, value in page:
            found[key] = msgspec.msgpack.decode(value, type=Receipt)
        after = page[-1][0]
    return found


READER = "ensemble-late"
SOURCE = "ensemble"
S = TypeVar("S", bound=TouchedReadings)
_MOST_CAUSES = 50
_GATHER_MS = 200
"""Readings that come together are looked at together: each look reads a stretch of the log."""


class LateReadingReplay:
    """Follows `detections` for late readings; its place is durable, so none is forgotten."""

    def __init__(self, channels: Channels, clock: Clock, sources: Collection[str]) -> None:
        """`sources`: those whose readings are carried."""
        self._channels, self._clock, self._sources = channels, clock, sources
        self.looks = 0

    async def run(self) -> None:
        subscription = await self._channels.subscribe("detections", READER)
        while True:
            batch = await subscription.next_batch()
            if any(stored.event.type == LATE_TYPE for stored in batch):
                await self._clock.sleep(_GATHER_MS)
                batch = [*batch, *await subscription.next_batch(timeout_ms=0)]
            await self.look(batch)
            await subscription.commit(batch[-1].position)

    async def look(self, batch: Sequence[StoredEvent]) -> None:
        """Has policies look again at the carried readings among these; the same batch again asks
        for the same look.
        """
        late = [stored.event for stored in batch if stored.event.type == LATE_TYPE]
        readings = [reading for event in late for reading in await self._carried(event)]
        if not readings:
            return
        await self._channels.channel(RELEASES).append(_released(readings, self._clock.now_ms()))
        self.looks += 1

    async def _carried(self, late: Event) -> list[StoredEvent]:
        found = await self._channels.find_event(str(late.payload()["id"]))
        return [
            stored
            for channel, stored in found
            if channel == "events"
            and CARRIED in stored.event.headers
            and stored.event.source in self._sources
        ]


def _released(readings: Sequence[StoredEvent], now_ms: int) -> list[Event]:
    """What a release of these readings would have noted: they are in `events` already."""
    release = content_id("carried late", *sorted(one.event.id for one in readings))
    by_channel: dict[str, list[StoredEvent]] = {}
    for stored in readings:
        by_channel.setdefault(stored.event.headers.get("rawchannel", ""), []).append(stored)
    batches = [
        _touched(_batch(release, channel, found), found)
        for channel, found in sorted(by_channel.items())
        if channel
    ]
    done = _touched(ReleaseDone(release=release, released=len(readings)), readings)
    causes = cause_text(*(one.event.id for one in readings[:_MOST_CAUSES]))
    parts = [content_id(BATCH_RELEASED, release, one.channel) for one in batches]
    return [
        *(_noted(*one, release, now_ms) for one in zip(parts, batches, strict=True)),
        msgspec.structs.replace(_noted(release, done, release, now_ms), headers={CAUSE: causes}),
    ]


def _noted(id: str, data: ReleasedBatch | ReleaseDone, release: str, now_ms: int) -> Event:
    return make_event(
        source=SOURCE,
        id=id,
        type=RELEASE_DONE if isinstance(data, ReleaseDone) else BATCH_RELEASED,
        subject=f"release/{release}",
        time=now_ms,
        data=data,
        headers={CAUSE: cause_text(release)},
    )


def _batch(release: str, channel: str, readings: Sequence[StoredEvent]) -> ReleasedBatch:
    places = sorted({int(one.event.headers[RAW_POSITION]) for one in readings})
    return ReleasedBatch(release=release, channel=channel, upto=places[-1], released=places)


def _touched(span: S, readings: Sequence[StoredEvent]) -> S:
    for stored in readings:
        span.touch(stored.event.type, stored.event.time)
        span.through = max(span.through, stored.position)
    return span
