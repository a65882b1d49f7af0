"""Components and context: what they know becomes records, records become fields. [EN-14, CX-3]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rapport.context.broker_server import ContextBroker
from rapport.context.connections import ContextNotFound
from rapport.core.context_record import ContextRecord
from rapport.core.errors import RapportError
from rapport.core.event import CAUSE, cause_text
from rapport.core.knowledge import Knowledge
from rapport.kernel.clock import Clock
from rapport.node.ensemble_feeds import Assign, NoteFault
from rapport.node.ensemble_inbox import Inbox
from rapport.site.ensemble_ties import NOT_THERE, ContextRead, ContextTold, at

FindBroker = Callable[[], ContextBroker]
_MOST = 1_000
"""Versions that wait; of more only the newest of each component is told."""


class ContextTelling:
    """Tells the broker what components say. A version that cannot be told is a fault and passed
    over: the next one says it again.
    """

    def __init__(
        self, ties: Sequence[ContextTold], broker: FindBroker, clock: Clock, note: NoteFault
    ) -> None:
        self.inbox = Inbox(_MOST)
        self.told = 0
        self._ties, self._broker, self._clock, self._note = ties, broker, clock, note

    def put(self, knowledge: Knowledge) -> None:
        """Hears of a version."""
        if any(tie.of.fits(knowledge) for tie in self._ties):
            self.inbox.put(knowledge)

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self.inbox.wait()
            newest = {one.component: one for one in self.inbox.take_all()}
            for knowledge in newest.values():
                for tie in self._ties:
                    if tie.of.fits(knowledge):
                        await self._tell(tie, knowledge)

    async def _tell(self, tie: ContextTold, knowledge: Knowledge) -> None:
        try:
            record = record_of(tie, knowledge)
            if record is None or record.valid_until <= self._clock.now_ms():
                return
            cause = {CAUSE: cause_text(knowledge.to_event(source="").id)}
            await self._broker().put(record, headers=cause)
            self.told += 1
        except RapportError as error:
            self._note(knowledge.component, error)


def record_of(tie: ContextTold, knowledge: Knowledge) -> ContextRecord | None:
    """What the knowledge says of the entity; None when it has none of the values. Pure; raises
    InvalidInput when it does not say which entity.
    """
    found = {name: at(knowledge.values, path) for name, path in tie.values.items()}
    values = {
        name: value for name, value in found.items() if value is not NOT_THERE and value is not None
    }
    if not values:
        return None
    return ContextRecord(
        provider=knowledge.component,
        entity=tie.entity_of(knowledge),
        scope=tie.scope,
        valid_from=knowledge.created_ms,
        valid_until=knowledge.created_ms + tie.valid_ms,
        values=values,
    )


class ContextReading:
    """Asks the broker again and again, and sets a field when the answer is another one."""

    def __init__(
        self, tie: ContextRead, broker: FindBroker, clock: Clock, assign: Assign, note: NoteFault
    ) -> None:
        self._tie, self._broker, self._clock = tie, broker, clock
        self._assign, self._note = assign, note
        self._last: Any = NOT_THERE

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self.step()
            await self._clock.sleep(self._tie.every_ms)

    async def step(self) -> None:
        """Asks once."""
        tie = self._tie
        try:
            value = await self._ask()
            if value != self._last:
                self._assign(tie.component, {tie.field: value})
                self._last = value
        except RapportError as error:
            self._note(tie.component, error)

    async def _ask(self) -> Any:
        """What is true now; None when nobody knows."""
        tie = self._tie
        try:
            found = await self._broker().ask(tie.entity, tie.scope, within_ms=tie.within_ms)
        except ContextNotFound:
            return None
        value = at(found.record.values, tie.value)
        return None if value is NOT_THERE else value
