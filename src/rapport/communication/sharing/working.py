"""Several engines on one log and one record store: this process's part of the work. [CO-17]

For each share that it holds a process runs an engine and a dispatch per adapter, which see only
that share's events and records. When a share changes hands, the next holder goes on where the last
commit stood.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.actions import Action
from rapport.communication.adapters.base import OutputAdapter, SendInterrupted
from rapport.communication.adapters.dispatch import (
    DEFAULT_SETTINGS,
    Dispatch,
    DispatchSettings,
    MaySend,
    may_always_send,
)
from rapport.communication.adapters.outcome_events import OutcomeData, report_to_control
from rapport.communication.delivering.case_records import CASES, MEMBERS, member_key
from rapport.communication.delivering.deciding import has_answered, is_closed
from rapport.communication.delivering.handling import Route, nobody_else
from rapport.communication.delivering.notifying import Callback, Notifications
from rapport.communication.delivering.plain_lines import lines_of_plain
from rapport.communication.engine import CommunicationEngine
from rapport.communication.sharing.handing import Handing
from rapport.communication.sharing.leases import LEASES, HeldShare, ShareLeases
from rapport.communication.sharing.reached import Progress
from rapport.communication.sharing.reading import ShareChannels, SharedReading
from rapport.communication.sharing.records import WHERE, ShareRecords, case_key
from rapport.communication.sharing.sending import Sends, leased
from rapport.communication.sharing.shares import ShareSettings
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, first_of
from rapport.store.base import GuardFailed, RecordStore, as_guarded

MakeEngine = Callable[[Channels, RecordStore], CommunicationEngine]
"""An engine over the channels and records of one share."""
Adapters = Callable[[], Sequence[OutputAdapter]]
"""The output adapters as there are when a share is begun."""
Work = Mapping[str, Callable[[], Awaitable[None]]]
"""Tasks by name."""
NO_WORK: Work = {}
NO_SETTINGS: Mapping[str, DispatchSettings] = {}
_BUSY_SHARES = 4


class _Working(msgspec.Struct, frozen=True):
    """One share at work."""

    held: HeldShare
    channels: ShareChannels
    sends: Sends
    tasks: Tasks
    carried: dict[str, OutputAdapter]
    """By name, as the next."""
    dispatches: dict[str, Dispatch]
    engine: CommunicationEngine


class Sharing:
    """Holds a fair part of the shares and does their work."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        instance: str,
        make_engine: MakeEngine,
        adapters: Adapters,
        settings: ShareSettings | None = None,
        dispatch: Mapping[str, DispatchSettings] = NO_SETTINGS,
        lease_records: RecordStore | None = None,
        acts: bool = False,
        alone: Work = NO_WORK,
        route: Route = nobody_else,
        may_go: MaySend = may_always_send,
    ) -> None:
        """`instance` names this start of this process and no other. `lease_records`: the same
        records by a connection of their own, so that work does not hold up the leases. `acts`: the
        engines know the policies. `alone`: what only one of all processes does at a time. `route`:
        whom routing rules add to a message, as the engines know it; `may_go` as in Dispatch. Raises
        Unsupported for records that several processes cannot share.
        """
        self._channels, self._records, self._clock = channels, as_guarded(records), clock
        self._make_engine, self._adapters, self._dispatch = make_engine, adapters, dispatch
        self._settings, self._alone = settings or ShareSettings(), alone
        self._may_go = may_go
        self._reading = SharedReading(channels, records, self._settings.count, route)
        self._progress = Progress(self._reading, records, clock, self._settings.count)
        self._to_control = report_to_control(channels, clock)
        self._working: dict[int, _Working] = {}
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

    # --- what applications call ---

    def add_notification(self, callback: Callback, name: str = "") -> str:
        """See CommunicationEngine. A callback hears of all messages, whichever process handled
        them: those with a name have one in only one process.
        """
        return self._notifications.add(callback, name)

    def remove_notification(self, id: str) -> bool:
        """See CommunicationEngine."""
        return self._notifications.remove(id)

    @asynccontextmanager
    async def between_batches(self) -> AsyncIterator[None]:
        """Nothing is taken by this process while the block runs; see CommunicationEngine. A share
        that is lost meanwhile is another's.
        """
        async with AsyncExitStack() as held:
            for working in list(self._working.values()):
                try:
                    await held.enter_async_context(working.engine.between_batches())
                except GuardFailed:
                    continue
            yield

    def use_actions(self, actions: Mapping[str, Action]) -> None:
        """See CommunicationEngine; shares that come later are given what there is then."""
        for working in self._working.values():
            working.engine.use_actions(actions)

    # --- a share comes and goes ---

    async def _begin(self, held: HeldShare) -> None:
        # Each has a view of its own: what one has read guards only its own changes.
        view = partial(ShareRecords, self._records, held)
        channels = ShareChannels(self._reading, view(), held)
        handing = self._handing(held, view())
        channels.handing = handing
        with_places = None if handing is None else handing.with_place
        engine = self._make_engine(channels, view(with_places=with_places))
        sends = Sends(held, self._clock, least_ms=self._settings.lease_ms // 2)
        tasks = Tasks(self._clock)
        working = self._working[held.number] = _Working(
            held, channels, sends, tasks, {}, {}, engine
        )
        tasks.start(f"communication.{held.name}", partial(_while_ours, engine.run))
        if handing is not None:
            hand_on = partial(_while_ours, partial(handing.run, channels))
            tasks.start(f"communication.{held.name}.handing", hand_on)
        for name, work in self._alone.items() if held.number == 0 else ():
            tasks.start(name, work)
        for adapter in self._adapters():
            self._carry(working, adapter)

    def _carry(self, working: _Working, adapter: OutputAdapter) -> None:
        """Carries what is queued for an adapter, of one share."""
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
        """From now on this adapter takes what is queued for its name; what the one before it had to
        do is done when it returns. Shares that come later are given what there is then.
        """
        async with self._changing:
            changing = [
                self._changed(working, adapter)
                for working in self._working.values()
                if working.carried.get(adapter.name) is not adapter
            ]
            await asyncio.gather(*changing)

    async def _changed(self, working: _Working, adapter: OutputAdapter) -> None:
        """A task of the share, so that it ends with it."""
        name = f"adapter.{adapter.name}.{working.held.name}.change"
        working.tasks.start(name, partial(self._change, working, adapter))
        await working.tasks.ended(name)

    async def _change(self, working: _Working, adapter: OutputAdapter) -> None:
        """May be called again after a failure."""
        before = working.dispatches.get(adapter.name)
        if before is not None:
            await _while_ours(before.drain)
            await working.tasks.ended(f"{before.reader}.{working.held.name}")
        self._carry(working, adapter)

    def _handing(self, held: HeldShare, records: ShareRecords) -> Handing | None:
        """None for the share of what policies detect: it has no peers and reads no messages."""
        if held.number == self._settings.acting:
            return None
        return Handing(self._reading, self._progress, records, held, self._clock, self._settings)

    async def _end(self, held: HeldShare, gently: bool) -> None:
        working = self._working.pop(held.number, None)
        if working is None:
            return
        if gently:
            await working.sends.quiet(self._settings.lease_ms)
        await working.tasks.stop()

    # --- what dispatches ask ---

    async def report(self, outcomes: Sequence[OutcomeData]) -> None:
        """Passes outcomes on to the engine of their message, wherever it is: by `control`, or
        straight into the ledger where nothing else is to be changed. Durable when it returns.
        """
        lines, others = lines_of_plain(outcomes, self._clock.now_ms())
        if lines:
            await self._channels.channel("log").append(lines)
        if others:
            await self._to_control(others)

    def recall_decision(self, _message: str, _peer: str = "") -> bool | None:
        """Nothing can be known from memory: another process may have decided it."""
        return None

    def is_decided(self, message: str, peer: str = "") -> bool:
        """Whether nothing more is to be sent of a message, to anybody or to this peer; always
        looked up, as another process may have decided it. Three reads of records.
        """
        share = self._records.get(WHERE, message)
        if share is None:
            return False
        key = case_key(share.decode(), message)
        kept = self._records.get(CASES, key)
        if kept is None or is_closed(kept) or not peer:
            return kept is not None and is_closed(kept)
        member = self._records.get(MEMBERS, member_key(key, peer))
        return member is not None and has_answered(member)


def _of_a_share(whole: DispatchSettings) -> DispatchSettings:
    """A share does a part of what a process may do; a few at work may do all of it."""
    return msgspec.structs.replace(
        whole,
        workers=max(whole.workers // _BUSY_SHARES, 1),
        in_flight=max(whole.in_flight // _BUSY_SHARES, 1),
    )


async def _while_ours(work: Callable[[], Awaitable[None]]) -> None:
    """Does work until it ends or the share is lost. When another share changed what it had read, or
    the share was in doubt for a while, it begins again at once.
    """
    is_over = False
    while not is_over:
        try:
            await work()
        except* (GuardFailed, SendInterrupted) as failed:
            # A group of tasks that failed hides that it was cancelled at the same time.
            is_over = failed.subgroup(_is_of_the_lease) is not None or _is_cancelled()
        else:
            is_over = True


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_of_the_lease(error: Exception) -> bool:
    return isinstance(error, GuardFailed) and error.guard.table == LEASES
