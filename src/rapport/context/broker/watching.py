"""Those who want to be told: leases, notices, and notices once more. [CX-3]"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from rapport.context.broker.effects import Audited
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import (
    NOT_ALLOWED,
    NOT_FOUND,
    RECEIVED,
    TOO_BUSY,
    Notice,
    Noticed,
    Question,
    Status,
    Unwatch,
    Watch,
)
from rapport.context.table import Held, QuestionKey, key_of
from rapport.core.context_record import ContextRecord
from rapport.transport.base import Address, Now, Sender

_TRIES = 6
_LEAST_PERIOD_MS = 50
LOOK_AGAIN_MS = 30_000.0
"""What lasts longer is looked at now and then: a watch that was ended leaves nothing on the agenda
for as long as its lease, or its record, would have lasted.
"""

WatcherKey = tuple[Address, int]


class Watcher:
    """One that is told: a consumer, or (`at_holder`) a broker that tells its consumers."""

    __slots__ = (
        "address",
        "at_holder",
        "every_ms",
        "id",
        "identity",
        "lease_ms",
        "number",
        "question",
        "record",
        "tries",
    )

    def __init__(self, watch: Watch, sender: Sender) -> None:
        self.address, self.id, self.question = sender.address, watch.id, watch.question
        self.at_holder = watch.at_holder
        self.identity = watch.identity if watch.at_holder else sender.identity
        self.every_ms = max(watch.every_ms, _LEAST_PERIOD_MS) if watch.every_ms > 0 else 0
        self.lease_ms = 0.0
        """The steady time at which its lease ends."""
        self.number = 0
        """Of the last notice. Begins at the time of day, so that one who watches anew, such as
        after a restart of this broker, takes none for a repetition.
        """
        self.record: ContextRecord | None = None
        """What it was told last."""
        self.tries = 0
        """Of the last notice; 0 when it was acknowledged."""

    def key(self) -> WatcherKey:
        return self.address, self.id


class Watching:
    """Tells each watcher once per change, in order, again until it says that it noticed.

    A newer notice takes the place of one that was not acknowledged, so a slow watcher costs one
    notice, not a queue.
    """

    __slots__ = (
        "_by_question",
        "_per_sender",
        "_place",
        "_watchers",
        "begun",
        "ended",
        "fetch",
        "not_here",
    )

    begun: Callable[[Watcher, Now], None]
    """Called for each consumer that begins to watch; set by the machine."""
    ended: Callable[[QuestionKey, Now], None]
    """Called when the last consumer of a question ended."""
    fetch: Callable[[Watcher, Now], None]
    """Finds the present record for a periodic watcher, and calls `tell`."""
    not_here: Callable[[QuestionKey, Now], None]
    """Called when this broker itself has no valid record (any more) of what is watched here."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._watchers: dict[WatcherKey, Watcher] = {}
        self._by_question: dict[QuestionKey, dict[WatcherKey, Watcher]] = {}
        self._per_sender: defaultdict[Address, int] = defaultdict(int)

    def __len__(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def watch(self, watch: Watch, sender: Sender, now: Now) -> None:
        """Begins or prolongs a watch; one that watches already is told nothing twice."""
        if watch.at_holder and sender.kind != "network":
            # Members answer for theirs; a client is judged and audited as what it is.
            watch = msgspec.structs.replace(watch, at_holder=False)
        key = (sender.address, watch.id)
        before = self._watchers.get(key)
        status, why = self._judge(watch, before is None, sender, now)
        self._place.send(Status(watch.id, status, why), sender.address)
        self._audit(watch, status, sender)
        if status != RECEIVED:
            return
        if before is not None and before.question != watch.question:
            self._end(before, now)
            before = None
        lease_ms = min(watch.lease_ms, self._place.settings.limits.lease_ms)
        if before is not None:
            before.lease_ms = now.steady_ms + lease_ms
        elif lease_ms > 0:
            watcher = Watcher(watch, sender)
            watcher.lease_ms = now.steady_ms + lease_ms
            self._begin(watcher, now)

    def unwatch(self, unwatch: Unwatch, sender: Sender, now: Now) -> None:
        """It wants to be told no longer."""
        watcher = self._watchers.get((sender.address, unwatch.id))
        if watcher is not None:
            self._end(watcher, now)

    def noticed(self, noticed: Noticed, sender: Sender, now: Now) -> None:
        """It was told."""
        watcher = self._watchers.get((sender.address, noticed.id))
        if watcher is not None and watcher.number == noticed.number:
            watcher.tries = 0

    def changed(self, key: QuestionKey, now: Now) -> None:
        """The table's answer to a question may have changed. Costs a look-up where nobody
        watches.
        """
        watchers = self._by_question.get(key)
        if not watchers:
            return
        held = self._place.table.answer(key, now.wall_ms)
        if held is not None:
            for watcher in list(watchers.values()):
                if not watcher.every_ms:
                    self.tell(watcher, held.record, now)
        if not self.is_here(held):
            self.not_here(key, now)

    def tell_consumers(self, key: QuestionKey, record: ContextRecord, now: Now) -> None:
        """The holder of a record said that it changed."""
        for watcher in list(self._by_question.get(key, {}).values()):
            if not (watcher.every_ms or watcher.at_holder):
                self.tell(watcher, record, now)

    def tell(self, watcher: Watcher, record: ContextRecord, now: Now) -> None:
        """Tells one watcher, unless it knows, knows better, or the record is not valid now."""
        if not record.is_valid_at(now.wall_ms):
            return
        if not watcher.every_ms and _knows(watcher.record, record, now.wall_ms):
            return
        watcher.number += 1
        watcher.record, watcher.tries = record, 1
        self._place.counts["notices"] += 1
        self._notice(watcher, now)

    def any_consumers(self, key: QuestionKey) -> bool:
        """Whether a consumer watches for changes of this."""
        watchers = self._by_question.get(key, {}).values()
        return any(not (one.at_holder or one.every_ms) for one in watchers)

    def is_here(self, held: Held | None) -> bool:
        """Whether the table's answer is this broker's own, or stands for one of another protocol
        that is known here only.
        """
        return held is not None and held.holder in (None, self._place.address)

    def is_watched(self, watcher: Watcher) -> bool:
        """Whether it is still one."""
        return self._watchers.get(watcher.key()) is watcher

    def _begin(self, watcher: Watcher, now: Now) -> None:
        question = key_of(watcher.question)
        watcher.number = now.wall_ms
        self._watchers[watcher.key()] = watcher
        self._by_question.setdefault(question, {})[watcher.key()] = watcher
        self._per_sender[watcher.address] += 1
        self._look_at_lease(watcher, now)
        if watcher.every_ms and not watcher.at_holder:
            self._period(watcher, now)
            return
        watcher.every_ms = 0
        held = self._place.table.answer(question, now.wall_ms)
        if held is not None:
            self.tell(watcher, held.record, now)
        if not watcher.at_holder:
            self.begun(watcher, now)

    def _end(self, watcher: Watcher, now: Now) -> None:
        del self._watchers[watcher.key()]
        question = key_of(watcher.question)
        others = self._by_question[question]
        del others[watcher.key()]
        if not others:
            del self._by_question[question]
        self._per_sender[watcher.address] -= 1
        if not self._per_sender[watcher.address]:
            del self._per_sender[watcher.address]
        if not self.any_consumers(question):
            self.ended(question, now)

    def _judge(self, watch: Watch, is_new: bool, sender: Sender, now: Now) -> tuple[int, str]:
        place, limits = self._place, self._place.settings.limits
        question: Question = watch.question
        may = watch.at_holder or place.allows(
            sender.identity, "read", question.entity, question.scope
        )
        if not may:
            place.counts["not_allowed"] += 1
            return NOT_ALLOWED, "no right to read this"
        if is_new and len(self._watchers) >= limits.watches:
            return TOO_BUSY, "this broker has too many watchers"
        if is_new and self._per_sender.get(sender.address, 0) >= limits.watches_per_sender:
            return TOO_BUSY, "you watch too much"
        held = place.table.answer(key_of(question), now.wall_ms)
        if watch.at_holder and not self.is_here(held):
            return NOT_FOUND, "its provider does not give it to this broker any more"
        return RECEIVED, ""

    def _lease_over(self, watcher: Watcher, now: Now) -> None:
        if not self.is_watched(watcher):
            return
        if watcher.lease_ms <= now.steady_ms:
            self._end(watcher, now)
        else:
            self._look_at_lease(watcher, now)

    def _look_at_lease(self, watcher: Watcher, now: Now) -> None:
        due_ms = min(watcher.lease_ms, now.steady_ms + LOOK_AGAIN_MS)
        self._place.agenda.at(due_ms, self._lease_over, watcher)

    def _period(self, watcher: Watcher, now: Now) -> None:
        if self.is_watched(watcher):
            self._place.agenda.at(now.steady_ms + watcher.every_ms, self._period, watcher)
            self.fetch(watcher, now)

    def _notice(self, watcher: Watcher, now: Now) -> None:
        record = watcher.record
        assert record is not None
        self._place.send(Notice(watcher.id, watcher.number, record), watcher.address)
        wait_ms = self._place.settings.notice_again_ms * 2 ** (watcher.tries - 1)
        due_ms = now.steady_ms + wait_ms
        self._place.agenda.at(due_ms, self._again, watcher, watcher.number, watcher.tries)

    def _again(self, watcher: Watcher, number: int, tries: int, now: Now) -> None:
        if not self.is_watched(watcher) or (watcher.number, watcher.tries) != (number, tries):
            return
        record = watcher.record
        if tries < _TRIES and record is not None and record.is_valid_at(now.wall_ms):
            watcher.tries += 1
            self._notice(watcher, now)

    def _audit(self, watch: Watch, status: int, sender: Sender) -> None:
        if self._place.settings.audits and not watch.at_holder:
            question = watch.question
            self._place.effects.append(
                Audited(
                    "watch",
                    sender.identity,
                    sender.address,
                    status,
                    question.entity,
                    question.scope,
                )
            )


def _knows(last: ContextRecord | None, record: ContextRecord, wall_ms: int) -> bool:
    """Whether who was told `last` has no use for `record`: it is the same, or less."""
    if last is None:
        return False
    return last == record or (last.is_valid_at(wall_ms) and record.rank() < last.rank())
