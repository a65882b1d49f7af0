"""Several engines on one log and one record store: this process's part of the work.
[CO-3, CO-4, CO-17]

For each share that it holds, a process runs an engine and a dispatch per adapter, which see only
that share's events and records. The next holder of a share continues at its last commit. Adapters
that are registered at run time, and reloads of site files, reach the other processes through
records.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.actions import Action
from rapport.communication.adapters.attempts import OutcomeData, report_to_control
from rapport.communication.adapters.base import (
    AbsentAdapter,
    BatchAdapter,
    Delivery,
    OtherEngineAdapter,
    Outcome,
    OutputAdapter,
    SendInterrupted,
    is_repeatable,
)
from rapport.communication.adapters.dispatch import (
    DEFAULT_SETTINGS,
    Dispatch,
    DispatchSettings,
    MaySend,
    may_always_send,
)
from rapport.communication.adapters.isolation import IsolatedCall, end_isolated
from rapport.communication.adapters.outputs import (
    LONGEST_CLOSE_MS,
    Outputs,
    PeerInstances,
    check_output,
    close_adapter,
    removal_task,
)
from rapport.communication.cluster_channels import (
    WHERE,
    ShareChannels,
    SharedReader,
    ShareRecords,
    own_key,
)
from rapport.communication.cluster_leases import LEASES, HeldShare, ShareLeases, ShareSettings
from rapport.communication.cluster_order import ClusterProgress, OrderedHandoff
from rapport.communication.config import CommunicationConfig
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.delivery_state import RetryPolicy
from rapport.communication.engine import CommunicationEngine
from rapport.communication.notifications import NotificationCallback, Notifications
from rapport.communication.outcomes import direct_outcome_events
from rapport.communication.records import DELIVERIES, MEMBERS, has_answered, is_closed, member_key
from rapport.communication.transaction import append_outgoing
from rapport.core.errors import RapportError, Unavailable, Unsupported
from rapport.core.event import content_id
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, cancel_until_done, first_of, run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.store.base import GuardFailed, RecordStore, as_guarded

T = TypeVar("T")
_LOOK_MS = 50
_FLUSH_MS = 200
_NS_PER_MS = 1_000_000

Adapters = Callable[[], Sequence[OutputAdapter]]
"""The output adapters at the beginning of a share."""
Work = Mapping[str, Callable[[], Awaitable[None]]]
"""Tasks by name."""
NO_WORK: Work = {}
NO_SETTINGS: Mapping[str, DispatchSettings] = {}
_BUSY_SHARES = 4
ANNOUNCED = "communication.adapters"
_MOST = 10_000
_log = get_logger(__name__)
MakeAdapter = Callable[[str], OutputAdapter]
"""The adapter of a name; raises a RapportError where its kind is not known."""
TABLE, KEY = "communication.site", "people"
_PAUSES = RetryPolicy(first_ms=1_000, longest_ms=60_000)
_FOLLOWING: ContextVar[bool] = ContextVar("following", default=False)
"""Whether the current task reloads because another engine did."""
Follow = Callable[[], Awaitable[object]]
"""Reloads the site files of this process."""


class LeasedCalls:
    """Calls of adapters for one share: each begins and runs only while the share is certainly held,
    so that two processes do not send to one peer at the same time. A call that is broken off has no
    outcome; the next holder of the share makes it again, with the same idempotency key.
    """

    def __init__(self, held: HeldShare, clock: Clock, *, least_ms: int) -> None:
        """`least_ms`: a call begins only when the share is certainly held for so long."""
        self._held, self._clock, self._least_ms = held, clock, least_ms
        self._closed = False
        self._pending = 0
        self._ended_ns = -_FLUSH_MS * _NS_PER_MS

    async def gate(self) -> None:
        """Waits until a call may begin."""
        while not self._may_begin():
            await self._clock.sleep(_LOOK_MS)

    def _may_begin(self) -> bool:
        return not self._closed and self._held.valid_for_ms() >= self._least_ms

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work while the share is certainly held; raises SendInterrupted when it is not."""
        try:
            while not self._may_begin():
                if not self._held.valid_for_ms():
                    raise SendInterrupted
                await self._clock.sleep(_LOOK_MS)
        except BaseException:
            work.close()
            raise
        self._pending += 1
        held = IsolatedCall(lambda: work)
        sending = asyncio.ensure_future(held)
        watching = asyncio.ensure_future(self._until_lost())
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise SendInterrupted
            return sending.result()
        finally:
            self._pending -= 1
            self._ended_ns = self._clock.steady_ns()
            await cancel_until_done(watching)
            await end_isolated(sending, held)

    async def _until_lost(self) -> None:
        while left_ms := self._held.valid_for_ms():
            await self._clock.sleep(left_ms)

    async def quiet(self, longest_ms: int) -> None:
        """Lets no further call begin and waits until the pending ones have ended and been reported,
        at most `longest_ms`.
        """
        self._closed = True
        waited_ms = 0
        while self._pending and waited_ms < longest_ms:
            await self._clock.sleep(_LOOK_MS)
            waited_ms += _LOOK_MS
        if self._clock.steady_ns() - self._ended_ns < _FLUSH_MS * _NS_PER_MS:
            await self._clock.sleep(_FLUSH_MS)


class LeasedAdapter:
    """An output adapter whose calls need the lease of a share."""

    def __init__(self, adapter: OutputAdapter, sends: LeasedCalls) -> None:
        self._adapter, self._sends = adapter, sends
        self.name = adapter.name
        self.repeatable = is_repeatable(adapter)

    async def send(self, delivery: Delivery) -> Outcome | None:
        return await self._sends.run(self._adapter.send(delivery))

    async def close(self) -> None:
        """Nothing: the adapter belongs to all shares."""


class LeasedBatchAdapter(LeasedAdapter):
    def __init__(self, adapter: OutputAdapter, sends: LeasedCalls, batch: BatchAdapter) -> None:
        super().__init__(adapter, sends)
        self._batch, self.keeps_order = batch, batch.keeps_order

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome | None] | None:
        return await self._sends.run(_all(self._batch, deliveries))


async def _all(
    adapter: BatchAdapter, deliveries: Sequence[Delivery]
) -> Sequence[Outcome | None] | None:
    return await adapter.send_many(deliveries)


def leased(adapter: OutputAdapter, sends: LeasedCalls) -> OutputAdapter:
    if isinstance(adapter, BatchAdapter):
        return LeasedBatchAdapter(adapter, sends, adapter)
    return LeasedAdapter(adapter, sends)


class _ShareWork(msgspec.Struct, frozen=True):
    held: HeldShare
    channels: ShareChannels
    sends: LeasedCalls
    tasks: Tasks
    carried: dict[str, OutputAdapter]
    """Adapters by name, as the dispatches."""
    dispatches: dict[str, Dispatch]
    engine: CommunicationEngine


class Cluster:
    """Holds a fair number of shares and does their work."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        instance: str,
        parts: EngineParts,
        adapters: Adapters,
        settings: ShareSettings | None = None,
        dispatch: Mapping[str, DispatchSettings] = NO_SETTINGS,
        lease_records: RecordStore | None = None,
        acts: bool = False,
        alone: Work = NO_WORK,
        may_go: MaySend = may_always_send,
    ) -> None:
        """`instance` names this start of this process and no other. `lease_records`: the same
        records by a connection of their own, so that work does not hold up the leases. `acts`: the
        engines know the policies. `alone`: what only one of all processes does at a time. `may_go`
        as in Dispatch. Raises Unsupported for records that several processes cannot share.
        """
        self._channels, self._records, self._clock = channels, as_guarded(records), clock
        self._parts, self._adapters, self._dispatch = parts, adapters, dispatch
        self._settings, self._alone = settings or ShareSettings(), alone
        self._may_go = may_go
        self._reading = SharedReader(channels, records, self._settings.count, parts.route)
        self._progress = ClusterProgress(self._reading, records, clock, self._settings.count)
        self._to_control = report_to_control(channels, clock)
        self._working: dict[int, _ShareWork] = {}
        self._changing = asyncio.Lock()
        self._leases = ShareLeases(
            lease_records or records,
            clock,
            instance=instance,
            begin=self._begin,
            end=self._end,
            settings=self._settings,
            acts=acts,
        )
        self._notifications = Notifications(channels, records)

    async def run(self) -> None:
        """Takes part until cancelled; then gives its shares back, so that others go on at once."""
        await first_of(self._leases.run(), self._notifications.run())

    @property
    def held(self) -> list[int]:
        """The shares that are ours now."""
        return sorted(self._leases.held)

    # --- called by applications ---

    def add_notification(self, callback: NotificationCallback, name: str = "") -> str:
        """See CommunicationEngine. A callback gets all messages, whichever process handled them;
        one with a name belongs to one process only.
        """
        return self._notifications.add(callback, name)

    def remove_notification(self, id: str) -> bool:
        return self._notifications.remove(id)

    @asynccontextmanager
    async def between_batches(self) -> AsyncIterator[None]:
        """Nothing is handled by this process while the block runs; see CommunicationEngine."""
        async with AsyncExitStack() as held:
            for working in list(self._working.values()):
                try:
                    await held.enter_async_context(working.engine.between_batches())
                except GuardFailed:
                    continue
            yield

    def use_actions(self, actions: Mapping[str, Action]) -> None:
        """See CommunicationEngine; later shares use `parts.actions`."""
        for working in self._working.values():
            working.engine.use_actions(actions)

    # --- shares ---

    async def _begin(self, held: HeldShare) -> None:
        # Each has a view of its own, whose reads guard only its own changes.
        view = partial(ShareRecords, self._records, held)
        channels = ShareChannels(self._reading, view(), held)
        handoff = self._handoff(held, view())
        channels.handoff = handoff
        with_places = None if handoff is None else handoff.with_place
        own_records = view(with_places=with_places)
        engine = CommunicationEngine(channels, own_records, self._clock, self._parts)
        sends = LeasedCalls(held, self._clock, least_ms=self._settings.lease_ms // 2)
        tasks = Tasks(self._clock)
        working = self._working[held.number] = _ShareWork(
            held, channels, sends, tasks, {}, {}, engine
        )
        tasks.start(f"communication.{held.name}", partial(_while_ours, engine.run))
        if handoff is not None:
            hand_on = partial(_while_ours, partial(handoff.run, channels))
            tasks.start(f"communication.{held.name}.handing", hand_on)
        for name, work in self._alone.items() if held.number == 0 else ():
            tasks.start(name, work)
        for adapter in self._adapters():
            self._carry(working, adapter)

    def _carry(self, working: _ShareWork, adapter: OutputAdapter) -> None:
        """Starts the dispatch of an adapter for one share."""
        held = working.held
        dispatch = Dispatch(
            leased(adapter, working.sends),
            working.channels,
            ShareRecords(self._records, held),
            self._clock,
            settings=_of_a_share(self._dispatch.get(adapter.name, DEFAULT_SETTINGS)),
            report=self.report,
            is_decided=self.is_decided,
            may_go=self._may_go,
            gate=working.sends.gate,
        )
        working.carried[adapter.name] = adapter
        working.dispatches[adapter.name] = dispatch
        name = f"{dispatch.reader}.{held.name}"
        working.tasks.start(name, partial(_while_ours, dispatch.run))

    async def carry(self, adapter: OutputAdapter) -> None:
        """Replaces the adapter of that name; the work of the one before is done when it returns."""
        async with self._changing:
            changing = [
                self._changed(working, adapter)
                for working in self._working.values()
                if working.carried.get(adapter.name) is not adapter
            ]
            await asyncio.gather(*changing)

    async def _changed(self, working: _ShareWork, adapter: OutputAdapter) -> None:
        """Runs the change as a task of the share, so that it ends with it."""
        name = f"adapter.{adapter.name}.{working.held.name}.change"
        working.tasks.start(name, partial(self._change, working, adapter))
        await working.tasks.ended(name)

    async def _change(self, working: _ShareWork, adapter: OutputAdapter) -> None:
        """Can be repeated after a failure."""
        before = working.dispatches.get(adapter.name)
        if before is not None:
            await _while_ours(before.drain)
            await working.tasks.ended(f"{before.reader}.{working.held.name}")
        self._carry(working, adapter)

    def _handoff(self, held: HeldShare, records: ShareRecords) -> OrderedHandoff | None:
        """The hand-off of a share; None for that of detections, which reads no messages."""
        if held.number == self._settings.acting:
            return None
        return OrderedHandoff(
            self._reading, self._progress, records, held, self._clock, self._settings
        )

    async def _end(self, held: HeldShare, gently: bool) -> None:
        working = self._working.pop(held.number, None)
        if working is None:
            return
        if gently:
            await working.sends.quiet(self._settings.lease_ms)
        await working.tasks.stop()

    # --- called by dispatches ---

    async def report(self, outcomes: Sequence[OutcomeData]) -> None:
        """Reports outcomes to the engine of their message, in whichever process, through `control`;
        writes them to the ledger directly where no record changes. Durable when it returns.
        """
        now_ms = self._clock.now_ms()
        events, others = direct_outcome_events(outcomes, now_ms, has_listeners=True)
        await append_outgoing(self._channels, events)
        if others:
            await self._to_control(others)

    def recall_decision(self, _message: str, _peer: str = "") -> bool | None:
        """Always None: another process may have closed it."""
        return None

    def is_decided(self, message: str, peer: str = "") -> bool:
        """Whether nothing more is to be sent of a message, to anybody or to this peer. Three reads
        of records, since another process may have closed it.
        """
        share = self._records.get(WHERE, message)
        if share is None:
            return False
        key = own_key(share.decode(), message)
        kept = self._records.get(DELIVERIES, key)
        if kept is None or is_closed(kept) or not peer:
            return kept is not None and is_closed(kept)
        member = self._records.get(MEMBERS, member_key(key, peer))
        return member is not None and has_answered(member)


def _of_a_share(whole: DispatchSettings) -> DispatchSettings:
    """The limits of one share, so that a few busy shares together reach those of the process."""
    return msgspec.structs.replace(
        whole,
        workers=max(whole.workers // _BUSY_SHARES, 1),
        in_flight=max(whole.in_flight // _BUSY_SHARES, 1),
    )


async def _while_ours(work: Callable[[], Awaitable[None]]) -> None:
    """Runs work until it ends or the share is lost; restarts it after a conflict with another share
    or a moment without a certain lease.
    """
    is_over = False
    while not is_over:
        try:
            await work()
        except* (GuardFailed, SendInterrupted) as failed:
            # A failed task group hides a cancellation.
            is_over = failed.subgroup(_is_of_the_lease) is not None or _is_cancelled()
        else:
            is_over = True


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_of_the_lease(error: Exception) -> bool:
    return isinstance(error, GuardFailed) and error.guard.table == LEASES


class AnnouncedAdapter(msgspec.Struct, frozen=True, array_like=True):
    """The record of an adapter."""

    by: str
    """The announcing process."""
    at_ms: int


class SharedOutputs(Outputs):
    """The output adapters of one process of several. The shares send the deliveries; adapters that
    are registered or removed here are announced to the other processes by records, one each, which
    all processes follow every `every_ms`. A process makes an announced adapter itself, from the
    kinds it knows; for a class that only another process has, an `OtherEngineAdapter` stands in.
    """

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        make: MakeAdapter,
        *,
        instance: str,
        every_ms: int,
        settings: Mapping[str, DispatchSettings] = NO_SETTINGS,
    ) -> None:
        super().__init__(channels, records, clock, settings=settings)
        self._records, self._make_adapter = records, make
        self._instance, self._every_ms = instance, every_ms
        self._announced: set[str] = set()
        self.cluster: Cluster
        """Its shares send the deliveries; set before the first change."""

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """See Outputs; the shares run the dispatches."""
        return self._instance_work() | {"communication.media": self.follow}

    async def use(self, adapter: OutputAdapter) -> str:
        """See Outputs. Other processes that can make an adapter of that name have it soon;
        announcing again is no error.
        """
        check_output(adapter, adapter.name)
        name = adapter.name
        await self._tasks.ended(removal_task(name))
        self._check(name)
        before = self._served.get(name)
        self._served[name] = self._running(adapter)
        try:
            record = msgspec.msgpack.encode(AnnouncedAdapter(self._instance, self._clock.now_ms()))
            await run_blocking(partial(self._records.put, ANNOUNCED, name, record))
        except BaseException:
            del self._served[name]
            if before is not None:
                self._served[name] = before
            raise
        self._announced.add(name)
        await self._add(adapter)
        return name

    async def remove(self, name: str) -> bool:
        """See Outputs; the other processes follow a moment later. Raises Unsupported for an adapter
        of the site.
        """
        if name not in self._served:
            return False
        if await run_blocking(partial(self._records.get, ANNOUNCED, name)) is None:
            raise Unsupported(
                "removing a medium of the site at run time",
                "several engines",
                hint="take it out of the site file, or of what each process is opened with",
            )
        await run_blocking(partial(self._records.delete, ANNOUNCED, name))
        await self._withdraw(name)
        return True

    async def follow(self) -> None:
        """Follows the records until cancelled; an unavailable store is retried."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                _log.warning("announced adapters not read", error=error.message)
            await self._clock.sleep(self._every_ms)

    async def look(self) -> None:
        """One round: adds announced adapters, removes withdrawn ones."""
        kept = await run_blocking(partial(announced, self._records))
        for name in sorted(kept - set(self.names)):
            await self._add(made_or_elsewhere(name, self._make_adapter))
        gone, self._announced = self._announced - kept, kept
        for name in sorted(gone):
            await self._withdraw(name)

    async def _add(self, adapter: OutputAdapter) -> None:
        name = adapter.name
        self._served[name] = self._running(adapter)
        self._absent.pop(name, None)
        if isinstance(adapter, PeerInstances):
            self._tasks.start(f"adapter.{name}.instances", adapter.run)
        await self.cluster.carry(adapter)

    async def _withdraw(self, name: str) -> None:
        served = self._served.pop(name, None)
        if served is not None:
            self._tasks.start(removal_task(name), partial(self._end, name, served.adapter))
        await self._tasks.ended(removal_task(name))

    async def _end(self, name: str, adapter: OutputAdapter) -> None:
        """May be called again after a failure."""
        absent = self._absent[name] = self._new_dispatch(AbsentAdapter(name))
        await self.cluster.carry(absent.adapter)
        await self._tasks.stop(f"adapter.{name}.instances")
        await close_adapter(name, adapter, self._clock, LONGEST_CLOSE_MS)


def announced(records: RecordStore) -> set[str]:
    """The names of announced adapters; one read, blocks."""
    return {name for name, _ in records.find(ANNOUNCED, limit=_MOST)}


def made_or_elsewhere(name: str, make: MakeAdapter) -> OutputAdapter:
    """The adapter of a name, or its stand-in where its kind is unknown."""
    try:
        return make(name)
    except (RapportError, LookupError) as error:
        _log.warning("adapter unknown here", adapter=name, error=repr(error))
        return OtherEngineAdapter(name)


class ReloadRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record of the last reload; new fields go at the end with a default."""

    number: int
    digest: str
    by: str
    """The process that reloaded."""
    at_ms: int


def people_digest(declared: CommunicationConfig) -> str:
    """A digest of the people and actions of a site."""
    record = msgspec.json.encode(
        (declared.peers, declared.collectives, declared.actions), order="sorted"
    )
    return content_id("people of a site", record.decode())


class SiteReloads:
    """Reloads of site files in a cluster. A record has the digest of the people that were taken
    over last; an engine with another digest reloads its own files, at growing intervals while they
    differ. A process that starts uses its own files. Reads the record every `every_ms`.
    """

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        declared: CommunicationConfig,
        *,
        instance: str,
        every_ms: int,
    ) -> None:
        """`declared`: the configuration at the start of this process."""
        self._records, self._clock = records, clock
        self._instance, self._every_ms = instance, every_ms
        self._digest = people_digest(declared)
        self._seen: int | None = None
        self._tries, self._again_ms = 0, 0
        self.follow: Follow | None = None

    @property
    def is_following(self) -> bool:
        """Whether the current task reloads because another engine did, which has logged it."""
        return _FOLLOWING.get()

    def has(self, declared: CommunicationConfig) -> None:
        """Notes the configuration in force in this process."""
        self._digest = people_digest(declared)

    async def announce(self) -> None:
        """Makes other processes reload; not when the record has the same digest, nor while this
        process follows another one: old files must not come back.
        """
        if self.is_following:
            return
        kept = await self._kept()
        number = 0 if kept is None else kept.number
        if kept is None or kept.digest != self._digest:
            number += 1
            record = ReloadRecord(number, self._digest, self._instance, self._clock.now_ms())
            put = partial(self._records.put, TABLE, KEY, msgspec.msgpack.encode(record))
            await run_blocking(put)
        self._seen = number

    async def run(self) -> None:
        """Follows the record until cancelled; an unavailable store is retried."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                _log.warning("reload record not read", error=error.message)
            await self._clock.sleep(self._every_ms)

    async def look(self) -> None:
        """One round: reloads when the record has another digest."""
        kept = await self._kept()
        number = 0 if kept is None else kept.number
        if self._seen is None:
            # The files may have changed since the start of the process; otherwise they count.
            if kept is not None and kept.digest != self._digest and self.follow is not None:
                await self._follow(kept)
            self._done(number)
            return
        if kept is None or number <= self._seen:
            return
        if kept.digest == self._digest:
            self._done(number)
        elif self._clock.now_ms() >= self._again_ms:
            await self._follow(kept)

    async def _follow(self, kept: ReloadRecord) -> None:
        why = "this process cannot reload"
        if self.follow is not None:
            following = _FOLLOWING.set(True)
            try:
                await self.follow()
                why = "the site files of this process differ"
            except RapportError as error:
                why = f"{error.code}: {error.message}"
            finally:
                _FOLLOWING.reset(following)
        if self._digest == kept.digest:
            _log.info("people taken over", by=kept.by, number=kept.number)
            self._done(kept.number)
            return
        self._tries += 1
        self._again_ms = self._clock.now_ms() + _PAUSES.pause_ms(self._tries)
        if self._tries == 1:
            self._log_difference(kept, why)

    def _done(self, number: int) -> None:
        self._seen, self._tries, self._again_ms = number, 0, 0

    def _log_difference(self, kept: ReloadRecord, why: str) -> None:
        _log.error(
            "the people of other engines differ",
            code="reload.differs",
            by=kept.by,
            at_ms=kept.at_ms,
            error=why,
            hint="bring the same site files to every engine; what only a restart can change needs "
            "a restart here",
        )

    async def _kept(self) -> ReloadRecord | None:
        kept = await run_blocking(partial(self._records.get, TABLE, KEY))
        return msgspec.msgpack.decode(kept, type=ReloadRecord) if kept else None
