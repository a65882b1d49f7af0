"""Several engines on one log and one record store: this process's part of the work. [CO-17]

For each share that it holds a process runs an engine and a dispatch per adapter, which see only
that share's events and records. When a share changes hands, the next holder goes on where the last
commit stood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.base import OutputAdapter
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.adapters.dispatch_settings import DEFAULT_SETTINGS, DispatchSettings
from rapport.communication.adapters.outcomes import OutcomeData, report_to_control
from rapport.communication.case_records import CASES
from rapport.communication.deciding import is_closed
from rapport.communication.engine import CommunicationEngine
from rapport.communication.plain import plain_line
from rapport.communication.share_leases import LEASES, HeldShare, ShareLeases
from rapport.communication.share_records import WHERE, ShareRecords, case_key
from rapport.communication.share_sending import Sends, leased
from rapport.communication.shared_reading import ShareChannels, SharedReading
from rapport.communication.shares import ShareSettings
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks
from rapport.store.base import RecordStore
from rapport.store.guarding import GuardFailed, as_guarded

MakeEngine = Callable[[Channels, RecordStore], CommunicationEngine]
"""An engine over the channels and records of one share."""
Adapters = Callable[[], Sequence[OutputAdapter]]
"""The output adapters as there are when a share is begun."""
NO_SETTINGS: Mapping[str, DispatchSettings] = {}
_BUSY_SHARES = 4
_FLUSH_MS = 200
"""What was sent at the last moment is still told."""


class _Working(msgspec.Struct, frozen=True):
    """One share at work."""

    engine: CommunicationEngine
    sends: Sends
    tasks: Tasks


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
    ) -> None:
        """`instance` names this start of this process and no other. `lease_records`: the same
        records by a connection of their own, so that work does not hold up the leases. Raises
        Unsupported for records that several processes cannot share.
        """
        self._channels, self._records, self._clock = channels, as_guarded(records), clock
        self._make_engine, self._adapters, self._dispatch = make_engine, adapters, dispatch
        self._settings = settings or ShareSettings()
        self._reading = SharedReading(channels, records, self._settings.count)
        self._to_control = report_to_control(channels, clock)
        self._working: dict[int, _Working] = {}
        self._leases = ShareLeases(
            lease_records or records,
            clock,
            instance=instance,
            begin=self._begin,
            end=self._end,
            settings=self._settings,
        )

    async def run(self) -> None:
        """Takes part until cancelled; then gives its shares back, so that others go on at once."""
        await self._leases.run()

    @property
    def held(self) -> list[int]:
        """The shares that are ours now."""
        return sorted(self._leases.held)

    def engines(self) -> list[CommunicationEngine]:
        """The engines at work here."""
        return [working.engine for working in self._working.values()]

    # --- a share comes and goes ---

    async def _begin(self, held: HeldShare) -> None:
        # Each has a view of its own: what one has read guards only its own changes.
        view = partial(ShareRecords, self._records, held)
        channels = ShareChannels(self._reading, view(), held)
        engine = self._make_engine(channels, view())
        sends = Sends(held, self._clock, least_ms=self._settings.lease_ms // 2)
        tasks = Tasks(self._clock)
        working = self._working[held.number] = _Working(engine, sends, tasks)
        tasks.start(f"communication.{held.name}", partial(_run_again, engine))
        for adapter in self._adapters():
            settings = _of_a_share(self._dispatch.get(adapter.name, DEFAULT_SETTINGS))
            dispatch = Dispatch(
                leased(adapter, sends),
                channels,
                view(),
                self._clock,
                settings=settings,
                report=self.report,
                is_decided=self.is_decided,
            )
            working.tasks.start(f"{dispatch.reader}.{held.name}", dispatch.run)

    async def _end(self, held: HeldShare, gently: bool) -> None:
        working = self._working.pop(held.number, None)
        if working is None:
            return
        if gently:
            await working.sends.quiet(self._settings.lease_ms)
            await self._clock.sleep(_FLUSH_MS)
        await working.tasks.stop()

    # --- what dispatches ask ---

    async def report(self, outcomes: Sequence[OutcomeData]) -> None:
        """Passes outcomes on to the engine of their message, wherever it is: by `control`, or
        straight into the ledger where nothing else is to be changed. Durable when it returns.
        """
        now_ms = self._clock.now_ms()
        lines: list[Event] = []
        others: list[OutcomeData] = []
        for data in outcomes:
            delivery = data.delivery
            if delivery is None or delivery.acknowledge or data.state == "failed":
                others.append(data)
            else:
                lines.append(plain_line(data, delivery, now_ms))
        if lines:
            await self._channels.channel("log").append(lines)
        if others:
            await self._to_control(others)

    def is_decided(self, message: str) -> bool:
        """Whether nothing more is to be sent of a message; always looked up, as another process
        may have decided it. Two reads of records.
        """
        share = self._records.get(WHERE, message)
        if share is None:
            return False
        kept = self._records.get(CASES, case_key(share.decode(), message))
        return kept is not None and is_closed(kept)


def _of_a_share(whole: DispatchSettings) -> DispatchSettings:
    """A share does a part of what a process may do; a few at work may do all of it."""
    return msgspec.structs.replace(
        whole,
        workers=max(whole.workers // _BUSY_SHARES, 1),
        in_flight=max(whole.in_flight // _BUSY_SHARES, 1),
    )


async def _run_again(engine: CommunicationEngine) -> None:
    """Runs the engine; when another share changed what it had read, it reads again at once."""
    while True:
        try:
            await engine.run()
        except GuardFailed as error:
            if error.guard.table == LEASES:
                raise
