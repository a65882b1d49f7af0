"""Subscriptions of consumers to changes of a record, here and at the broker that holds it. [CX-3]

A broker subscribes at the holder once for all its consumers, with a lease. When the holder is gone
it searches for another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from rapport.context.broker.broker_state import NEVER, AuditEffect, BrokerState
from rapport.context.broker.searches import OWN_CONSUMER, Searches, SearchResult
from rapport.context.broker.walks import MOST_BEHIND_MS
from rapport.context.protocol import (
    NOT_ALLOWED,
    NOT_FOUND,
    RECEIVED,
    TOO_BUSY,
    FoundRecord,
    Notice,
    NoticeAck,
    Question,
    Status,
    Unwatch,
    Watch,
    is_late,
)
from rapport.context.records import QuestionKey, StoredRecord, key_of
from rapport.core.context_record import ContextRecord
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender

_TRIES = 6
_LEAST_PERIOD_MS = 50
LOOK_AGAIN_MS = 30_000.0
"""What lasts longer is looked at now and then: a watch that was ended leaves nothing on the agenda
for as long as its lease, or its record, would have lasted.
"""

SubscriberKey = tuple[Address, int]


class Subscriber:
    """A subscriber: a consumer, or (`at_holder`) a broker on behalf of its consumers."""

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
        """The last record it was notified of."""
        self.tries = 0
        """Of the last notice; 0 when it was acknowledged."""

    def key(self) -> SubscriberKey:
        return self.address, self.id


class Subscriptions:
    """Notifies each subscriber once per change, in order, and repeats until acknowledged.

    A newer notice replaces an unacknowledged one, so a slow subscriber costs one notice, not a
    queue.
    """

    __slots__ = (
        "_by_question",
        "_per_sender",
        "_state",
        "_watchers",
        "begun",
        "ended",
        "fetch",
        "not_here",
    )

    begun: Callable[[Subscriber, Now], None]
    """Called for each consumer that subscribes; set by the machine."""
    ended: Callable[[QuestionKey, Now], None]
    """Called when the last consumer of a question unsubscribes."""
    fetch: Callable[[Subscriber, Now], None]
    """Finds the current record for a periodic subscriber, and calls `notify`."""
    not_here: Callable[[QuestionKey, Now], None]
    """Called when this broker has no valid record of its own for a subscribed question."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._watchers: dict[SubscriberKey, Subscriber] = {}
        self._by_question: dict[QuestionKey, dict[SubscriberKey, Subscriber]] = {}
        self._per_sender: defaultdict[Address, int] = defaultdict(int)

    def __len__(self) -> int:
        """The number of subscriptions."""
        return len(self._watchers)

    def watch(self, watch: Watch, sender: Sender, now: Now) -> None:
        """Begins or renews a subscription; a subscriber gets no record twice."""
        if watch.at_holder and sender.kind != "network":
            # Members answer for theirs; a client is judged and audited as what it is.
            watch = msgspec.structs.replace(watch, at_holder=False)
        key = (sender.address, watch.id)
        before = self._watchers.get(key)
        status, why = self._judge(watch, before is None, sender, now)
        self._state.send(Status(watch.id, status, why), sender.address)
        self._audit(watch, status, sender)
        if status != RECEIVED:
            return
        if before is not None and before.question != watch.question:
            self._end(before, now)
            before = None
        lease_ms = min(watch.lease_ms, self._state.settings.limits.lease_ms)
        if before is not None:
            before.lease_ms = now.steady_ms + lease_ms
        elif lease_ms > 0:
            watcher = Subscriber(watch, sender)
            watcher.lease_ms = now.steady_ms + lease_ms
            self._begin(watcher, now)

    def unwatch(self, unwatch: Unwatch, sender: Sender, now: Now) -> None:
        watcher = self._watchers.get((sender.address, unwatch.id))
        if watcher is not None:
            self._end(watcher, now)

    def noticed(self, noticed: NoticeAck, sender: Sender, now: Now) -> None:
        watcher = self._watchers.get((sender.address, noticed.id))
        if watcher is not None and watcher.number == noticed.number:
            watcher.tries = 0

    def changed(self, key: QuestionKey, now: Now) -> None:
        """The table's answer to a question may have changed. Without subscribers: a look-up."""
        watchers = self._by_question.get(key)
        if not watchers:
            return
        held = self._state.table.answer(key, now.wall_ms)
        if held is not None:
            for watcher in list(watchers.values()):
                if not watcher.every_ms:
                    self.notify(watcher, held.record, now)
        if not self.is_here(held):
            self.not_here(key, now)

    def notify_consumers(self, key: QuestionKey, record: ContextRecord, now: Now) -> None:
        """Notifies consumers of a record that changed at its holder."""
        for watcher in list(self._by_question.get(key, {}).values()):
            if not (watcher.every_ms or watcher.at_holder):
                self.notify(watcher, record, now)

    def notify(self, watcher: Subscriber, record: ContextRecord, now: Now) -> None:
        """Tells one watcher, unless it knows, knows better, or the record is not valid now."""
        if not record.is_valid_at(now.wall_ms):
            return
        if not watcher.every_ms and _knows(watcher.record, record, now.wall_ms):
            return
        watcher.number += 1
        watcher.record, watcher.tries = record, 1
        self._state.counts["notices"] += 1
        self._notice(watcher, now)

    def any_consumers(self, key: QuestionKey) -> bool:
        """Whether a consumer watches for changes of this."""
        watchers = self._by_question.get(key, {}).values()
        return any(not (one.at_holder or one.every_ms) for one in watchers)

    def is_here(self, held: StoredRecord | None) -> bool:
        """Whether the table's answer is this broker's own, or stands for one of another protocol
        that is known here only.
        """
        return held is not None and held.holder in (None, self._state.address)

    def is_watched(self, watcher: Subscriber) -> bool:
        """Whether the subscription is still active."""
        return self._watchers.get(watcher.key()) is watcher

    def _begin(self, watcher: Subscriber, now: Now) -> None:
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
        held = self._state.table.answer(question, now.wall_ms)
        if held is not None:
            self.notify(watcher, held.record, now)
        if not watcher.at_holder:
            self.begun(watcher, now)

    def _end(self, watcher: Subscriber, now: Now) -> None:
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
        state, limits = self._state, self._state.settings.limits
        question: Question = watch.question
        may = watch.at_holder or state.allows(
            sender.identity, "read", question.entity, question.scope
        )
        if not may:
            state.counts["not_allowed"] += 1
            return NOT_ALLOWED, "no right to read this"
        if is_new and len(self._watchers) >= limits.watches:
            return TOO_BUSY, "this broker has too many watchers"
        if is_new and self._per_sender.get(sender.address, 0) >= limits.watches_per_sender:
            return TOO_BUSY, "you watch too much"
        held = state.table.answer(key_of(question), now.wall_ms)
        if watch.at_holder and not self.is_here(held):
            return NOT_FOUND, "its provider does not give it to this broker any more"
        return RECEIVED, ""

    def _lease_over(self, watcher: Subscriber, now: Now) -> None:
        if not self.is_watched(watcher):
            return
        if watcher.lease_ms <= now.steady_ms:
            self._end(watcher, now)
        else:
            self._look_at_lease(watcher, now)

    def _look_at_lease(self, watcher: Subscriber, now: Now) -> None:
        due_ms = min(watcher.lease_ms, now.steady_ms + LOOK_AGAIN_MS)
        self._state.agenda.at(due_ms, self._lease_over, watcher)

    def _period(self, watcher: Subscriber, now: Now) -> None:
        if self.is_watched(watcher):
            self._state.agenda.at(now.steady_ms + watcher.every_ms, self._period, watcher)
            self.fetch(watcher, now)

    def _notice(self, watcher: Subscriber, now: Now) -> None:
        record = watcher.record
        assert record is not None
        self._state.send(Notice(watcher.id, watcher.number, record), watcher.address)
        wait_ms = self._state.settings.notice_again_ms * 2 ** (watcher.tries - 1)
        due_ms = now.steady_ms + wait_ms
        self._state.agenda.at(due_ms, self._again, watcher, watcher.number, watcher.tries)

    def _again(self, watcher: Subscriber, number: int, tries: int, now: Now) -> None:
        if not self.is_watched(watcher) or (watcher.number, watcher.tries) != (number, tries):
            return
        record = watcher.record
        if tries < _TRIES and record is not None and record.is_valid_at(now.wall_ms):
            watcher.tries += 1
            self._notice(watcher, now)

    def _audit(self, watch: Watch, status: int, sender: Sender) -> None:
        if self._state.settings.audits and not watch.at_holder:
            question = watch.question
            self._state.effects.append(
                AuditEffect(
                    "watch",
                    sender.identity,
                    sender.address,
                    status,
                    question.entity,
                    question.scope,
                )
            )


def _knows(last: ContextRecord | None, record: ContextRecord, wall_ms: int) -> bool:
    """Whether a subscriber that has `last` needs no `record`: it is the same or older."""
    if last is None:
        return False
    return last == record or (last.is_valid_at(wall_ms) and record.rank() < last.rank())


_SEARCH_MS = 5_000
_LEASE_MS = 15_000
_RENEW_MS = 5_000.0
_CONFIRM_MS = 250.0
_UNANSWERED = 3
_MOST_GONE = 4
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 500.0, 30_000.0


class _Upstream:
    """A subscription at the holder of a record, for all consumers of one question here."""

    __slots__ = (
        "doubted",
        "gone",
        "holder",
        "id",
        "identity",
        "notice",
        "over_ms",
        "pause_ms",
        "question",
        "record",
        "searching",
        "turn",
        "unanswered",
    )

    def __init__(self, id: int, question: Question, identity: str) -> None:
        self.id, self.question, self.identity = id, question, identity
        self.holder: Address | None = None
        self.doubted: Address | None = None
        """A holder that was silent once, which may be no more than bad luck."""
        self.gone: tuple[Address, ...] = ()
        """Holders that hold it no longer, or are silent, since one took the watch."""
        self.record: ContextRecord | None = None
        self.over_ms = NEVER
        """When the end of the record is checked: set once, not for each record."""
        self.notice = 0
        self.unanswered = 0
        self.searching = False
        self.pause_ms = _FIRST_PAUSE_MS
        self.turn = 0
        """Counts changes of holder, so that what was planned for an earlier one does nothing."""


class UpstreamSubscriptions:
    """Finds the holder of a record, subscribes there with a lease, and forwards its notices.

    A holder is dropped when it is lost as a neighbour, leaves three renewals unanswered, or lets
    its record end without a new one; then the record is searched again.
    """

    __slots__ = ("_by_id", "_searches", "_state", "_subscriptions", "_upstreams")

    def __init__(
        self, state: BrokerState, searches: Searches, subscriptions: Subscriptions
    ) -> None:
        self._state, self._searches, self._subscriptions = state, searches, subscriptions
        self._upstreams: dict[QuestionKey, _Upstream] = {}
        self._by_id: dict[int, _Upstream] = {}
        subscriptions.begun, subscriptions.ended, subscriptions.fetch = (
            self.begun,
            self.ended,
            self.fetch,
        )
        subscriptions.not_here = self.not_here

    def __len__(self) -> int:
        """How many questions are followed elsewhere."""
        return len(self._upstreams)

    def begun(self, watcher: Subscriber, now: Now) -> None:
        """A consumer watches: its question is followed from now on."""
        key = key_of(watcher.question)
        upstream = self._upstreams.get(key)
        if upstream is None:
            id = self._state.chance.getrandbits(63)
            upstream = _Upstream(id, watcher.question, watcher.identity)
            self._upstreams[key] = self._by_id[id] = upstream
            self._look(upstream, now)
        elif upstream.record is not None:
            self._subscriptions.notify(watcher, upstream.record, now)

    def ended(self, key: QuestionKey, now: Now) -> None:
        """The last consumer is gone: unsubscribes at the holder."""
        upstream = self._upstreams.pop(key, None)
        if upstream is not None:
            del self._by_id[upstream.id]
            if upstream.holder is not None:
                self._state.send(Unwatch(upstream.id), upstream.holder)

    def fetch(self, watcher: Subscriber, now: Now) -> None:
        """The present record for a periodic watcher: from the table, else by a search."""
        key = key_of(watcher.question)
        held = self._state.table.answer(key, now.wall_ms)
        if held is not None:
            self._subscriptions.notify(watcher, held.record, now)
            return

        def answered(ended: SearchResult, now: Now) -> None:
            if isinstance(ended, FoundRecord) and self._subscriptions.is_watched(watcher):
                self._subscriptions.notify(watcher, ended.record, now)

        within_ms = min(max(watcher.every_ms, 500), _SEARCH_MS)
        question, identity = watcher.question, watcher.identity
        self._searches.begin(OWN_CONSUMER, question, within_ms, identity, now, answered)

    def not_here(self, key: QuestionKey, now: Now) -> None:
        """A record held here ended early: its provider may have moved to another broker."""
        upstream = self._upstreams.get(key)
        if upstream is None or upstream.holder is not None or upstream.searching:
            return
        if upstream.record is not None:
            upstream.record = None
            self._look(upstream, now)

    def noticed_change(self, notice: Notice, sender: Sender, now: Now) -> None:
        """The holder notifies of a changed record."""
        upstream = self._by_id.get(notice.id)
        if upstream is None:
            self._state.send(Unwatch(notice.id), sender.address)
            return
        record = notice.record
        wait_ms = record.valid_from - now.wall_ms
        if sender.address != upstream.holder or wait_ms > MOST_BEHIND_MS:
            return  # by this clock its time is far off; it is notified again
        self._state.send(NoticeAck(notice.id, notice.number), sender.address)
        upstream.unanswered = 0
        question = upstream.question
        if not is_late(notice.number, upstream.notice) and (record.entity, record.scope) == (
            question.entity,
            question.scope,
        ):
            upstream.notice = notice.number
            if wait_ms > 0:
                self._state.agenda.at(now.steady_ms + wait_ms, self._changed, upstream, record)
            else:
                self._changed(upstream, record, now)

    def _changed(self, upstream: _Upstream, record: ContextRecord, now: Now) -> None:
        """Applies a notice once the record has begun by the local clock."""
        if self._by_id.get(upstream.id) is upstream:
            # Older copies here would be found instead when this one is over.
            self._state.table.void_replicas(record.key(), record.valid_from, now.wall_ms)
            self._learn(upstream, record, now)

    def answered(self, status: Status, sender: Sender, now: Now) -> None:
        """The holder took the watch, or did not."""
        upstream = self._by_id.get(status.id)
        if upstream is None or sender.address != upstream.holder:
            return
        if status.status == RECEIVED:
            upstream.unanswered = 0
            upstream.pause_ms = _FIRST_PAUSE_MS
            upstream.doubted, upstream.gone = None, ()
        else:
            if status.status == NOT_FOUND:
                self._give_up(upstream, sender.address, now)
            self._look_later(upstream, now)

    def lost(self, address: Address, now: Now) -> None:
        """A neighbour is gone: what it held is searched anew."""
        for upstream in list(self._upstreams.values()):
            if upstream.holder == address:
                self._give_up(upstream, address, now)
                self._look(upstream, now)

    def _give_up(self, upstream: _Upstream, holder: Address, now: Now) -> None:
        """Drops replicas that lead to a holder that is gone. Those at other brokers are excluded
        from searches until another holder is found.
        """
        key = key_of(upstream.question)
        others = [one for one in upstream.gone if one != holder]
        upstream.gone = (*others, holder)[-_MOST_GONE:]
        self._state.table.drop_replicas_of(key, holder, now.wall_ms)

    def _fell_silent(self, upstream: _Upstream, holder: Address, now: Now) -> None:
        """Once it may be bad luck, and then copies lead back to it soonest."""
        if upstream.doubted == holder:
            self._give_up(upstream, holder, now)
            return
        upstream.doubted = holder
        self._state.table.drop_replicas_of(key_of(upstream.question), holder, now.wall_ms)

    def _look(self, upstream: _Upstream, now: Now) -> None:
        """Finds the holder: this broker, or another one by a search."""
        upstream.holder = None
        upstream.turn += 1
        held = self._state.table.answer(key_of(upstream.question), now.wall_ms)
        if held is not None and held.holder is None:
            self._learn(upstream, held.record, now)
        elif not upstream.searching:
            self._search(upstream, now)

    def _search(self, upstream: _Upstream, now: Now) -> None:
        upstream.searching = True

        def answered(ended: SearchResult, now: Now) -> None:
            upstream.searching = False
            if self._by_id.get(upstream.id) is not upstream or upstream.holder is not None:
                return
            if isinstance(ended, FoundRecord):
                self._found(upstream, ended, now)
            else:
                self._look_later(upstream, now)

        question, identity = upstream.question, upstream.identity
        # Were it held here there were no search, so copies that lead here lead nowhere.
        without = (self._state.address, *upstream.gone)
        self._searches.begin(OWN_CONSUMER, question, _SEARCH_MS, identity, now, answered, without)

    def _found(self, upstream: _Upstream, found: FoundRecord, now: Now) -> None:
        if found.holder == self._state.address:
            self._found_own(upstream, now)
            return
        self._learn(upstream, found.record, now)
        upstream.holder, upstream.notice, upstream.unanswered = found.holder, 0, 0
        upstream.turn += 1
        self._renew(upstream, upstream.turn, now)

    def _found_own(self, upstream: _Upstream, now: Now) -> None:
        """Somebody's copy of what was held here; that holds only while it still is."""
        held = self._state.table.answer(key_of(upstream.question), now.wall_ms)
        if held is not None and self._subscriptions.is_here(held):
            self._learn(upstream, held.record, now)
        else:
            self._look_later(upstream, now)

    def _renew(self, upstream: _Upstream, turn: int, now: Now) -> None:
        if self._by_id.get(upstream.id) is not upstream or upstream.turn != turn:
            return
        assert upstream.holder is not None
        if upstream.unanswered >= _UNANSWERED:
            self._fell_silent(upstream, upstream.holder, now)
            self._look_later(upstream, now)
            return
        upstream.unanswered += 1
        watch = Watch(
            upstream.id, upstream.question, _LEASE_MS, 0, upstream.identity, at_holder=True
        )
        self._state.send(watch, upstream.holder)
        self._state.agenda.at(now.steady_ms + _CONFIRM_MS, self._confirmed, upstream, turn)

    def _confirmed(self, upstream: _Upstream, turn: int, now: Now) -> None:
        """Repeats an unconfirmed subscription at once; renews a confirmed one well before its lease
        ends.
        """
        if upstream.turn != turn or upstream.unanswered:
            self._renew(upstream, turn, now)
        else:
            self._state.agenda.at(now.steady_ms + _RENEW_MS, self._renew, upstream, turn)

    def _learn(self, upstream: _Upstream, record: ContextRecord, now: Now) -> None:
        if not record.is_valid_at(now.wall_ms):
            return
        upstream.record = record
        self._subscriptions.notify_consumers(key_of(upstream.question), record, now)
        self._plan_end(upstream, record, now)

    def _plan_end(self, upstream: _Upstream, record: ContextRecord, now: Now) -> None:
        left_ms = min(record.valid_until - now.wall_ms, LOOK_AGAIN_MS)
        ends_ms = now.steady_ms + left_ms
        if ends_ms < upstream.over_ms:
            upstream.over_ms = ends_ms
            self._state.agenda.at(ends_ms, self._record_over, upstream, ends_ms)

    def _record_over(self, upstream: _Upstream, due_ms: float, now: Now) -> None:
        """It ended without a new one: its provider may have gone to another broker."""
        if self._by_id.get(upstream.id) is not upstream or upstream.over_ms != due_ms:
            return
        upstream.over_ms = NEVER
        record = upstream.record
        if record is None:
            return
        if record.valid_until > now.wall_ms:
            self._plan_end(upstream, record, now)
        elif not upstream.searching:
            upstream.record = None
            if upstream.holder is not None:
                self._give_up(upstream, upstream.holder, now)  # what it said before is over, too
            self._look(upstream, now)

    def _look_later(self, upstream: _Upstream, now: Now) -> None:
        upstream.holder = None
        upstream.turn += 1
        self._state.agenda.at(
            now.steady_ms + upstream.pause_ms, self._look_again, upstream, upstream.turn
        )
        upstream.pause_ms = min(2 * upstream.pause_ms, _LONGEST_PAUSE_MS)

    def _look_again(self, upstream: _Upstream, turn: int, now: Now) -> None:
        if self._by_id.get(upstream.id) is upstream and upstream.turn == turn:
            self._look(upstream, now)
