"""Sealed datagrams: authenticated encryption with replay protection. [CX-2, CX-9]

Pure: bytes and wall time in, bytes out. On the wire, integers big-endian:

    magic "RP"  version 1  side  key id  run  counter  wall ms  sealed bytes, 16 more for the tag
    2           1          1     8       16   4        8

Each key and run (16 random bytes of a process) has a derived subkey; the nonce is counter and time.
The counter never repeats within a run, so no nonce repeats. The whole header is authenticated: the
part up to the run through the subkey, the rest as the nonce. The address of the receiving member is
authenticated too, so that a recorded datagram cannot be replayed to another member.

A forged, foreign, old or repeated datagram is dropped and counted. It costs at most one hash and
one decryption, and no memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rapport.core.errors import InvalidInput
from rapport.transport.addresses import format_address, ip_of, without_scope
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKey, DatagramKeys

MAGIC_AND_VERSION = b"RP\x01"
BY_MEMBER, BY_CLIENT, TO_ALL = b"\x00", b"\x01", b"\x02"
"""Side: sealed by a member, by a client, or by a member for all members. A client shares its key
with the members; the side keeps a client from posing as a member, and its own datagrams from being
reflected to it as answers.
"""
RUN_BYTES = 16
PREFIX_BYTES = 28
"""The part up to the run, the same for all datagrams of one sender and key."""
COUNTER_AND_TIME = Struct(">IQ")
HEADER = Struct(f">{PREFIX_BYTES}sIQ")
HEADER_BYTES = HEADER.size
OVERHEAD_BYTES = HEADER_BYTES + 16
"""Bytes that sealing adds to a datagram."""

_Cipher = tuple[bytes, Callable[[bytes, bytes, bytes | None], bytes]]
"""The prefix of datagrams, and the function that encrypts nonce, plain bytes and receiver."""

_LAST_COUNTER = 0xFFFF_FFFF
_MOST_SEALERS = 10_000
_PURPOSE = b"rapport-datagram"


class Sealer:
    """Seals datagrams with the newest valid key of the holder, or with a given key.

    `run` must be 16 fresh random bytes, so a forked process creates a new Sealer; after 2^32
    datagrams the Sealer changes the run by itself.
    """

    def __init__(self, keys: DatagramKeys, run: bytes) -> None:
        if len(run) != RUN_BYTES:
            raise InvalidInput(f"a run is {RUN_BYTES} random bytes", code="keys.bad_run")
        self.keys, self.run = keys, run
        self.runs = {run}
        """All runs used; reflected datagrams with them are dropped."""
        self._counter = 0
        self._sealers: dict[tuple[bytes, str], _Cipher] = {}
        self._side = BY_MEMBER if keys.is_member else BY_CLIENT
        self._key: DatagramKey | None = None
        self._from_ms = self._until_ms = 0  # the period in which `_key` seals
        self._version = keys.version

    def seal(
        self,
        plain: bytes,
        wall_ms: int,
        key: DatagramKey | None = None,
        *,
        to: bytes | None = None,
        to_all: bool = False,
    ) -> bytes:
        """Seals a datagram; about 1.1 us for 1 kB. `to` is the `receiver_name` of the receiving
        member; None for a client, whose own address may differ from the one we know, and for all
        members (`to_all`). Raises Unavailable if no key is valid.
        """
        if self._version != self.keys.version:
            self._reload_keys()
        if key is None:
            is_known = self._from_ms <= wall_ms < self._until_ms
            key = self._key if is_known and self._key else self._newest(wall_ms)
        side = TO_ALL if to_all else self._side
        prefix, encrypt = self._sealers.get((side, key.id)) or self._sealer(side, key)
        nonce = COUNTER_AND_TIME.pack(self._counter, wall_ms)
        if self._counter == _LAST_COUNTER:
            self._change_run()
        else:
            self._counter += 1
        return prefix + nonce + encrypt(nonce, plain, to)

    def _newest(self, wall_ms: int) -> DatagramKey:
        self._key, self._until_ms = self.keys.sealing(wall_ms)
        self._from_ms = wall_ms
        return self._key

    def _reload_keys(self) -> None:
        self._until_ms, self._version = 0, self.keys.version
        self._side = BY_MEMBER if self.keys.is_member else BY_CLIENT
        self._sealers.clear()

    def _sealer(self, side: bytes, key: DatagramKey) -> _Cipher:
        if len(self._sealers) >= _MOST_SEALERS:
            self._sealers.clear()
        prefix = MAGIC_AND_VERSION + side + bytes.fromhex(key.id) + self.run
        sealer = self._sealers[side, key.id] = (prefix, cipher_of(key, prefix).encrypt)
        return sealer

    def _change_run(self) -> None:
        self.run = hashlib.blake2b(self.run, digest_size=RUN_BYTES, person=_PURPOSE).digest()
        self.runs.add(self.run)
        self._sealers.clear()
        self._counter = 0


def receiver_name(address: Address) -> bytes:
    """The receiver's canonical name in a seal; without the scope, because each end has its own name
    for the network between them.
    """
    found = ip_of(address[0])
    host = without_scope(found.compressed) if found else address[0]
    return format_address((host, address[1])).encode()


def cipher_of(key: DatagramKey, prefix: bytes) -> AESGCM:
    """The cipher of all datagrams with this prefix; costs a hash and an AES set-up, 2 us."""
    subkey = hashlib.blake2b(prefix, key=key.secret, digest_size=32, person=_PURPOSE)
    return AESGCM(subkey.digest())


KEPT_BLOCKS = 32
"""Blocks of 64 counters that are always distinguished: a sender with one receiver may be 2,048
datagrams out of order, one with many receivers still 32.
"""
_MOST_BLOCKS = 2 * KEPT_BLOCKS


class ReplayWindow:
    """The counters received from one sender, as bits in blocks; counters below the oldest block
    count as received. At most about 7 kB.
    """

    __slots__ = ("_blocks", "_floor")

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        self._floor = 0

    def is_new(self, number: int) -> bool:
        bits = self._blocks.get(number >> 6)
        if bits is None:
            return number >= self._floor
        return not bits >> (number & 63) & 1

    def take(self, number: int) -> None:
        block = number >> 6
        bits = self._blocks.get(block)
        if bits is None:
            if len(self._blocks) >= _MOST_BLOCKS:
                self._forget_oldest()
            bits = 0
        self._blocks[block] = bits | 1 << (number & 63)

    def _forget_oldest(self) -> None:
        in_order = sorted(self._blocks)
        self._floor = in_order[-KEPT_BLOCKS] << 6
        self._blocks = {block: self._blocks[block] for block in in_order[-KEPT_BLOCKS:]}


_NETWORK = "network"


class DatagramOrigin(NamedTuple):
    """The sealing party of a datagram."""

    identity: str
    """The owner of the key; `network` for datagrams that a client receives."""
    kind: str
    """The sender: `network` or `client`."""
    key: DatagramKey


OpenedDatagram = tuple[bytes, DatagramOrigin]
"""The content, and the sealing party."""


@dataclass(slots=True)
class UnsealCounters:
    """Numbers of opened and of dropped datagrams by reason; monotonic."""

    opened: int = 0
    foreign: int = 0
    """Too short, or of another protocol or version."""
    unknown_key: int = 0
    wrong_side: int = 0
    """A client that poses as a member, or a reflected datagram."""
    invalid_key: int = 0
    """Sealed with a key outside its validity."""
    stale: int = 0
    """Sealed too long ago, or by a clock too far ahead."""
    repeated: int = 0
    forgotten: int = 0
    """Of an unknown run, and too old to exclude a replay."""
    forged: int = 0
    """Changed on the way, meant for another member, or sealed without the secret."""


@dataclass(frozen=True, slots=True)
class UnsealSettings:
    age_ms: int = 30_000
    """Largest difference of clocks plus transit time, in both directions. A longer one tolerates
    worse clocks and keeps runs in memory longer.
    """
    runs: int = 4_096
    """Senders per key whose counters are remembered, about 2 kB each. Beyond it the quietest are
    forgotten; their next datagram is accepted unless their clocks are behind the others'. A sender
    that restarts too often affects only those with the same key.
    """


class _Run:
    """One sender since it started, with one key."""

    __slots__ = ("decrypt", "from_ms", "newest_ms", "origin", "until_ms", "window")

    def __init__(self, origin: DatagramOrigin, cipher: AESGCM, age_ms: int) -> None:
        self.decrypt = cipher.decrypt
        self.window = ReplayWindow()
        self.newest_ms = 0
        self.set_origin(origin, age_ms)

    def set_origin(self, origin: DatagramOrigin, age_ms: int) -> None:
        """Sets the origin and the validity: that of the key, extended by the age."""
        self.origin = origin
        self.from_ms, self.until_ms = origin.key.from_ms - age_ms, origin.key.until_ms + age_ms


class _KeyRuns:
    """The runs of one key, and the earliest time of a new run."""

    __slots__ = ("floor_ms", "prefixes")

    def __init__(self, floor_ms: int) -> None:
        self.floor_ms = floor_ms
        self.prefixes: set[bytes] = set()


class Unsealer:
    """Opens datagrams sealed with a key of the ring; never raises."""

    def __init__(
        self,
        keys: DatagramKeys,
        settings: UnsealSettings | None = None,
        *,
        since_ms: int = 0,
        own: Sealer | None = None,
    ) -> None:
        """Args:
        since_ms: Drops datagrams of new senders that were sealed before this wall time. A process
            passes its start time, because it does not know what it received before.
        own: The Sealer of the same process, whose datagrams may be reflected.
        """
        self.settings = settings or UnsealSettings()
        self.counters = UnsealCounters()
        self._age_ms = self.settings.age_ms
        self._keys, self._version = keys, keys.version
        self._runs: dict[bytes, _Run] = {}
        self._of_key: dict[str, _KeyRuns] = {}
        self._since_ms = since_ms
        self._own_runs = own.runs if own else set()

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, datagram: bytes, wall_ms: int, at: bytes | None = None) -> OpenedDatagram | None:
        """Opens a datagram; None if it is dropped. `at` is the `receiver_name` of the receiving
        member; a client has none. About 1.9 us for 1 kB from a known sender.
        """
        if len(datagram) < OVERHEAD_BYTES:
            self.counters.foreign += 1
            return None
        if self._version != self._keys.version:
            self._reload_keys()
        prefix, counter, sealed_ms = HEADER.unpack_from(datagram)
        known = self._runs.get(prefix)
        run = known or self._new_run(prefix, sealed_ms, wall_ms)
        if run is None:
            return None
        is_fresh = -self._age_ms <= wall_ms - sealed_ms <= self._age_ms
        is_valid = run.from_ms <= wall_ms < run.until_ms
        if not (is_fresh and is_valid and run.window.is_new(counter)):
            self._count_dropped(is_fresh, is_valid)
            return None
        try:
            nonce, sealed = datagram[PREFIX_BYTES:HEADER_BYTES], datagram[HEADER_BYTES:]
            plain = run.decrypt(nonce, sealed, at if datagram[3:4] != TO_ALL else None)
        except InvalidTag:
            self.counters.forged += 1
            return None
        if known is None:
            self._remember(prefix, run)
        run.window.take(counter)
        if sealed_ms > run.newest_ms:
            run.newest_ms = sealed_ms
        self.counters.opened += 1
        return plain, run.origin

    def _count_dropped(self, is_fresh: bool, is_valid: bool) -> None:
        if not is_fresh:
            self.counters.stale += 1
        elif not is_valid:
            self.counters.invalid_key += 1
        else:
            self.counters.repeated += 1

    def _new_run(self, prefix: bytes, sealed_ms: int, wall_ms: int) -> _Run | None:
        """A new run, not stored before its first datagram is authenticated."""
        if not prefix.startswith(MAGIC_AND_VERSION):
            self.counters.foreign += 1
            return None
        key = self._keys.find(prefix[4:12].hex())
        if key is None:
            self.counters.unknown_key += 1
            return None
        expected = [BY_MEMBER]
        if self._keys.is_member:
            expected = [BY_CLIENT] if key.kind == "client" else [BY_MEMBER, TO_ALL]
        if prefix[3:4] not in expected or prefix[12:] in self._own_runs:
            self.counters.wrong_side += 1
            return None
        of_key = self._of_key.get(key.id)
        floor_ms = of_key.floor_ms if of_key else self._since_ms
        if floor_ms > wall_ms + self._age_ms + 1:
            self._set_back(wall_ms)
            floor_ms = wall_ms
        if sealed_ms < floor_ms:
            self.counters.forgotten += 1
            return None
        return _Run(self._origin(key), cipher_of(key, prefix), self._age_ms)

    def _set_back(self, wall_ms: int) -> None:
        """Lowers the earliest time after our clock was ahead, as after a start without a time
        server: a floor in the future would drop all new senders until it is reached. Known runs
        stay; for new ones everything sealed before this moment stays dropped.
        """
        self._since_ms = min(self._since_ms, wall_ms)
        for of_key in self._of_key.values():
            of_key.floor_ms = min(of_key.floor_ms, wall_ms)

    def _origin(self, key: DatagramKey) -> DatagramOrigin:
        if self._keys.is_member:
            return DatagramOrigin(key.owner, key.kind, key)
        return DatagramOrigin(_NETWORK, _NETWORK, key)

    def _remember(self, prefix: bytes, run: _Run) -> None:
        of_key = self._of_key.setdefault(run.origin.key.id, _KeyRuns(self._since_ms))
        if len(of_key.prefixes) >= self.settings.runs:
            self._forget_some(of_key)
        of_key.prefixes.add(prefix)
        self._runs[prefix] = run

    def _forget_some(self, of_key: _KeyRuns) -> None:
        """Forgets the quietest quarter. The floor rises to their newest datagram, so that theirs
        are not accepted again.
        """
        quiet_first = sorted(of_key.prefixes, key=lambda prefix: self._runs[prefix].newest_ms)
        for prefix in quiet_first[: max(len(quiet_first) // 4, 1)]:
            of_key.floor_ms = max(of_key.floor_ms, self._runs.pop(prefix).newest_ms + 1)
            of_key.prefixes.remove(prefix)

    def _reload_keys(self) -> None:
        """Applies a replaced key ring. Runs of removed keys stay, without validity, so that nothing
        is accepted twice if the keys return.
        """
        self._version = self._keys.version
        for run in self._runs.values():
            before = run.origin.key
            now = self._keys.find(before.id)
            if now is None or (now.secret, now.kind) != (before.secret, before.kind):
                now = replace(before, until_ms=0)
            run.set_origin(self._origin(now), self._age_ms)
