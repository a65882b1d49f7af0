"""Hands deliveries to an adapter within a deadline; whatever the adapter does, there is an outcome
for each. [CO-4]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from rapport.communication.adapters.base import (
    BatchAdapter,
    Confirmed,
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    SendInterrupted,
    Sent,
)
from rapport.communication.adapters.contained import IsolatedCall, end_isolated
from rapport.communication.adapters.steps_watched import StepMonitor
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import end_firmly
from rapport.kernel.telemetry import get_logger

T = TypeVar("T")
LONGEST_REASON = 1_000
"""Of what an adapter says about a delivery this many characters are kept."""
SLOW_MS = 500
"""A call that takes longer is reported as slow."""
_log = get_logger(__name__)

_FAILURES_IN_A_ROW = 2


class SendTimeout(Failed, frozen=True, tag="failed"):
    """The adapter did not answer within the deadline."""


def ignore_slow() -> None:
    """Slow calls are nobody's concern."""


class AdapterCaller:
    """One adapter with its deadline. A fault of the adapter is a failure like any other."""

    def __init__(self, adapter: OutputAdapter, clock: Clock, *, deadline_ms: int) -> None:
        self._adapter, self._clock, self._deadline_ms = adapter, clock, deadline_ms
        self._failures = 0
        self.trouble = ""
        """Why the latest calls failed; empty while calls succeed."""
        self.steps = StepMonitor(f"output {adapter.name}", clock)
        self._batch = adapter if isinstance(adapter, BatchAdapter) else None

    @property
    def takes_many(self) -> bool:
        """Whether one call takes many deliveries."""
        return self._batch is not None

    @property
    def one_each(self) -> bool:
        """Whether one call may hold no more than one delivery of a peer."""
        return self._batch is None or not self._batch.keeps_order

    async def send(
        self, deliveries: Sequence[Delivery], on_slow: Callable[[], None] = ignore_slow
    ) -> list[Outcome]:
        """One outcome for each, in their order; takes no longer than the deadline. Raises
        BrokenOff. `on_slow` is called once when a call takes long.
        """
        if self._batch is not None:
            outcomes = await self._send_many(self._batch, deliveries, on_slow)
        else:
            outcomes = [await self._send_one(delivery, on_slow) for delivery in deliveries]
        if outcomes:
            self._note(outcomes[-1])
        return outcomes

    def _note(self, outcome: Outcome) -> None:
        """The medium is in trouble when calls in a row failed that are worth a retry; a refused
        address, or one that cannot be reached now, is the peer's trouble.
        """
        if isinstance(outcome, Failed) and outcome.retry and not outcome.unavailable:
            self._failures += 1
            self.trouble = outcome.reason if self._failures >= _FAILURES_IN_A_ROW else ""
        else:
            self._failures, self.trouble = 0, ""

    async def _send_one(self, delivery: Delivery, on_slow: Callable[[], None]) -> Outcome:
        answer = await self._within(lambda: self._adapter.send(delivery), on_slow)
        return checked_outcome(answer, self._adapter.name)

    async def _send_many(
        self, adapter: BatchAdapter, deliveries: Sequence[Delivery], on_slow: Callable[[], None]
    ) -> list[Outcome]:
        answer = await self._within(partial(adapter.send_many, deliveries), on_slow)
        if answer is None or isinstance(answer, Failed):
            return [checked_outcome(answer, self._adapter.name)] * len(deliveries)
        if not isinstance(answer, Sequence):
            return [_nonsense(answer, self._adapter.name)] * len(deliveries)
        outcomes = [
            # What most media say needs no second look.
            outcome
            if type(outcome) is Sent and outcome.reference == ""
            else checked_outcome(outcome, self._adapter.name)
            for outcome in answer
        ]
        if len(outcomes) == len(deliveries):
            return outcomes
        _log.error("adapter miscounted", adapter=self._adapter.name, outcomes=len(outcomes))
        fault = f"the adapter told {len(outcomes)} outcomes of {len(deliveries)}"
        return [Failed(fault, retry=True)] * len(deliveries)

    async def _within(
        self, work: Callable[[], Awaitable[T]], on_slow: Callable[[], None]
    ) -> T | Failed:
        """What the work gives; a failure when it raises or takes too long, then it is cancelled."""
        held = IsolatedCall(work, self.steps)
        sending = asyncio.ensure_future(held)
        try:
            # Much is done at once: what need not wait needs no deadline either.
            await self._clock.sleep(0)
            if sending.done() or await self._ends_in_time(sending, on_slow):
                if sending.cancelled():
                    return Failed("the adapter gave up", retry=True)
                return sending.result()
        except asyncio.CancelledError:
            await end_isolated(sending, held)
            raise
        except SendInterrupted:
            raise
        except Exception as error:
            _log.error("adapter failed", adapter=self._adapter.name, error=repr(error))
            return Failed(f"the adapter failed: {type(error).__name__}", retry=True)
        await end_isolated(sending, held)
        return SendTimeout(f"no answer within {format_duration(self._deadline_ms)}", retry=True)

    async def _ends_in_time(
        self, sending: asyncio.Future[Any], on_slow: Callable[[], None]
    ) -> bool:
        began_ns = self._clock.steady_ns()
        if await self._ends_within(sending, min(SLOW_MS, self._deadline_ms)):
            return True
        on_slow()
        passed_ms = (self._clock.steady_ns() - began_ns) // 1_000_000
        left_ms = self._deadline_ms - passed_ms
        return left_ms > 0 and await self._ends_within(sending, left_ms)

    async def _ends_within(self, sending: asyncio.Future[Any], duration_ms: int) -> bool:
        deadline: asyncio.Future[Any] = asyncio.ensure_future(self._clock.sleep(duration_ms))
        try:
            await asyncio.wait({sending, deadline}, return_when=asyncio.FIRST_COMPLETED)
            return sending.done()
        finally:
            await end_firmly(deadline)


def checked_outcome(outcome: object, adapter: str) -> Outcome:
    """The outcome as it can be written down and read again; nothing is `Sent`, anything else a
    failure that names the adapter.
    """
    match outcome:
        case None:
            return Sent()
        case Sent(reference):
            return outcome if _is_text(reference) else Sent(_text(reference))
        case Confirmed(reference):
            return outcome if _is_text(reference) else Confirmed(_text(reference))
        case Failed(reason, retry, unavailable):
            fits = _is_text(reason) and isinstance(retry, bool) and isinstance(unavailable, bool)
            return outcome if fits else Failed(_text(reason), bool(retry), bool(unavailable))
    return _nonsense(outcome, adapter)


def _nonsense(answer: object, adapter: str) -> Failed:
    wanted = "Sent, Confirmed, Failed or None"
    reason = f"the adapter {adapter!r} returned {type(answer).__name__} instead of {wanted}"
    _log.error("adapter returned no outcome", adapter=adapter, returned=type(answer).__name__)
    return Failed(reason, retry=True)


def _is_text(said: object) -> bool:
    return isinstance(said, str) and len(said) <= LONGEST_REASON and said.isprintable()


def _text(said: object) -> str:
    """Text without what no log can hold; of what is not text only its kind, which has no secrets.

    >>> _text("a\\nb"), _text(None), _text(ValueError("secret"))
    ('a b', '', 'ValueError')
    """
    if not isinstance(said, str):
        return "" if said is None else type(said).__name__
    kept = said[:LONGEST_REASON]
    return "".join(letter if letter.isprintable() else " " for letter in kept)
