"""Releases quarantined events and reprocesses misinterpreted ones. [ME-11, ME-16]

A request is recorded in `releases` first, so after a crash the node continues. Order for each
batch: readings, then new rejections, then the record; readings appended before a crash are found by
their id and not appended again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import msgspec

from rapport.channel.channel import Channel, Channels, Subscription
from rapport.channel.event_lookup import position_before
from rapport.core.errors import InvalidInput, RapportError, UnknownName, Unsupported
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.core.release import (
    BATCH_RELEASED,
    REEVALUATED,
    RELEASE_DONE,
    RELEASE_REQUESTED,
    RELEASES,
    ReevaluationResult,
    ReleasedBatch,
    ReleaseDone,
    ReleaseRequest,
)
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.mediation.quarantine.corrections import RAW_GONE, ReprocessedBatch, Reprocessor
from rapport.mediation.quarantine.index import QuarantinedEvent, QuarantineFilter, QuarantineIndex
from rapport.mediation.quarantine.rejection_events import (
    QUARANTINE,
    SOURCE,
    raw_event_of,
    rejection_event,
)
from rapport.mediation.reader import EventTransformer, SignReading
from rapport.mediation.rejections import Rejection
from rapport.mediation.source_bindings import RAW_POSITION, RAW_PREFIX

_BATCH = 500


RawBatch = tuple[str, list[StoredEvent]]
"""A raw channel and some of its events, in order."""


class ReleaseProgress:
    """The finished part of a release."""

    def __init__(self, release: str) -> None:
        self.done: dict[str, int] = {}
        """The last finished position of each raw channel."""
        self.upto = 0
        self.is_done = False
        self.total = ReleaseDone(release=release, notify=True)

    def take(self, batch: ReleasedBatch) -> None:
        places = (*batch.released, *batch.rejected)
        self.done[batch.channel] = max(self.done.get(batch.channel, 0), *places, 0)
        self.upto = max(self.upto, batch.upto)
        _count(self.total, batch)
        self.total.merge(batch)


class ReleaseState(msgspec.Struct, kw_only=True):
    """The request, its progress, and the result of the policies' re-evaluation."""

    release: str
    asked: ReleaseRequest
    released: int = 0
    rejected: int = 0
    corrected: int = 0
    unchanged: int = 0
    is_done: bool = False
    second_look: ReevaluationResult | None = None


async def read_state(channels: Channels, release: str) -> ReleaseState:
    """The state of one release; raises UnknownName."""
    position = 0
    for name, stored in await channels.find_event(release):
        if name == RELEASES and stored.event.type == RELEASE_REQUESTED:
            position = stored.position
            state = ReleaseState(release=release, asked=stored.event.payload_as(ReleaseRequest))
    if not position:
        raise UnknownName("release", release)
    async for event in _release_events(channels, release, position):
        if event.type == BATCH_RELEASED:
            _count(state, event.payload_as(ReleasedBatch))
        elif event.type == RELEASE_DONE:
            done: ReleaseDone = event.payload_as(ReleaseDone)
            state.is_done, state.released, state.rejected = True, done.released, done.rejected
        elif event.type == REEVALUATED:
            state.second_look = event.payload_as(ReevaluationResult)
    return state


async def _release_events(channels: Channels, release: str, position: int) -> AsyncIterator[Event]:
    """The records of a release after its request."""
    channel = channels.channel(RELEASES)
    while batch := await channel.read_after(position, limit=_PAGE):
        position = batch[-1].position
        for stored in batch:
            if stored.event.subject == f"release/{release}":
                yield stored.event


def _count(total: ReleaseDone | ReleaseState | ReleaseTrial, batch: ReleasedBatch) -> None:
    total.released += len(batch.released)
    total.rejected += len(batch.rejected)
    total.corrected += len(batch.corrected)
    total.unchanged += batch.unchanged


READER = "mediation"
_PAGE = 1_000

_log = get_logger(__name__)


class ReleaseTrial(msgspec.Struct, kw_only=True):
    """What a release would do."""

    released: int = 0
    rejected: int = 0
    corrected: int = 0
    unchanged: int = 0
    reasons: dict[str, int] = {}
    """Codes of the remaining rejections."""
    examples: list[str] = []
    """Some of the readings as JSON."""


class ReleaseService:
    """Carries out releases one after the other; keeps a position in `releases` and the
    quarantine index.
    """

    def __init__(
        self,
        channels: Channels,
        meaning: Callable[[str], EventTransformer],
        clock: Clock,
        *,
        new_id: Callable[[], str],
        sign: SignReading | None = None,
    ) -> None:
        """`meaning`: the present transformer of a source."""
        self._channels, self._meaning, self._clock = channels, meaning, clock
        self._new_id, self._sign = new_id, sign
        self._subscription: Subscription | None = None
        self.index = QuarantineIndex(channels)

    async def request(self, request: ReleaseRequest) -> str:
        """Requests a release or reprocessing; durable when it returns the release's id.
        Raises InvalidInput if nothing matches, UnknownName for an unknown id or source.
        """
        request = await self._resolve_request(request)
        release = self._new_id()
        event = make_event(
            source=SOURCE,
            id=release,
            type=RELEASE_REQUESTED,
            subject=f"source/{request.source}" if request.source else "",
            time=self._clock.now_ms(),
            data=request,
        )
        await self._channels.channel(RELEASES).append([event])
        return release

    async def try_out(self, request: ReleaseRequest) -> ReleaseTrial:
        """What it would do; appends nothing."""
        request = await self._resolve_request(request)
        trial = ReleaseTrial()
        async for given in self._batches("trial", request, ReleaseProgress("trial")):
            _count(trial, given.batch)
            for one in given.rejections:
                trial.reasons[one.code] = trial.reasons.get(one.code, 0) + 1
            room = 3 - len(trial.examples)
            trial.examples += [reading.data.decode() for reading in given.readings[:room]]
        return trial

    async def state(self, release: str) -> ReleaseState:
        """The progress of a release; raises UnknownName."""
        return await read_state(self._channels, release)

    async def run(self) -> None:
        """Runs until cancelled; continues where it was after a failure."""
        self._subscription = None
        while True:
            await self.step()

    async def step(self, *, timeout_ms: int | None = None) -> int:
        """Carries out new requests; returns their number."""
        if self._subscription is None:
            self._subscription = await self._channels.subscribe(RELEASES, READER)
        ended = 0
        for stored in await self._subscription.next_batch(timeout_ms=timeout_ms):
            if stored.event.type == RELEASE_REQUESTED:
                await self._carry_out(stored)
                ended += 1
            await self._subscription.commit(stored.position)
        return ended

    # --- choosing ---

    async def _resolve_request(self, request: ReleaseRequest) -> ReleaseRequest:
        """The request with its end position; raises if there is nothing to do."""
        if request.what == "again":
            if not request.source:
                raise InvalidInput("name the source to mediate again", code="release.no_source")
            raw = RAW_PREFIX + request.source
            if raw not in self._channels.names():
                raws = [name for name in self._channels.names() if name.startswith(RAW_PREFIX)]
                known = [name.removeprefix(RAW_PREFIX) for name in raws]
                raise UnknownName("source with received events", request.source, known)
            if self._meaning(request.source).depends_on_present:
                raise Unsupported(
                    f"mediating {request.source!r} again",
                    "a source with conversions that depend on present values",
                    hint="their past values are not recorded: its readings would be corrected by "
                    "present values",
                )
            through = self._channels.channel(raw).last_position()
            return msgspec.structs.replace(request, through=through)
        await self.index.refresh()
        through = self._channels.channel(QUARANTINE).last_position()
        settled = msgspec.structs.replace(request, through=through)
        async for _ in self._chosen(settled):
            return settled
        raise self._refusal(settled)

    def _refusal(self, request: ReleaseRequest) -> RapportError:
        for id in request.ids:
            if self.index.one(id) is None:
                return UnknownName("quarantined event", id)
        return InvalidInput(
            "no quarantined event matches",
            code="release.nothing_held",
            hint="rapport mediate quarantine lists them; readings that policies cannot use are "
            "mediated again by: rapport mediate again",
        )

    async def _chosen(self, request: ReleaseRequest) -> AsyncIterator[list[QuarantinedEvent]]:
        """In pages, by raw channel and position."""
        wanted = QuarantineFilter(
            source=request.source, reason=request.reason, since_ms=request.since_ms, ids=request.ids
        )
        async for page in self.index.pages(wanted):
            if chosen := [one for one in page if _is_requested(one, request)]:
                yield chosen

    async def _batches(
        self, release: str, request: ReleaseRequest, progress: ReleaseProgress
    ) -> AsyncIterator[ReprocessedBatch]:
        """What to append, batch by batch, for the unfinished part."""
        await self.index.refresh()
        batches = (
            self._again(request, progress)
            if request.what == "again"
            else self._held(self._chosen(request), progress)
        )
        # One per channel: its memory continues from batch to batch.
        reprocessors: dict[str, Reprocessor] = {}
        async for channel, batch in batches:
            if channel not in reprocessors:
                reprocessors[channel] = self._reprocessor_for(release, channel)
            places = [stored.position for stored in batch]
            held = {place for place in places if self.index.at(channel, place)}
            yield await reprocessors[channel].reprocess(batch, held)

    def _reprocessor_for(self, release: str, channel: str) -> Reprocessor:
        meaning = self._meaning(channel.removeprefix(RAW_PREFIX))
        return Reprocessor(
            release,
            channel,
            meaning,
            correction=self.index.correction,
            find=partial(self._find, meaning.into),
            now_ms=self._clock.now_ms(),
            sign=self._sign,
        )

    async def _find(self, channel: str, source: str, id: str) -> Event | None:
        for name, stored in await self._channels.find_event(id):
            if name == channel and stored.event.source == source:
                return stored.event
        return None

    # --- raw events in batches ---

    async def _held(
        self, chosen: AsyncIterator[list[QuarantinedEvent]], progress: ReleaseProgress
    ) -> AsyncIterator[RawBatch]:
        """Quarantined events, given by channel and position, without finished ones."""
        before = dict(progress.done)
        batch: list[QuarantinedEvent] = []
        async for page in chosen:
            for one in page:
                if one.raw_position <= before.get(one.channel, 0):
                    continue
                if batch and (len(batch) == _BATCH or batch[0].channel != one.channel):
                    yield batch[0].channel, await self._raw_events(batch[0].channel, batch)
                    batch = []
                batch.append(one)
        if batch:
            yield batch[0].channel, await self._raw_events(batch[0].channel, batch)

    async def _again(
        self, request: ReleaseRequest, progress: ReleaseProgress
    ) -> AsyncIterator[RawBatch]:
        """Events of a source received in a period, after the finished ones."""
        name = RAW_PREFIX + request.source
        channel = self._channels.channel(name)
        position = max(await position_before(channel, request.since_ms), progress.upto)
        while batch := await channel.read_after(position, limit=_BATCH):
            position = batch[-1].position
            wanted = [
                stored
                for stored in batch
                if request.since_ms <= stored.received < request.until_ms
                and stored.position <= request.through
            ]
            if wanted:
                yield name, wanted
            if position >= request.through:
                return

    async def _raw_events(
        self, channel: str, held: Sequence[QuarantinedEvent]
    ) -> list[StoredEvent]:
        """The raw events, or their copies if retention removed them."""
        wanted = {one.raw_position for one in held}
        found: dict[int, StoredEvent] = {}
        source, after = self._channels.channel(channel), min(wanted) - 1
        while after < max(wanted) and (batch := await source.read_after(after, limit=_PAGE)):
            found |= {one.position: one for one in batch if one.position in wanted}
            rest = [position for position in wanted if position > batch[-1].position]
            after = max(batch[-1].position, min(rest, default=0) - 1)
        for one in held:
            if one.raw_position not in found:
                found[one.raw_position] = await self._copy(one)
        return [found[position] for position in sorted(wanted)]

    async def _copy(self, held: QuarantinedEvent) -> StoredEvent:
        for stored in await self._channels.channel(QUARANTINE).read_after(held.first - 1, limit=1):
            raw = raw_event_of(stored.event) if stored.position == held.first else None
            if raw is not None:
                return StoredEvent(held.raw_position, held.received, raw)
        gone = Event(SOURCE, held.id, RAW_GONE, "", held.time)
        return StoredEvent(held.raw_position, held.received, gone)

    # --- doing ---

    async def _carry_out(self, stored: StoredEvent) -> None:
        request: ReleaseRequest = stored.event.payload_as(ReleaseRequest)
        release = stored.event.id
        progress = await self._progress(release, stored.position)
        if progress.is_done:
            return
        async for given in self._batches(release, request, progress):
            await self._append(given)
            progress.take(given.batch)
        event = _record(RELEASE_DONE, progress.total, release, self._clock.now_ms())
        await self._channels.channel(RELEASES).append([event])
        _log.info("released", **msgspec.to_builtins(progress.total))

    async def _append(self, given: ReprocessedBatch) -> None:
        batch = given.batch
        into = self._channels.channel(given.into)
        try:
            await into.append(given.readings)
        except InvalidInput:
            await self._append_one_by_one(into, given)
        await self._append_rejections(given.rejections, batch)
        batch.through = self._channels.channel("events").last_position()
        record = _record(BATCH_RELEASED, batch, batch.release, self._clock.now_ms())
        await self._channels.channel(RELEASES).append([record])

    async def _append_one_by_one(self, into: Channel, given: ReprocessedBatch) -> None:
        """A refused reading is rejected; the others are still appended."""
        for reading in given.readings:
            try:
                await into.append([reading])
            except InvalidInput as error:
                place = int(reading.headers[RAW_POSITION])
                given.reject(place, error.code, error.message, error.hint)

    async def _append_rejections(
        self, rejections: Sequence[Rejection], batch: ReleasedBatch
    ) -> None:
        """Appends an event only for new reasons."""
        source, events = batch.channel.removeprefix(RAW_PREFIX), []
        for one in rejections:
            held = self.index.at(batch.channel, one.position)
            if held is None or (held.reason, held.message) == (one.code, one.message):
                continue
            events.append(
                rejection_event(one, source, attempt=held.attempts + 1, release=batch.release)
            )
        if events:
            await self._channels.channel(QUARANTINE).append(events)

    async def _progress(self, release: str, position: int) -> ReleaseProgress:
        """What was done before a crash."""
        progress = ReleaseProgress(release)
        async for event in _release_events(self._channels, release, position):
            if event.type == BATCH_RELEASED:
                progress.take(event.payload_as(ReleasedBatch))
            progress.is_done |= event.type == RELEASE_DONE
        return progress


def _is_requested(one: QuarantinedEvent, request: ReleaseRequest) -> bool:
    return not one.is_reading and one.received < request.until_ms and one.first <= request.through


def _record(type: str, data: ReleasedBatch | ReleaseDone, release: str, now_ms: int) -> Event:
    """Equal records have equal ids, so that repeating one after a crash has no effect."""
    content = msgspec.json.encode(data).decode()
    return make_event(
        source=SOURCE,
        id=content_id(type, release) if type == RELEASE_DONE else content_id(type, content),
        type=type,
        subject=f"release/{release}",
        time=now_ms,
        data=data,
        headers={CAUSE: cause_text(release)},
    )
