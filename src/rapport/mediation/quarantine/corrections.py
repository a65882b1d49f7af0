"""Reprocesses raw events: new, corrected and unchanged readings. [ME-16]

A new reading keeps the id of its raw event. A reading that differs from the stored one gets the id
`<id>~<version>` and names the former in `corrects`; nothing is deleted, and the newest correction
applies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec

from rapport.core.event import CAUSE, MAX_NAME, Event, StoredEvent, cause_text, content_id
from rapport.core.release import CORRECTS, RELEASED, ReleasedBatch, without_release_headers
from rapport.core.signature import without_raw_signature
from rapport.core.times import format_time
from rapport.mediation.reader import EventTransformer, SignReading
from rapport.mediation.reading_times import split_plausible
from rapport.mediation.rejections import Rejection
from rapport.mediation.source_bindings import EVENTS

FindReading = Callable[[str, str], Awaitable[Event | None]]
"""Finds the event of a source and id in the channel of the readings."""

_RawResults = list[tuple[StoredEvent, list[Event], list[Rejection]]]


RAW_GONE = "rapport.mediation.gone"
"""Type of the placeholder for a raw event that no longer exists."""


class ReprocessedBatch(msgspec.Struct, kw_only=True):
    """What to append for some raw events, and its record."""

    batch: ReleasedBatch
    into: str
    """The channel of the readings."""
    raws: dict[int, Event] = {}
    readings: list[Event] = []
    rejections: list[Rejection] = []

    def reject(self, position: int, code: str, message: str, hint: str) -> None:
        """Records that a reading was refused: its raw event stays quarantined."""
        batch, raw = self.batch, self.raws[position]
        self.rejections.append(Rejection(code, message, hint, raw, position))
        if position in batch.released:
            batch.released.remove(position)
        if position not in batch.rejected:
            batch.rejected.append(position)


class Reprocessor:
    """Transforms raw events of one channel for one release; appends nothing."""

    def __init__(
        self,
        release: str,
        channel: str,
        meaning: EventTransformer,
        *,
        correction: Callable[[str, str], str],
        find: FindReading,
        now_ms: int,
        sign: SignReading | None = None,
    ) -> None:
        """`correction`: from channel and id of a reading to the id of its newest
        correction.
        """
        self._release, self._channel, self._meaning = release, channel, meaning
        self._correction, self._find = correction, find
        self._released_at, self._sign = format_time(now_ms), sign

    async def reprocess(
        self, raws: Sequence[StoredEvent], held: Collection[int]
    ) -> ReprocessedBatch:
        """The readings to append, with their headers, and remaining rejections; `held`:
        positions quarantined now.
        """
        batch = ReleasedBatch(
            release=self._release, channel=self._channel, upto=raws[-1].position if raws else 0
        )
        events = {one.position: one.event for one in raws}
        given = ReprocessedBatch(batch=batch, into=self._meaning.into, raws=events)
        for stored, readings, rejections in await asyncio.to_thread(self._apply, raws):
            is_held = stored.position in held
            became = {await self._classify(reading, stored, given, is_held) for reading in readings}
            given.rejections += rejections[:1]
            if rejections:
                batch.rejected.append(stored.position)
            elif "new" in became or is_held:
                batch.released.append(stored.position)
            elif "corrected" not in became:
                batch.unchanged += 1
        return given

    def _apply(self, raws: Sequence[StoredEvent]) -> _RawResults:
        """In a thread, since site functions may block."""
        return [
            (stored, [], [_gone_rejection(stored)])
            if stored.event.type == RAW_GONE
            else (stored, *self._apply_alone(stored))
            for stored in raws
        ]

    def _apply_alone(self, stored: StoredEvent) -> tuple[list[Event], list[Rejection]]:
        readings, rejections = self._meaning.apply_many([stored])
        kept, implausible = split_plausible(readings, [stored], self._meaning.stamp)
        return kept, [*rejections, *implausible]

    async def _classify(
        self, reading: Event, stored: StoredEvent, given: ReprocessedBatch, is_held: bool
    ) -> Literal["new", "corrected", "same"]:
        """Adds the events to append for one reading, and classifies it."""
        known = self._correction(self._channel, reading.id)
        former = await self._find(reading.source, known)
        if former is None:
            given.readings.append(self._marked(reading, stored, {}))
            self._touch(given, reading)
            return "new"
        if not _is_equal(former, reading):
            await self._correct(reading, stored, former, given)
            return "corrected"
        is_ours = self._release in former.causes()  # appended before a crash
        if is_ours or is_held:
            self._touch(given, reading)
        if is_ours and CORRECTS in former.headers:
            given.batch.corrected[reading.id] = former.id
            return "corrected"
        return "new" if is_ours else "same"

    async def _correct(
        self, reading: Event, stored: StoredEvent, former: Event, given: ReprocessedBatch
    ) -> None:
        id, standing = await self._id_of_correction(reading)
        given.batch.corrected[reading.id] = id
        given.batch.mended_readings.append(stored.position)
        self._touch(given, former)
        self._touch(given, reading)
        if standing is None:
            renamed = msgspec.structs.replace(reading, id=id)
            given.readings.append(self._marked(renamed, stored, {CORRECTS: reading.id}))

    async def _id_of_correction(self, reading: Event) -> tuple[str, Event | None]:
        """A free id, or the one under which it was appended before a crash."""
        version = self._meaning.stamp.rpartition("@")[2] or "root"
        number = 1
        while True:
            suffix = version if number == 1 else f"{version}.{number}"
            id = f"{reading.id}~{suffix}"
            if len(id) > MAX_NAME:
                id = content_id(reading.id, suffix)
            found = await self._find(reading.source, id)
            if found is None:
                return id, None
            if _is_equal(found, reading) and self._release in found.causes():
                return id, found
            number += 1

    def _marked(self, reading: Event, stored: StoredEvent, marks: Mapping[str, str]) -> Event:
        plain = without_release_headers(reading)
        headers = {
            **plain.headers,
            CAUSE: cause_text(*plain.causes(), self._release),
            RELEASED: self._released_at,
            **marks,
        }
        seal = self._sign or without_raw_signature
        return seal(msgspec.structs.replace(plain, headers=headers), stored.event)

    def _touch(self, given: ReprocessedBatch, reading: Event) -> None:
        if self._meaning.into == EVENTS:
            given.batch.touch(reading.type, reading.time)


def _gone_rejection(stored: StoredEvent) -> Rejection:
    return Rejection(
        "raw.gone",
        "the raw event no longer exists and was too large to be copied",
        "keep raw channels longer than it takes to correct an interpretation",
        stored.event,
        stored.position,
    )


def _is_equal(former: Event, reading: Event) -> bool:
    return (former.type, former.subject, former.time, former.data) == (
        reading.type,
        reading.subject,
        reading.time,
        reading.data,
    )
