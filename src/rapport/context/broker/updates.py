"""Updates of providers: into the table, to disk, to those who watch. [CX-1, CX-3, CX-8, CX-9]"""

from __future__ import annotations

from rapport.context.broker.effects import Audited, Kept
from rapport.context.broker.recalling import Recalling
from rapport.context.broker.watching import Watching
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    PROCESSED,
    RECEIVED,
    TOO_BUSY,
    Outdated,
    Put,
    Status,
)
from rapport.context.table import Outcome, QuestionKey
from rapport.core.context_record import ContextRecord
from rapport.overlay.routing import Flood, SeenFilter
from rapport.transport.base import Address, Now, Sender

_OUTDATED_KEPT_MS = 30_000.0
_KEPT_AT_ONCE = 4_096

RecordVersion = tuple[tuple[str, str, str, str], int]
"""Key of a record and start of its validity."""


class _Keeping:
    """A record on its way to disk, and who waits for it: each repetition, too."""

    __slots__ = ("record", "waiting")

    def __init__(self, record: ContextRecord) -> None:
        self.record = record
        self.waiting: dict[tuple[Address, int], Sender] = {}

    def version(self) -> RecordVersion:
        return self.record.key(), self.record.valid_from


class Updates:
    """What providers say. 101 at once; 102 when the shell says that it is on disk."""

    __slots__ = ("_flood", "_keeping", "_place", "_recalling", "_tokens", "_versions", "_watching")

    def __init__(self, place: Workplace, watching: Watching, recalling: Recalling) -> None:
        self._place, self._watching, self._recalling = place, watching, recalling
        self._keeping: dict[int, _Keeping] = {}
        self._versions: dict[RecordVersion, _Keeping] = {}
        self._tokens = 0
        self._flood = Flood(SeenFilter(_KEPT_AT_ONCE, _OUTDATED_KEPT_MS))

    def __len__(self) -> int:
        """How many updates are on their way to disk."""
        return len(self._keeping)

    def put(self, put: Put, sender: Sender, now: Now) -> None:
        """A provider says what is true."""
        place = self._place
        record = put.record
        if not place.allows(sender.identity, "write", record.entity, record.scope):
            place.counts["not_allowed"] += 1
            self._end(put, NOT_ALLOWED, "no right to write this", sender)
            return
        if self._is_forged(record, sender.identity):
            place.counts["forged"] += 1
            why = f"{record.provider!r} is bound to another key here"
            self._end(put, NOT_ALLOWED, why, sender, what="overwrite")
            return
        if record.valid_until <= record.valid_from:
            self._end(put, BAD_REQUEST, "its validity ends before it begins", sender)
            return
        if place.settings.durable and len(self._keeping) >= place.settings.limits.keeping:
            self._end(put, TOO_BUSY, "too many updates wait for the disk", sender)
            return
        outcome = self.take(record, now)
        if outcome is Outcome.PAST:
            self._end(put, BAD_REQUEST, "its validity is over", sender)
        elif outcome is Outcome.FULL:
            self._end(put, TOO_BUSY, "this broker's table is full", sender)
        else:
            place.ownership.claim(record.key(), sender.identity)
            place.outbox.append((Status(put.id, RECEIVED), sender.address))
            self._keep(put, outcome, sender)

    def _is_forged(self, record: ContextRecord, identity: str) -> bool:
        """Whether the record is another key's, and the identity may not take it over."""
        place = self._place
        owner = place.ownership.owner(record.key())
        if not owner or owner == identity:
            return False
        return not place.allows(identity, "take_over", record.entity, record.scope)

    def take(self, record: ContextRecord, now: Now) -> Outcome:
        """Into the table, from whomever; those who watch are told."""
        place = self._place
        outcome = place.table.put(record, now.wall_ms)
        if outcome is Outcome.TAKEN:
            place.counts["updates"] += 1
            for turned in place.table.sweep(now.wall_ms, 2):
                self.turned(turned, now)
            entity = record.entity
            key = (entity.type, entity.id, record.scope)
            self.turned(key, now)
            self._recalling.announced(key, record.valid_from - now.wall_ms, now)
            if place.settings.replication.invalidate:
                self._invalidate(record, now)
        return outcome

    def turned(self, key: QuestionKey, now: Now) -> None:
        """The answer to a question may have changed: those who watch are told, and older copies
        elsewhere called back.
        """
        self._watching.changed(key, now)
        self._recalling.changed(key, now)

    def kept(self, token: int, now: Now) -> None:
        """It is on disk."""
        self._release(token, PROCESSED, "")

    def not_kept(self, token: int, why: str, now: Now) -> None:
        """It could not be put on disk; it stays in the table while it is valid."""
        self._release(token, INTERNAL_ERROR, why)

    def outdated(self, outdated: Outdated, sender: Sender, now: Now) -> None:
        """Replicas older than an update are void; told on once while the ttl lasts."""
        place = self._place
        key = (outdated.id, outdated.key)
        if self._flood.is_new(key, now):
            dropped = place.table.void_replicas(outdated.key, outdated.before, now.wall_ms)
            place.counts["replicas_voided"] += dropped
        self._recalling.called(outdated, sender, now)
        self._spread(outdated, sender.address, now)

    def _keep(self, put: Put, outcome: Outcome, sender: Sender) -> None:
        """To disk; what came late goes there as well, it is history. What is in the table already
        goes there once more: the log drops what it has, and had it not taken it the first time
        nobody might be told that it did.
        """
        place, record = self._place, put.record
        under_way = self._versions.get((record.key(), record.valid_from))
        repeated = under_way is not None and under_way.record == record
        if not place.settings.durable:
            self._end(put, PROCESSED, "", sender)
        elif under_way is not None and repeated:
            under_way.waiting[sender.address, put.id] = sender
        else:
            keeping = _Keeping(record)
            keeping.waiting[sender.address, put.id] = sender
            self._tokens += 1
            self._keeping[self._tokens] = self._versions[keeping.version()] = keeping
            owner = place.ownership.owner(record.key())
            taken_over = owner if owner != sender.identity else ""
            place.effects.append(Kept(self._tokens, record, sender.identity, taken_over))

    def _release(self, token: int, status: int, why: str) -> None:
        keeping = self._keeping.pop(token, None)
        if keeping is None:
            return
        if self._versions.get(keeping.version()) is keeping:
            del self._versions[keeping.version()]
        for (address, id), sender in keeping.waiting.items():
            self._place.send(Status(id, status, why), address)
            self._audit(status, keeping.record, sender)

    def _invalidate(self, record: ContextRecord, now: Now) -> None:
        settings = self._place.settings.replication
        id = self._place.chance.getrandbits(63)
        ttl = settings.invalidate_ttl
        self._spread(Outdated(id, record.key(), record.valid_from, ttl), None, now)

    def _spread(self, outdated: Outdated, came_from: Address | None, now: Now) -> None:
        place = self._place
        ttl = min(outdated.ttl, place.settings.replication.invalidate_ttl)
        on = Outdated(outdated.id, outdated.key, outdated.before, ttl - 1)
        key = (outdated.id, outdated.key)
        for to in self._flood.spread(key, ttl, came_from, place.membership.neighbours, now):
            place.send(on, to)

    def _end(self, put: Put, status: int, why: str, sender: Sender, *, what: str = "put") -> None:
        self._place.outbox.append((Status(put.id, status, why), sender.address))
        self._audit(status, put.record, sender, what)

    def _audit(self, status: int, record: ContextRecord, sender: Sender, what: str = "put") -> None:
        if self._place.settings.audits:
            self._place.effects.append(
                Audited(what, sender.identity, sender.address, status, record.entity, record.scope)
            )
