"""Requests of consumers: from the table at once, else by a search; answered once, and again when
asked again. [CX-3, CX-5, CX-9]
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from rapport.context.broker.asking import Asking, Ended
from rapport.context.broker.effects import Audited
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import (
    NOT_ALLOWED,
    PROCESSED,
    TOO_BUSY,
    Answer,
    Found,
    Question,
    Request,
    Status,
)
from rapport.transport.base import Address, Now, Sender

RequestKey = tuple[Address, int, Question]
"""A client that was started anew may count its requests from the beginning; the question tells a
repetition from another request.
"""

_REMEMBERED_MS = 10_000.0


class Requests:
    """What consumers asked. What the table answers costs a look-up and leaves nothing behind."""

    __slots__ = ("_asking", "_finished", "_per_sender", "_place", "_under_way")

    def __init__(self, place: Workplace, asking: Asking) -> None:
        self._place, self._asking = place, asking
        self._under_way: dict[RequestKey, float] = {}
        """Since when, in steady time."""
        self._per_sender: defaultdict[Address, int] = defaultdict(int)
        self._finished: OrderedDict[RequestKey, tuple[Answer | Status, float]] = OrderedDict()

    def request(self, request: Request, sender: Sender, now: Now) -> None:
        """A consumer asks."""
        place = self._place
        question = request.question
        entity = question.entity
        if not place.allows(sender.identity, "read", entity, question.scope):
            place.counts["not_allowed"] += 1
            self._tell(Status(request.id, NOT_ALLOWED, "no right to read this"), question, sender)
            return
        look = place.table.answer_own if request.fresh else place.table.answer
        held = look((entity.type, entity.id, question.scope), now.wall_ms)
        if held is not None:
            place.outbox.append((Answer(request.id, held.record), sender.address))
            place.counts["answered_here"] += 1
            if place.settings.audits:
                self._audit(PROCESSED, question, sender)
            return
        self._search(request, sender, now)

    def _search(self, request: Request, sender: Sender, now: Now) -> None:
        key = (sender.address, request.id, request.question)
        if key in self._under_way:
            return  # repeated because the answer takes its time
        before = self._told_before(key, now)
        if before is not None:
            self._place.send(before, sender.address)
            return
        if self._per_sender[sender.address] >= self._place.settings.limits.searches_per_sender:
            busy = Status(request.id, TOO_BUSY, "you have too many searches under way")
            self._tell(busy, request.question, sender)
            return
        self._under_way[key] = now.steady_ms
        self._per_sender[sender.address] += 1

        def answered(ended: Ended, now: Now) -> None:
            self._ended(key, ended, sender, now)

        self._asking.begin(
            sender.address,
            request.question,
            request.within_ms,
            sender.identity,
            now,
            answered,
            fresh=request.fresh,
        )

    def _ended(self, key: RequestKey, ended: Ended, sender: Sender, now: Now) -> None:
        took_ms = now.steady_ms - self._under_way.pop(key, now.steady_ms)
        self._per_sender[sender.address] -= 1
        if not self._per_sender[sender.address]:
            del self._per_sender[sender.address]
        if isinstance(ended, Found):
            answer: Answer | Status = Answer(key[1], ended.record, ended.hops)
            self._place.counts["answered_from_elsewhere"] += 1
        else:
            answer = Status(key[1], ended.status, ended.why)
            self._place.counts["refused"] += 1
        self._remember(key, answer, now)
        self._tell(answer, key[2], sender, took_ms)

    def _tell(
        self, answer: Answer | Status, question: Question, sender: Sender, took_ms: float = 0.0
    ) -> None:
        self._place.send(answer, sender.address)
        if self._place.settings.audits:
            if isinstance(answer, Status):
                self._audit(answer.status, question, sender, took_ms)
            else:
                self._audit(PROCESSED, question, sender, took_ms, answer.hops)

    def _remember(self, key: RequestKey, answer: Answer | Status, now: Now) -> None:
        """Because the answer may be lost, and the same request come once more."""
        if isinstance(answer, Status) and answer.status == TOO_BUSY:
            return
        finished, most = self._finished, self._place.settings.limits.remembered
        finished[key] = (answer, now.steady_ms + _REMEMBERED_MS)
        finished.move_to_end(key)
        while len(finished) > most or next(iter(finished.values()))[1] <= now.steady_ms:
            finished.popitem(last=False)

    def _told_before(self, key: RequestKey, now: Now) -> Answer | Status | None:
        """What this very request was told, while it may be told again."""
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
        self._place.effects.append(
            Audited(
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
