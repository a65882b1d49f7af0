"""Headers and pulls: a node announces what it received, and requests what it lacks. [EN-8, EN-9]

On the radio a pull marks a component, so that the next version is passed on for certain, or is
answered at once with the version held, depending on the settings. On IP a pull goes to the node of
the component, and the answer goes to the sender's own address, never to one that only a message
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rapport.ensemble.gossip.gossip_state import GossipState
from rapport.ensemble.gossip.recipients import PullCounts
from rapport.ensemble.gossip.strategies import Strategy
from rapport.ensemble.gossip.versions import Reception
from rapport.ensemble.protocol import MAX_ENTRIES, Header, Headers, Pull
from rapport.ensemble.trace import Kind
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender

PacketEntry = TypeVar("PacketEntry")

_PACKET_BYTES = 32
"""Tag, version and address of a packet."""
_NUMBER_BYTES = 12
"""A time or version and the frame of an entry, in msgpack."""


def packed_headers(headers: Sequence[Header], most_bytes: int) -> list[tuple[Header, ...]]:
    """The headers in portions that fit into a packet each; none for none."""
    return _packed(headers, most_bytes, _bytes_of_header)


def packed_wishes(
    wishes: Sequence[tuple[str, int]], most_bytes: int
) -> list[tuple[tuple[str, int], ...]]:
    """Components with versions in portions that fit into a packet each; none for none."""
    return _packed(wishes, most_bytes, _bytes_of_wish)


def _bytes_of_header(header: Header) -> int:
    address = header.address
    return (
        len(header.component.encode())
        + _NUMBER_BYTES
        + (len(address[0].encode()) + 6 if address is not None else 1)
    )


def _bytes_of_wish(wish: tuple[str, int]) -> int:
    return len(wish[0].encode()) + _NUMBER_BYTES


def _packed(
    entries: Sequence[PacketEntry], most_bytes: int, bytes_of: Callable[[PacketEntry], int]
) -> list[tuple[PacketEntry, ...]]:
    """In order, each portion as large as fits; an entry that is too large for any goes alone."""
    portions: list[tuple[PacketEntry, ...]] = []
    portion: list[PacketEntry] = []
    taken = _PACKET_BYTES
    for entry in entries:
        size = bytes_of(entry)
        if portion and (taken + size > most_bytes or len(portion) >= MAX_ENTRIES):
            portions.append(tuple(portion))
            portion, taken = [], _PACKET_BYTES
        portion.append(entry)
        taken += size
    if portion:
        portions.append(tuple(portion))
    return portions


_MOST_ANSWERED = 8_192
_PATIENCE = 2
"""Unanswered pulls at the source after which other nodes are asked too."""


class PullMachine:
    """Headers and pulls of a gossip machine."""

    def __init__(self, state: GossipState, strategy: Strategy, askers: PullCounts | None) -> None:
        self._state, self._strategy, self._askers = state, strategy, askers
        self._answered: dict[tuple[str, Address], tuple[int, float]] = {}

    # Received messages

    def take_headers(self, message: Headers, now: Now) -> None:
        """Merges others' headers by the latest time. New ones wait until the next pull, because the
        knowledge may arrive by itself.
        """
        self._strategy.greeted(message, now)
        state = self._state
        for header in message.headers:
            component = header.component
            time_ms = min(header.global_ms, now.wall_ms)
            if component in state.own or not state.buffer.is_current(time_ms, now):
                continue
            entry = state.entries.get(component) or state.known(component, now)
            if entry.address is None:
                entry.address = header.address
            if entry.listed:
                if time_ms <= entry.global_ms:
                    continue
                entry.global_ms = time_ms
            else:
                entry.listed = True
                entry.local_ms = entry.global_ms = time_ms
            if state.trace is not None:
                state.record(Kind.HEADER_ADDED, now, component, entry.version, "headers", time_ms)

    def take_pull(self, message: Pull, sender: Sender, now: Now) -> None:
        if message.reply_to is not None:
            if self._state.ip:
                if message.reply_to != sender.address:
                    self._state.counts["other_reply_to"] += 1
                self._answer_straight(message, sender.address, now)
            return
        for component, version in message.wanted:
            self._wanted_on_radio(component, version, now)

    def _wanted_on_radio(self, component: str, version: int, now: Now) -> None:
        state = self._state
        entry = state.entries.get(component)
        is_newer = entry is not None and entry.message is not None and entry.version > version
        if state.settings.answers == "immediate" and entry is not None and is_newer:
            self._answer_all(entry, now)
            return
        if component in state.own:
            return  # published again in the next period anyway
        if entry is None:
            entry = state.known(component, now)
        entry.pulled_until_ms = now.steady_ms + state.settings.global_ms
        if state.trace is not None:
            state.record(Kind.FLAG_SET, now, component)

    def _answer_all(self, entry: Reception, now: Now) -> None:
        """Answers all in range at once, unless they just got it: one answer serves all."""
        state = self._state
        message = entry.message
        if message is None or now.steady_ms < entry.sent_ms + state.settings.answer_gap_ms:
            return
        entry.sent_ms = now.steady_ms
        state.counts["answered"] += 1
        if state.trace is not None:
            state.record(Kind.PASSED_ON, now, entry.component, entry.version, "answer")
        state.enqueue(message, None)

    def _answer_straight(self, message: Pull, to: Address, now: Now) -> None:
        state = self._state
        for component, version in message.wanted:
            if component in state.own and self._askers is not None:
                self._askers.asked(component, to)
            entry = state.entries.get(component)
            if entry is None or entry.message is None or entry.version <= version:
                continue
            if not self._may_answer(component, entry.version, to, now):
                continue
            state.counts["answered"] += 1
            if state.trace is not None:
                state.record(Kind.PASSED_ON, now, component, entry.version, "answer")
            state.enqueue(entry.message, to)

    def _may_answer(self, component: str, version: int, to: Address, now: Now) -> bool:
        """Whether an answer may be sent: one per requester, version and `answer_gap_ms`."""
        mark = (component, to)
        last = self._answered.pop(mark, None)
        gap_ms = self._state.settings.answer_gap_ms
        if last is not None and last[0] == version and now.steady_ms < last[1] + gap_ms:
            self._answered[mark] = last
            return False
        if len(self._answered) >= _MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]
        self._answered[mark] = (version, now.steady_ms)
        return True

    # Sent messages

    def expire(self, now: Now) -> None:
        """Removes expired headers, and marks of pulls that were not renewed."""
        state = self._state
        for entry in state.buffer.expire(now):
            if state.trace is not None:
                state.record(Kind.HEADER_EXPIRED, now, entry.component, 0, "time", entry.global_ms)
            self._release(entry, now)
        for entry in state.entries.values():
            if 0 < entry.pulled_until_ms <= now.steady_ms:
                self._release(entry, now)

    def _release(self, entry: Reception, now: Now) -> None:
        if entry.pulled_until_ms:
            entry.pulled_until_ms = 0.0
            if self._state.trace is not None:
                self._state.record(Kind.FLAG_CLEARED, now, entry.component, 0, "time")

    def send_headers(self, now: Now) -> None:
        """Tells what was received lately, in as many packets as it takes. Own components are left
        out on the radio, where every node that receives the header receives the knowledge.
        """
        state = self._state
        self.expire(now)
        if state.radio:
            self._headers_by_radio(now)
        if state.ip:
            own = state.address
            headers = [
                Header(
                    one.component, one.global_ms, own if one.component in state.own else one.address
                )
                for one in state.buffer.listed()
            ]
            packets = [Headers(some) for some in packed_headers(headers, state.settings.part_bytes)]
            for to in state.recipients.to_publish("", now) if packets else ():
                for packet in packets:
                    state.enqueue(packet, to)

    def _headers_by_radio(self, now: Now) -> None:
        state = self._state
        headers = [
            Header(one.component, one.global_ms, one.address)
            for one in state.buffer.listed()
            if one.component not in state.own
        ]
        for some in packed_headers(headers, state.settings.part_bytes) or [()]:
            packet = self._strategy.greeting(Headers(some), now)
            if packet is not None:
                state.enqueue(packet, None)

    def send_pulls(self, now: Now) -> None:
        """Asks for what is outdated: its own node where the address is known and there is IP, the
        neighbours otherwise; both when its node was asked in vain.
        """
        state = self._state
        self.expire(now)
        outdated = [one for one in state.buffer.outdated(now) if one.component not in state.own]
        if not state.ip:
            self._pull_by_radio(outdated)
            return
        others = [one for one in outdated if one.address is None or one.asked >= _PATIENCE]
        for address, entries in self._whom_to_ask(outdated, others, now).items():
            self._pull_from(address, entries)
        if state.radio and others:
            self._pull_by_radio(others)

    def _whom_to_ask(
        self, outdated: list[Reception], others: list[Reception], now: Now
    ) -> dict[Address, list[Reception]]:
        """What to pull from which address, each thing once: from its own node, and the `others`
        from some that are known as well.
        """
        asked: dict[Address, list[Reception]] = {}
        for entry in outdated:
            if entry.address is not None:
                entry.asked += 1
                if entry.address != self._state.address:
                    asked.setdefault(entry.address, []).append(entry)
        for address in self._state.recipients.to_publish("", now) if others else ():
            wanted = asked.setdefault(address, [])
            wanted += [one for one in others if one.address != address]
        return asked

    def _pull_by_radio(self, entries: Iterable[Reception]) -> None:
        wishes = [(entry.component, entry.version) for entry in entries]
        for some in packed_wishes(wishes, self._state.settings.part_bytes):
            self._state.enqueue(Pull(some), None)

    def _pull_from(self, address: Address, entries: Iterable[Reception]) -> None:
        wishes = [(entry.component, entry.version) for entry in entries]
        # An address is named even by a node that does not know its own: it says "by IP".
        reply_to = self._state.address or address
        for some in packed_wishes(wishes, self._state.settings.part_bytes):
            self._state.enqueue(Pull(some, reply_to), address)
