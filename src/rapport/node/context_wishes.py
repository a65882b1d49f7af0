"""What actions of policies set: wishes of the channel `context.wishes`, handed to the broker in
order. [PO-10, CX-3]

A wish gives the same record however often it is handed over, and the channel `context` holds that
once: after a crash nothing is set twice, and nothing is forgotten.
"""

from __future__ import annotations

from rapport.channel.channel import Channels
from rapport.channel.guarantees import NOTHING, Effect, serve_with
from rapport.context.broker_server import ContextBroker
from rapport.core.context_record import CONTEXT_UPDATES, ContextUpdate
from rapport.core.event import CAUSE, StoredEvent, cause_text
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

READER = "context-wishes"

_log = get_logger(__name__)


class Wishes:
    """The reader that fulfils wishes; what cannot be read is buried as a dead letter."""

    def __init__(
        self, broker: ContextBroker, channels: Channels, clock: Clock, *, provider: str
    ) -> None:
        """`provider`: who the records say they are from."""
        self._broker, self._channels, self._clock = broker, channels, clock
        self._provider = provider

    async def run(self) -> None:
        """Works until cancelled."""
        await serve_with(
            "at-least-once", self._channels, CONTEXT_UPDATES, READER, self._fulfil, self._clock
        )

    async def _fulfil(self, stored: StoredEvent, _state: bytes) -> Effect:
        event = stored.event
        wish = ContextUpdate.from_event(event)
        record = wish.record(self._provider, event.time)
        if record.valid_until <= self._clock.now_ms():
            # It waited too long for a broker: nobody could be told any more.
            _log.warning("wish came too late", entity=wish.entity, scope=wish.scope, id=event.id)
            return NOTHING
        cause = {CAUSE: cause_text(event.id)}
        await self._broker.put(record, headers=cause)
        return NOTHING
