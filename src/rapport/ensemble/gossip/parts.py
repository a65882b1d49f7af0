"""Parts of knowledge put together under loss, disorder and repetition; missing ones are pulled.
[EN-4, EN-8]
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from rapport.core.errors import InvalidInput
from rapport.ensemble.codec import MAX_MESSAGE
from rapport.ensemble.gossip.part_answers import PartAnswers
from rapport.ensemble.gossip.splitting import join
from rapport.ensemble.gossip.workplace import Workplace
from rapport.ensemble.messages import Outgoing, Part, Published, PullParts
from rapport.kernel.chance import Chance
from rapport.transport.base import Address, Now, Sender

_OVERHEAD_BYTES = 200
"""What Python keeps beside the bytes of a part; counted, so that tiny parts cannot fill memory."""
_MOST_MISSING = 128
"""Numbers in one pull; the rest is asked for next time."""
_NEVER: Final = float("inf")

_Key = tuple[str, int, int, int]
"""Component, version, count and checksum."""


class _Incomplete:
    __slots__ = ("bytes", "due_ms", "on_radio", "parts", "sender", "tries")

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.bytes = _OVERHEAD_BYTES
        self.tries = 0
        self.due_ms = _NEVER
        self.on_radio = False
        """Parts came by radio: neighbours have them."""
        self.sender: Address | None = None
        """Who sent the last one that came on IP."""


class Parts:
    """The versions of which parts came, but not all. When too many wait, or too many bytes, the
    oldest is given up.
    """

    def __init__(self, place: Workplace, chance: Chance) -> None:
        self._place = place
        self._answers = PartAnswers(place, chance)
        self._incomplete: dict[_Key, _Incomplete] = {}
        self.bytes = 0
        """What is kept now."""

    def __len__(self) -> int:
        """How many versions are incomplete."""
        return len(self._incomplete)

    def take(self, part: Part, sender: Sender, now: Now) -> Published | None:
        """The message that this part completes; none while parts are missing. What is not newer
        than the version held, and what is of this node, is not collected.
        """
        by_radio = sender.to_all or not self._place.ip
        if by_radio:
            self._answers.heard(part)
        held = self._place.entries.get(part.component)
        if part.component in self._place.own or (held is not None and part.version <= held.version):
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
        begun.due_ms = now.steady_ms + self._place.settings.part_wait_ms
        return self._add(key, begun, part)

    def answer(self, message: PullParts, sender: Sender, now: Now) -> None:
        """Sends the parts asked for, as far as they are here, also of a version that is not whole
        yet: on IP at once and only ever to the sender's own address, by radio a little later.
        """
        if message.reply_to is None:
            if self._place.radio:
                self._answers.to_all(self._found(message), now)
        elif self._place.ip:
            self._answers.to_one(self._found(message), sender.address, now)

    def tick(self, now: Now) -> None:
        """Answers, pulls what is missing and gives up what was pulled often enough."""
        self._answers.tick(now)
        due = [key for key, one in self._incomplete.items() if one.due_ms <= now.steady_ms]
        for key in due:
            begun = self._incomplete[key]
            held = self._place.entries.get(key[0])
            is_old = held is not None and held.version >= key[1]
            if is_old or begun.tries >= self._place.settings.part_tries:
                self._drop(key)
                self._place.counts["parts_outdated" if is_old else "parts_given_up"] += 1
                continue
            begun.tries += 1
            begun.due_ms = now.steady_ms + self._place.settings.part_wait_ms * (1 + begun.tries)
            self._pull(key, begun)

    def clear(self) -> None:
        """Gives all up."""
        self._incomplete.clear()
        self._answers.clear()
        self.bytes = 0

    def next_due_ms(self) -> float:
        """Steady time of the next pull or answer; infinite for none."""
        due_ms = min((one.due_ms for one in self._incomplete.values()), default=_NEVER)
        return min(due_ms, self._answers.next_due_ms())

    def _add(self, key: _Key, begun: _Incomplete, part: Part) -> Published | None:
        begun.parts[part.index] = part.data
        cost = len(part.data) + _OVERHEAD_BYTES
        begun.bytes += cost
        self.bytes += cost
        if begun.bytes > MAX_MESSAGE + (_OVERHEAD_BYTES + 1) * part.count + _OVERHEAD_BYTES:
            self._drop(key)
            self._place.counts["parts_too_large"] += 1
            return None
        if len(begun.parts) == part.count:
            return self._complete(key, begun)
        self._make_room()
        return None

    def _complete(self, key: _Key, begun: _Incomplete) -> Published | None:
        self._drop(key)
        component, version, count, checksum = key
        try:
            message = join([begun.parts[index] for index in range(count)], checksum)
        except InvalidInput:
            message = None
        if message is None or (message.component, message.version) != (component, version):
            self._place.counts["parts_bad"] += 1
            return None
        return message

    def _make_room(self) -> None:
        settings = self._place.settings
        while len(self._incomplete) > settings.parts_messages or self.bytes > settings.parts_bytes:
            self._drop(next(iter(self._incomplete)))
            self._place.counts["parts_pushed_out"] += 1

    def _drop(self, key: _Key) -> None:
        self.bytes -= self._incomplete.pop(key).bytes

    def _pull(self, key: _Key, begun: _Incomplete) -> None:
        """Over the media that parts came by: who was heard by radio may have no address."""
        component, version, count, _checksum = key
        wanted = (index for index in range(count) if index not in begun.parts)
        missing = list(islice(wanted, _MOST_MISSING))
        place = self._place
        if place.radio and begun.on_radio:
            place.outbox.append(Outgoing(PullParts(component, version, tuple(missing)), None))
        if place.ip and begun.sender is not None:
            wish = PullParts(component, version, tuple(missing), place.address or begun.sender)
            place.outbox.append(Outgoing(wish, begun.sender))
        place.counts["parts_pulled"] += 1

    def _found(self, message: PullParts) -> list[Part]:
        held = self._place.entries.get(message.component)
        wanted = set(message.missing[:_MOST_MISSING])
        if held is not None and held.message is not None and held.version == message.version:
            if held.message.body.__class__ is not bytes:
                return []
            return [part for part in self._place.parts_of(held.message) if part.index in wanted]
        return [
            Part(component, version, index, count, checksum, begun.parts[index])
            for (component, version, count, checksum), begun in self._incomplete.items()
            if (component, version) == (message.component, message.version)
            for index in wanted & begun.parts.keys()
        ]
