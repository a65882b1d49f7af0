"""Calling copies back: who gave a copy of a record tells who got it that there is a newer one.
[CX-6]
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from rapport.context.broker.workplace import Workplace
from rapport.context.messages import Heard, Outdated
from rapport.context.table import QuestionKey
from rapport.core.context_record import ContextRecord
from rapport.overlay.routing import SeenFilter
from rapport.transport.base import Address, Now, Sender

RECALLED = "out"
"""The kind of the acknowledgement of a call."""

_TRIES = 5
_AT_ONCE, _PAUSE_MS = 64, 5.0
"""A record that half the network has a copy of must not fill the buffers of a socket."""
_MOST_OPEN = 20_000
_SOON_MS = 5_000
_VOID_KEPT, _VOID_KEPT_MS = 4_096, 10_000.0


class _Given:
    """Who got which version of the answer to a question from here."""

    __slots__ = ("to", "until_ms")

    def __init__(self) -> None:
        self.to: dict[Address, tuple[int, str]] = {}
        """The rank of what it got last."""
        self.until_ms = 0
        """The wall time at which all of these copies are over."""


class Recalling:
    """Copies that left this broker, and their way back.

    Each broker knows whom it gave a copy and nobody else, so a call goes along the way the copies
    took, and costs at most one message and its acknowledgement for each copy that was made. A
    call that all tries did not bring to its place leaves the copy there until it ends.
    """

    __slots__ = ("_copies", "_given", "_open", "_place", "_void")

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._given: OrderedDict[QuestionKey, _Given] = OrderedDict()
        """The question whose answer was given away last is the last."""
        self._copies = 0
        self._open: set[tuple[int, Address]] = set()
        """Calls that were not acknowledged yet."""
        self._void = SeenFilter(_VOID_KEPT, _VOID_KEPT_MS)
        """Records that were called back just now: older ones may still be on their way here."""

    def __len__(self) -> int:
        """How many copies are known to have left."""
        return self._copies

    def gave(self, record: ContextRecord, to: Iterable[Address], now: Now) -> None:
        """These were sent a copy, and perhaps keep it."""
        if not self._place.settings.replication.recall:
            return
        entity = record.entity
        key = (entity.type, entity.id, record.scope)
        given = self._given.get(key)
        if given is None:
            given = self._given[key] = _Given()
        else:
            self._given.move_to_end(key)
        before = len(given.to)
        rank = record.rank()
        for address in to:
            if address != self._place.address:
                given.to[address] = rank
        given.until_ms = max(given.until_ms, record.valid_until)
        self._copies += len(given.to) - before
        if not given.to:
            del self._given[key]
        self._forget(now)

    def changed(self, key: QuestionKey, now: Now) -> None:
        """The table's answer to a question may have changed: older copies are called back. Costs a
        look-up where none was given away.
        """
        given = self._given.get(key)
        if given is None:
            return
        held = self._place.table.answer(key, now.wall_ms)
        if held is None:
            return  # what it was is over, and so are its copies
        record = held.record
        newest = record.rank()
        calls: list[tuple[Outdated, Address]] = []
        for to, rank in given.to.items():
            start, provider = rank
            if rank >= newest or to == held.holder:
                continue
            if provider == record.provider:
                calls.append((self._call(key, provider, record.valid_from), to))
            elif held.holder is None:
                # Another provider's, which counted until this one said something here.
                calls.append((self._call(key, provider, start + 1), to))
        self._send_all(key, given, calls, now)

    def announced(self, key: QuestionKey, wait_ms: int, now: Now) -> None:
        """A record begins soon: looked at just then, since it may be over before the table has its
        turn.
        """
        if key in self._given and 0 < wait_ms <= _SOON_MS:
            self._place.agenda.at(now.steady_ms + wait_ms + 1, self.changed, key)

    def called(self, outdated: Outdated, sender: Sender, now: Now) -> None:
        """Copies here were called back; so are those that were given on from here."""
        provider, key = outdated.key[0], outdated.key[1:]
        self._void.rises(outdated.key, outdated.before, now)
        if outdated.called:
            heard = Heard(outdated.id, 0, 0, RECALLED)
            self._place.send(heard, sender.address)
        given = self._given.get(key)
        if given is None:
            return
        void = [
            to for to, (start, by) in given.to.items() if by == provider and start < outdated.before
        ]
        if sender.address in void:
            self._drop(given, sender.address)  # it knows; a newer copy it may have is still ours
            void.remove(sender.address)
        calls = [(self._call(key, provider, outdated.before), to) for to in void]
        self._send_all(key, given, calls, now)

    def is_void(self, record: ContextRecord, now: Now) -> bool:
        """Whether a record that comes by was called back just now, so that no copy is kept."""
        before = self._void.level_of(record.key(), now)
        return before is not None and record.valid_from < before

    def heard(self, heard: Heard, sender: Sender) -> None:
        """A call arrived."""
        self._open.discard((heard.search, sender.address))

    def _call(self, key: QuestionKey, provider: str, before: int) -> Outdated:
        id = self._place.chance.getrandbits(63)
        return Outdated(id, (provider, *key), before, 0, called=True)

    def _send_all(
        self, key: QuestionKey, given: _Given, calls: list[tuple[Outdated, Address]], now: Now
    ) -> None:
        place = self._place
        for number, (outdated, to) in enumerate(calls):
            self._drop(given, to)
            if number < _AT_ONCE:
                self._send(outdated, to, 1, now)
            else:
                due_ms = now.steady_ms + number // _AT_ONCE * _PAUSE_MS
                place.agenda.at(due_ms, self._send, outdated, to, 1)
        place.counts["copies_called_back"] += len(calls)
        if not given.to:
            self._given.pop(key, None)

    def _send(self, outdated: Outdated, to: Address, tries: int, now: Now) -> None:
        """Sends a call, and once more unless it is heard: brokers of before this was acknowledged
        act on it and say nothing.
        """
        place, key = self._place, (outdated.id, to)
        if tries > 1 and key not in self._open:
            return
        if tries > _TRIES:
            self._open.discard(key)
            return
        place.send(outdated, to)
        if tries == 1:
            if len(self._open) >= _MOST_OPEN:
                return
            self._open.add(key)
        wait_ms = place.membership.timeout_ms(to) * 2 ** (tries - 1)
        place.agenda.at(now.steady_ms + wait_ms, self._send, outdated, to, tries + 1)

    def _drop(self, given: _Given, to: Address) -> None:
        if given.to.pop(to, None) is not None:
            self._copies -= 1

    def _forget(self, now: Now) -> None:
        """What is over, as far as it stands first; beyond the limit what was given longest ago."""
        most, given = self._place.settings.limits.copies_known, self._given
        while given:
            key = next(iter(given))
            oldest = given[key]
            if self._copies <= most and oldest.until_ms > now.wall_ms:
                return
            self._copies -= len(oldest.to)
            del given[key]
