"""Knowledge larger than a packet: split into parts, reassembled, missing parts pulled. [EN-4, EN-8]

Reassembly tolerates loss, reordering and repetition. Memory for incomplete versions is bounded.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from rapport.core.errors import InvalidInput
from rapport.ensemble.protocol import (
    MAX_MESSAGE,
    MAX_PARTS,
    OutgoingMessage,
    Part,
    PublishedKnowledge,
    PullParts,
    decode,
    encode,
)
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender

if TYPE_CHECKING:
    from rapport.ensemble.gossip.gossip_state import GossipState

_REMEMBERED = 8
_HEADER_BYTES = 48
"""Encoded size of a part's header besides the component's name, with a margin."""
_LEAST_BYTES = 16


class Splitter:
    """Splits messages, and caches the last few, because one is often sent to several recipients.

    Nodes with the same `part_bytes` split a message into the same parts, so that parts from
    different nodes fit together.
    """

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._cut: dict[tuple[str, int], tuple[PublishedKnowledge, tuple[Part, ...]]] = {}

    def parts_of(self, message: PublishedKnowledge) -> tuple[Part, ...]:
        """The message in parts, in order; raises InvalidInput when it is larger than any may be."""
        key = (message.component, message.version)
        found = self._cut.get(key)
        if found is not None and found[0] is message:
            return found[1]
        if len(self._cut) >= _REMEMBERED:
            del self._cut[next(iter(self._cut))]
        parts = _cut(message, self._part_bytes)
        self._cut[key] = (message, parts)
        return parts


def join(parts: list[bytes], checksum: int) -> PublishedKnowledge | None:
    """The message of these parts; none if the checksum differs. Raises InvalidInput if they are no
    message.
    """
    whole = b"".join(parts)
    if zlib.crc32(whole) != checksum:
        return None
    message = decode(whole)
    return message if isinstance(message, PublishedKnowledge) else None


def _cut(message: PublishedKnowledge, part_bytes: int) -> tuple[Part, ...]:
    whole = encode(message)
    room = part_bytes - _HEADER_BYTES - len(message.component.encode())
    room = max(room, _LEAST_BYTES, -(-len(whole) // MAX_PARTS))
    count, checksum = -(-len(whole) // room), zlib.crc32(whole)
    return tuple(
        Part(
            message.component,
            message.version,
            index,
            count,
            checksum,
            whole[index * room : (index + 1) * room],
        )
        for index in range(count)
    )


_MOST_ANSWERED = 8_192
_MOST_WAITING = 1_024
"""Parts that wait to be sent; further ones are not, and are pulled again."""
_NEVER: Final = float("inf")

_PartsName = tuple[str, int, int]
"""Component, version and index."""


class PartAnswers:
    """Answers to pulls of parts.

    By radio all holders of a part receive the pull at the same time. Each waits a random time, up
    to half of `part_wait_ms`, and sends nothing if another one sends the part meanwhile; the
    requester waits longer than that before it pulls again.
    """

    def __init__(self, state: GossipState, chance: Chance) -> None:
        self._state, self._random = state, chance.random
        self._longest_ms = state.settings.part_wait_ms / 2
        self._gap_ms = min(state.settings.answer_gap_ms, state.settings.part_wait_ms)
        self._waiting: dict[_PartsName, tuple[float, Part]] = {}
        self._answered: dict[tuple[_PartsName, Address | None], float] = {}
        self._due_ms = _NEVER

    def to_one(self, parts: Iterable[Part], to: Address, now: Now) -> None:
        """Sends the parts to one address, at once."""
        for part in parts:
            if self._may_answer(_name(part), to, now):
                self._send(part, to, now)

    def to_all(self, parts: Iterable[Part], now: Now) -> None:
        """Plans to send the parts by radio."""
        for part in parts:
            name = _name(part)
            if name in self._waiting or len(self._waiting) >= _MOST_WAITING:
                continue
            if self._may_answer(name, None, now):
                due_ms = now.steady_ms + self._longest_ms * self._random()
                self._waiting[name] = (due_ms, part)
                self._due_ms = min(self._due_ms, due_ms)

    def cancel(self, part: Part) -> None:
        """Cancels a waiting answer, because a node in range sent the part."""
        if self._waiting and self._waiting.pop(_name(part), None) is not None:
            self._state.counts["parts_left_to_others"] += 1

    def tick(self, now: Now) -> None:
        """Sends the waiting answers that no other node sent."""
        if now.steady_ms < self._due_ms:
            return
        due = [(when, name) for name, (when, _part) in self._waiting.items()]
        for when, name in sorted(due):
            if when > now.steady_ms:
                break
            self._send(self._waiting.pop(name)[1], None, now)
        self._due_ms = min((when for when, _part in self._waiting.values()), default=_NEVER)

    def next_due_ms(self) -> float:
        """Steady time of the next tick that may send something; infinite for none."""
        return self._due_ms

    def clear(self) -> None:
        self._waiting.clear()
        self._due_ms = _NEVER

    def _send(self, part: Part, to: Address | None, now: Now) -> None:
        if len(self._answered) >= _MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]
        mark = (_name(part), to)
        self._answered.pop(mark, None)
        self._answered[mark] = now.steady_ms
        self._state.outbox.append(OutgoingMessage(part, to))
        self._state.counts["parts_answered"] += 1

    def _may_answer(self, name: _PartsName, to: Address | None, now: Now) -> bool:
        last = self._answered.get((name, to))
        return last is None or now.steady_ms >= last + self._gap_ms


def _name(part: Part) -> _PartsName:
    return part.component, part.version, part.index


_OVERHEAD_BYTES = 200
"""What Python keeps beside the bytes of a part; counted, so that tiny parts cannot fill memory."""
_MOST_MISSING = 128
"""Part numbers in one pull; the rest is requested next time."""


_VersionKey = tuple[str, int, int, int]
"""Component, version, count and checksum."""


class _Incomplete:
    __slots__ = ("bytes", "due_ms", "on_radio", "parts", "sender", "tries")

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.bytes = _OVERHEAD_BYTES
        self.tries = 0
        self.due_ms = _NEVER
        self.on_radio = False
        """Parts came by radio, so neighbours have them."""
        self.sender: Address | None = None
        """Sender of the last part on IP."""


class Parts:
    """Incomplete versions. When there are too many, or too many bytes, the oldest is dropped."""

    def __init__(self, state: GossipState, chance: Chance) -> None:
        self._state = state
        self._answers = PartAnswers(state, chance)
        self._incomplete: dict[_VersionKey, _Incomplete] = {}
        self.bytes = 0
        """Bytes held now."""

    def __len__(self) -> int:
        """How many versions are incomplete."""
        return len(self._incomplete)

    def take(self, part: Part, sender: Sender, now: Now) -> PublishedKnowledge | None:
        """The message that this part completes; none while parts are missing. Parts of own
        components, and of versions not newer than the one held, are dropped.
        """
        by_radio = sender.to_all or not self._state.ip
        if by_radio:
            self._answers.cancel(part)
        held = self._state.entries.get(part.component)
        if part.component in self._state.own or (held is not None and part.version <= held.version):
            return None
        key = (part.component, part.version, part.count, part.checksum)
        begun = self._incomplete.get(key)
        if begun is None:
            begun = self._incomplete[key] = _Incomplete()
            self.bytes += begun.bytes
        if part.index in begun.parts:
            return None
        if by_radio:
            begun.on_radio = True
        else:
            begun.sender = sender.address
        begun.tries = 0
        begun.due_ms = now.steady_ms + self._state.settings.part_wait_ms
        return self._add(key, begun, part)

    def answer(self, message: PullParts, sender: Sender, now: Now) -> None:
        """Sends the requested parts that are here, also of an incomplete version: on IP at once and
        only to the sender's own address, by radio a little later.
        """
        if message.reply_to is None:
            if self._state.radio:
                self._answers.to_all(self._found(message), now)
        elif self._state.ip:
            self._answers.to_one(self._found(message), sender.address, now)

    def tick(self, now: Now) -> None:
        """Answers, pulls what is missing and gives up what was pulled often enough."""
        self._answers.tick(now)
        due = [key for key, one in self._incomplete.items() if one.due_ms <= now.steady_ms]
        for key in due:
            begun = self._incomplete[key]
            held = self._state.entries.get(key[0])
            is_old = held is not None and held.version >= key[1]
            if is_old or begun.tries >= self._state.settings.part_tries:
                self._drop(key)
                self._state.counts["parts_outdated" if is_old else "parts_given_up"] += 1
                continue
            begun.tries += 1
            begun.due_ms = now.steady_ms + self._state.settings.part_wait_ms * (1 + begun.tries)
            self._pull(key, begun)

    def clear(self) -> None:
        self._incomplete.clear()
        self._answers.clear()
        self.bytes = 0

    def next_due_ms(self) -> float:
        """Steady time of the next pull or answer; infinite for none."""
        due_ms = min((one.due_ms for one in self._incomplete.values()), default=_NEVER)
        return min(due_ms, self._answers.next_due_ms())

    def _add(self, key: _VersionKey, begun: _Incomplete, part: Part) -> PublishedKnowledge | None:
        begun.parts[part.index] = part.data
        cost = len(part.data) + _OVERHEAD_BYTES
        begun.bytes += cost
        self.bytes += cost
        if begun.bytes > MAX_MESSAGE + (_OVERHEAD_BYTES + 1) * part.count + _OVERHEAD_BYTES:
            self._drop(key)
            self._state.counts["parts_too_large"] += 1
            return None
        if len(begun.parts) == part.count:
            return self._complete(key, begun)
        self._make_room()
        return None

    def _complete(self, key: _VersionKey, begun: _Incomplete) -> PublishedKnowledge | None:
        self._drop(key)
        component, version, count, checksum = key
        try:
            message = join([begun.parts[index] for index in range(count)], checksum)
        except InvalidInput:
            message = None
        if message is None or (message.component, message.version) != (component, version):
            self._state.counts["parts_bad"] += 1
            return None
        return message

    def _make_room(self) -> None:
        settings = self._state.settings
        while len(self._incomplete) > settings.parts_messages or self.bytes > settings.parts_bytes:
            self._drop(next(iter(self._incomplete)))
            self._state.counts["parts_pushed_out"] += 1

    def _drop(self, key: _VersionKey) -> None:
        self.bytes -= self._incomplete.pop(key).bytes

    def _pull(self, key: _VersionKey, begun: _Incomplete) -> None:
        """Pulls missing parts over the media that parts came by."""
        component, version, count, _checksum = key
        wanted = (index for index in range(count) if index not in begun.parts)
        missing = list(islice(wanted, _MOST_MISSING))
        state = self._state
        if state.radio and begun.on_radio:
            state.outbox.append(
                OutgoingMessage(PullParts(component, version, tuple(missing)), None)
            )
        if state.ip and begun.sender is not None:
            wish = PullParts(component, version, tuple(missing), state.address or begun.sender)
            state.outbox.append(OutgoingMessage(wish, begun.sender))
        state.counts["parts_pulled"] += 1

    def _found(self, message: PullParts) -> list[Part]:
        held = self._state.entries.get(message.component)
        wanted = set(message.missing[:_MOST_MISSING])
        if held is not None and held.message is not None and held.version == message.version:
            if held.message.body.__class__ is not bytes:
                return []
            return [part for part in self._state.parts_of(held.message) if part.index in wanted]
        return [
            Part(component, version, index, count, checksum, begun.parts[index])
            for (component, version, count, checksum), begun in self._incomplete.items()
            if (component, version) == (message.component, message.version)
            for index in wanted & begun.parts.keys()
        ]
