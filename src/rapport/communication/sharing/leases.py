"""The leases of shares in a record store that several processes have in common. [CO-17]

Three kinds of records: how many shares there are, who holds each (`Lease`), and a count per process
that goes on while it lives (`Presence`). Every change is guarded by what it relies on: a process
counts on only while all its leases are its own, and a lease is taken from another only while that
one's count stands still. So of "I live" and "you are dead" only one can be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from rapport.communication.sharing.shares import (
    Lease,
    Living,
    Presence,
    ShareSettings,
    next_moves,
    share_name,
)
from rapport.core.errors import InvalidInput, Unavailable
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    Change,
    Delete,
    Guard,
    GuardFailed,
    Put,
    RecordStore,
    as_guarded,
    put_if_absent,
)

# In this order in the store, leases first: who guards one and changes the other never meets
# somebody who does it the other way round.
LEASES, PRESENCES = "communication.leases", "communication.presences"
_SETTINGS, _COUNT = "communication.shares", "count"
_ROOM, _PLACES = "communication", ("position/control", "position/input", "outbox")

_log = get_logger(__name__)
_encode = msgspec.msgpack.encode
T = TypeVar("T")


class HeldShare(msgspec.Struct, frozen=True):
    """A share that this process holds: all that it changes is guarded by `guard`."""

    number: int
    lease: Lease
    valid_for_ms: Callable[[], int]
    """How long others will certainly leave it to us, unless we say again that we live."""

    @property
    def name(self) -> str:
        """The share as it stands in keys."""
        return share_name(self.number)

    @property
    def guard(self) -> Guard:
        """Holds as long as nobody else took the share."""
        return Guard(LEASES, self.name, _encode(self.lease))


Begin = Callable[[HeldShare], Awaitable[None]]
"""Starts the work of a share."""
End = Callable[[HeldShare, bool], Awaitable[None]]
"""Stops the work of a share; with True it may take its time to end well, else it is lost."""


class ShareLeases:
    """Keeps a fair number of shares for one process. Writes one record per beat."""

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        *,
        instance: str,
        begin: Begin,
        end: End,
        settings: ShareSettings | None = None,
        acts: bool = False,
    ) -> None:
        """`instance` names this start of the process and no other; `acts`: it knows the policies,
        so it may hold the share of what they detect. `records` should have a
        connection that nothing else waits for. Raises Unsupported for records without guards.
        """
        self._records, self._clock, self._me = as_guarded(records), clock, instance
        self._begin, self._end = begin, end
        self._settings, self._acts = settings or ShareSettings(), acts
        self._living = Living(self._settings.lease_ms)
        self._held: dict[int, HeldShare] = {}
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[int, bytes] = {}
        self._acting: set[str] = set()
        self._beat = 0
        self._valid_until_ms = 0
        self._thread: ThreadPoolExecutor | None = None

    @property
    def held(self) -> dict[int, HeldShare]:
        """The shares that are ours now."""
        return dict(self._held)

    def valid_for_ms(self) -> int:
        """How long nobody can have taken our shares for those of a dead process."""
        return max(self._valid_until_ms - self._steady_ms(), 0)

    async def run(self) -> None:
        """Works until cancelled, then ends all work and gives everything back. A store that cannot
        be reached is asked again and again; the work waits meanwhile.
        """
        await self._aside(self._check)
        try:
            while True:
                try:
                    await self.step()
                except Unavailable as error:
                    _log.warning("shares not renewed", error=error.message)
                await self._clock.sleep(self._settings.beat_ms)
        finally:
            await self._leave()

    async def step(self) -> None:
        """Says that we live, looks at the others, and takes or gives up what fairness asks."""
        await self._say_alive()
        await self._aside(self._look)
        now_ms = self._steady_ms()
        leases = {share: _decode(kept) for share, kept in self._leases.items()}
        await self._adopt(leases)
        moves = next_moves(
            self._me,
            leases,
            self._living.alive(now_ms),
            self._settings,
            acting=self._acting,
        )
        for share in moves.release:
            if share in self._held and share not in self._leaving:
                self._leaving[share] = asyncio.create_task(self._release(share))
        for share in moves.acquire:
            await self._acquire(share, leases.get(share, Lease()))

    # --- our own life ---

    async def _say_alive(self) -> None:
        while True:
            began_ms = self._steady_ms()
            try:
                await self._aside(self._count_on)
            except GuardFailed:
                await self._drop_lost()
                continue
            self._valid_until_ms = began_ms + self._settings.lease_ms
            return

    def _count_on(self) -> None:
        self._beat += 1
        guards = [held.guard for held in self._held.values()]
        said = Put(PRESENCES, self._me, _encode(Presence(self._beat, self._acts)))
        self._records.apply_guarded([said], guards)

    async def _drop_lost(self) -> None:
        await self._aside(self._look)
        for share, held in list(self._held.items()):
            if self._leases.get(share) != held.guard.expected:
                _log.warning("share lost", share=share, instance=self._me)
                del self._held[share]
                await self._end(held, False)

    # --- looking ---

    def _check(self) -> None:
        count = str(self._settings.count).encode()
        kept = put_if_absent(self._records, _SETTINGS, _COUNT, count)
        if kept != count:
            raise InvalidInput(
                f"the work is divided into {kept.decode()} shares, not {count.decode()}",
                code="shares.count_differs",
                hint=f"every process says the same number: {kept.decode()}",
            )
        if any(self._records.get(_ROOM, key) is not None for key in _PLACES):
            raise InvalidInput(
                "these records belong to a single engine",
                code="shares.single_engine",
                hint="several engines begin with records of their own, such as another schema",
            )

    def _look(self) -> None:
        presences = dict(self._records.find(PRESENCES, limit=10_000))
        found = self._records.find(LEASES, limit=10_000)
        self._leases = {int(name): kept for name, kept in found}
        self._living.see(presences, self._steady_ms())
        self._acting = {name for name, said in presences.items() if _acts(said)}
        owners = {_decode(kept).owner for kept in self._leases.values()}
        gone = presences.keys() - self._living.alive(self._steady_ms()) - owners - {self._me}
        for name in gone:
            self._try([Delete(PRESENCES, name)], [Guard(PRESENCES, name, presences[name])])

    # --- changing hands ---

    async def _adopt(self, leases: dict[int, Lease]) -> None:
        """What is ours by the records but was never begun: the answer to a change got lost."""
        for share, lease in leases.items():
            if lease.owner == self._me and share not in (*self._held, *self._leaving):
                await self._hold(share, lease)

    async def _acquire(self, share: int, before: Lease) -> None:
        lease = Lease(self._me, before.epoch + 1)
        name = share_name(share)
        guards = [Guard(LEASES, name, self._leases.get(share))]
        if before.owner:
            guards.append(Guard(PRESENCES, before.owner, self._living.said(before.owner)))
        changes = [Put(LEASES, name, _encode(lease))]
        if await self._aside(lambda: self._try(changes, guards)):
            await self._hold(share, lease)

    async def _hold(self, share: int, lease: Lease) -> None:
        held = self._held[share] = HeldShare(share, lease, self.valid_for_ms)
        _log.info("share taken", share=share, epoch=lease.epoch, instance=self._me)
        await self._begin(held)

    async def _release(self, share: int) -> None:
        """Ends the work well, then lets go; others take over at their next look."""
        try:
            held = self._held[share]
            await self._end(held, True)
            self._held.pop(share, None)
            free = Put(LEASES, held.name, _encode(Lease("", held.lease.epoch)))
            await self._aside(lambda: self._try([free], [held.guard]))
        finally:
            self._leaving.pop(share, None)

    async def _leave(self) -> None:
        try:
            await asyncio.gather(*self._leaving.values(), return_exceptions=True)
            await asyncio.gather(*(self._release(share) for share in list(self._held)))
            await self._aside(lambda: self._try([Delete(PRESENCES, self._me)], []))
        except Unavailable as error:
            _log.warning("shares not given back", error=error.message)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False)
                self._thread = None

    # --- small things ---

    def _try(self, changes: Sequence[Change], guards: Sequence[Guard]) -> bool:
        try:
            self._records.apply_guarded(changes, guards)
        except GuardFailed:
            return False
        return True

    async def _aside(self, work: Callable[[], T]) -> T:
        # A thread of its own: work that waits for a disk must not make us seem dead.
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="shares")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _steady_ms(self) -> int:
        return self._clock.steady_ns() // 1_000_000


def _decode(kept: bytes) -> Lease:
    return msgspec.msgpack.decode(kept, type=Lease)


def _acts(said: bytes) -> bool:
    return msgspec.msgpack.decode(said, type=Presence).acts


def check_unshared(records: RecordStore) -> None:
    """Raises InvalidInput when several engines share these records: a single one would begin anew
    beside them.
    """
    kept = records.get(_SETTINGS, _COUNT)
    if kept is not None:
        raise InvalidInput(
            f"these records are shared by several engines in {kept.decode()} shares",
            code="shares.several_engines",
            hint="let this process take part in them, or give it records of its own",
        )
