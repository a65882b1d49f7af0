"""Headers and pulls: who tells what it received, who asks for what it lacks, and what follows.
[EN-8, EN-9]

On the radio a pull marks a component, so that its next version is passed on surely, or is answered
at once with what is held, as set. On IP it goes straight to the node of the component and the
answer straight back, never to an address that only a message names.
"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.ensemble.gossip.packing import packed_headers, packed_wishes
from rapport.ensemble.gossip.reception_buffer import Reception
from rapport.ensemble.gossip.recipients import Askers
from rapport.ensemble.gossip.strategies import Strategy
from rapport.ensemble.gossip.workplace import Workplace
from rapport.ensemble.messages import Header, Headers, Pull
from rapport.ensemble.trace import Kind
from rapport.transport.base import Address, Now, Sender

_MOST_ANSWERED = 8_192
_PATIENCE = 2
"""Pulls at the source without news after which others are asked too."""


class Pulling:
    """The pull half of a gossip machine."""

    def __init__(self, place: Workplace, strategy: Strategy, askers: Askers | None) -> None:
        self._place, self._strategy, self._askers = place, strategy, askers
        self._answered: dict[tuple[str, Address], tuple[int, float]] = {}

    # What comes

    def take_headers(self, message: Headers, now: Now) -> None:
        """Others' headers: their times are merged by the greatest, new ones are added and wait for
        their turn to be pulled, as the knowledge may come by itself.
        """
        self._strategy.greeted(message, now)
        place = self._place
        for header in message.headers:
            component = header.component
            time_ms = min(header.global_ms, now.wall_ms)
            if component in place.own or not place.buffer.is_current(time_ms, now):
                continue
            entry = place.entries.get(component) or place.known(component, now)
            if entry.address is None:
                entry.address = header.address
            if entry.listed:
                if time_ms <= entry.global_ms:
                    continue
                entry.global_ms = time_ms
            else:
                entry.listed = True
                entry.local_ms = entry.global_ms = time_ms
            if place.trace is not None:
                place.tell(Kind.HEADER_ADDED, now, component, entry.version, "headers", time_ms)

    def take_pull(self, message: Pull, sender: Sender, now: Now) -> None:
        """Somebody lacks something."""
        if message.reply_to is not None:
            if self._place.ip:
                if message.reply_to != sender.address:
                    self._place.counts["other_reply_to"] += 1
                self._answer_straight(message, sender.address, now)
            return
        for component, version in message.wanted:
            self._wanted_on_radio(component, version, now)

    def _wanted_on_radio(self, component: str, version: int, now: Now) -> None:
        place = self._place
        entry = place.entries.get(component)
        is_newer = entry is not None and entry.message is not None and entry.version > version
        if place.settings.answers == "immediate" and entry is not None and is_newer:
            self._answer_all(entry, now)
            return
        if component in place.own:
            return  # published again in the next period anyway
        if entry is None:
            entry = place.known(component, now)
        entry.pulled_until_ms = now.steady_ms + place.settings.global_ms
        if place.trace is not None:
            place.tell(Kind.FLAG_SET, now, component)

    def _answer_all(self, entry: Reception, now: Now) -> None:
        """At once to all in range, unless they just got it: one answer to several is enough."""
        place = self._place
        message = entry.message
        if message is None or now.steady_ms < entry.sent_ms + place.settings.answer_gap_ms:
            return
        entry.sent_ms = now.steady_ms
        place.counts["answered"] += 1
        if place.trace is not None:
            place.tell(Kind.PASSED_ON, now, entry.component, entry.version, "answer")
        place.say(message, None)

    def _answer_straight(self, message: Pull, to: Address, now: Now) -> None:
        place = self._place
        for component, version in message.wanted:
            if component in place.own and self._askers is not None:
                self._askers.asked(component, to)
            entry = place.entries.get(component)
            if entry is None or entry.message is None or entry.version <= version:
                continue
            if not self._may_answer(component, entry.version, to, now):
                continue
            place.counts["answered"] += 1
            if place.trace is not None:
                place.tell(Kind.PASSED_ON, now, component, entry.version, "answer")
            place.say(entry.message, to)

    def _may_answer(self, component: str, version: int, to: Address, now: Now) -> bool:
        """One answer to an asker for a version within some time, whatever it sends."""
        mark = (component, to)
        last = self._answered.pop(mark, None)
        gap_ms = self._place.settings.answer_gap_ms
        if last is not None and last[0] == version and now.steady_ms < last[1] + gap_ms:
            self._answered[mark] = last
            return False
        if len(self._answered) >= _MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]
        self._answered[mark] = (version, now.steady_ms)
        return True

    # What is said

    def expire(self, now: Now) -> None:
        """Takes old headers out of the buffer, and marks that nobody renewed."""
        place = self._place
        for entry in place.buffer.expire(now):
            if place.trace is not None:
                place.tell(Kind.HEADER_EXPIRED, now, entry.component, 0, "time", entry.global_ms)
            self._release(entry, now)
        for entry in place.entries.values():
            if 0 < entry.pulled_until_ms <= now.steady_ms:
                self._release(entry, now)

    def _release(self, entry: Reception, now: Now) -> None:
        if entry.pulled_until_ms:
            entry.pulled_until_ms = 0.0
            if self._place.trace is not None:
                self._place.tell(Kind.FLAG_CLEARED, now, entry.component, 0, "time")

    def send_headers(self, now: Now) -> None:
        """Tells what was received lately, in as many packets as it takes. Own components are left
        out on the radio, where whoever hears the header hears the knowledge.
        """
        place = self._place
        self.expire(now)
        if place.radio:
            self._headers_by_radio(now)
        if place.ip:
            own = place.address
            headers = [
                Header(
                    one.component, one.global_ms, own if one.component in place.own else one.address
                )
                for one in place.buffer.listed()
            ]
            packets = [Headers(some) for some in packed_headers(headers, place.settings.part_bytes)]
            for to in place.recipients.to_publish("", now) if packets else ():
                for packet in packets:
                    place.say(packet, to)

    def _headers_by_radio(self, now: Now) -> None:
        place = self._place
        headers = [
            Header(one.component, one.global_ms, one.address)
            for one in place.buffer.listed()
            if one.component not in place.own
        ]
        for some in packed_headers(headers, place.settings.part_bytes) or [()]:
            packet = self._strategy.greeting(Headers(some), now)
            if packet is not None:
                place.say(packet, None)

    def send_pulls(self, now: Now) -> None:
        """Asks for what is outdated: its own node where the address is known and there is IP, the
        neighbours otherwise; both when its node was asked in vain.
        """
        place = self._place
        self.expire(now)
        outdated = [one for one in place.buffer.outdated(now) if one.component not in place.own]
        if not place.ip:
            self._pull_by_radio(outdated)
            return
        others = [one for one in outdated if one.address is None or one.asked >= _PATIENCE]
        for address, entries in self._whom_to_ask(outdated, others, now).items():
            self._pull_from(address, entries)
        if place.radio and others:
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
                if entry.address != self._place.address:
                    asked.setdefault(entry.address, []).append(entry)
        for address in self._place.recipients.to_publish("", now) if others else ():
            wanted = asked.setdefault(address, [])
            wanted += [one for one in others if one.address != address]
        return asked

    def _pull_by_radio(self, entries: Iterable[Reception]) -> None:
        wishes = [(entry.component, entry.version) for entry in entries]
        for some in packed_wishes(wishes, self._place.settings.part_bytes):
            self._place.say(Pull(some), None)

    def _pull_from(self, address: Address, entries: Iterable[Reception]) -> None:
        wishes = [(entry.component, entry.version) for entry in entries]
        # An address is named even by a node that does not know its own: it says "by IP".
        reply_to = self._place.address or address
        for some in packed_wishes(wishes, self._place.settings.part_bytes):
            self._place.say(Pull(some, reply_to), address)
