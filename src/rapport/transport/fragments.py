"""Messages larger than a datagram: cut into fragments, and put together again whatever the medium
does to them. [CX-2, EN-4]

A fragment begins with one byte: 0 = a whole message follows; 1 = a part: number of the message,
place, count and checksum of the whole, then the part. Integers are big-endian.
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
"""What Python keeps beside the bytes of a part; counted, so that tiny parts cannot fill memory."""
_REMEMBERED = 4_096

_Key = tuple[Hashable, int, int, int]
"""Sender, and number, count and checksum of the message."""


def split(message: bytes, limit: int, number: int) -> list[bytes]:
    """The message as fragments of at most `limit` bytes, in order.

    `number` tells messages of one sender apart while their fragments are under way; 32 bits of it
    are used. Raises TooLarge for more than 65,535 fragments.
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
class AssemblyLimits:
    """What incomplete messages may cost; beyond it the oldest are given up."""

    message_bytes: int = 1024 * 1024
    """Largest message; a sender that goes beyond it loses that message."""
    sender_bytes: int = 4 * 1024 * 1024
    """For one sender, at least `message_bytes`: nobody can push out what others send."""
    all_bytes: int = 32 * 1024 * 1024
    """For all senders together."""
    keep_ms: float = 5_000
    """An incomplete message is given up so long after its first fragment."""


@dataclass(slots=True)
class AssemblyCounters:
    """What became of fragments; only ever growing."""

    completed: int = 0
    timed_out: int = 0
    pushed_out: int = 0
    """Given up because a limit was reached."""
    bad: int = 0
    """Fragments that cannot be ours, and messages whose checksum was wrong."""


class _Incomplete:
    """The parts of one message so far."""

    __slots__ = ("bytes", "cost", "parts", "since_ms")

    def __init__(self, since_ms: float) -> None:
        self.parts: dict[int, bytes] = {}
        self.since_ms = since_ms
        self.bytes = 0
        self.cost = _OVERHEAD_BYTES

    def add(self, index: int, part: bytes) -> int:
        """Keeps a part; returns what that costs."""
        self.parts[index] = part
        cost = len(part) + _OVERHEAD_BYTES
        self.bytes += len(part)
        self.cost += cost
        return cost


class _OfSender:
    """What one sender has begun."""

    __slots__ = ("begun", "cost")

    def __init__(self) -> None:
        self.begun: dict[_Key, None] = {}
        self.cost = 0


class Assembly:
    """Incomplete messages of many senders, within limits."""

    def __init__(self, limits: AssemblyLimits | None = None) -> None:
        self.limits = limits or AssemblyLimits()
        self.counters = AssemblyCounters()
        self.cost_bytes = 0
        """What is kept now."""
        self._incomplete: dict[_Key, _Incomplete] = {}
        self._senders: dict[Hashable, _OfSender] = {}
        self._done: dict[_Key, None] = {}

    def __len__(self) -> int:
        """How many messages are incomplete."""
        return len(self._incomplete)

    def take(self, fragment: bytes, sender: Hashable, now_ms: float) -> bytes | None:
        """The message that this fragment completes; none while parts are missing.

        A message is given once, also when its fragments come several times; a fragment that cannot
        be one is counted and dropped. `now_ms` is steady time.
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
        """Gives up what has been incomplete for too long."""
        before_ms = now_ms - self.limits.keep_ms
        while self._incomplete:
            key = next(iter(self._incomplete))  # the oldest: they are kept in order of arrival
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
        sender = self._senders.setdefault(key[0], _OfSender())
        sender.begun[key] = None
        self._charge(sender, message.cost)
        return message

    def _make_room(self, newest: _Key) -> None:
        """Gives up the oldest of this sender, then of all, until the limits are kept."""
        sender = self._senders[newest[0]]
        while sender.cost > self.limits.sender_bytes:
            self._push_out(next(iter(sender.begun)))
        while self.cost_bytes > self.limits.all_bytes:
            self._push_out(next(iter(self._incomplete)))

    def _push_out(self, key: _Key) -> None:
        self._forget(key)
        self.counters.pushed_out += 1

    def _charge(self, sender: _OfSender, cost: int) -> None:
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
