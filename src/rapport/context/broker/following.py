"""Watching at the holder on behalf of consumers here; looking again when it is gone. [CX-3]"""

from __future__ import annotations

from rapport.context.broker.agenda import NEVER
from rapport.context.broker.answering import MOST_BEHIND_MS
from rapport.context.broker.asking import OWN_CONSUMER, Asking, Ended
from rapport.context.broker.watching import LOOK_AGAIN_MS, Watcher, Watching
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import (
    NOT_FOUND,
    RECEIVED,
    Found,
    Notice,
    Noticed,
    Question,
    Status,
    Unwatch,
    Watch,
    is_late,
)
from rapport.context.table import QuestionKey, key_of
from rapport.core.context_record import ContextRecord
from rapport.transport.base import Address, Now, Sender

_SEARCH_MS = 5_000
_LEASE_MS = 15_000
_RENEW_MS = 5_000.0
_CONFIRM_MS = 250.0
_UNANSWERED = 3
_MOST_GONE = 4
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 500.0, 30_000.0


class _Upstream:
    """What is watched elsewhere: for one question, whoever and however many want it here."""

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
        """When it is looked whether the record is over: planned once, not for each record."""
        self.notice = 0
        self.unanswered = 0
        self.searching = False
        self.pause_ms = _FIRST_PAUSE_MS
        self.turn = 0
        """Counts changes of holder, so that what was planned for an earlier one does nothing."""


class Following:
    """Finds who holds a watched record, watches there with a lease, and passes on what it says.

    A holder is given up when it is lost as a neighbour, leaves three renewals unanswered, or lets
    its record end without a new one; then the record is searched anew.
    """

    __slots__ = ("_asking", "_by_id", "_place", "_upstreams", "_watching")

    def __init__(self, place: Workplace, asking: Asking, watching: Watching) -> None:
        self._place, self._asking, self._watching = place, asking, watching
        self._upstreams: dict[QuestionKey, _Upstream] = {}
        self._by_id: dict[int, _Upstream] = {}
        watching.begun, watching.ended, watching.fetch = self.begun, self.ended, self.fetch
        watching.not_here = self.not_here

    def __len__(self) -> int:
        """How many questions are followed elsewhere."""
        return len(self._upstreams)

    def begun(self, watcher: Watcher, now: Now) -> None:
        """A consumer watches: its question is followed from now on."""
        key = key_of(watcher.question)
        upstream = self._upstreams.get(key)
        if upstream is None:
            id = self._place.chance.getrandbits(63)
            upstream = _Upstream(id, watcher.question, watcher.identity)
            self._upstreams[key] = self._by_id[id] = upstream
            self._look(upstream, now)
        elif upstream.record is not None:
            self._watching.tell(watcher, upstream.record, now)

    def ended(self, key: QuestionKey, now: Now) -> None:
        """Nobody here wants it any more."""
        upstream = self._upstreams.pop(key, None)
        if upstream is not None:
            del self._by_id[upstream.id]
            if upstream.holder is not None:
                self._place.send(Unwatch(upstream.id), upstream.holder)

    def fetch(self, watcher: Watcher, now: Now) -> None:
        """The present record for a periodic watcher: from the table, else by a search."""
        key = key_of(watcher.question)
        held = self._place.table.answer(key, now.wall_ms)
        if held is not None:
            self._watching.tell(watcher, held.record, now)
            return

        def answered(ended: Ended, now: Now) -> None:
            if isinstance(ended, Found) and self._watching.is_watched(watcher):
                self._watching.tell(watcher, ended.record, now)

        within_ms = min(max(watcher.every_ms, 500), _SEARCH_MS)
        question, identity = watcher.question, watcher.identity
        self._asking.begin(OWN_CONSUMER, question, within_ms, identity, now, answered)

    def not_here(self, key: QuestionKey, now: Now) -> None:
        """What was held here is over before its time: its provider may have taken it along."""
        upstream = self._upstreams.get(key)
        if upstream is None or upstream.holder is not None or upstream.searching:
            return
        if upstream.record is not None:
            upstream.record = None
            self._look(upstream, now)

    def noticed_change(self, notice: Notice, sender: Sender, now: Now) -> None:
        """The holder says that a record changed."""
        upstream = self._by_id.get(notice.id)
        if upstream is None:
            self._place.send(Unwatch(notice.id), sender.address)
            return
        record = notice.record
        wait_ms = record.valid_from - now.wall_ms
        if sender.address != upstream.holder or wait_ms > MOST_BEHIND_MS:
            return  # by this clock its time is far off; it is told again
        self._place.send(Noticed(notice.id, notice.number), sender.address)
        upstream.unanswered = 0
        asked = upstream.question
        if not is_late(notice.number, upstream.notice) and (record.entity, record.scope) == (
            asked.entity,
            asked.scope,
        ):
            upstream.notice = notice.number
            if wait_ms > 0:
                self._place.agenda.at(now.steady_ms + wait_ms, self._changed, upstream, record)
            else:
                self._changed(upstream, record, now)

    def _changed(self, upstream: _Upstream, record: ContextRecord, now: Now) -> None:
        """What the holder noticed of counts by this clock, too."""
        if self._by_id.get(upstream.id) is upstream:
            # Older copies here would be found instead when this one is over.
            self._place.table.void_replicas(record.key(), record.valid_from, now.wall_ms)
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
        """Copies that lead to a holder that is gone would be found again and again: those here are
        dropped, those elsewhere are no answer until another is found.
        """
        key = key_of(upstream.question)
        others = [one for one in upstream.gone if one != holder]
        upstream.gone = (*others, holder)[-_MOST_GONE:]
        self._place.table.drop_replicas_of(key, holder, now.wall_ms)

    def _fell_silent(self, upstream: _Upstream, holder: Address, now: Now) -> None:
        """Once it may be bad luck, and then copies lead back to it soonest."""
        if upstream.doubted == holder:
            self._give_up(upstream, holder, now)
            return
        upstream.doubted = holder
        self._place.table.drop_replicas_of(key_of(upstream.question), holder, now.wall_ms)

    def _look(self, upstream: _Upstream, now: Now) -> None:
        """Finds the holder: this broker itself, or by a search."""
        upstream.holder = None
        upstream.turn += 1
        held = self._place.table.answer(key_of(upstream.question), now.wall_ms)
        if held is not None and held.holder is None:
            self._learn(upstream, held.record, now)
        elif not upstream.searching:
            self._search(upstream, now)

    def _search(self, upstream: _Upstream, now: Now) -> None:
        upstream.searching = True

        def answered(ended: Ended, now: Now) -> None:
            upstream.searching = False
            if self._by_id.get(upstream.id) is not upstream or upstream.holder is not None:
                return
            if isinstance(ended, Found):
                self._found(upstream, ended, now)
            else:
                self._look_later(upstream, now)

        question, identity = upstream.question, upstream.identity
        # Were it held here there were no search, so copies that lead here lead nowhere.
        without = (self._place.address, *upstream.gone)
        self._asking.begin(OWN_CONSUMER, question, _SEARCH_MS, identity, now, answered, without)

    def _found(self, upstream: _Upstream, found: Found, now: Now) -> None:
        if found.holder == self._place.address:
            self._found_own(upstream, now)
            return
        self._learn(upstream, found.record, now)
        upstream.holder, upstream.notice, upstream.unanswered = found.holder, 0, 0
        upstream.turn += 1
        self._renew(upstream, upstream.turn, now)

    def _found_own(self, upstream: _Upstream, now: Now) -> None:
        """Somebody's copy of what was held here; that holds only while it still is."""
        held = self._place.table.answer(key_of(upstream.question), now.wall_ms)
        if held is not None and self._watching.is_here(held):
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
        self._place.send(watch, upstream.holder)
        self._place.agenda.at(now.steady_ms + _CONFIRM_MS, self._confirmed, upstream, turn)

    def _confirmed(self, upstream: _Upstream, turn: int, now: Now) -> None:
        """Unconfirmed it is repeated at once, else renewed well before the lease ends."""
        if upstream.turn != turn or upstream.unanswered:
            self._renew(upstream, turn, now)
        else:
            self._place.agenda.at(now.steady_ms + _RENEW_MS, self._renew, upstream, turn)

    def _learn(self, upstream: _Upstream, record: ContextRecord, now: Now) -> None:
        if not record.is_valid_at(now.wall_ms):
            return
        upstream.record = record
        self._watching.tell_consumers(key_of(upstream.question), record, now)
        self._plan_end(upstream, record, now)

    def _plan_end(self, upstream: _Upstream, record: ContextRecord, now: Now) -> None:
        left_ms = min(record.valid_until - now.wall_ms, LOOK_AGAIN_MS)
        ends_ms = now.steady_ms + left_ms
        if ends_ms < upstream.over_ms:
            upstream.over_ms = ends_ms
            self._place.agenda.at(ends_ms, self._record_over, upstream, ends_ms)

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
        self._place.agenda.at(
            now.steady_ms + upstream.pause_ms, self._look_again, upstream, upstream.turn
        )
        upstream.pause_ms = min(2 * upstream.pause_ms, _LONGEST_PAUSE_MS)

    def _look_again(self, upstream: _Upstream, turn: int, now: Now) -> None:
        if self._by_id.get(upstream.id) is upstream and upstream.turn == turn:
            self._look(upstream, now)
