"""The way back: found records and refusals along the path of the question. [CX-5, CX-6]"""

from __future__ import annotations

from typing import Protocol

from rapport.context.broker.hopping import EXPIRED, Hopping
from rapport.context.broker.recalling import Recalling
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import NOT_FOUND, Ask, Found, Refused
from rapport.context.replication import answer_path, choose_marks, worth_a_copy
from rapport.context.table import Outcome
from rapport.core.context_record import ContextRecord
from rapport.transport.base import Address, Now, Sender

MOST_BEHIND_MS = 5_000
"""A clock that is behind another broker's by no more tells each record when it begins by it."""


class Entry(Protocol):
    """Where an answer ends: the broker whose client asked."""

    def found(self, found: Found, now: Now) -> None:
        """A search has its record."""

    def refused(self, refused: Refused, now: Now) -> None:
        """A walker came home with nothing."""


class Answering:
    """Carries answers through this broker; the path in the message is all that is needed.

    The path of a Found or Refused is what is left of the way: its last address is where it goes
    next, its first the consumer, so its length is this broker's own place on the path.
    """

    __slots__ = ("_hopping", "_place", "_recalling", "entry")

    entry: Entry
    """Set by the machine."""

    def __init__(self, place: Workplace, hopping: Hopping, recalling: Recalling) -> None:
        self._place, self._hopping, self._recalling = place, hopping, recalling

    def found_here(self, ask: Ask, record: ContextRecord, holder: Address, now: Now) -> None:
        """This broker has what a question looks for."""
        self._answer(ask, record, holder, 0, now)

    def found_ahead(self, ask: Ask, record: ContextRecord, holder: Address, now: Now) -> None:
        """A broker beside this one has it: this one is on the path, too."""
        self._answer(ask, record, holder, 1, now)

    def refused_here(self, ask: Ask, why: str, now: Now) -> None:
        """A walker ends here."""
        place = self._place
        path = answer_path(ask.path, place.address, place.settings.replication)
        refused = Refused(
            ask.search, ask.walker, ask.hop, path, NOT_FOUND, why, doubtful=ask.doubtful
        )
        self._back(refused, now)

    def found(self, found: Found, sender: Sender, now: Now) -> None:
        """A record comes by."""
        if not found.path or not self._hopping.arrived(found, sender, now):
            return
        self._place.membership.heard_of(found.holder)
        if len(found.path) in found.marks:
            self._replicate(found.record, found.holder, now)
        self._back(found, now)

    def refused(self, refused: Refused, sender: Sender, now: Now) -> None:
        """A refusal comes by."""
        if refused.path and self._hopping.arrived(refused, sender, now):
            self._back(refused, now)

    def failed(self, message: Found | Refused, to: Address, now: Now) -> None:
        """The next on the way back is gone: go to the one before it."""
        if len(message.path) > 1:
            self._place.counts["back_repairs"] += 1
            self._back(message, now)
        else:
            self._place.counts["answers_lost"] += 1

    def _answer(
        self, ask: Ask, record: ContextRecord, holder: Address, ahead: int, now: Now
    ) -> None:
        place = self._place
        settings = place.settings.replication
        path = answer_path(ask.path, place.address, settings)
        marks: tuple[int, ...] = ()
        if worth_a_copy(record, settings, now.wall_ms):
            marks = choose_marks(range(1, len(path) + ahead), settings, place.chance)
            if len(path) in marks:
                self._replicate(record, holder, now)
            if marks:
                given = [path[mark] for mark in marks if mark < len(path)]
                self._recalling.gave(record, given, now)
        hops = ask.hop + ahead
        found = Found(ask.search, ask.walker, ask.hop, record, path, marks, holder, hops)
        self._back(found, now)

    def _replicate(self, record: ContextRecord, holder: Address, now: Now) -> None:
        place = self._place
        if holder == place.address or self._recalling.is_void(record, now):
            return
        if worth_a_copy(record, place.settings.replication, now.wall_ms):
            outcome = place.table.put(record, now.wall_ms, holder=holder)
            place.agenda.others_at(now.steady_ms + record.valid_until - now.wall_ms)
            place.counts["replicated"] += 1
            if outcome is Outcome.TAKEN:
                entity = record.entity
                self._recalling.changed((entity.type, entity.id, record.scope), now)

    def _may_go_on(self, found: Found, now: Now) -> bool:
        """Where the search began it is judged once more, and waited for."""
        is_entry = len(found.path) == 1
        return found.record.valid_until > now.wall_ms and (
            is_entry or found.record.valid_from <= now.wall_ms
        )

    def _back(self, message: Found | Refused, now: Now) -> None:
        """One step back; at the entry broker to its client. What expired becomes a refusal; what is
        valid where it was found, but not yet by this clock, goes on when it is.
        """
        path = message.path
        if type(message) is Found and len(path) > 1:
            wait_ms = message.record.valid_from - now.wall_ms
            if 0 < wait_ms <= MOST_BEHIND_MS:
                self._place.agenda.at(now.steady_ms + wait_ms, self._back, message)
                return
        if type(message) is Found and not self._may_go_on(message, now):
            self._place.counts["expired_on_the_way"] += 1
            message = Refused(message.search, message.walker, message.hop, path, NOT_FOUND, EXPIRED)
        if len(path) > 1:
            if type(message) is Found:
                on: Found | Refused = Found(
                    message.search,
                    message.walker,
                    message.hop + 1,
                    message.record,
                    path[:-1],
                    message.marks,
                    message.holder,
                    message.hops,
                )
            else:
                assert type(message) is Refused
                on = Refused(
                    message.search,
                    message.walker,
                    message.hop + 1,
                    path[:-1],
                    message.status,
                    message.why,
                    message.doubtful,
                )
            self._hopping.send(on, path[-1], now)
        elif type(message) is Found:
            self.entry.found(message, now)
        else:
            assert type(message) is Refused
            self.entry.refused(message, now)
