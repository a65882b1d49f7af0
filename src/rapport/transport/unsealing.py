"""Opening sealed datagrams: what is forged, foreign, old or repeated is dropped and counted.
[CX-9]

Bytes of a stranger cost at most one hash and one decryption, and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rapport.transport.framing import (
    BY_CLIENT,
    BY_MEMBER,
    HEADER,
    HEADER_BYTES,
    MAGIC_AND_VERSION,
    OVERHEAD_BYTES,
    PREFIX_BYTES,
    TO_ALL,
    Seal,
    cipher_of,
)
from rapport.transport.keys import DatagramKey, DatagramKeys
from rapport.transport.replay_window import ReplayWindow

_NETWORK = "network"


class Origin(NamedTuple):
    """Who sealed a datagram."""

    identity: str
    """The owner of the key; for a client that hears a member, `network`."""
    kind: str
    """What the sender is: `network` or `client`."""
    key: DatagramKey


Opened = tuple[bytes, Origin]
"""What was sealed, and by whom."""


@dataclass(slots=True)
class UnsealCounters:
    """How many were opened, and why others were not; only ever growing."""

    opened: int = 0
    foreign: int = 0
    """Too short, or of another protocol or version."""
    unknown_key: int = 0
    wrong_side: int = 0
    """A client that speaks as a member, or a client's own words come back."""
    invalid_key: int = 0
    """Sealed with a key before or after its time."""
    stale: int = 0
    """Sealed too long ago, or by a clock too far ahead."""
    repeated: int = 0
    forgotten: int = 0
    """Of an unknown run, from before we can tell whether it is a repetition."""
    forged: int = 0
    """Changed on the way, meant for another member, or sealed without the secret."""


@dataclass(frozen=True, slots=True)
class UnsealSettings:
    """What is still taken."""

    age_ms: int = 30_000
    """How far the sender's clock, and the way here, may differ from ours, each way. Longer bears
    worse clocks, and keeps runs in memory longer.
    """
    runs: int = 4_096
    """Senders with the same key whose numbers are remembered, about 2 kB each. With more, the
    quietest are forgotten; they are heard again with their next datagram, unless their clocks are
    behind the others'. Whoever starts too often so harms only those with the same key.
    """


class _Run:
    """One sender since it started, with one key."""

    __slots__ = ("decrypt", "from_ms", "newest_ms", "origin", "until_ms", "window")

    def __init__(self, origin: Origin, cipher: AESGCM, age_ms: int) -> None:
        self.decrypt = cipher.decrypt
        self.window = ReplayWindow()
        self.newest_ms = 0
        self.set_origin(origin, age_ms)

    def set_origin(self, origin: Origin, age_ms: int) -> None:
        """Whose it is, and when it is heard: while the key is valid, give or take the age."""
        self.origin = origin
        self.from_ms, self.until_ms = origin.key.from_ms - age_ms, origin.key.until_ms + age_ms


class _OfKey:
    """The runs of one key, and from when on a new one is taken."""

    __slots__ = ("floor_ms", "prefixes")

    def __init__(self, floor_ms: int) -> None:
        self.floor_ms = floor_ms
        self.prefixes: set[bytes] = set()


class Unseal:
    """Opens what was sealed with a key of the ring; never raises, whatever the bytes are."""

    def __init__(
        self,
        keys: DatagramKeys,
        settings: UnsealSettings | None = None,
        *,
        since_ms: int = 0,
        own: Seal | None = None,
    ) -> None:
        """Makes one that has heard nobody yet.

        Args:
            since_ms: what was sealed before this wall time is not taken from senders not heard yet.
                A process gives the time of its start: it cannot know what it took before.
            own: the seal of the same process, whose datagrams may be thrown back at it.
        """
        self.settings = settings or UnsealSettings()
        self.counters = UnsealCounters()
        self._age_ms = self.settings.age_ms
        self._keys, self._version = keys, keys.version
        self._runs: dict[bytes, _Run] = {}
        self._of_key: dict[str, _OfKey] = {}
        self._since_ms = since_ms
        self._own_runs = own.runs if own else set()

    def __len__(self) -> int:
        """How many runs are remembered."""
        return len(self._runs)

    def open(self, datagram: bytes, wall_ms: int, at: bytes | None = None) -> Opened | None:
        """What was sealed, and by whom; none when it must not be heard. `at` is the
        `receiver_name` of a member that hears; a client has none.

        About 1.9 us for 1 kB from a sender heard before.
        """
        if len(datagram) < OVERHEAD_BYTES:
            self.counters.foreign += 1
            return None
        if self._version != self._keys.version:
            self._look_at_keys()
        prefix, counter, sealed_ms = HEADER.unpack_from(datagram)
        known = self._runs.get(prefix)
        run = known or self._stranger(prefix, sealed_ms, wall_ms)
        if run is None:
            return None
        is_fresh = -self._age_ms <= wall_ms - sealed_ms <= self._age_ms
        is_valid = run.from_ms <= wall_ms < run.until_ms
        if not (is_fresh and is_valid and run.window.is_new(counter)):
            self._count_refused(is_fresh, is_valid)
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

    def _count_refused(self, is_fresh: bool, is_valid: bool) -> None:
        if not is_fresh:
            self.counters.stale += 1
        elif not is_valid:
            self.counters.invalid_key += 1
        else:
            self.counters.repeated += 1

    def _stranger(self, prefix: bytes, sealed_ms: int, wall_ms: int) -> _Run | None:
        """A run not heard yet, as it claims to be; nothing is kept before it has proven that."""
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
        """Our clock was ahead and is right now, as after a start without a time server: a floor
        further ahead than any sender's clock may be would keep out everybody until it is reached.
        Who is heard is still known; of the others, what was sealed before this moment stays out.
        """
        self._since_ms = min(self._since_ms, wall_ms)
        for of_key in self._of_key.values():
            of_key.floor_ms = min(of_key.floor_ms, wall_ms)

    def _origin(self, key: DatagramKey) -> Origin:
        if self._keys.is_member:
            return Origin(key.owner, key.kind, key)
        return Origin(_NETWORK, _NETWORK, key)

    def _remember(self, prefix: bytes, run: _Run) -> None:
        of_key = self._of_key.setdefault(run.origin.key.id, _OfKey(self._since_ms))
        if len(of_key.prefixes) >= self.settings.runs:
            self._forget_some(of_key)
        of_key.prefixes.add(prefix)
        self._runs[prefix] = run

    def _forget_some(self, of_key: _OfKey) -> None:
        """Drops the quietest quarter. What those have sealed is not taken again: the floor rises to
        their newest.
        """
        quiet_first = sorted(of_key.prefixes, key=lambda prefix: self._runs[prefix].newest_ms)
        for prefix in quiet_first[: max(len(quiet_first) // 4, 1)]:
            of_key.floor_ms = max(of_key.floor_ms, self._runs.pop(prefix).newest_ms + 1)
            of_key.prefixes.remove(prefix)

    def _look_at_keys(self) -> None:
        """The ring was exchanged. Runs of keys that are gone stay, so that nothing is taken twice
        when they come back, yet they are not heard.
        """
        self._version = self._keys.version
        for run in self._runs.values():
            before = run.origin.key
            now = self._keys.find(before.id)
            if now is None or (now.secret, now.kind) != (before.secret, before.kind):
                now = replace(before, until_ms=0)
            run.set_origin(self._origin(now), self._age_ms)
