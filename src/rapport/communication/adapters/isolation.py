"""Whether an adapter keeps the event loop from turning, and which one it is. [CO-4, CO-5]

An adapter's work runs in the one event loop: a step that computes for long, or waits without
`await`, stops everything else. It cannot be interrupted, so it is timed and told of.

An adapter's own work, held so that it can neither end the process nor refuse to end. [CO-4,
CO-5]

`SystemExit` and its like would leave the event loop and stop the node: they become errors. A
cancellation that the work swallows is asked for again, and in the end the work is not resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from rapport.kernel.clock import Clock
from rapport.kernel.tasks import end_firmly
from rapport.kernel.telemetry import get_logger

SLOW_MS = 500
"""A step that takes longer is told of: some steps of a healthy adapter take a few milliseconds."""
_TELL_EVERY_NS = 60_000_000_000
_NS_PER_MS = 1_000_000


class StepMonitor:
    """The steps of one adapter. Two readings of the clock for each, some tenths of a
    microsecond.
    """

    def __init__(self, adapter: str, clock: Clock, *, slow_ms: int = SLOW_MS) -> None:
        """`adapter` is how people know it: `output pager`, `input front-desk`."""
        self.adapter, self.now_ns = adapter, clock.steady_ns
        self.slow_ns = slow_ms * _NS_PER_MS
        self.blocked = 0
        """Steps that took too long."""
        self.longest_ms = 0
        self._told_ns: int | None = None

    def took(self, began_ns: int, now_ns: int) -> None:
        """A step was slow: counted, and told of at most once a minute."""
        took_ms = (now_ns - began_ns) // _NS_PER_MS
        self.blocked += 1
        self.longest_ms = max(self.longest_ms, took_ms)
        if self._told_ns is not None and now_ns - self._told_ns < _TELL_EVERY_NS:
            return
        self._told_ns = now_ns
        _log.warning(
            "an adapter kept the event loop from turning",
            code="adapter.blocks",
            adapter=self.adapter,
            took_ms=took_ms,
            times=self.blocked,
            hint="await what waits; run what computes or blocks with asyncio.to_thread",
        )


PATIENCE_SECONDS = 5.0
"""So long work may clean up after its cancellation."""
T = TypeVar("T")
_log = get_logger(__name__)


class IsolatedCall(Generic[T]):
    """Work that is awaited once, by one task; transparent until it is cut."""

    def __init__(
        self, work: Callable[[], Awaitable[T]], watched: StepMonitor | None = None
    ) -> None:
        """`watched` is told of steps that keep the event loop from turning."""
        self._work, self._watched = work, watched
        self._task: asyncio.Task[Any] | None = None
        self._is_cut = False

    def cut(self) -> None:
        """Ends the work where it waits now, whatever it does about it."""
        self._is_cut = True
        if self._task is not None:
            self._task.cancel()

    def __await__(self) -> Generator[Any, Any, T]:
        """What the work gives. Raises what it raises, RuntimeError for what would end the process.

        Does by hand what `yield from` does, so that it can stop doing it.
        """
        self._task = asyncio.current_task()
        inner = self._called()
        resume: Callable[[], Any] = partial(inner.send, None)
        watched = self._watched
        while True:
            began_ns = watched.now_ns() if watched is not None else 0
            try:
                waits_for = resume()
            except StopIteration as end:
                given: T = end.value
                return given
            finally:
                if watched is not None and watched.now_ns() - began_ns > watched.slow_ns:
                    watched.took(began_ns, watched.now_ns())
            try:
                sent = yield waits_for
            except asyncio.CancelledError as asked:
                if self._is_cut:
                    _close(inner)
                    raise
                resume = partial(inner.throw, asked)
            except GeneratorExit:
                inner.close()
                raise
            else:
                resume = partial(inner.send, sent)

    async def _called(self) -> T:
        try:
            return await self._work()
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise RuntimeError("the adapter gave up by itself") from error
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:
            told = f"{type(error).__name__}: {error}".rstrip(": ")[:200]
            raise RuntimeError(f"the adapter wanted to end the process ({told})") from error


async def end_isolated(running: asyncio.Future[Any], contained: IsolatedCall[Any]) -> None:
    """Cancels the task that awaits the work and waits until it has ended: some seconds at most."""
    if running.done():
        if not running.cancelled():
            running.exception()  # looked at, whoever wants it
        return
    ending = asyncio.ensure_future(end_firmly(running))
    try:
        await asyncio.wait({ending}, timeout=PATIENCE_SECONDS)
    finally:
        if not ending.done():
            _log.error("an adapter does not end its work; it is cut off")
            contained.cut()
    await ending


def _close(inner: Coroutine[Any, Any, Any]) -> None:
    """Lets it clean up without waiting; what it does about that is its own affair, as nobody
    resumes it any more.
    """
    try:
        inner.close()
    except (Exception, SystemExit) as error:
        _log.error("an adapter's work would not be closed", error=repr(error))
