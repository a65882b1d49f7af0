"""What mediation learns from readings in root: what is so at present, and reference points that
other sources move. [ME-4]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import Corrupt
from rapport.core.event import StoredEvent
from rapport.core.ids import content_id
from rapport.core.release import HISTORY
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.mediation.concepts import Concepts, value_of
from rapport.mediation.lane import EVENTS
from rapport.mediation.memory import MEMORY_TABLE
from rapport.mediation.model.conversions import Chain, Conversion
from rapport.mediation.model.feeding import fed_by
from rapport.mediation.model.finding import ContextLookup
from rapport.mediation.model.interpretations import Interpretations
from rapport.mediation.present import PresentValue, PresentValues, read_present
from rapport.mediation.rejection import Rejected
from rapport.mediation.typed import TypedTransformer
from rapport.store.base import Change, Delete, Put, RecordStore

_LIMIT = 1_000
_SAVE_EVERY_MS = 10_000
_LOOK_EVERY_MS = 1_000
PRESENT_TABLE = "mediation.present"
_KEY = "*present"
"""No source can have this name."""

_log = get_logger(__name__)


class _Saved(msgspec.Struct, omit_defaults=True):
    """How far it has read; `values` is of the time when all were one record."""

    position: int
    values: list[PresentValue] | None = None


def needs_root(interpretations: Interpretations, concepts: Concepts) -> bool:
    """Whether some conversion asks what is so at present, or learns from readings; nothing is
    checked, so it may be asked on the event loop.
    """
    declared = [each.interpretation for each in interpretations.held.values()]
    return any(
        _asks(conversion, concepts)
        for each in (*interpretations.roots, *declared)
        for conversion in each.conversions
    )


class RootFeed:
    """Follows `events` while some conversion needs it; what it knows outlives a restart.

    It is saved every ten seconds, after what sources learned: after a crash some readings are taken
    in a second time, which changes nothing but for functions of the site that count what they are
    fed.
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
        """`keep`: puts on record what the learners know; False when that has to wait."""
        self.present = PresentValues()
        self.refused = 0
        self._channels, self._clock, self._records = channels, clock, records
        self._is_needed, self._learners, self._concepts = is_needed, learners, concepts
        self._keep = keep
        self._position = self._saved_position = 0
        self._restore()

    async def run(self) -> None:
        """Goes on until cancelled."""
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
        """Takes in what is there, at most a thousand readings; how many they were."""
        batch = await self._channels.channel(EVENTS).read_after(self._position, limit=_LIMIT)
        learners = [each for each in self._learners() if each.feeds]
        if any(each.may_block for each in learners):
            await asyncio.to_thread(self._take_in, batch, learners)
        else:
            self._take_in(batch, learners)
        self._position = batch[-1].position if batch else self._position
        return len(batch)

    async def save(self) -> bool:
        """Durable when it returns; False, and nothing saved, while a learner cannot be: who starts
        again after a place that was saved does not hear once more what stood before it.
        """
        if self._records is None or self._position == self._saved_position:
            return True
        if self._keep is not None and not await self._keep():
            return False
        await asyncio.to_thread(self._write, self._records, self._position)
        self._saved_position = self._position
        return True

    def _write(self, records: RecordStore, position: int) -> None:
        """In a thread: it takes as long as values changed. Nothing is taken in meanwhile."""
        changes: list[Change] = [
            Delete(PRESENT_TABLE, content_id(*place))
            if value is None
            else Put(PRESENT_TABLE, content_id(*place), msgspec.json.encode(value))
            for place, value in self.present.changed()
        ]
        head = msgspec.json.encode(_Saved(position))
        records.apply([*changes, Put(MEMORY_TABLE, _KEY, head)])
        self.present.saved()

    def _take_in(self, batch: list[StoredEvent], learners: list[TypedTransformer]) -> None:
        for stored in batch:
            if HISTORY in stored.event.headers:
                continue  # what was imported says nothing about the present
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
            value = value_of(attribute, declared.type, event.payload(), event.time)
            learner.feed(concept, value)
        except (Rejected, KeyError, TypeError, ValueError) as error:
            self.refused += 1
            _log.warning("reading not learned from", id=event.id, reason=str(error)[:200])

    def _restore(self) -> None:
        record = self._records.get(MEMORY_TABLE, _KEY) if self._records is not None else None
        if record is None or self._records is None:
            return
        saved = _read_saved(record)
        self._position = self._saved_position = saved.position
        if saved.values is not None:
            numbered = enumerate(saved.values, start=1)
            values = [msgspec.structs.replace(each, heard=place) for place, each in numbered]
            self.present = PresentValues.of(values, are_saved=False)
        else:
            self.present = PresentValues.of(read_present(_present_records(self._records)))


def _read_saved(record: bytes) -> _Saved:
    try:
        return msgspec.json.decode(record, type=_Saved)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"present values cannot be read: {error}"
        raise Corrupt(message, code="mediation.bad_memory") from None


def _present_records(records: RecordStore) -> Iterator[bytes]:
    after = ""
    while page := records.find(PRESENT_TABLE, after=after, limit=_LIMIT):
        yield from (value for _key, value in page)
        after = page[-1][0]


def _asks(conversion: Conversion, concepts: Concepts) -> bool:
    if any(name in concepts for name, _ in fed_by(conversion)):
        return True
    steps = conversion.how.steps if isinstance(conversion.how, Chain) else (conversion,)
    return any(isinstance(step.how, ContextLookup) for step in steps)
