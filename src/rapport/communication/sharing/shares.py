"""How the work of the room is divided among processes, pure: shares, who should hold which, and
whose time is over. [CO-17]

Nobody compares clocks of two machines. A process says that it lives by counting on in a record;
another takes it for dead when the count stood still for a whole lease of its own steady time.
Whether that was right does not matter for safety: the fence (`Lease.epoch`) decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from zlib import crc32

import msgspec

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


class Living:
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


class Moves(msgspec.Struct, frozen=True):
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
) -> Moves:
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
    return Moves(tuple(acquire), tuple(release))
