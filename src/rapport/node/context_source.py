"""The node's broker as a source of tables: each entity is asked for, what was told is on record.
[PO-2, CX-3, CX-8]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError, TimeoutError

from rapport.channel.channel import Channels
from rapport.context.broker_server import ContextBroker
from rapport.core.context_record import EntityRef
from rapport.core.errors import RapportError, SourceUnavailable, Unavailable
from rapport.kernel.clock import Clock
from rapport.node.context_answers import ContextAnswers
from rapport.tables.context import ContextQuestion
from rapport.tables.context_found import FOUND_CHANNEL, ContextFound, found_of, missing_of
from rapport.transport.addresses import format_address

_AT_ONCE = 64
"""Questions under way of one table: more would only wait in the broker."""
_LET_OTHERS_EVERY = 100
"""What the broker has itself it answers without a pause, some 30 us each: others get their turn."""
_MOST_WAIT_S = 600


class BrokerSource:
    """Asks the broker for the rows of tables; `ask` is called in threads, all else in the loop."""

    def __init__(
        self,
        broker: ContextBroker,
        answers: ContextAnswers,
        channels: Channels,
        clock: Clock,
        *,
        source: str,
    ) -> None:
        """`source`: who the events of `context.found` come from."""
        self._broker, self._answers, self._clock = broker, answers, clock
        self._channel, self._source = channels.channel(FOUND_CHANNEL), source
        self._loop = asyncio.get_running_loop()

    def ask(self, question: ContextQuestion) -> list[list[str]]:
        """A row for each entity of which a valid record is known, now that all were asked for.

        Raises SourceUnavailable when the broker could not do it for any of them. Blocks.
        """
        asking = asyncio.run_coroutine_threadsafe(self.ask_all(question), self._loop)
        try:
            return asking.result(timeout=_MOST_WAIT_S)
        except (CancelledError, TimeoutError):
            asking.cancel()
            raise SourceUnavailable("the context broker has stopped") from None

    async def ask_all(self, question: ContextQuestion) -> list[list[str]]:
        """The same for who is in the loop; what is news is on disk when it returns."""
        waiting = list(reversed(question.ids))
        told: list[ContextFound] = []
        failed: list[RapportError] = []

        async def work() -> None:
            while waiting:
                identity = waiting.pop()
                if not len(waiting) % _LET_OTHERS_EVERY:
                    await self._clock.sleep(0)
                try:
                    told.append(await self._ask_one(question, identity))
                except Unavailable as error:
                    failed.append(error)

        await asyncio.gather(*(work() for _ in range(min(_AT_ONCE, len(waiting)))))
        if failed and not told:
            raise SourceUnavailable(failed[0].message, hint=failed[0].hint)
        await self._record(self._answers.take(question, told))
        return self._answers.rows(question, self._clock.now_ms())

    async def _ask_one(self, question: ContextQuestion, identity: str) -> ContextFound:
        """What is known of one entity; raises Unavailable when the broker could not look."""
        entity = EntityRef(question.type, identity)
        table, scope = question.table, question.scope
        try:
            found = await self._broker.ask(entity, scope, within_ms=question.within_ms)
        except Unavailable:
            raise
        except RapportError as error:
            time = self._clock.now_ms()
            return missing_of(table, entity, scope, time=time, why=error.message)
        return found_of(
            table,
            found.record,
            time=self._clock.now_ms(),
            hops=found.hops,
            holder=format_address(found.holder) if found.holder is not None else "",
        )

    async def _record(self, news: Sequence[ContextFound]) -> None:
        if news:
            await self._channel.append([one.to_event(source=self._source) for one in news])
