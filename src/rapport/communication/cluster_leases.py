"""Shares of work in a cluster and their leases in a common record store. [CO-17]

Nobody compares clocks of two machines. A process shows that it lives by counting on in a record;
another one takes it for dead when the count stood still for a whole lease of its own steady time.
Every change is guarded by what it relies on: a process counts on only while all its leases are its
own, and a lease is taken from another process only while that one's count stands still. So of "I
live" and "you are dead" only one can be written; the fence (`Lease.epoch`) decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TypeVar
from zlib import crc32

import msgspec

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

SHARES = 16
LEASE_MS = 6_000

# In this order in the store, leases first, so that two transactions never lock them in opposite
# order.
LEASES, PRESENCES = "communication.leases", "communication.presences"
_SETTINGS, _COUNT = "communication.shares", "count"
_ROOM, _PLACES = "communication", ("position/control", "position/input", "outbox")
_log = get_logger(__name__)
_encode = msgspec.msgpack.encode
T = TypeVar("T")


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Number of shares and length of leases."""

    count: int = SHARES
    """The same for all processes, for good: records are stored by share. One more share is for
    detections: only processes that know the policies hold it."""
    lease_ms: int = LEASE_MS
    """A process that is silent for so long loses its shares."""

    @property
    def acting(self) -> int:
        """The share of detections."""
        return self.count

    @property
    def beat_ms(self) -> int:
        """Interval of the presence updates of a process."""
        return max(self.lease_ms // 3, 1)


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The holder of a share; `epoch` grows with every change of holder."""

    owner: str = ""
    """Empty = nobody."""
    epoch: int = 0


class Presence(msgspec.Struct, frozen=True, array_like=True):
    """A process of the cluster; `beat` grows while it lives."""

    beat: int
    acts: bool = False
    """Whether it knows the policies."""


def share_of(name: str, count: int) -> int:
    """The share of a name, the same in every process.

    >>> share_of("peer:ana", 16), share_of("anything", 1)
    (8, 0)
    """
    return crc32(name.encode("utf-8", "surrogatepass")) % count


def share_name(share: int) -> str:
    """A share as part of keys.

    >>> share_name(7)
    '007'
    """
    return f"{share:03d}"


def fair_owners(instances: Collection[str], count: int) -> dict[int, str]:
    """The instance that should hold each share: equal numbers up to one, the same result in every
    process that sees the same instances, and few changes when one comes or goes.
    """
    if not instances:
        return {}
    each, over = divmod(count, len(instances))
    held = dict.fromkeys(instances, 0)
    owners = {}
    for share in range(count):
        for instance in sorted(instances, key=lambda name: (_weight(share, name), name)):
            if held[instance] < each or (held[instance] == each and over):
                over -= held[instance] == each
                held[instance] += 1
                owners[share] = instance
                break
    return owners


def _weight(share: int, instance: str) -> bytes:
    return blake2b(f"{share}/{instance}".encode(), digest_size=8).digest()


class LivenessTable:
    """Which instances live, by the last change of their presence."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._seen: dict[str, tuple[bytes, int]] = {}

    def see(self, presences: Mapping[str, bytes], now_ms: int) -> None:
        """Notes the records of now; `now_ms` is steady time."""
        for name, presence in presences.items():
            if name not in self._seen or self._seen[name][0] != presence:
                self._seen[name] = (presence, now_ms)
        for name in self._seen.keys() - presences.keys():
            del self._seen[name]

    def alive(self, now_ms: int) -> set[str]:
        """Instances whose presence changed within the lease."""
        return {
            name for name, (_, since_ms) in self._seen.items() if now_ms - since_ms < self._lease_ms
        }

    def record_of(self, name: str) -> bytes | None:
        """The instance's record at the last look."""
        seen = self._seen.get(name)
        return seen[0] if seen else None


class ShareMoves(msgspec.Struct, frozen=True):
    """Shares to acquire and to release now."""

    acquire: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


def next_moves(
    me: str,
    leases: Mapping[int, Lease],
    living: Iterable[str],
    settings: ShareSettings,
    *,
    acting: Collection[str] = (),
) -> ShareMoves:
    """The shares to acquire, which no living instance holds, and those to release to others;
    `acting`: the instances that know the policies.
    """
    alive = {me, *living}
    wanted = fair_owners(sorted(alive), settings.count)
    able = alive.intersection(acting)
    if able:
        wanted[settings.acting] = min(able, key=lambda name: _weight(settings.acting, name))
    acquire, release = [], []
    for share, owner in wanted.items():
        holder = leases.get(share, Lease()).owner
        if owner == me and holder != me and holder not in alive:
            acquire.append(share)
        elif owner != me and holder == me:
            release.append(share)
    return ShareMoves(tuple(acquire), tuple(release))


class HeldShare(msgspec.Struct, frozen=True):
    """A share that this process holds; all its changes are guarded by `guard`."""

    number: int
    lease: Lease
    valid_for_ms: Callable[[], int]
    """How long no other process can take the share without a further presence update."""

    @property
    def name(self) -> str:
        """The share as part of keys."""
        return share_name(self.number)

    @property
    def guard(self) -> Guard:
        """Holds as long as no other process took the share."""
        return Guard(LEASES, self.name, _encode(self.lease))


BeginShare = Callable[[HeldShare], Awaitable[None]]
"""Starts the work of a share."""
EndShare = Callable[[HeldShare, bool], Awaitable[None]]
"""Stops the work of a share; True = gracefully, False = the share is lost."""


class ShareLeases:
    """Holds a fair number of shares for one process. Writes one record per beat."""

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        *,
        instance: str,
        begin: BeginShare,
        end: EndShare,
        settings: ShareSettings | None = None,
        acts: bool = False,
    ) -> None:
        """`instance`: a unique name of this start of the process; `acts`: it knows the policies, so
        that it may hold the share of detections. `records` should have a connection of its own.
        Raises Unsupported for records without guards.
        """
        self._records, self._clock, self._me = as_guarded(records), clock, instance
        self._begin, self._end = begin, end
        self._settings, self._acts = settings or ShareSettings(), acts
        self._living = LivenessTable(self._settings.lease_ms)
        self._held: dict[int, HeldShare] = {}
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[int, bytes] = {}
        self._acting: set[str] = set()
        self._beat = 0
        self._valid_until_ms = 0
        self._thread: ThreadPoolExecutor | None = None

    @property
    def held(self) -> dict[int, HeldShare]:
        return dict(self._held)

    def valid_for_ms(self) -> int:
        """How long no other process can take the shares."""
        return max(self._valid_until_ms - self._steady_ms(), 0)

    async def run(self) -> None:
        """Works until cancelled, then ends all work and releases the shares. An unavailable store
        is retried; the work waits meanwhile.
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
        """Updates the presence, looks at the others, and acquires or releases shares."""
        await self._update_presence()
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

    # --- presence ---

    async def _update_presence(self) -> None:
        while True:
            began_ms = self._steady_ms()
            try:
                await self._aside(self._write_presence)
            except GuardFailed:
                await self._drop_lost()
                continue
            self._valid_until_ms = began_ms + self._settings.lease_ms
            return

    def _write_presence(self) -> None:
        self._beat += 1
        guards = [held.guard for held in self._held.values()]
        presence = Put(PRESENCES, self._me, _encode(Presence(self._beat, self._acts)))
        self._records.apply_guarded([presence], guards)

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
                hint=f"every process needs the same number: {kept.decode()}",
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
        self._acting = {name for name, presence in presences.items() if _acts(presence)}
        owners = {_decode(kept).owner for kept in self._leases.values()}
        gone = presences.keys() - self._living.alive(self._steady_ms()) - owners - {self._me}
        for name in gone:
            self._try([Delete(PRESENCES, name)], [Guard(PRESENCES, name, presences[name])])

    # --- acquiring and releasing ---

    async def _adopt(self, leases: dict[int, Lease]) -> None:
        """Begins shares that are ours by the records: the response to a change was lost."""
        for share, lease in leases.items():
            if lease.owner == self._me and share not in (*self._held, *self._leaving):
                await self._hold(share, lease)

    async def _acquire(self, share: int, before: Lease) -> None:
        lease = Lease(self._me, before.epoch + 1)
        name = share_name(share)
        guards = [Guard(LEASES, name, self._leases.get(share))]
        if before.owner:
            guards.append(Guard(PRESENCES, before.owner, self._living.record_of(before.owner)))
        changes = [Put(LEASES, name, _encode(lease))]
        if await self._aside(lambda: self._try(changes, guards)):
            await self._hold(share, lease)

    async def _hold(self, share: int, lease: Lease) -> None:
        held = self._held[share] = HeldShare(share, lease, self.valid_for_ms)
        _log.info("share taken", share=share, epoch=lease.epoch, instance=self._me)
        await self._begin(held)

    async def _release(self, share: int) -> None:
        """Ends the work gracefully, then releases the share."""
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
            _log.warning("shares not released", error=error.message)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False)
                self._thread = None

    def _try(self, changes: Sequence[Change], guards: Sequence[Guard]) -> bool:
        try:
            self._records.apply_guarded(changes, guards)
        except GuardFailed:
            return False
        return True

    async def _aside(self, work: Callable[[], T]) -> T:
        # A thread of its own: work that waits for a disk must not delay the presence.
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="shares")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _steady_ms(self) -> int:
        return self._clock.steady_ns() // 1_000_000


def _decode(kept: bytes) -> Lease:
    return msgspec.msgpack.decode(kept, type=Lease)


def _acts(presence: bytes) -> bool:
    return msgspec.msgpack.decode(presence, type=Presence).acts


def check_unshared(records: RecordStore) -> None:
    """Raises InvalidInput when several engines share these records: a single one would start beside
    them.
    """
    kept = records.get(_SETTINGS, _COUNT)
    if kept is not None:
        raise InvalidInput(
            f"these records are shared by several engines in {kept.decode()} shares",
            code="shares.several_engines",
            hint="let this process take part in them, or give it records of its own",
        )
