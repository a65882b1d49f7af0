"""Messages larger than a datagram: split into fragments and reassembled, despite loss, duplicates
and reordering. [CX-2, EN-4]

A fragment begins with one byte: 0 = a whole message follows; 1 = a part: number of the message,
index, count and checksum of the whole, then the part. Integers are big-endian.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from struct import Struct

from rapport.core.errors import InvalidInput, TooLarge

WHOLE = b"\x00"
_PART = 1
_HEADER = Struct(">BIHHI")
HEADER_BYTES = _HEADER.size
_MOST_PARTS = 65_535
_OVERHEAD_BYTES = 200
"""Memory that Python needs beside the bytes of a part; counted, so that tiny parts cannot fill
memory.
"""
_REMEMBERED = 4_096

_Key = tuple[Hashable, int, int, int]
"""Sender, and number, count and checksum of the message."""


def split_message(message: bytes, limit: int, number: int) -> list[bytes]:
    """The message as fragments of at most `limit` bytes, in order.

    `number` (32 bits) distinguishes pending messages of one sender. Raises TooLarge for more than
    65,535 fragments.
    """
    if len(message) < limit:
        return [WHOLE + message]
    room = limit - HEADER_BYTES
    if room <= 0:
        raise InvalidInput(
            f"no message fits into fragments of {limit} bytes", code="transport.bad_limit"
        )
    count = -(-len(message) // room)
    if count > _MOST_PARTS:
        raise TooLarge(
            f"a message of {len(message)} bytes needs {count} fragments, at most {_MOST_PARTS}",
            code="transport.too_large",
        )
    checksum, number = zlib.crc32(message), number & 0xFFFF_FFFF
    return [
        _HEADER.pack(_PART, number, index, count, checksum)
        + message[index * room : (index + 1) * room]
        for index in range(count)
    ]


@dataclass(frozen=True, slots=True)
class ReassemblyLimits:
    """Limits of incomplete messages; beyond them the oldest are dropped."""

    message_bytes: int = 1024 * 1024
    """Largest message; larger ones are dropped."""
    sender_bytes: int = 4 * 1024 * 1024
    """For one sender, at least `message_bytes`, so that no sender can displace others."""
    all_bytes: int = 32 * 1024 * 1024
    """For all senders together."""
    keep_ms: float = 5_000
    """Time from the first fragment until an incomplete message is dropped."""


@dataclass(slots=True)
class ReassemblyCounters:
    completed: int = 0
    timed_out: int = 0
    pushed_out: int = 0
    """Dropped because of a limit."""
    bad: int = 0
    """Invalid fragments, and messages with a wrong checksum."""


class _Incomplete:
    __slots__ = ("bytes", "cost", "parts", "since_ms")

    def __init__(self, since_ms: float) -> None:
        self.parts: dict[int, bytes] = {}
        self.since_ms = since_ms
        self.bytes = 0
        self.cost = _OVERHEAD_BYTES

    def add(self, index: int, part: bytes) -> int:
        """Adds a part; returns its cost in memory."""
        self.parts[index] = part
        cost = len(part) + _OVERHEAD_BYTES
        self.bytes += len(part)
        self.cost += cost
        return cost


class _SenderMessages:
    __slots__ = ("begun", "cost")

    def __init__(self) -> None:
        self.begun: dict[_Key, None] = {}
        self.cost = 0


class Reassembler:
    """Incomplete messages of many senders, within limits."""

    def __init__(self, limits: ReassemblyLimits | None = None) -> None:
        self.limits = limits or ReassemblyLimits()
        self.counters = ReassemblyCounters()
        self.cost_bytes = 0
        """Memory in use."""
        self._incomplete: dict[_Key, _Incomplete] = {}
        self._senders: dict[Hashable, _SenderMessages] = {}
        self._done: dict[_Key, None] = {}

    def __len__(self) -> int:
        return len(self._incomplete)

    def take(self, fragment: bytes, sender: Hashable, now_ms: float) -> bytes | None:
        """Returns the message that this fragment completes; None while parts are missing.

        Each message is returned once, even if its fragments arrive several times. Invalid fragments
        are counted and dropped. `now_ms` is steady time.
        """
        if fragment[:1] == WHOLE:
            return fragment[1:] if len(fragment) - 1 <= self.limits.message_bytes else self._bad()
        if len(fragment) <= HEADER_BYTES or fragment[0] != _PART:
            return self._bad()
        _, number, index, count, checksum = _HEADER.unpack_from(fragment)
        if index >= count:
            return self._bad()
        key = (sender, number, count, checksum)
        if key in self._done:
            return None
        return self._add(key, index, fragment[HEADER_BYTES:], now_ms)

    def expire(self, now_ms: float) -> None:
        """Drops messages that have been incomplete for too long."""
        before_ms = now_ms - self.limits.keep_ms
        while self._incomplete:
            key = next(iter(self._incomplete))  # the oldest, in order of arrival
            if self._incomplete[key].since_ms > before_ms:
                return
            self._forget(key)
            self.counters.timed_out += 1

    def _add(self, key: _Key, index: int, part: bytes, now_ms: float) -> bytes | None:
        self.expire(now_ms)
        message = self._incomplete.get(key) or self._begin(key, now_ms)
        if index in message.parts:
            return None
        self._charge(self._senders[key[0]], message.add(index, part))
        if message.bytes > self.limits.message_bytes:
            self._forget(key)
            return self._bad()
        if len(message.parts) == key[2]:
            return self._complete(key, message)
        self._make_room(key)
        return None

    def _complete(self, key: _Key, message: _Incomplete) -> bytes | None:
        self._forget(key)
        whole = b"".join(message.parts[index] for index in range(key[2]))
        if zlib.crc32(whole) != key[3]:
            return self._bad()
        self._done[key] = None
        if len(self._done) > _REMEMBERED:
            del self._done[next(iter(self._done))]
        self.counters.completed += 1
        return whole

    def _begin(self, key: _Key, now_ms: float) -> _Incomplete:
        message = self._incomplete[key] = _Incomplete(now_ms)
        sender = self._senders.setdefault(key[0], _SenderMessages())
        sender.begun[key] = None
        self._charge(sender, message.cost)
        return message

    def _make_room(self, newest: _Key) -> None:
        """Drops the oldest messages of this sender, then of all, until the limits hold."""
        sender = self._senders[newest[0]]
        while sender.cost > self.limits.sender_bytes:
            self._push_out(next(iter(sender.begun)))
        while self.cost_bytes > self.limits.all_bytes:
            self._push_out(next(iter(self._incomplete)))

    def _push_out(self, key: _Key) -> None:
        self._forget(key)
        self.counters.pushed_out += 1

    def _charge(self, sender: _SenderMessages, cost: int) -> None:
        self.cost_bytes += cost
        sender.cost += cost

    def _forget(self, key: _Key) -> None:
        cost = self._incomplete.pop(key).cost
        sender = self._senders[key[0]]
        self._charge(sender, -cost)
        del sender.begun[key]
        if not sender.begun:
            del self._senders[key[0]]

    def _bad(self) -> bytes | None:
        self.counters.bad += 1
        return None
