"""The context broker of a node, and its use for tables and actions. [PO-2, CX-1, CX-3, CX-8, PO-10,
CX-4]

A record stays valid for as long as its provider declared, also when a later query finds no holder
or an older copy. Tables drop expired rows and query their entities again. Actions of policies write
updates to the channel `context.wishes`; the reader passes them to the broker in order, and after a
crash none is set twice or lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, TimeoutError

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.consumers import NOTHING, Effect, serve_with
from rapport.channel.log.channels import LoggedChannels
from rapport.context.broker_server import ContextBroker
from rapport.context.broker_status import BrokerStatus
from rapport.context.v0_endpoint import V0Endpoint
from rapport.core.context_record import CONTEXT_UPDATES, ContextUpdate, EntityRef
from rapport.core.errors import RapportError, SourceUnavailable, Unavailable, UnknownName
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text
from rapport.kernel.clock import Chance, Clock
from rapport.kernel.tasks import ClosableComponent, close_all, first_of
from rapport.kernel.telemetry import get_logger
from rapport.node.maintenance import TrafficSummaries
from rapport.site.context import ContextDeclared
from rapport.site.site import Site
from rapport.tables.context_source import (
    FOUND_CHANNEL,
    ContextAnswer,
    ContextQuery,
    answer_with_record,
    answer_without_record,
    context_query,
    rows_of_context,
)
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.refresh import TableRefresher
from rapport.tables.tables import Tables, TablesChange
from rapport.transport.addresses import format_address
from rapport.transport.keys import KeyFileWatch


class ContextAnswers:
    """The answers by table and entity; those no longer requested are dropped."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[str, ContextAnswer]] = {}

    def take(self, question: ContextQuery, answers: Iterable[ContextAnswer]) -> list[ContextAnswer]:
        """Takes in answers to a question; returns those that are news."""
        known = self._answers.get(question.table, {})
        kept = {one: known[one] for one in question.ids if one in known}
        news = []
        for one in answers:
            before = kept.get(one.id)
            answer = one.after(before)
            if before is not None and _stays(before, answer):
                continue
            if not answer.says_the_same_as(before):
                news.append(answer)
                kept[answer.id] = answer
        self._answers[question.table] = kept
        return news

    def rows(self, question: ContextQuery, now_ms: int) -> list[list[str]]:
        """A row for each entity of which something is known now, in the order of the question."""
        known = self._answers.get(question.table, {})
        found = ((one, known.get(one)) for one in question.ids)
        return [
            question.row(one, answer.values)
            for one, answer in found
            if answer is not None and answer.is_valid_at(now_ms)
        ]

    def next_change(self, now_ms: int) -> int | None:
        """When the first of what is known begins or ceases to be valid; None when nothing does."""
        times = [
            time
            for known in self._answers.values()
            for answer in known.values()
            if answer.is_found
            for time in (answer.valid_from, answer.valid_until)
            if time > now_ms
        ]
        return min(times, default=None)

    def known(self, now_ms: int) -> int:
        """How many entities something is known of."""
        every = (answer for known in self._answers.values() for answer in known.values())
        return sum(answer.is_valid_at(now_ms) for answer in every)


def _stays(before: ContextAnswer, answer: ContextAnswer) -> bool:
    """Whether what was known counts for more: it lasts while nothing is found, and of two that are
    valid the newer start counts, then the provider.
    """
    if not answer.is_found:
        return before.lasts_at(answer.time)
    older = (answer.valid_from, answer.provider) < (before.valid_from, before.provider)
    return older and before.is_valid_at(answer.time)


_AT_ONCE = 64
"""Pending queries of one table: more would only wait in the broker."""
_LET_OTHERS_EVERY = 100
"""What the broker has itself it answers without a pause, some 30 us each: others get their turn."""
_MOST_WAIT_S = 600


class BrokerSource:
    """Requests rows of tables from the broker; `ask` is called in threads, all else in the loop."""

    def __init__(
        self,
        broker: ContextBroker,
        answers: ContextAnswers,
        channels: Channels,
        clock: Clock,
        *,
        source: str,
    ) -> None:
        """`source` of the events in `context.found`."""
        self._broker, self._answers, self._clock = broker, answers, clock
        self._channel, self._source = channels.channel(FOUND_CHANNEL), source
        self._loop = asyncio.get_running_loop()

    def ask(self, question: ContextQuery) -> list[list[str]]:
        """Queries all entities; a row for each one with a valid record.

        Raises SourceUnavailable when the broker could not do it for any of them. Blocks.
        """
        asking = asyncio.run_coroutine_threadsafe(self.ask_all(question), self._loop)
        try:
            return asking.result(timeout=_MOST_WAIT_S)
        except (CancelledError, TimeoutError):
            asking.cancel()
            raise SourceUnavailable("the context broker has stopped") from None

    async def ask_all(self, question: ContextQuery) -> list[list[str]]:
        """The same inside the event loop; changed answers are on disk when it returns."""
        waiting = list(reversed(question.ids))
        answers: list[ContextAnswer] = []
        failed: list[RapportError] = []

        async def work() -> None:
            while waiting:
                identity = waiting.pop()
                if not len(waiting) % _LET_OTHERS_EVERY:
                    await self._clock.sleep(0)
                try:
                    answers.append(await self._request_one(question, identity))
                except Unavailable as error:
                    failed.append(error)

        await asyncio.gather(*(work() for _ in range(min(_AT_ONCE, len(waiting)))))
        if failed and not answers:
            raise SourceUnavailable(failed[0].message, hint=failed[0].hint)
        await self._record(self._answers.take(question, answers))
        return self._answers.rows(question, self._clock.now_ms())

    async def _request_one(self, question: ContextQuery, identity: str) -> ContextAnswer:
        """What is known of one entity; raises Unavailable when the broker could not look."""
        entity = EntityRef(question.type, identity)
        table, scope = question.table, question.scope
        try:
            found = await self._broker.ask(entity, scope, within_ms=question.within_ms)
        except Unavailable:
            raise
        except RapportError as error:
            time = self._clock.now_ms()
            return answer_without_record(table, entity, scope, time=time, why=error.message)
        return answer_with_record(
            table,
            found.record,
            time=self._clock.now_ms(),
            hops=found.hops,
            holder=format_address(found.holder) if found.holder is not None else "",
        )

    async def _record(self, news: Sequence[ContextAnswer]) -> None:
        if news:
            await self._channel.append([one.to_event(source=self._source) for one in news])


_LOOK_EVERY_MS = 1_000
"""Also when nothing is due: the wall clock may be set."""


class ContextTables:
    """Compares rows with valid records whenever either changes. Belongs to one event loop."""

    def __init__(
        self, tables: Tables, refreshing: TableRefresher, answers: ContextAnswers, clock: Clock
    ) -> None:
        self._tables, self._refreshing = tables, refreshing
        self._answers, self._clock = answers, clock
        self._changed = asyncio.Event()
        tables.changed.append(self._note)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            for table in self._of_context():
                await self._put_right(table)
            await first_of(self._changed.wait(), self._clock.sleep(self._wait_ms()))

    def ask_again(self) -> None:
        """Makes all of them due now, such as after joining the network."""
        for table in self._of_context():
            self._refreshing.make_due(table.declared.name)

    def _of_context(self) -> list[LoadedTable]:
        return [one for one in self._tables.loaded().values() if one.declared.context]

    async def _put_right(self, table: LoadedTable) -> None:
        declared = table.declared
        question = context_query(declared, self._tables.context_ids(declared))
        rows = self._answers.rows(question, self._clock.now_ms())
        here = set(table.file.column(declared.key))
        if here == {row[0] for row in rows}:
            return
        try:
            file = rows_of_context(question, declared.shown, rows)
            await self._refreshing.set_rows(declared.name, file)
        except UnknownName:
            return  # the site was reloaded without it
        if here - {row[0] for row in rows}:
            self._refreshing.make_due(declared.name)

    def _wait_ms(self) -> int:
        now_ms = self._clock.now_ms()
        due = self._answers.next_change(now_ms)
        return _LOOK_EVERY_MS if due is None else max(1, min(due - now_ms, _LOOK_EVERY_MS))

    def _note(self, _changed: TablesChange) -> None:
        self._changed.set()


READER = "context-wishes"


class ContextUpdateReader:
    """The reader that fulfils wishes; what cannot be read is buried as a dead letter."""

    def __init__(
        self, broker: ContextBroker, channels: Channels, clock: Clock, *, provider: str
    ) -> None:
        """`provider` of the records."""
        self._broker, self._channels, self._clock = broker, channels, clock
        self._provider = provider

    async def run(self) -> None:
        await serve_with(
            "at-least-once", self._channels, CONTEXT_UPDATES, READER, self._fulfil, self._clock
        )

    async def _fulfil(self, stored: StoredEvent, _state: bytes) -> Effect:
        event = stored.event
        wish = ContextUpdate.from_event(event)
        record = wish.record(self._provider, event.time)
        if record.valid_until <= self._clock.now_ms():
            # It waited too long for a broker: its validity is over.
            _log.warning("wish came too late", entity=wish.entity, scope=wish.scope, id=event.id)
            return NOTHING
        cause = {CAUSE: cause_text(event.id)}
        await self._broker.put(record, headers=cause)
        return NOTHING


_FIRST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 60_000
_LOOK_AT_KEYS_MS = 5_000

_log = get_logger(__name__)


class ContextStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the node's broker is, and what the tables know by it."""

    broker: BrokerStatus
    joined: bool
    """Whether the network that the site names was joined; True where it names none."""
    known: int
    """Entities of which tables know something now."""


async def follow_keys(watch: KeyFileWatch | None, clock: Clock, network: str) -> None:
    """Takes up keys that were added to the file or retired; ends at once without keys."""
    while watch is not None:
        await clock.sleep(_LOOK_AT_KEYS_MS)
        if watch.refresh():
            _log.info("keys changed", network=network)


class NodeContext:
    """The node's part in a context network. All calls belong to one event loop."""

    def __init__(
        self,
        declared: ContextDeclared,
        site: Site,
        channels: LoggedChannels,
        refreshing: TableRefresher,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._declared, self._site = declared, site
        self._channels, self._refreshing = channels, refreshing
        self._clock, self._chance = clock, chance
        self._answers = ContextAnswers()
        self._broker: ContextBroker | None = None
        self._v0: V0Endpoint | None = None
        self._summaries = TrafficSummaries(channels, clock, self._summary)
        self._joined = not declared.join

    @property
    def broker(self) -> ContextBroker:
        """The broker; raises Unavailable while the node does not run."""
        if self._broker is None:
            raise Unavailable("the node's context broker is not open", code="context.not_open")
        return self._broker

    @property
    def is_joined(self) -> bool:
        """Whether the network that the site names was joined; True where it names none."""
        return self._joined

    async def open(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Opens the broker with what is still valid of before; returns the work to be done from
        then on, by name. Raises Unavailable when its address is taken, InvalidInput for bad keys.
        """
        declared, clock = self._declared, self._clock
        watch = KeyFileWatch(declared.keys) if declared.keys is not None else None
        broker = self._broker = await ContextBroker.open(
            declared.listen,
            clock=clock,
            chance=self._chance,
            settings=declared.broker,
            keys=watch.keys if watch is not None else None,
            channels=self._channels,
            rights=declared.own_rights(),
        )
        await self._open_v0(broker)
        answers, tables, name = self._answers, self._site.tables, self._site.name
        tables.use_context(BrokerSource(broker, answers, self._channels, clock, source=name))
        kept_true = ContextTables(tables, self._refreshing, answers, clock)
        kept_true.ask_again()
        wishes = ContextUpdateReader(broker, self._channels, clock, provider=name)
        return {
            "context.tables": kept_true.run,
            "context.wishes": wishes.run,
            "context.joining": lambda: self._join(broker, kept_true),
            "context.keys": lambda: follow_keys(watch, clock, "context"),
            "context.summaries": self._summaries.run,
        }

    async def close(self) -> None:
        """Leaves the network and lets the address go."""
        await close_all(self._endings())

    def _endings(self) -> Iterator[ClosableComponent]:
        v0, self._v0 = self._v0, None
        if v0 is not None:
            yield "context.v0", v0.close
        if self._broker is not None:
            yield "context.summaries", self._summaries.finish
        broker, self._broker = self._broker, None
        if broker is not None:
            yield "context.broker", broker.close

    def status(self) -> ContextStatus:
        """For people and metrics; raises Unavailable while the node does not run."""
        return ContextStatus(
            broker=self.broker.status(),
            joined=self._joined,
            known=self._answers.known(self._clock.now_ms()),
        )

    def _summary(self) -> Event | None:
        answers = self.broker.take_summary()
        return answers.to_event(source=self._site.name) if answers is not None else None

    async def _open_v0(self, broker: ContextBroker) -> None:
        """Opens the v0 endpoint if the site declares one; its clients have the rights of `v0`."""
        declared = self._declared
        if declared.v0 is None:
            return
        self._v0 = await V0Endpoint.open(
            declared.v0,
            broker,
            clock=self._clock,
            chance=self._chance,
            allows=broker.rights.allows,
            settings=declared.v0_settings,
            audit=broker.note,
        )

    async def _join(self, broker: ContextBroker, tables: ContextTables) -> None:
        """Tries until the network is joined, or the broker is ordered to leave; then the broker
        keeps its neighbours itself.
        """
        pause_ms = _FIRST_PAUSE_MS
        while not (self._joined or broker.has_left):
            try:
                await broker.join(self._declared.join)
                self._joined = True
            except RapportError as error:
                _log.warning(
                    "context network not joined",
                    code=error.code,
                    reason=error.message,
                    again_in_ms=pause_ms,
                )
                if not broker.has_left:
                    await self._clock.sleep(pause_ms)
                pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)
        tables.ask_again()
