"""Watching at the holder on behalf of consumers here; looking again when it is gone. [CX-3]"""

from __future__ import annotations

from rapport.context.broker.asking import OWN_CONSUMER, Asking, Ended
from rapport.context.broker.watching import Watcher, Watching
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import (
    RECEIVED,
    Found,
    Notice,
    Noticed,
    Question,
    Status,
    Unwatch,
    Watch,
)
from rapport.context.table import QuestionKey, key_of
from rapport.core.context_record import ContextRecord
from rapport.transport.base import Address, Now, Sender

_SEARCH_MS = 5_000
_LEASE_MS = 15_000
_RENEW_MS = 5_000.0
_CONFIRM_MS = 250.0
_UNANSWERED = 3
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 500.0, 30_000.0


class _Upstream:
    """What is watched elsewhere: for one question, whoever and however many want it here."""

    __slots__ = (
        "holder",
        "id",
        "identity",
        "notice",
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
        self.record: ContextRecord | None = None
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

    def noticed_change(self, notice: Notice, sender: Sender, now: Now) -> None:
        """The holder says that a record changed."""
        upstream = self._by_id.get(notice.id)
        if upstream is None:
            self._place.send(Unwatch(notice.id), sender.address)
            return
        record = notice.record
        if sender.address != upstream.holder or record.valid_from > now.wall_ms:
            return  # by this clock its time has not come; it is told again
        self._place.send(Noticed(notice.id, notice.number), sender.address)
        upstream.unanswered = 0
        asked = upstream.question
        if notice.number > upstream.notice and (record.entity, record.scope) == (
            asked.entity,
            asked.scope,
        ):
            upstream.notice = notice.number
            self._learn(upstream, record, now)

    def answered(self, status: Status, sender: Sender, now: Now) -> None:
        """The holder took the watch, or did not."""
        upstream = self._by_id.get(status.id)
        if upstream is None or sender.address != upstream.holder:
            return
        if status.status == RECEIVED:
            upstream.unanswered = 0
            upstream.pause_ms = _FIRST_PAUSE_MS
        else:
            self._look_later(upstream, now)

    def lost(self, address: Address, now: Now) -> None:
        """A neighbour is gone: what it held is searched anew."""
        for upstream in list(self._upstreams.values()):
            if upstream.holder == address:
                self._give_up(upstream, address, now)
                self._look(upstream, now)

    def _give_up(self, upstream: _Upstream, holder: Address, now: Now) -> None:
        """Copies here that lead to a holder that is gone would be found again and again."""
        key = key_of(upstream.question)
        self._place.table.drop_replicas_of(key, holder, now.wall_ms)

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
        self._asking.begin(OWN_CONSUMER, question, _SEARCH_MS, identity, now, answered)

    def _found(self, upstream: _Upstream, found: Found, now: Now) -> None:
        self._learn(upstream, found.record, now)
        if found.holder == self._place.address:
            return
        upstream.holder, upstream.notice, upstream.unanswered = found.holder, 0, 0
        upstream.turn += 1
        self._renew(upstream, upstream.turn, now)

    def _renew(self, upstream: _Upstream, turn: int, now: Now) -> None:
        if self._by_id.get(upstream.id) is not upstream or upstream.turn != turn:
            return
        assert upstream.holder is not None
        if upstream.unanswered >= _UNANSWERED:
            self._give_up(upstream, upstream.holder, now)
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
        ends_ms = now.steady_ms + (record.valid_until - now.wall_ms)
        self._place.agenda.at(ends_ms, self._record_over, upstream, record)

    def _record_over(self, upstream: _Upstream, record: ContextRecord, now: Now) -> None:
        """It ended without a new one: its provider may have gone to another broker."""
        is_mine = self._by_id.get(upstream.id) is upstream
        if is_mine and upstream.record is record and not upstream.searching:
            upstream.record = None
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
