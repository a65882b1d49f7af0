"""Sealed datagrams: who holds the key is heard, once and while it is fresh; nobody else. [CX-2,
CX-9]

Pure: bytes and wall time in, bytes out. On the wire, integers big-endian:

    magic "RP"  version 1  side  key id  run  counter  wall ms  sealed bytes, 16 more for the tag
    2           1          1     8       16   4        8

A subkey is derived for each key and run (16 random bytes of a process), the nonce is counter and
time: as the counter never repeats within a run, no nonce does. All of the header is authenticated:
up to the run it goes into the subkey, the rest is the nonce. So is the address of a member that it
is for: else what was recorded on its way to one would be heard by all the others as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from struct import Struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rapport.core.errors import InvalidInput
from rapport.transport.addresses import format_address, ip_of
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKey, DatagramKeys
from rapport.transport.scopes import without_scope

MAGIC_AND_VERSION = b"RP\x01"
BY_MEMBER, BY_CLIENT, TO_ALL = b"\x00", b"\x01", b"\x02"
"""Side: who sealed it; by a member, for all members. Both ends of a client's key share it, so that
the side keeps a client from speaking as a member, and from taking its own words for an answer.
"""
RUN_BYTES = 16
PREFIX_BYTES = 28
"""Up to and with the run: the same for all datagrams of one sender and key."""
COUNTER_AND_TIME = Struct(">IQ")
HEADER = Struct(f">{PREFIX_BYTES}sIQ")
HEADER_BYTES = HEADER.size
OVERHEAD_BYTES = HEADER_BYTES + 16
"""What sealing adds to a datagram."""

_Sealer = tuple[bytes, Callable[[bytes, bytes, bytes | None], bytes]]
"""What datagrams begin with, and what encrypts with nonce, plain bytes and whom it is for."""

_LAST_COUNTER = 0xFFFF_FFFF
_MOST_SEALERS = 10_000
_PURPOSE = b"rapport-datagram"


class Seal:
    """Seals datagrams with the newest valid key of the holder, or with another that is named.

    `run` must be 16 random bytes never used before, so a process that forks makes a seal anew;
    after 2^32 datagrams it takes a new one by itself.
    """

    def __init__(self, keys: DatagramKeys, run: bytes) -> None:
        if len(run) != RUN_BYTES:
            raise InvalidInput(f"a run is {RUN_BYTES} random bytes", code="keys.bad_run")
        self.keys, self.run = keys, run
        self.runs = {run}
        """All that it sealed with: whose datagrams come back to it is not heard."""
        self._counter = 0
        self._sealers: dict[tuple[bytes, str], _Sealer] = {}
        self._side = BY_MEMBER if keys.is_member else BY_CLIENT
        self._key: DatagramKey | None = None
        self._from_ms = self._until_ms = 0  # between them `_key` is the one to seal with
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
        """The datagram; about 1.1 us for 1 kB. `to` is the `receiver_name` of a member that it is
        for; none: for a client, whose address we may not know as it does, or `to_all` members.

        Raises Unavailable when no key is valid.
        """
        if self._version != self.keys.version:
            self._look_at_keys()
        if key is None:
            is_known = self._from_ms <= wall_ms < self._until_ms
            key = self._key if is_known and self._key else self._newest(wall_ms)
        side = TO_ALL if to_all else self._side
        prefix, encrypt = self._sealers.get((side, key.id)) or self._sealer(side, key)
        nonce = COUNTER_AND_TIME.pack(self._counter, wall_ms)
        if self._counter == _LAST_COUNTER:
            self._begin_anew()
        else:
            self._counter += 1
        return prefix + nonce + encrypt(nonce, plain, to)

    def _newest(self, wall_ms: int) -> DatagramKey:
        """The sealing key, looked for only when time or ring have moved on."""
        self._key, self._until_ms = self.keys.sealing(wall_ms)
        self._from_ms = wall_ms
        return self._key

    def _look_at_keys(self) -> None:
        """The ring was exchanged."""
        self._until_ms, self._version = 0, self.keys.version
        self._side = BY_MEMBER if self.keys.is_member else BY_CLIENT
        self._sealers.clear()

    def _sealer(self, side: bytes, key: DatagramKey) -> _Sealer:
        if len(self._sealers) >= _MOST_SEALERS:
            self._sealers.clear()
        prefix = MAGIC_AND_VERSION + side + bytes.fromhex(key.id) + self.run
        sealer = self._sealers[side, key.id] = (prefix, cipher_of(key, prefix).encrypt)
        return sealer

    def _begin_anew(self) -> None:
        self.run = hashlib.blake2b(self.run, digest_size=RUN_BYTES, person=_PURPOSE).digest()
        self.runs.add(self.run)
        self._sealers.clear()
        self._counter = 0


def receiver_name(address: Address) -> bytes:
    """What a seal knows a receiver by, the same however its address is written; without the scope,
    as each end has its own name for the network between them.
    """
    found = ip_of(address[0])
    host = without_scope(found.compressed) if found else address[0]
    return format_address((host, address[1])).encode()


def cipher_of(key: DatagramKey, prefix: bytes) -> AESGCM:
    """The cipher of all datagrams with this prefix; one hash and the setting up of AES, 2 us."""
    subkey = hashlib.blake2b(prefix, key=key.secret, digest_size=32, person=_PURPOSE)
    return AESGCM(subkey.digest())
