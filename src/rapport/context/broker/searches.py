"""Searches that begin at this broker, and the requests of its consumers. [CX-3, CX-5, CX-9]

A request is answered from the table at once, otherwise by a search. A search runs in rounds until a
record is found or its deadline passes. Repeated requests get the same answer again.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable

from rapport.context.broker.broker_state import AuditEffect, BrokerState
from rapport.context.broker.search_strategies import WALK, make_strategy
from rapport.context.broker.walks import WalkForwarder
from rapport.context.protocol import (
    NOT_ALLOWED,
    NOT_FOUND,
    PROCESSED,
    TOO_BUSY,
    Answer,
    Ask,
    FoundRecord,
    Question,
    Request,
    SearchRefusal,
    Status,
)
from rapport.kernel.clock import Now
from rapport.overlay.liveness import UNKNOWN_MS
from rapport.transport.base import Address, Sender

SearchResult = FoundRecord | SearchRefusal
SearchCallback = Callable[[SearchResult, Now], None]

OWN_CONSUMER: Address = ("own", 0)
"""The first on the path of a search that the broker makes for itself."""

_PAUSES = 32
_MARGIN_MS = 200.0
_MOST_ROUNDS = 40
NO_NEIGHBOURS = "this broker has no neighbours to ask"
DEADLINE = "nothing was found before the deadline"
EXHAUSTED = "nothing was found"
NOT_BEGUN = "what was found is not valid yet by this broker's clock"


class Search:
    """A pending search."""

    __slots__ = (
        "answered",
        "away",
        "consumer",
        "deadline_ms",
        "doubtful",
        "fresh",
        "id",
        "identity",
        "question",
        "round",
        "walkers",
        "within_ms",
        "without",
    )

    def __init__(
        self, id: int, consumer: Address, question: Question, within_ms: int, identity: str
    ) -> None:
        self.id, self.consumer, self.question = id, consumer, question
        self.within_ms, self.identity = within_ms, identity
        self.deadline_ms = 0.0
        self.round = 0
        self.walkers = 0
        """How many set out; each has its number."""
        self.away: set[int] = set()
        """Walkers that did not come home yet."""
        self.doubtful = False
        self.without: tuple[Address, ...] = ()
        self.fresh = False
        self.answered: SearchCallback


class Searches:
    """The searches of this broker's clients and its own.

    Each ends exactly once, by FoundRecord or SearchRefusal, a tenth of its time (at most 0.2 s)
    before its deadline at the latest. Later answers are ignored.
    """

    __slots__ = ("_searches", "_state", "_strategy", "_walks")

    def __init__(self, state: BrokerState, walks: WalkForwarder) -> None:
        self._state, self._walks = state, walks
        self._searches: dict[int, Search] = {}
        self._strategy = make_strategy(state.settings.search)

    def __len__(self) -> int:
        """The number of pending searches."""
        return len(self._searches)

    def begin(
        self,
        consumer: Address,
        question: Question,
        within_ms: int,
        identity: str,
        now: Now,
        answered: SearchCallback,
        without: tuple[Address, ...] = (),
        *,
        fresh: bool = False,
    ) -> None:
        """Looks in the network for what is not here; `answered` is called once, perhaps at once.
        Copies of what `without` held are no answer, and no copy at all if it is to be `fresh`.
        """
        state = self._state
        limits = state.settings.limits
        within_ms = min(max(within_ms, 1), limits.within_ms)
        id = state.chance.getrandbits(63)
        search = Search(id, consumer, question, within_ms, identity)
        search.answered, search.without, search.fresh = answered, without, fresh
        if len(self._searches) >= limits.searches:
            answered(_refusal(search, TOO_BUSY, "this broker has too many pending searches"), now)
            return
        # A refusal must reach the consumer in time, also when it has to ask for it once more.
        search.deadline_ms = now.steady_ms + within_ms - min(within_ms / 10, _MARGIN_MS)
        self._searches[id] = search
        state.counts["searches"] += 1
        state.agenda.at(search.deadline_ms, self._time_is_up, id)
        self._launch(search, now)

    def found(self, found: FoundRecord, now: Now) -> None:
        """A walker or flood brought the record home."""
        search = self._searches.get(found.search)
        if search is None:
            self._state.counts["late_answers"] += 1
            return
        record, question = found.record, search.question
        if record.entity != question.entity or record.scope != question.scope:
            self._state.counts["malformed"] += 1
            return
        if record.valid_from > now.wall_ms:
            self._await_beginning(search, found, now)
        elif record.valid_until > now.wall_ms:
            del self._searches[search.id]
            search.answered(found, now)

    def _await_beginning(self, search: Search, found: FoundRecord, now: Now) -> None:
        """Waits for a record that begins soon by the local clock, which is behind the holder's."""
        begins_ms = now.steady_ms + (found.record.valid_from - now.wall_ms)
        if begins_ms >= search.deadline_ms:
            self._end(search, NOT_FOUND, NOT_BEGUN, now)
            return
        search.round += 1  # and none sets out: what was planned for the one before does nothing
        self._state.agenda.at(begins_ms, self.found, found)

    def refused(self, refused: SearchRefusal, now: Now) -> None:
        """A walker came home with nothing. When all did, the search has failed, unless some broker
        did not answer them: then it begins again after a pause.
        """
        search = self._searches.get(refused.search)
        if search is None or refused.walker not in search.away:
            return
        search.away.discard(refused.walker)
        search.doubtful |= refused.doubtful
        if search.away:
            return
        if not search.doubtful:
            self._end(search, refused.status, refused.why or EXHAUSTED, now)
            return
        pause_ms = search.within_ms / _PAUSES
        self._state.agenda.at(now.steady_ms + pause_ms, self._next, search.id, search.round)

    def _launch(self, search: Search, now: Now) -> None:
        state = self._state
        launches = self._strategy.launches(search.round)
        if not state.membership.neighbours or not launches or search.round >= _MOST_ROUNDS:
            why = EXHAUSTED if state.membership.neighbours else NO_NEIGHBOURS
            self._end(search, NOT_FOUND, why, now)
            return
        search.doubtful = False
        left_ms = int(search.deadline_ms - now.steady_ms)
        wait_ms = self._strategy.patience_ms(search.round, search.within_ms, self._hop_ms())
        state.agenda.at(now.steady_ms + wait_ms, self._next, search.id, search.round)
        first = search.walkers
        search.walkers += len(launches)
        # Walkers of earlier rounds may still bring it home; their refusals count no more.
        search.away = {number for number, one in enumerate(launches, first) if one.travels == WALK}
        for number, launch in enumerate(launches, first):
            ask = Ask(
                search.id,
                number,
                0,
                search.question,
                (search.consumer,),
                left_ms,
                launch.hops,
                launch.travels,
                search.identity,
                without=search.without,
                fresh=search.fresh,
            )
            self._walks.take(ask, None, now)

    def _next(self, id: int, round_number: int, now: Now) -> None:
        """A round is over, unless the search is or has begun another."""
        search = self._searches.get(id)
        if search is not None and search.round == round_number:
            self._state.counts["rounds_again"] += 1
            search.round += 1
            self._launch(search, now)

    def _time_is_up(self, id: int, now: Now) -> None:
        search = self._searches.get(id)
        if search is not None:
            self._end(search, NOT_FOUND, DEADLINE, now)

    def _end(self, search: Search, status: int, why: str, now: Now) -> None:
        if self._searches.pop(search.id, None) is not None:
            search.answered(_refusal(search, status, why), now)

    def _hop_ms(self) -> float:
        membership = self._state.membership
        return max(map(membership.timeout_ms, membership.neighbours), default=UNKNOWN_MS)


def _refusal(search: Search, status: int, why: str) -> SearchRefusal:
    return SearchRefusal(search.id, 0, 0, (search.consumer,), status, why)


RequestKey = tuple[Address, int, Question]
"""A client that was started anew may count its requests from the beginning; the question
distinguishes a repetition from another request.
"""

_REMEMBERED_MS = 10_000.0


class ConsumerRequests:
    """Requests of consumers. One answered from the table costs a look-up and leaves no state."""

    __slots__ = ("_finished", "_pending", "_per_sender", "_searches", "_state")

    def __init__(self, state: BrokerState, searches: Searches) -> None:
        self._state, self._searches = state, searches
        self._pending: dict[RequestKey, float] = {}
        """Since when, in steady time."""
        self._per_sender: defaultdict[Address, int] = defaultdict(int)
        self._finished: OrderedDict[RequestKey, tuple[Answer | Status, float]] = OrderedDict()

    def request(self, request: Request, sender: Sender, now: Now) -> None:
        """Answers a request of a consumer, or starts a search."""
        state = self._state
        question = request.question
        entity = question.entity
        if not state.allows(sender.identity, "read", entity, question.scope):
            state.counts["not_allowed"] += 1
            self._answer(Status(request.id, NOT_ALLOWED, "no right to read this"), question, sender)
            return
        look = state.table.answer_own if request.fresh else state.table.answer
        held = look((entity.type, entity.id, question.scope), now.wall_ms)
        if held is not None:
            state.outbox.append((Answer(request.id, held.record), sender.address))
            state.counts["answered_here"] += 1
            if state.settings.audits:
                self._audit(PROCESSED, question, sender)
            return
        self._search(request, sender, now)

    def _search(self, request: Request, sender: Sender, now: Now) -> None:
        key = (sender.address, request.id, request.question)
        if key in self._pending:
            return  # repeated because the answer takes its time
        before = self._remembered_answer(key, now)
        if before is not None:
            self._state.send(before, sender.address)
            return
        if self._per_sender[sender.address] >= self._state.settings.limits.searches_per_sender:
            busy = Status(request.id, TOO_BUSY, "you have too many pending searches")
            self._answer(busy, request.question, sender)
            return
        self._pending[key] = now.steady_ms
        self._per_sender[sender.address] += 1

        def answered(ended: SearchResult, now: Now) -> None:
            self._ended(key, ended, sender, now)

        self._searches.begin(
            sender.address,
            request.question,
            request.within_ms,
            sender.identity,
            now,
            answered,
            fresh=request.fresh,
        )

    def _ended(self, key: RequestKey, ended: SearchResult, sender: Sender, now: Now) -> None:
        took_ms = now.steady_ms - self._pending.pop(key, now.steady_ms)
        self._per_sender[sender.address] -= 1
        if not self._per_sender[sender.address]:
            del self._per_sender[sender.address]
        if isinstance(ended, FoundRecord):
            answer: Answer | Status = Answer(key[1], ended.record, ended.hops)
            self._state.counts["answered_from_elsewhere"] += 1
        else:
            answer = Status(key[1], ended.status, ended.why)
            self._state.counts["refused"] += 1
        self._remember(key, answer, now)
        self._answer(answer, key[2], sender, took_ms)

    def _answer(
        self, answer: Answer | Status, question: Question, sender: Sender, took_ms: float = 0.0
    ) -> None:
        self._state.send(answer, sender.address)
        if self._state.settings.audits:
            if isinstance(answer, Status):
                self._audit(answer.status, question, sender, took_ms)
            else:
                self._audit(PROCESSED, question, sender, took_ms, answer.hops)

    def _remember(self, key: RequestKey, answer: Answer | Status, now: Now) -> None:
        """Keeps an answer, because it may get lost and the request be repeated."""
        if isinstance(answer, Status) and answer.status == TOO_BUSY:
            return
        finished, most = self._finished, self._state.settings.limits.remembered
        finished[key] = (answer, now.steady_ms + _REMEMBERED_MS)
        finished.move_to_end(key)
        while len(finished) > most or next(iter(finished.values()))[1] <= now.steady_ms:
            finished.popitem(last=False)

    def _remembered_answer(self, key: RequestKey, now: Now) -> Answer | Status | None:
        """The answer that this request got before, while it may be repeated."""
        before = self._finished.get(key)
        if before is None:
            return None
        answer, until_ms = before
        is_true = isinstance(answer, Status) or answer.record.is_valid_at(now.wall_ms)
        if is_true and now.steady_ms < until_ms:
            return answer
        del self._finished[key]
        return None

    def _audit(
        self,
        status: int,
        question: Question,
        sender: Sender,
        took_ms: float = 0.0,
        hops: int = 0,
    ) -> None:
        self._state.effects.append(
            AuditEffect(
                "request",
                sender.identity,
                sender.address,
                status,
                question.entity,
                question.scope,
                took_ms,
                hops,
            )
        )
