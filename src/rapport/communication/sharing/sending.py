"""Adapters under a lease: a call begins only while the share is certainly ours, and ends when that
is over. [CO-17]

So two processes do not send to one peer at the same time. A process that was frozen in the middle
of a call may still finish it when it wakes: then the idempotency key tells the medium, which is the
same for both. A call that ends so has no outcome: a failure would be tried again later, behind what
was sent after it. Whoever has the share then makes it again, in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rapport.communication.adapters.base import (
    BatchAdapter,
    Delivery,
    Outcome,
    OutputAdapter,
    SendInterrupted,
    is_repeatable,
)
from rapport.communication.adapters.isolation import IsolatedCall, end_isolated
from rapport.communication.sharing.leases import HeldShare
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import cancel_until_done

T = TypeVar("T")
_LOOK_MS = 50
_FLUSH_MS = 200
_NS_PER_MS = 1_000_000


class Sends:
    """The calls of all adapters for one share."""

    def __init__(self, held: HeldShare, clock: Clock, *, least_ms: int) -> None:
        """`least_ms`: a call begins only when the share is ours for so long."""
        self._held, self._clock, self._least_ms = held, clock, least_ms
        self._closed = False
        self._under_way = 0
        self._ended_ns = -_FLUSH_MS * _NS_PER_MS

    async def gate(self) -> None:
        """Returns when a call may begin; how long that takes nobody knows."""
        while not self._may_begin():
            await self._clock.sleep(_LOOK_MS)

    def _may_begin(self) -> bool:
        return not self._closed and self._held.valid_for_ms() >= self._least_ms

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives; waits before it begins, raises BrokenOff when the share is not
        certainly ours any more.
        """
        try:
            while not self._may_begin():
                if not self._held.valid_for_ms():
                    raise SendInterrupted
                await self._clock.sleep(_LOOK_MS)
        except BaseException:
            work.close()
            raise
        self._under_way += 1
        held = IsolatedCall(lambda: work)
        sending = asyncio.ensure_future(held)
        watching = asyncio.ensure_future(self._until_lost())
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise SendInterrupted
            return sending.result()
        finally:
            self._under_way -= 1
            self._ended_ns = self._clock.steady_ns()
            await cancel_until_done(watching)
            await end_isolated(sending, held)

    async def _until_lost(self) -> None:
        while left_ms := self._held.valid_for_ms():
            await self._clock.sleep(left_ms)

    async def quiet(self, longest_ms: int) -> None:
        """Lets nothing more begin and returns when nothing is under way, or after a while; what
        ended just now has been told then.
        """
        self._closed = True
        waited_ms = 0
        while self._under_way and waited_ms < longest_ms:
            await self._clock.sleep(_LOOK_MS)
            waited_ms += _LOOK_MS
        if self._clock.steady_ns() - self._ended_ns < _FLUSH_MS * _NS_PER_MS:
            await self._clock.sleep(_FLUSH_MS)


class LeasedAdapter:
    """An output adapter for one share."""

    def __init__(self, adapter: OutputAdapter, sends: Sends) -> None:
        self._adapter, self._sends = adapter, sends
        self.name = adapter.name
        self.repeatable = is_repeatable(adapter)

    async def send(self, delivery: Delivery) -> Outcome | None:
        """See OutputAdapter."""
        return await self._sends.run(self._adapter.send(delivery))

    async def close(self) -> None:
        """Nothing: the adapter belongs to all shares."""


class LeasedBatchAdapter(LeasedAdapter):
    """The same for one that takes many at once."""

    def __init__(self, adapter: OutputAdapter, sends: Sends, batch: BatchAdapter) -> None:
        super().__init__(adapter, sends)
        self._batch, self.keeps_order = batch, batch.keeps_order

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome | None] | None:
        """See BatchAdapter."""
        return await self._sends.run(_all(self._batch, deliveries))


async def _all(
    adapter: BatchAdapter, deliveries: Sequence[Delivery]
) -> Sequence[Outcome | None] | None:
    return await adapter.send_many(deliveries)


def leased(adapter: OutputAdapter, sends: Sends) -> OutputAdapter:
    """The adapter as one share uses it."""
    if isinstance(adapter, BatchAdapter):
        return LeasedBatchAdapter(adapter, sends, adapter)
    return LeasedAdapter(adapter, sends)
