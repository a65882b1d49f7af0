"""The records of a broker: its own, given by providers, and replicas of others'. [CX-1, CX-6]

An answer takes the same time whatever the size of the table: each question has a slot, whose first
record is the answer until a validity in the slot begins or ends. A heap of these times frees
memory; nothing is ever scanned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum
from heapq import heapify, heappop, heappush

import msgspec

from rapport.context.protocol import Question
from rapport.core.context_record import ContextRecord
from rapport.transport.base import Address

QuestionKey = tuple[str, str, str]
"""Entity type, entity id, scope."""

NEVER = 1 << 62


class Outcome(Enum):
    """The outcome of putting a record into the table."""

    TAKEN = "taken"
    SAME = "same"
    """It is here already."""
    STALE = "stale"
    """Something newer of its provider is here."""
    PAST = "past"
    """Its validity is over."""
    FULL = "full"


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A record and where it comes from: `holder` is none for the broker's own, else the broker
    that its provider gives it to.
    """

    record: ContextRecord
    holder: Address | None = None
    size: int = 0
    """Bytes of a replica; those of own records are not counted."""


class TableLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a table."""

    own_records: int = 2_000_000
    replicas: int = 100_000
    replica_bytes: int = 64 * 1024 * 1024
    ahead_per_provider: int = 16
    """Records of one provider for one question whose validity is still to begin."""


def key_of(question: Question) -> QuestionKey:
    """The key of a question in the table."""
    entity = question.entity
    return entity.type, entity.id, question.scope


def arrange(held: list[StoredRecord], wall_ms: int) -> tuple[list[StoredRecord], int]:
    """What counts of these at a time, the answer first, and when that changes.

    Of each provider the latest that has begun counts, and once it is over nothing: what came
    before it never comes back. What is still to begin is kept behind.
    """
    latest: dict[str, StoredRecord] = {}
    ahead: list[StoredRecord] = []
    for one in held:
        record = one.record
        if record.valid_from > wall_ms:
            ahead.append(one)
            continue
        other = latest.get(record.provider)
        if other is None or record.valid_from > other.record.valid_from:
            latest[record.provider] = one
    valid = [one for one in latest.values() if one.record.valid_until > wall_ms]
    if len(valid) > 1:
        valid.sort(key=lambda one: one.record.rank(), reverse=True)
    turns = [one.record.valid_until for one in valid] + [one.record.valid_from for one in ahead]
    return valid + ahead, min(turns, default=NEVER)


__all__ = ["Outcome", "QuestionKey", "RecordTable", "StoredRecord", "TableLimits", "key_of"]

_SPARE_TURNS = 64


class _Slot:
    """All records for one question, the answer first."""

    __slots__ = ("held", "turn_ms")

    def __init__(self) -> None:
        self.held: list[StoredRecord] = []
        self.turn_ms = NEVER
        """When the order next changes: a validity begins or ends."""


class RecordTable:
    """The records of a broker by question; answers only records that are valid at the time."""

    __slots__ = (
        "_replicated",
        "_slots",
        "_turns",
        "limits",
        "own_records",
        "replica_bytes",
        "replicas",
    )

    def __init__(self, limits: TableLimits | None = None) -> None:
        self.limits = limits or TableLimits()
        self.own_records = 0
        self.replicas = 0
        self.replica_bytes = 0
        self._slots: dict[QuestionKey, _Slot] = {}
        self._turns: list[tuple[int, QuestionKey]] = []
        self._replicated: OrderedDict[QuestionKey, None] = OrderedDict()
        """Questions with replicas, the least recently requested first."""

    def __len__(self) -> int:
        """How many records are held."""
        return self.own_records + self.replicas

    def answer(self, key: QuestionKey, wall_ms: int) -> StoredRecord | None:
        """The record that answers a question at this time: of the valid ones that with the newest
        start, then the greatest provider.
        """
        slot = self._slots.get(key)
        if slot is None:
            return None
        if wall_ms >= slot.turn_ms:
            self._settle(key, slot, wall_ms)
        if not slot.held:
            return None
        first = slot.held[0]
        record = first.record
        # Once more, because a wall clock may have been set back since the slot was arranged.
        if not record.valid_from <= wall_ms < record.valid_until:
            return None
        if first.holder is not None:
            self._replicated.move_to_end(key)
        return first

    def answer_without(
        self, key: QuestionKey, wall_ms: int, holders: tuple[Address, ...]
    ) -> StoredRecord | None:
        """The same, but replicas of what these held do not count."""
        first = self.answer(key, wall_ms)
        if first is None or first.holder not in holders:
            return first
        for one in self._slots[key].held:
            if one.holder not in holders and one.record.is_valid_at(wall_ms):
                return one
        return None

    def answer_own(self, key: QuestionKey, wall_ms: int) -> StoredRecord | None:
        """The same, but no replica counts: what providers gave to this very broker."""
        first = self.answer(key, wall_ms)
        if first is None or first.holder is None:
            return first
        for one in self._slots[key].held:
            if one.holder is None and one.record.is_valid_at(wall_ms):
                return one
        return None

    def may_answer(self, key: QuestionKey) -> bool:
        """Whether anything is held for a question, valid or not."""
        return key in self._slots

    def put(self, record: ContextRecord, wall_ms: int, *, holder: Address | None = None) -> Outcome:
        """Takes a record: the broker's own, or with `holder` a replica. A record whose validity
        is still to begin is kept and is the answer when its time comes.
        """
        if record.valid_until <= wall_ms:
            return Outcome.PAST
        entity = record.entity
        key = (entity.type, entity.id, record.scope)
        slot = self._slots.get(key)
        if slot is None:
            return self._open(key, record, wall_ms, holder)
        if wall_ms >= slot.turn_ms:
            self._settle(key, slot, wall_ms)
        elif holder is None and self._update(key, slot, record, wall_ms):
            return Outcome.TAKEN
        others, refused = self._others(slot, record, wall_ms, own=holder is None)
        if refused is None and holder is None and self.own_records >= self.limits.own_records:
            refused = None if _takes_a_place(record, slot.held, wall_ms) else Outcome.FULL
        if refused is not None:
            return refused
        size = len(msgspec.msgpack.encode(record)) if holder is not None else 0
        if size > self.limits.replica_bytes:
            return Outcome.FULL
        self._slots[key] = slot
        self._replace(key, slot, [*others, StoredRecord(record, holder, size)], wall_ms)
        if holder is not None:
            self._bound_replicas()
        return Outcome.TAKEN

    def void_replicas(self, record_key: tuple[str, str, str, str], before: int, now: int) -> int:
        """Drops replicas of a record whose validity began before a time; returns their number."""
        provider, key = record_key[0], record_key[1:]

        def is_void(one: StoredRecord) -> bool:
            return one.record.provider == provider and one.record.valid_from < before

        return self._drop_replicas(key, is_void, now)

    def drop_replicas_of(self, key: QuestionKey, holder: Address, now: int) -> int:
        """Drops what is known of a question only through a broker that is gone."""
        return self._drop_replicas(key, lambda one: one.holder == holder, now)

    def _drop_replicas(
        self, key: QuestionKey, is_void: Callable[[StoredRecord], bool], now: int
    ) -> int:
        slot = self._slots.get(key)
        if slot is None:
            return 0
        kept = [one for one in slot.held if one.holder is None or not is_void(one)]
        dropped = len(slot.held) - len(kept)
        if dropped:
            self._replace(key, slot, kept, now)
        return dropped

    def sweep(self, wall_ms: int, limit: int = 256) -> list[QuestionKey]:
        """Frees what is over, at most so many slots at once; returns the questions whose slots had
        their turn, also by a question or an update that came first.
        """
        turned: list[QuestionKey] = []
        turns = self._turns
        while turns and turns[0][0] <= wall_ms and limit > 0:
            due, key = heappop(turns)
            limit -= 1
            turned.append(key)
            slot = self._slots.get(key)
            if slot is None or slot.turn_ms != due:
                continue  # a turn that was moved; the slot's own is in the heap as well
            self._settle(key, slot, wall_ms)
        return turned

    def next_turn_ms(self) -> int | None:
        """The wall time at which `sweep` has something to do; may be early, never late."""
        return self._turns[0][0] if self._turns else None

    def held(self, *, own: bool | None = None) -> Iterator[StoredRecord]:
        """Everything held, own or replicas only where asked; also what has not begun."""
        for slot in list(self._slots.values()):
            for one in list(slot.held):
                if own is None or own == (one.holder is None):
                    yield one

    def questions(self) -> Iterator[QuestionKey]:
        """The questions with something held, in no order."""
        return iter(list(self._slots))

    def _open(
        self, key: QuestionKey, record: ContextRecord, wall_ms: int, holder: Address | None
    ) -> Outcome:
        """The first record for its question: nothing stands beside it."""
        size = 0
        if holder is None:
            if self.own_records >= self.limits.own_records:
                return Outcome.FULL
            self.own_records += 1
        else:
            size = len(msgspec.msgpack.encode(record))
            if size > self.limits.replica_bytes:
                return Outcome.FULL
            self.replicas += 1
            self.replica_bytes += size
            self._replicated[key] = None
        slot = self._slots[key] = _Slot()
        slot.held.append(StoredRecord(record, holder, size))
        begins, ends = record.valid_from, record.valid_until
        self._plan(key, slot, begins if begins > wall_ms else ends, wall_ms)
        if holder is not None:
            self._bound_replicas()
        return Outcome.TAKEN

    def _update(self, key: QuestionKey, slot: _Slot, record: ContextRecord, wall_ms: int) -> bool:
        """The usual case in about a microsecond, however many providers provide the same: a
        known provider sends a new record. False when it is not that case, then nothing is changed.
        """
        held, start = slot.held, record.valid_from
        if not held or max(start, held[0].record.valid_from, held[-1].record.valid_from) > wall_ms:
            return False  # a provider announces what is still to begin, or the clock was set back
        # A provider with a steady rate is the one that was silent for longest, so the last.
        index = len(held) - 1
        while index and held[index].record.provider != record.provider:
            index -= 1
        old = held[index]
        is_older = old.record.provider == record.provider and old.record.valid_from < start
        if not is_older or old.holder is not None:
            return False
        del held[index]
        place, rank = 0, record.rank()
        while place < len(held) and held[place].record.rank() > rank:
            place += 1
        held.insert(place, StoredRecord(record))
        if record.valid_until < slot.turn_ms:
            self._plan(key, slot, record.valid_until, wall_ms)
        return True

    def _others(
        self, slot: _Slot, record: ContextRecord, wall_ms: int, *, own: bool
    ) -> tuple[list[StoredRecord], Outcome | None]:
        """The records that stay beside a new one, or why it is not taken."""
        others: list[StoredRecord] = []
        ahead = 0
        for one in slot.held:
            other = one.record
            if other.provider != record.provider:
                others.append(one)
            elif other.valid_from == record.valid_from:
                if not own and one.holder is None:
                    return others, Outcome.STALE
                if other == record and own == (one.holder is None):
                    return others, Outcome.SAME
            elif record.valid_from < other.valid_from <= wall_ms:
                return others, Outcome.STALE
            else:
                ahead += other.valid_from > wall_ms
                others.append(one)
        full = record.valid_from > wall_ms and ahead >= self.limits.ahead_per_provider
        return others, Outcome.FULL if full else None

    def _settle(self, key: QuestionKey, slot: _Slot, wall_ms: int) -> None:
        self._replace(key, slot, slot.held, wall_ms)

    def _replace(
        self, key: QuestionKey, slot: _Slot, held: list[StoredRecord], wall_ms: int
    ) -> None:
        """The one place where a slot changes: counts and turns follow."""
        before = slot.held
        slot.held, turn_ms = arrange(held, wall_ms)
        self._count(key, before, slot.held)
        if not slot.held:
            self._slots.pop(key, None)
            slot.turn_ms = NEVER
        elif turn_ms != slot.turn_ms:
            self._plan(key, slot, turn_ms, wall_ms)

    def _plan(self, key: QuestionKey, slot: _Slot, turn_ms: int, wall_ms: int) -> None:
        """Notes the next turn. A turn that moved later stays in the heap at its old time, and is
        planned anew when that comes: an update a second costs no heap entry a second.
        """
        if slot.turn_ms <= wall_ms or turn_ms < slot.turn_ms:
            heappush(self._turns, (turn_ms, key))
            slot.turn_ms = turn_ms
            if len(self._turns) > 2 * len(self._slots) + _SPARE_TURNS:
                self._turns = [(one.turn_ms, name) for name, one in self._slots.items()]
                heapify(self._turns)

    def _count(
        self, key: QuestionKey, before: list[StoredRecord], after: list[StoredRecord]
    ) -> None:
        had_replicas = False
        for one in before:
            if one.holder is None:
                self.own_records -= 1
            else:
                had_replicas = True
                self.replicas -= 1
                self.replica_bytes -= one.size
        has_replicas = False
        for one in after:
            if one.holder is None:
                self.own_records += 1
            else:
                has_replicas = True
                self.replicas += 1
                self.replica_bytes += one.size
        if has_replicas:
            self._replicated[key] = None
        elif had_replicas:
            self._replicated.pop(key, None)

    def _bound_replicas(self) -> None:
        limits = self.limits
        while self.replicas > limits.replicas or self.replica_bytes > limits.replica_bytes:
            key = next(iter(self._replicated))
            slot = self._slots[key]
            own = [one for one in slot.held if one.holder is None]
            before, slot.held = slot.held, own  # still in order; its turn may come early
            self._count(key, before, own)
            if not own:
                self._slots.pop(key, None)
                slot.turn_ms = NEVER


def _takes_a_place(record: ContextRecord, held: list[StoredRecord], wall_ms: int) -> bool:
    """Whether an own record goes for this one, so that there are no more than before: one of the
    same provider that has begun as well, or begins at the same time.
    """
    return any(
        one.holder is None
        and one.record.provider == record.provider
        and (
            one.record.valid_from == record.valid_from
            or max(one.record.valid_from, record.valid_from) <= wall_ms
        )
        for one in held
    )
