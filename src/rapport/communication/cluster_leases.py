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
from rapport.store.base import Change, Delete, Put, RecordStore
from rapport.store.guarding import Guard, GuardFailed, as_guarded, keep_first

SHARES = 16
LEASE_MS = 6_000


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How finely work is divided and how soon it is taken over."""

    count: int = SHARES
    """The same for all processes, for good: records are kept by share. One more is for what
    policies detect: only processes that know the policies hold it."""
    lease_ms: int = LEASE_MS
    """A process that was not heard of for so long has lost its shares."""

    @property
    def acting(self) -> int:
        """The share of what policies detect."""
        return self.count

    @property
    def beat_ms(self) -> int:
        """How often a process says that it lives."""
        return max(self.lease_ms // 3, 1)


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Who holds a share; `epoch` grows with every change of hands."""

    owner: str = ""
    """Empty = nobody."""
    epoch: int = 0


class Presence(msgspec.Struct, frozen=True, array_like=True):
    """A process that takes part; `beat` counts on while it lives."""

    beat: int
    acts: bool = False
    """Whether it knows the policies."""


def share_of(name: str, count: int) -> int:
    """The share that a name belongs to: the same in every process.

    >>> share_of("peer:ana", 16), share_of("anything", 1)
    (8, 0)
    """
    return crc32(name.encode("utf-8", "surrogatepass")) % count


def share_name(share: int) -> str:
    """A share as it stands in keys.

    >>> share_name(7)
    '007'
    """
    return f"{share:03d}"


def fair_owners(instances: Collection[str], count: int) -> dict[int, str]:
    """Who should hold each share: everybody the same number or one less, the same answer for all
    who see the same instances, and few changes when one comes or goes.
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
    """Which instances live, by when their presence was last seen to change."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._seen: dict[str, tuple[bytes, int]] = {}

    def see(self, presences: Mapping[str, bytes], now_ms: int) -> None:
        """What the records say now; `now_ms` is steady time."""
        for name, said in presences.items():
            if name not in self._seen or self._seen[name][0] != said:
                self._seen[name] = (said, now_ms)
        for name in self._seen.keys() - presences.keys():
            del self._seen[name]

    def alive(self, now_ms: int) -> set[str]:
        """Those seen to change within the lease, as of the last look."""
        return {
            name for name, (_, since_ms) in self._seen.items() if now_ms - since_ms < self._lease_ms
        }

    def said(self, name: str) -> bytes | None:
        """What the instance's record said at the last look."""
        seen = self._seen.get(name)
        return seen[0] if seen else None


class ShareMoves(msgspec.Struct, frozen=True):
    """What an instance should do about shares now."""

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
    """The shares to take, which nobody living holds, and those to give up to others; `acting` are
    those that know the policies.
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


BeginShare = Callable[[HeldShare], Awaitable[None]]
"""Starts the work of a share."""
EndShare = Callable[[HeldShare, bool], Awaitable[None]]
"""Stops the work of a share; with True it may take its time to end well, else it is lost."""


class ShareLeases:
    """Keeps a fair number of shares for one process. Writes one record per beat."""

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
        """`instance` names this start of the process and no other; `acts`: it knows the policies,
        so it may hold the share of what they detect. `records` should have a
        connection that nothing else waits for. Raises Unsupported for records without guards.
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
        kept = keep_first(self._records, _SETTINGS, _COUNT, count)
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
