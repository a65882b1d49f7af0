"""Hands deliveries to an adapter within a deadline; whatever the adapter does, there is an outcome
for each. [CO-4]
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rapport.communication.adapters.base import (
    BatchAdapter,
    Confirmed,
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    Sent,
)
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import end_firmly
from rapport.kernel.telemetry import get_logger

T = TypeVar("T")
_log = get_logger(__name__)


class Sending:
    """One adapter with its deadline. A fault of the adapter is a failure like any other."""

    def __init__(self, adapter: OutputAdapter, clock: Clock, *, deadline_ms: int) -> None:
        self._adapter, self._clock, self._deadline_ms = adapter, clock, deadline_ms
        self._batch = adapter if isinstance(adapter, BatchAdapter) else None

    @property
    def takes_many(self) -> bool:
        """Whether one call takes many deliveries."""
        return self._batch is not None

    @property
    def one_each(self) -> bool:
        """Whether one call may hold no more than one delivery of a peer."""
        return self._batch is None or not self._batch.keeps_order

    async def send(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """One outcome for each, in their order; takes no longer than the deadline."""
        if self._batch is not None:
            return await self._send_many(self._batch, deliveries)
        return [await self._send_one(delivery) for delivery in deliveries]

    async def _send_one(self, delivery: Delivery) -> Outcome:
        outcome = await self._within(self._adapter.send(delivery))
        return outcome if isinstance(outcome, Failed) else _checked(outcome)

    async def _send_many(
        self, adapter: BatchAdapter, deliveries: Sequence[Delivery]
    ) -> list[Outcome]:
        answer = await self._within(adapter.send_many(deliveries))
        if isinstance(answer, Failed):
            return [answer] * len(deliveries)
        outcomes = [_checked(outcome) for outcome in answer]
        if len(outcomes) == len(deliveries):
            return outcomes
        _log.error("adapter miscounted", adapter=self._adapter.name, outcomes=len(outcomes))
        fault = f"the adapter told {len(outcomes)} outcomes of {len(deliveries)}"
        return [Failed(fault, retry=True)] * len(deliveries)

    async def _within(self, work: Coroutine[Any, Any, T]) -> T | Failed:
        """What the work gives; a failure when it raises or takes too long, then it is cancelled."""
        sending = asyncio.ensure_future(work)
        try:
            # Much is done at once: what need not wait needs no deadline either.
            await self._clock.sleep(0)
            if sending.done() or await self._ends_in_time(sending):
                if sending.cancelled():
                    return Failed("the adapter gave up", retry=True)
                return sending.result()
        except asyncio.CancelledError:
            await end_firmly(sending)
            raise
        except Exception as error:
            _log.error("adapter failed", adapter=self._adapter.name, error=repr(error))
            return Failed(f"the adapter failed: {type(error).__name__}", retry=True)
        await end_firmly(sending)
        return Failed(f"no answer within {format_duration(self._deadline_ms)}", retry=True)

    async def _ends_in_time(self, sending: asyncio.Future[Any]) -> bool:
        deadline: asyncio.Future[Any] = asyncio.ensure_future(self._clock.sleep(self._deadline_ms))
        try:
            await asyncio.wait({sending, deadline}, return_when=asyncio.FIRST_COMPLETED)
            return sending.done()
        finally:
            await end_firmly(deadline)


def _checked(outcome: Outcome) -> Outcome:
    if isinstance(outcome, (Sent, Confirmed, Failed)):
        return outcome
    return Failed(f"the adapter answered {type(outcome).__name__}, no outcome", retry=True)
