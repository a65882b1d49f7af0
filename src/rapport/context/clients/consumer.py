"""Consumers: request records from brokers, and subscribe to changes. [CX-3]

A subscription is held at the client's broker, renewed before its lease ends, and moved when the
client changes its broker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

import msgspec

from rapport.context.clients.broker_link import BrokerLink, ContextClient
from rapport.context.connections import ContextNotFound, refusal
from rapport.context.protocol import (
    NOT_FOUND,
    Answer,
    Message,
    Notice,
    NoticeAck,
    Question,
    Request,
    Unwatch,
    Watch,
    check_question,
    is_late,
)
from rapport.context.rights import is_genuine
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import Conflict, Corrupt, RapportError, Unavailable
from rapport.kernel.tasks import Tasks, first_of
from rapport.transport.base import Address

_AGAIN_MS = 500


class ContextSubscription:
    """Records as a broker notifies of them. Each is acknowledged; what comes twice is taken once;
    what waited past its validity is dropped.
    """

    def __init__(self, link: BrokerLink, question: Question, every_ms: int) -> None:
        self._link, self._question, self._every_ms = link, question, every_ms
        self._id = link.new_id()
        self._records: deque[ContextRecord] = deque()
        self._there = asyncio.Event()
        self._change = asyncio.Event()
        self._latest: dict[str, ContextRecord] = {}
        self._numbers: dict[Address, int] = {}
        self._failure: RapportError | None = None
        self._tasks = Tasks(link.clock)
        self.skipped = 0
        """Records that a slow reader missed: newer ones pushed them out."""

    def start(self) -> None:
        self._link.on_notice[self._id] = self._take
        self._link.on_change.append(self._moved)
        self._tasks.start("context subscription", self._keep)

    async def next(self) -> ContextRecord:
        """The next record that is still valid; raises what ended the subscription."""
        while True:
            while self._records:
                record = self._records.popleft()
                if record.valid_until > self._link.clock.now_ms():
                    return record
            if self._failure is not None:
                raise self._failure
            self._there.clear()
            await self._there.wait()

    async def close(self) -> None:
        """Ends it, here and at the broker; a second call is no error."""
        if self._link.on_notice.pop(self._id, None) is None:
            return
        self._link.on_change.remove(self._moved)
        if self._link.broker is not None:
            self._link.post(Unwatch(self._id), self._link.broker)
        self._end(Conflict("the subscription is closed", code="context.closed"))
        await self._tasks.stop()

    async def _keep(self) -> None:
        """Subscribes and renews until it is refused."""
        lease_ms = self._link.settings.lease_ms

        def make(id: int, _left_ms: int) -> Message:
            return Watch(id, self._question, lease_ms, self._every_ms)

        what = f"{self._question.entity} {self._question.scope}"
        while True:
            self._change.clear()
            pause_ms = lease_ms / 3
            try:
                await self._link.call(
                    make, within_ms=lease_ms // 3, what=what, id=self._id, received_ends=True
                )
            except (Unavailable, ContextNotFound):
                pause_ms = _AGAIN_MS  # the network may have it later
            except RapportError as error:
                self._end(error)
                return
            await first_of(self._link.clock.sleep(pause_ms), self._change.wait())

    def _moved(self, _broker: Address, before: Address | None) -> None:
        self._change.set()
        if before is not None:
            self._link.post(Unwatch(self._id), before)

    def _take(self, notice: Notice, sender: Address) -> None:
        self._link.post(NoticeAck(self._id, notice.number), sender)
        if not is_genuine(notice.record) or self._is_known(notice, sender):
            return
        if len(self._records) >= self._link.settings.waiting_notices:
            self._records.popleft()
            self.skipped += 1
        self._records.append(notice.record)
        self._there.set()

    def _is_known(self, notice: Notice, sender: Address) -> bool:
        """Whether a notice is repeated, or came from another broker before."""
        record, last = notice.record, self._numbers.get(sender)
        comes_late = last is not None and is_late(notice.number, last)
        if not comes_late:
            self._numbers[sender] = notice.number
        if self._every_ms:
            return comes_late
        latest = self._latest.get(record.provider)
        if latest is not None:
            is_older = record.rank() < latest.rank()
            # What began earlier counts once what began later is over, if it was provided after it.
            still_counts = latest.valid_until > self._link.clock.now_ms()
            if record == latest or (is_older and (still_counts or comes_late)):
                return True
        self._latest[record.provider] = record
        return False

    def _end(self, failure: RapportError) -> None:
        self._failure = self._failure or failure
        self._there.set()


_MARGIN_MS, _MARGIN_SHARE = 100, 10
_TIMES = 2
"""Requests for a record that ends on its way here: there may be a newer one meanwhile."""


class LocatedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: the record, how many hops away it was found, the broker that its provider gives it
    to (clients do not learn it), when it was asked for (ms UTC) and how long that took.
    """

    record: ContextRecord
    hops: int
    holder: Address | None
    asked_ms: int
    took_ms: float = 0.0
    broker: Address | None = None
    """The broker that answered."""


class ContextConsumer(ContextClient):
    """Requests records from its broker, which searches the network for those it lacks."""

    def __init__(self, link: BrokerLink) -> None:
        super().__init__(link)
        self._subscriptions: list[ContextSubscription] = []

    async def request(
        self, entity: EntityRef | str, scope: str, *, within_ms: int = 2_000, fresh: bool = False
    ) -> LocatedRecord:
        """What is true now; never a record before or past its validity. With `fresh` from the
        broker that the provider gives it to, never from a copy on the way.

        Raises ContextNotFound, NotAllowed, Unavailable (too busy, no broker answers), all within
        the deadline; InvalidInput for an invalid question.
        """
        question = _question(entity, scope)
        what = f"{question.entity} {scope}"
        # The broker is given a little less, so that its refusal arrives before we give up.
        margin_ms = min(_MARGIN_MS, within_ms // _MARGIN_SHARE)

        def make(id: int, left_ms: int) -> Message:
            return Request(id, question, max(left_ms - margin_ms, 1), fresh)

        clock = self._link.clock
        asked_ms, began_ns = clock.now_ms(), clock.steady_ns()
        for _ in range(_TIMES):
            took_ms = (clock.steady_ns() - began_ns) / 1e6
            left_ms = max(int(within_ms - took_ms), 1)
            answer = await self._link.call(make, within_ms=left_ms, what=what)
            if not isinstance(answer, Answer):
                raise Corrupt(f"the broker answered {what} without a record")
            if not is_genuine(answer.record):
                raise Corrupt(
                    f"{what} was answered with a record that {answer.record.provider} did not sign",
                    code="context.forged",
                )
            took_ms = (clock.steady_ns() - began_ns) / 1e6
            if answer.record.valid_until > clock.now_ms():
                return LocatedRecord(
                    record=answer.record,
                    hops=answer.hops,
                    holder=None,
                    asked_ms=asked_ms,
                    took_ms=took_ms,
                    broker=self._link.broker,
                )
        raise refusal(NOT_FOUND, "its validity ended on the way here", what)

    async def subscribe(
        self, entity: EntityRef | str, scope: str, *, every_ms: int = 0
    ) -> AsyncGenerator[ContextRecord, None]:
        """Each record as it becomes known: on change, or the present one every so often. Goes on
        over changes of broker; ends when the iterator is closed. Raises NotAllowed, InvalidInput.
        """
        subscription = ContextSubscription(self._link, _question(entity, scope), every_ms)
        self._subscriptions.append(subscription)
        subscription.start()
        try:
            while True:
                yield await subscription.next()
        finally:
            self._subscriptions.remove(subscription)
            await subscription.close()

    async def close(self) -> None:
        """Ends, and with it all subscriptions."""
        for subscription in list(self._subscriptions):
            await subscription.close()
        await super().close()


def _question(entity: EntityRef | str, scope: str) -> Question:
    """Checks a question; raises InvalidInput, because brokers do not answer an invalid one."""
    subject = EntityRef.parse(entity) if isinstance(entity, str) else entity
    question = Question(subject, scope)
    check_question(question)
    return question
