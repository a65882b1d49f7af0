"""Updates of providers, and invalidation of replicas that they make outdated.
[CX-1, CX-3, CX-6, CX-8, CX-9]
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rapport.context.broker.broker_state import AuditEffect, BrokerState, StoreRecord
from rapport.context.protocol import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    PROCESSED,
    RECEIVED,
    TOO_BUSY,
    HopAck,
    Invalidation,
    Put,
    Status,
)
from rapport.context.records import Outcome, QuestionKey
from rapport.context.rights import is_genuine, names_key
from rapport.core.context_record import ContextRecord
from rapport.kernel.clock import Now
from rapport.overlay.routing import Flood, SeenFilter
from rapport.transport.base import Address, Sender

if TYPE_CHECKING:
    from rapport.context.broker.subscriptions import Subscriptions

RECALLED = "out"
"""The kind of the acknowledgement of an invalidation."""

_INVALIDATION_TRIES = 5
_AT_ONCE, _PAUSE_MS = 64, 5.0
"""Limits the invalidations sent at once, so that a widely replicated record does not fill the
socket's buffers.
"""
_MOST_OPEN = 20_000
_SOON_MS = 5_000
_VOID_KEPT, _VOID_KEPT_MS = 4_096, 10_000.0


class _IssuedReplica:
    """The recipients of replicas from here for one question, with the version each got."""

    __slots__ = ("to", "until_ms")

    def __init__(self) -> None:
        self.to: dict[Address, tuple[int, str]] = {}
        """The rank of what it got last."""
        self.until_ms = 0
        """The wall time at which all of these copies are over."""


class ReplicaInvalidation:
    """Replicas issued by this broker, and their invalidation.

    A broker knows only the recipients of its own replicas, so an invalidation follows the way that
    the replicas took. It costs at most one message and one acknowledgement for each replica. A
    replica whose invalidation was lost in all tries stays until it ends.
    """

    __slots__ = ("_copies", "_given", "_open", "_state", "_void")

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._given: OrderedDict[QuestionKey, _IssuedReplica] = OrderedDict()
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
        if not self._state.settings.replication.recall:
            return
        entity = record.entity
        key = (entity.type, entity.id, record.scope)
        given = self._given.get(key)
        if given is None:
            given = self._given[key] = _IssuedReplica()
        else:
            self._given.move_to_end(key)
        before = len(given.to)
        rank = record.rank()
        for address in to:
            if address != self._state.address:
                given.to[address] = rank
        given.until_ms = max(given.until_ms, record.valid_until)
        self._copies += len(given.to) - before
        if not given.to:
            del self._given[key]
        self._forget(now)

    def changed(self, key: QuestionKey, now: Now) -> None:
        """Invalidates older replicas after the answer to a question may have changed. Costs a look-
        up where none was issued.
        """
        given = self._given.get(key)
        if given is None:
            return
        held = self._state.table.answer(key, now.wall_ms)
        if held is None:
            return  # what it was is over, and so are its copies
        record = held.record
        newest = record.rank()
        calls: list[tuple[Invalidation, Address]] = []
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
        """Checks the replicas when a record begins soon: it may end before the next sweep."""
        if key in self._given and 0 < wait_ms <= _SOON_MS:
            self._state.agenda.at(now.steady_ms + wait_ms + 1, self.changed, key)

    def called(self, outdated: Invalidation, sender: Sender, now: Now) -> None:
        """Applies an invalidation, and passes it to the recipients of replicas from here."""
        provider, key = outdated.key[0], outdated.key[1:]
        self._void.rises(outdated.key, outdated.before, now)
        if outdated.called:
            ack = HopAck(outdated.id, 0, 0, RECALLED)
            self._state.send(ack, sender.address)
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
        """Whether a passing record was invalidated just now, so that no replica is kept."""
        before = self._void.level_of(record.key(), now)
        return before is not None and record.valid_from < before

    def acknowledged(self, ack: HopAck, sender: Sender) -> None:
        self._open.discard((ack.search, sender.address))

    def _call(self, key: QuestionKey, provider: str, before: int) -> Invalidation:
        id = self._state.chance.getrandbits(63)
        return Invalidation(id, (provider, *key), before, 0, called=True)

    def _send_all(
        self,
        key: QuestionKey,
        given: _IssuedReplica,
        calls: list[tuple[Invalidation, Address]],
        now: Now,
    ) -> None:
        state = self._state
        for number, (outdated, to) in enumerate(calls):
            self._drop(given, to)
            if number < _AT_ONCE:
                self._send(outdated, to, 1, now)
            else:
                due_ms = now.steady_ms + number // _AT_ONCE * _PAUSE_MS
                state.agenda.at(due_ms, self._send, outdated, to, 1)
        state.counts["copies_called_back"] += len(calls)
        if not given.to:
            self._given.pop(key, None)

    def _send(self, outdated: Invalidation, to: Address, tries: int, now: Now) -> None:
        """Sends an invalidation, and repeats it until acknowledged; older brokers do not
        acknowledge.
        """
        state, key = self._state, (outdated.id, to)
        if tries > 1 and key not in self._open:
            return
        if tries > _INVALIDATION_TRIES:
            self._open.discard(key)
            return
        state.send(outdated, to)
        if tries == 1:
            if len(self._open) >= _MOST_OPEN:
                return
            self._open.add(key)
        wait_ms = state.membership.timeout_ms(to) * 2 ** (tries - 1)
        state.agenda.at(now.steady_ms + wait_ms, self._send, outdated, to, tries + 1)

    def _drop(self, given: _IssuedReplica, to: Address) -> None:
        if given.to.pop(to, None) is not None:
            self._copies -= 1

    def _forget(self, now: Now) -> None:
        """Forgets expired entries at the head, and beyond the limit the oldest ones."""
        most, given = self._state.settings.limits.copies_known, self._given
        while given:
            key = next(iter(given))
            oldest = given[key]
            if self._copies <= most and oldest.until_ms > now.wall_ms:
                return
            self._copies -= len(oldest.to)
            del given[key]


_OUTDATED_KEPT_MS = 30_000.0
_KEPT_AT_ONCE = 4_096

RecordVersion = tuple[tuple[str, str, str, str], int]
"""Key of a record and start of its validity."""


class _PendingWrite:
    """A record that is being stored, and the senders that wait for it, repetitions included."""

    __slots__ = ("record", "waiting")

    def __init__(self, record: ContextRecord) -> None:
        self.record = record
        self.waiting: dict[tuple[Address, int], Sender] = {}

    def version(self) -> RecordVersion:
        return self.record.key(), self.record.valid_from


class RecordUpdates:
    """Applies updates of providers: 101 at once, 102 when the record is on disk."""

    __slots__ = (
        "_flood",
        "_invalidation",
        "_keeping",
        "_state",
        "_subscriptions",
        "_tokens",
        "_versions",
    )

    def __init__(
        self, state: BrokerState, subscriptions: Subscriptions, invalidation: ReplicaInvalidation
    ) -> None:
        self._state, self._subscriptions, self._invalidation = state, subscriptions, invalidation
        self._keeping: dict[int, _PendingWrite] = {}
        self._versions: dict[RecordVersion, _PendingWrite] = {}
        self._tokens = 0
        self._flood = Flood(SeenFilter(_KEPT_AT_ONCE, _OUTDATED_KEPT_MS))

    def __len__(self) -> int:
        """How many updates are on their way to disk."""
        return len(self._keeping)

    def put(self, put: Put, sender: Sender, now: Now) -> None:
        """Applies an update of a provider."""
        state = self._state
        record = put.record
        if not state.allows(sender.identity, "write", record.entity, record.scope):
            state.counts["not_allowed"] += 1
            self._end(put, NOT_ALLOWED, "no right to write this", sender)
            return
        if self._is_forged(record, sender.identity):
            state.counts["forged"] += 1
            why = f"{record.provider!r} is bound to another key"
            self._end(put, NOT_ALLOWED, why, sender, what="overwrite")
            return
        if record.valid_until <= record.valid_from:
            self._end(put, BAD_REQUEST, "its validity ends before it begins", sender)
            return
        if state.settings.durable and len(self._keeping) >= state.settings.limits.keeping:
            self._end(put, TOO_BUSY, "too many updates wait for the disk", sender)
            return
        outcome = self.take(record, now)
        if outcome is Outcome.PAST:
            self._end(put, BAD_REQUEST, "its validity is over", sender)
        elif outcome is Outcome.FULL:
            self._end(put, TOO_BUSY, "this broker's table is full", sender)
        else:
            state.ownership.claim(record.key(), sender.identity)
            state.outbox.append((Status(put.id, RECEIVED), sender.address))
            self._keep(put, outcome, sender)

    def _is_forged(self, record: ContextRecord, identity: str) -> bool:
        """Whether the record is another key's, and the identity may not take it over."""
        state = self._state
        if names_key(record.provider):
            return not is_genuine(record)
        if state.is_key_owner(record.provider):
            owner = record.provider
        else:
            owner = state.ownership.owner(record.key())
        if not owner or owner == identity:
            return False
        return not state.allows(identity, "take_over", record.entity, record.scope)

    def take(self, record: ContextRecord, now: Now) -> Outcome:
        """Puts a record into the table and notifies subscribers."""
        state = self._state
        outcome = state.table.put(record, now.wall_ms)
        if outcome is Outcome.TAKEN:
            state.counts["updates"] += 1
            for turned in state.table.sweep(now.wall_ms, 2):
                self.turned(turned, now)
            entity = record.entity
            key = (entity.type, entity.id, record.scope)
            self.turned(key, now)
            self._invalidation.announced(key, record.valid_from - now.wall_ms, now)
            if state.settings.replication.invalidate:
                self._invalidate(record, now)
        return outcome

    def turned(self, key: QuestionKey, now: Now) -> None:
        """The answer to a question may have changed: notifies, and invalidates replicas."""
        self._subscriptions.changed(key, now)
        self._invalidation.changed(key, now)

    def kept(self, token: int, now: Now) -> None:
        """It is on disk."""
        self._release(token, PROCESSED, "")

    def not_kept(self, token: int, why: str, now: Now) -> None:
        """A record could not be stored; it stays in the table while it is valid."""
        self._release(token, INTERNAL_ERROR, why)

    def outdated(self, outdated: Invalidation, sender: Sender, now: Now) -> None:
        """Drops outdated replicas, and forwards the message once while its ttl lasts."""
        state = self._state
        key = (outdated.id, outdated.key)
        if self._flood.is_new(key, now):
            dropped = state.table.void_replicas(outdated.key, outdated.before, now.wall_ms)
            state.counts["replicas_voided"] += dropped
        self._invalidation.called(outdated, sender, now)
        self._spread(outdated, sender.address, now)

    def _keep(self, put: Put, outcome: Outcome, sender: Sender) -> None:
        """Stores an update, late ones included, as history. A record that the table has already is
        stored again: the log drops duplicates, and the first attempt may have failed.
        """
        state, record = self._state, put.record
        under_way = self._versions.get((record.key(), record.valid_from))
        repeated = under_way is not None and under_way.record == record
        if not state.settings.durable:
            self._end(put, PROCESSED, "", sender)
        elif under_way is not None and repeated:
            under_way.waiting[sender.address, put.id] = sender
        else:
            keeping = _PendingWrite(record)
            keeping.waiting[sender.address, put.id] = sender
            self._tokens += 1
            self._keeping[self._tokens] = self._versions[keeping.version()] = keeping
            owner = state.ownership.owner(record.key())
            taken_over = owner if owner != sender.identity else ""
            state.effects.append(StoreRecord(self._tokens, record, sender.identity, taken_over))

    def _release(self, token: int, status: int, why: str) -> None:
        keeping = self._keeping.pop(token, None)
        if keeping is None:
            return
        if self._versions.get(keeping.version()) is keeping:
            del self._versions[keeping.version()]
        for (address, id), sender in keeping.waiting.items():
            self._state.send(Status(id, status, why), address)
            self._audit(status, keeping.record, sender)

    def _invalidate(self, record: ContextRecord, now: Now) -> None:
        settings = self._state.settings.replication
        id = self._state.chance.getrandbits(63)
        ttl = settings.invalidate_ttl
        self._spread(Invalidation(id, record.key(), record.valid_from, ttl), None, now)

    def _spread(self, outdated: Invalidation, came_from: Address | None, now: Now) -> None:
        state = self._state
        ttl = min(outdated.ttl, state.settings.replication.invalidate_ttl)
        on = Invalidation(outdated.id, outdated.key, outdated.before, ttl - 1)
        key = (outdated.id, outdated.key)
        for to in self._flood.spread(key, ttl, came_from, state.membership.neighbours, now):
            state.send(on, to)

    def _end(self, put: Put, status: int, why: str, sender: Sender, *, what: str = "put") -> None:
        self._state.outbox.append((Status(put.id, status, why), sender.address))
        self._audit(status, put.record, sender, what)

    def _audit(self, status: int, record: ContextRecord, sender: Sender, what: str = "put") -> None:
        if self._state.settings.audits:
            self._state.effects.append(
                AuditEffect(
                    what, sender.identity, sender.address, status, record.entity, record.scope
                )
            )
