"""Ties of components to the rest of the site: their knowledge on record, channels that feed their
fields, context in both directions. [EN-14, CX-3]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.federation import Append
from rapport.context.broker_server import ContextBroker
from rapport.context.connections import ContextNotFound
from rapport.core.context_record import ContextRecord
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import CAUSE, Event, cause_text, content_id
from rapport.core.knowledge import KNOWLEDGE, Knowledge
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.site.ensemble import (
    NOT_THERE,
    ContextPublication,
    ContextRead,
    FeedTie,
    SourceTie,
    value_at,
)

Assign = Callable[[str, Mapping[str, Any]], None]
"""Sets fields of a component; raises InvalidInput or UnknownName."""
NoteFault = Callable[[str, RapportError], None]
"""Keeps (component, what went wrong) for people."""
MOST_SUBJECTS = 1_000


class Feed:
    """One feed. The last values are kept with its place in the channel, so a component that starts
    anew is told them again.
    """

    def __init__(
        self, tie: FeedTie, channels: Channels, assign: Assign, note: NoteFault, *, number: int
    ) -> None:
        """`number` distinguishes feeds of the channel into the same field."""
        self._tie, self._channels, self._assign, self._note = tie, channels, assign, note
        self._reader = f"ensemble.{tie.component}.{tie.field}.{number}"[:200]
        self.fed = 0

    async def run(self) -> None:
        """Works until cancelled. A new feed begins with the next event."""
        subscription = await self._channels.subscribe(
            self._tie.channel, self._reader, from_start=False
        )
        value = msgspec.msgpack.decode(subscription.state) if subscription.state else NOT_THERE
        if value is not NOT_THERE:
            self._assign_value(value)
        while True:
            batch = await subscription.next_batch()
            fed = [one.event for one in batch if self.is_meant(one.event)]
            state = None
            if fed:
                value = self.after(value, fed)
                self._assign_value(value)
                state = msgspec.msgpack.encode(value) if value is not NOT_THERE else None
            await subscription.commit(batch[-1].position, state)

    def is_meant(self, event: Event) -> bool:
        """Whether the feed is about such an event."""
        tie = self._tie
        return (not tie.type or event.type == tie.type) and fnmatchcase(event.subject, tie.subject)

    def after(self, value: Any, events: Sequence[Event]) -> Any:
        """The field's value after some events. What cannot be read changes nothing, nor does what
        cannot be kept: that is noted.
        """
        for event in events:
            try:
                found = value_at(event.payload(), self._tie.value)
            except InvalidInput:
                found = NOT_THERE
            if found is NOT_THERE or not self._can_be_kept(found):
                continue
            value = found if not self._tie.by_subject else _with(value, event.subject, found)
        return value

    def _can_be_kept(self, found: Any) -> bool:
        try:
            msgspec.msgpack.encode(found)
        except (OverflowError, ValueError, RecursionError) as error:
            # Met only when the place is saved, it would be read again and again.
            fault = InvalidInput(
                f"a value of the channel {self._tie.channel!r} cannot be kept: {error}"[:300],
                code="ensemble.bad_value",
                hint="numbers have at most 64 bits; send larger ones as text",
            )
            self._note(self._tie.component, fault)
            return False
        return True

    def _assign_value(self, value: Any) -> None:
        if value is NOT_THERE:
            return
        try:
            self._assign(self._tie.component, {self._tie.field: value})
            self.fed += 1
        except RapportError as error:
            self._note(self._tie.component, error)


def _with(value: Any, subject: str, found: Any) -> dict[str, Any]:
    """The values by subject with a new one, which is last; the oldest go when there are many."""
    kept = {**value} if isinstance(value, dict) else {}
    kept.pop(subject, None)
    kept[subject] = found
    while len(kept) > MOST_SUBJECTS:
        del kept[next(iter(kept))]
    return kept


MOST = 10_000


class KnowledgeQueue:
    """Versions in the order they came. When there are too many, only the newest of each component
    stays. Belongs to one event loop.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._waiting: list[Knowledge] = []
        self._came = asyncio.Event()
        self.skipped = 0
        """Versions that a newer one overtook here."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, knowledge: Knowledge) -> None:
        """One more; costs nothing unless there are too many."""
        self._waiting.append(knowledge)
        if len(self._waiting) > self._most:
            self._make_room()
        self._came.set()

    def put_back(self, versions: Iterable[Knowledge]) -> None:
        """What could not be handled: it is first again."""
        self._waiting[:0] = versions
        self._came.set()

    async def wait(self) -> None:
        """Returns as soon as there is one."""
        await self._came.wait()

    def take_all(self) -> list[Knowledge]:
        self._came.clear()
        batch, self._waiting = self._waiting, []
        return batch

    def _make_room(self) -> None:
        newest: dict[str, Knowledge] = {}
        for one in self._waiting:
            newest.pop(one.component, None)
            newest[one.component] = one
        kept = list(newest.values())[-self._most // 2 :]
        self.skipped += len(self._waiting) - len(kept)
        self._waiting = kept


class KnowledgeThrottle:
    """Lets pass at most one version of a component within a time, and in the end the newest. Pure:
    times are steady ms.
    """

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._passed: dict[str, float] = {}
        self._waiting: dict[str, Knowledge] = {}

    def take(self, versions: Iterable[Knowledge], now_ms: float) -> list[Knowledge]:
        """Those that pass now, of these and of what waited."""
        if not self._every_ms:
            return list(versions)
        for one in versions:
            self._waiting[one.component] = one
        since_ms = now_ms - self._every_ms
        self._passed = {name: at for name, at in self._passed.items() if at > since_ms}
        passing = [one for name, one in self._waiting.items() if name not in self._passed]
        for one in passing:
            del self._waiting[one.component]
            self._passed[one.component] = now_ms
        return passing

    def next_due_ms(self) -> float | None:
        """When the next one passes; None when none waits."""
        times = [self._passed[name] + self._every_ms for name in self._waiting]
        return min(times, default=None)


FindBroker = Callable[[], ContextBroker]
_MOST = 1_000
"""Queued versions; beyond, only the newest of each component is kept."""


class ContextPublisher:
    """Publishes knowledge of components to the broker. A version that cannot be published is a
    fault and skipped: the next one has the same values.
    """

    def __init__(
        self, ties: Sequence[ContextPublication], broker: FindBroker, clock: Clock, note: NoteFault
    ) -> None:
        self.inbox = KnowledgeQueue(_MOST)
        self.published = 0
        self._ties, self._broker, self._clock, self._note = ties, broker, clock, note

    def put(self, knowledge: Knowledge) -> None:
        """Queues a version that a tie selects."""
        if any(tie.of.fits(knowledge) for tie in self._ties):
            self.inbox.put(knowledge)

    async def run(self) -> None:
        while True:
            await self.inbox.wait()
            newest = {one.component: one for one in self.inbox.take_all()}
            for knowledge in newest.values():
                for tie in self._ties:
                    if tie.of.fits(knowledge):
                        await self._publish(tie, knowledge)

    async def _publish(self, tie: ContextPublication, knowledge: Knowledge) -> None:
        try:
            record = record_of(tie, knowledge)
            if record is None or record.valid_until <= self._clock.now_ms():
                return
            cause = {CAUSE: cause_text(knowledge.to_event(source="").id)}
            await self._broker().put(record, headers=cause)
            self.published += 1
        except RapportError as error:
            self._note(knowledge.component, error)


def record_of(tie: ContextPublication, knowledge: Knowledge) -> ContextRecord | None:
    """The values of the entity in the knowledge; None when it has none. Pure; raises
    InvalidInput when it does not name the entity.
    """
    found = {name: value_at(knowledge.values, path) for name, path in tie.values.items()}
    values = {
        name: value for name, value in found.items() if value is not NOT_THERE and value is not None
    }
    if not values:
        return None
    return ContextRecord(
        provider=knowledge.component,
        entity=tie.entity_of(knowledge),
        scope=tie.scope,
        valid_from=knowledge.created_ms,
        valid_until=knowledge.created_ms + tie.valid_ms,
        values=values,
    )


class ContextPoller:
    """Asks the broker again and again, and sets a field when the answer is another one."""

    def __init__(
        self, tie: ContextRead, broker: FindBroker, clock: Clock, assign: Assign, note: NoteFault
    ) -> None:
        self._tie, self._broker, self._clock = tie, broker, clock
        self._assign, self._note = assign, note
        self._last: Any = NOT_THERE

    async def run(self) -> None:
        while True:
            await self.step()
            await self._clock.sleep(self._tie.every_ms)

    async def step(self) -> None:
        tie = self._tie
        try:
            value = await self._request()
            if value != self._last:
                self._assign(tie.component, {tie.field: value})
                self._last = value
        except RapportError as error:
            self._note(tie.component, error)

    async def _request(self) -> Any:
        """What is true now; None when nobody knows."""
        tie = self._tie
        try:
            found = await self._broker().ask(tie.entity, tie.scope, within_ms=tie.within_ms)
        except ContextNotFound:
            return None
        value = value_at(found.record.values, tie.value)
        return None if value is NOT_THERE else value


CHANNEL = "knowledge"

_log = get_logger(__name__)


class KnowledgeRecord:
    """Records the knowledge of components. After a failure the task is restarted."""

    def __init__(
        self,
        channels: Channels,
        append: Append,
        clock: Clock,
        *,
        source: str,
        record_ms: int = 0,
        readings: Sequence[SourceTie] = (),
    ) -> None:
        """`append`: how raw events get in, so that they are mediated."""
        self.inbox = KnowledgeQueue()
        self.recorded = self.refused = 0
        """Versions on record; those that channels do not take, such as of an impossible name."""
        self._channel, self._append, self._clock = channels.channel(CHANNEL), append, clock
        self._source, self._readings = source, readings
        self._thinning = KnowledgeThrottle(record_ms)

    async def run(self) -> None:
        while True:
            due_ms = self._thinning.next_due_ms()
            if due_ms is None:
                await self.inbox.wait()
            else:
                wait_ms = max(0.0, due_ms - self._now_ms())
                await first_of(self.inbox.wait(), self._clock.sleep(wait_ms))
            await self.step(self.inbox.take_all())

    async def step(self, versions: list[Knowledge]) -> None:
        """Writes down what may pass now; all of it waits again when that fails."""
        passing = self._thinning.take(versions, self._now_ms())
        if not passing:
            return
        try:
            await self._write(passing)
        except BaseException:
            self.inbox.put_back(passing)
            raise

    async def _write(self, versions: Sequence[Knowledge]) -> None:
        """All of them, or one by one those that can be."""
        try:
            events = [one.to_event(source=self._source) for one in versions]
            await self._channel.append(events)
            for tie in self._readings:
                chosen = [reading_event(one, tie.source) for one in versions if tie.of.fits(one)]
                if chosen:
                    await self._append(RAW_PREFIX + tie.source, chosen)
        except InvalidInput as error:
            if len(versions) > 1:
                for one in versions:
                    await self._write([one])
                return
            self.refused += 1
            name = versions[0].component[:80]
            _log.warning("knowledge not recorded", component=name, reason=error.message)
            return
        self.recorded += len(versions)

    def _now_ms(self) -> float:
        return self._clock.steady_ns() / 1e6


def reading_event(knowledge: Knowledge, source: str) -> Event:
    """A version as a source's own event: its values, with `component`, `node` and `created_ms`."""
    own = {
        "component": knowledge.component,
        "node": knowledge.node,
        "created_ms": knowledge.created_ms,
    }
    event_id = knowledge.to_event(source=source).id
    return Event(
        source=source,
        id=content_id("reading", source, event_id),
        type=KNOWLEDGE,
        subject=knowledge.component,
        time=knowledge.created_ms,
        data=msgspec.json.encode({**knowledge.values, **own}),
        headers={CAUSE: cause_text(event_id)},
    )
