"""Runs code of adapters so that it cannot end the process, refuse to end or block unnoticed.
[CO-4, CO-5]

`SystemExit` and the like would leave the event loop and stop the node: they become errors. Work
that swallows its cancellation is cancelled again, and in the end not resumed. A step that computes
for long, or waits without `await`, stops everything else; it cannot be interrupted, so it is timed
and reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Sequence,
)
from functools import partial
from typing import Any, Generic, TypeVar

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
from rapport.communication.texts import clean
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import cancel_until_done, ends_within
from rapport.kernel.telemetry import get_logger

PATIENCE_SECONDS = 5.0
"""How long work may clean up after its cancellation."""
SLOW_STEP_MS = 500
"""A longer step is reported; some steps of a healthy adapter take a few milliseconds."""
LONGEST_REASON = 1_000
"""Characters of an adapter's reason that are kept."""
SLOW_MS = 500
"""A longer call is reported as slow."""
_FAILURES_IN_A_ROW = 2
_REPORT_EVERY_NS = 60_000_000_000
_NS_PER_MS = 1_000_000
T = TypeVar("T")
_log = get_logger(__name__)


class StepMonitor:
    """Times the steps of one adapter; two clock readings for each."""

    def __init__(self, adapter: str, clock: Clock) -> None:
        """`adapter`: its name for people, `output pager` or `input front-desk`."""
        self.adapter, self.now_ns = adapter, clock.steady_ns
        self.slow_ns = SLOW_STEP_MS * _NS_PER_MS
        self.blocked = 0
        """Steps that took too long."""
        self._reported_ns: int | None = None

    def record_slow(self, began_ns: int, now_ns: int) -> None:
        """Counts a slow step, and logs it at most once a minute."""
        took_ms = (now_ns - began_ns) // _NS_PER_MS
        self.blocked += 1
        if self._reported_ns is not None and now_ns - self._reported_ns < _REPORT_EVERY_NS:
            return
        self._reported_ns = now_ns
        _log.warning(
            "an adapter blocked the event loop",
            code="adapter.blocks",
            adapter=self.adapter,
            took_ms=took_ms,
            times=self.blocked,
            hint="await what waits; run what computes or blocks with asyncio.to_thread",
        )


class IsolatedCall(Generic[T]):
    """Work that is awaited once, by one task; transparent until it is cut off."""

    def __init__(
        self, work: Callable[[], Awaitable[T]], monitor: StepMonitor | None = None
    ) -> None:
        self._work, self._monitor = work, monitor
        self._task: asyncio.Task[Any] | None = None
        self._is_cut = False

    def cut(self) -> None:
        """Ends the work where it waits now, whether it handles the cancellation or not."""
        self._is_cut = True
        if self._task is not None:
            self._task.cancel()

    def __await__(self) -> Generator[Any, Any, T]:
        """The work's result. Raises what it raises, RuntimeError for what would end the process.

        Does by hand what `yield from` does, so that it can stop doing it.
        """
        self._task = asyncio.current_task()
        inner = self._guarded()
        resume: Callable[[], Any] = partial(inner.send, None)
        monitor = self._monitor
        while True:
            began_ns = monitor.now_ns() if monitor is not None else 0
            try:
                waits_for = resume()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                if monitor is not None and monitor.now_ns() - began_ns > monitor.slow_ns:
                    monitor.record_slow(began_ns, monitor.now_ns())
            try:
                sent = yield waits_for
            except asyncio.CancelledError as cancelled:
                if self._is_cut:
                    _close(inner)
                    raise
                resume = partial(inner.throw, cancelled)
            except GeneratorExit:
                inner.close()
                raise
            else:
                resume = partial(inner.send, sent)

    async def _guarded(self) -> T:
        try:
            return await self._work()
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise RuntimeError("the adapter cancelled itself") from error
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:
            shown = f"{type(error).__name__}: {error}".rstrip(": ")[:200]
            raise RuntimeError(f"the adapter wanted to end the process ({shown})") from error


async def end_isolated(running: asyncio.Future[Any], call: IsolatedCall[Any]) -> None:
    """Cancels the task that awaits the call and waits until it has ended: some seconds at most."""
    if running.done():
        if not running.cancelled():
            running.exception()  # retrieved, so that asyncio does not warn
        return
    ending = asyncio.ensure_future(cancel_until_done(running))
    try:
        await asyncio.wait({ending}, timeout=PATIENCE_SECONDS)
    finally:
        if not ending.done():
            _log.error("an adapter does not end its work; it is cut off")
            call.cut()
    await ending


async def run_within(
    clock: Clock,
    limit_ms: int,
    work: Callable[[], Awaitable[None]],
    monitor: StepMonitor | None = None,
) -> None:
    """Awaits an adapter's work up to the limit; raises TimeoutError, or what the work raises."""
    call = IsolatedCall(work, monitor)
    running = asyncio.ensure_future(call)
    try:
        if not await ends_within(running, clock, limit_ms):
            raise TimeoutError(f"no answer within {format_duration(limit_ms)}")
        running.result()
    finally:
        await end_isolated(running, call)


def _close(inner: Coroutine[Any, Any, Any]) -> None:
    """Lets the work clean up without waiting; nothing resumes it afterwards."""
    try:
        inner.close()
    except (Exception, SystemExit) as error:
        _log.error("an adapter's work could not be closed", error=repr(error))


# --- output adapters ---


class SendTimeout(Failed, frozen=True, tag="failed"):
    """The adapter did not answer within the deadline."""


def ignore_slow() -> None:
    """For callers that do not care for slow calls."""


class AdapterCaller:
    """Calls one output adapter under a deadline; there is an outcome for every delivery, whatever
    the adapter does.
    """

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
        """One outcome for each, in order, within the deadline. Raises SendInterrupted. `on_slow` is
        called once when a call takes long.
        """
        if self._batch is not None:
            outcomes = await self._send_many(self._batch, deliveries, on_slow)
        else:
            outcomes = [await self._send_one(delivery, on_slow) for delivery in deliveries]
        if outcomes:
            self._note(outcomes[-1])
        return outcomes

    def _note(self, outcome: Outcome) -> None:
        """The medium is in trouble when calls in a row failed that are worth a retry; a refused or
        unavailable address is the peer's trouble.
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
        name = self._adapter.name
        answer = await self._within(partial(adapter.send_many, deliveries), on_slow)
        if answer is None or isinstance(answer, Failed):
            return [checked_outcome(answer, name)] * len(deliveries)
        if not isinstance(answer, Sequence):
            return [_not_an_outcome(answer, name)] * len(deliveries)
        outcomes = [
            # The usual outcome needs no check.
            outcome
            if type(outcome) is Sent and outcome.reference == ""
            else checked_outcome(outcome, name)
            for outcome in answer
        ]
        if len(outcomes) == len(deliveries):
            return outcomes
        _log.error("adapter miscounted", adapter=name, outcomes=len(outcomes))
        fault = f"the adapter returned {len(outcomes)} outcomes for {len(deliveries)} deliveries"
        return [Failed(fault, retry=True)] * len(deliveries)

    async def _within(
        self, work: Callable[[], Awaitable[T]], on_slow: Callable[[], None]
    ) -> T | Failed:
        """The work's result; a failure when it raises or is cancelled after the deadline."""
        call = IsolatedCall(work, self.steps)
        running = asyncio.ensure_future(call)
        try:
            # Many calls end at once and need no deadline.
            await self._clock.sleep(0)
            if running.done() or await self._ends_in_time(running, on_slow):
                if running.cancelled():
                    return Failed("the adapter gave up", retry=True)
                return running.result()
        except asyncio.CancelledError:
            await end_isolated(running, call)
            raise
        except SendInterrupted:
            raise
        except Exception as error:
            _log.error("adapter failed", adapter=self._adapter.name, error=repr(error))
            return Failed(f"the adapter failed: {type(error).__name__}", retry=True)
        await end_isolated(running, call)
        return SendTimeout(f"no answer within {format_duration(self._deadline_ms)}", retry=True)

    async def _ends_in_time(
        self, running: asyncio.Future[Any], on_slow: Callable[[], None]
    ) -> bool:
        began_ns = self._clock.steady_ns()
        if await ends_within(running, self._clock, min(SLOW_MS, self._deadline_ms)):
            return True
        on_slow()
        left_ms = self._deadline_ms - (self._clock.steady_ns() - began_ns) // _NS_PER_MS
        return left_ms > 0 and await ends_within(running, self._clock, left_ms)


def checked_outcome(outcome: object, adapter: str) -> Outcome:
    """The outcome in a form that can be stored and read again; None is `Sent`, anything else a
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
    return _not_an_outcome(outcome, adapter)


def _not_an_outcome(answer: object, adapter: str) -> Failed:
    expected = "Sent, Confirmed, Failed or None"
    reason = f"the adapter {adapter!r} returned {type(answer).__name__} instead of {expected}"
    _log.error("adapter returned no outcome", adapter=adapter, returned=type(answer).__name__)
    return Failed(reason, retry=True)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_REASON and value.isprintable()


def _text(value: object) -> str:
    """Text without characters that no log can hold; of other values only the type, which holds no
    secrets.

    >>> _text("a\\nb"), _text(None), _text(ValueError("secret"))
    ('a b', '', 'ValueError')
    """
    if not isinstance(value, str):
        return "" if value is None else type(value).__name__
    return clean(value[:LONGEST_REASON])
