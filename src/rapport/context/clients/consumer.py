"""A consumer: asks for what is true now, or is told whenever it changes. [CX-3]"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from rapport.context.clients.link import BrokerLink
from rapport.context.clients.subscription import ContextSubscription
from rapport.context.codec import check_question
from rapport.context.faults import refusal
from rapport.context.messages import NOT_FOUND, Answer, Message, Question, Request
from rapport.context.settings import ClientSettings
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import Corrupt
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import EndpointWrapper, direct_link

_MARGIN_MS, _MARGIN_SHARE = 100, 10
_TIMES = 2
"""So often is asked for what ends on its way here: there may be a newer one meanwhile."""


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: the record, how many hops away it was found, the broker that its provider gives it
    to (clients are not told), when it was asked for (ms UTC) and how long that took.
    """

    record: ContextRecord
    hops: int
    holder: Address | None
    asked_ms: int
    took_ms: float = 0.0
    broker: Address | None = None
    """The broker that was asked."""


class ContextConsumer:
    """Asks the broker of its choice; what that one does not have it looks for in the network."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self._subscriptions: list[ContextSubscription] = []

    @staticmethod
    async def open(
        brokers: Sequence[Address],
        *,
        keys: DatagramKeys | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        settings: ClientSettings | None = None,
        link: EndpointWrapper = direct_link,
    ) -> ContextConsumer:
        """A consumer that uses one of these brokers."""
        tie = await BrokerLink.open(
            brokers, keys=keys, clock=clock, chance=chance, settings=settings, link=link
        )
        return ContextConsumer(tie)

    @property
    def broker(self) -> Address | None:
        """The broker of its choice."""
        return self._link.broker

    async def request(
        self, entity: EntityRef | str, scope: str, *, within_ms: int = 2_000, fresh: bool = False
    ) -> Located:
        """What is true now; never a record before or past its validity. With `fresh` from the
        broker that the provider gives it to, never from a copy on the way.

        Raises ContextNotFound, NotAllowed, Unavailable (too busy, nobody answers), all within the
        deadline; InvalidInput for what is no question.
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
            took_ms = (clock.steady_ns() - began_ns) / 1e6
            if answer.record.valid_until > clock.now_ms():
                return Located(
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
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _question(entity: EntityRef | str, scope: str) -> Question:
    """What brokers understand; they are silent about anything else. Raises InvalidInput."""
    subject = EntityRef.parse(entity) if isinstance(entity, str) else entity
    question = Question(subject, scope)
    check_question(question)
    return question
