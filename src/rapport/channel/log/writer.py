"""Group commit: while one sync runs, the next group gathers. [CH-13, CH-14]

An `AppendTarget` commits one group; `ThreadWriter` calls it in the one writing thread of a store,
`InlineWriter` at once, for stores that do not wait for a disk. `ByteBudget` bounds the queue in
front of the writer, `Notifier` wakes readers across threads and loops, and `between_appends` runs
other work in the writing thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from rapport.channel.channel import AppendResult
from rapport.core.errors import ChannelUnavailable, RapportError, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import Clock

WAITING_BYTES = 64 * 1024 * 1024
"""Data in front of a full queue before `append` sends its callers away."""
_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]
QUEUE_BYTES = 32 * 1024 * 1024
"""Data waiting to be written before `append` makes its callers wait."""
_GROUP_BYTES = 8 * 1024 * 1024
_OVERHEAD_BYTES = 256
"""Charged per event besides its data, so that a million empty events are not free."""
T = TypeVar("T")


class Notifier:
    """Wakes all waiting coroutines, in any loop; callable from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiters: list[_Waiter] = []

    def listen(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._guard:
            if len(self._waiters) > 64:
                self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]
            self._waiters.append((loop, future))
        return future

    def notify(self) -> None:
        """Resolves all futures returned so far."""
        if not self._waiters:
            return
        with self._guard:
            waiters, self._waiters = self._waiters, []
        wake(waiters)

    async def wait_until(
        self, is_so: Callable[[], bool], clock: Clock, timeout_ms: int | None
    ) -> bool:
        """Whether a condition is true now, or after a notification within the time."""
        if is_so():
            return True
        pause = None if timeout_ms is None else asyncio.ensure_future(clock.sleep(timeout_ms))
        try:
            while not is_so():
                notified = self.listen()
                if is_so():  # the notification may have come before we listened
                    return True
                if pause is None:
                    await notified
                    continue
                await asyncio.wait((notified, pause), return_when=asyncio.FIRST_COMPLETED)
                if pause.done():
                    return is_so()
            return True
        finally:
            if pause is not None:
                pause.cancel()


class ByteBudget:
    """Back-pressure: at most `limit` bytes admitted at once (a single larger request is admitted
    when nothing else is) and at most `waiting` bytes queued; further requests are refused.
    """

    def __init__(self, limit: int, waiting: int = WAITING_BYTES) -> None:
        self._limit, self._inside = limit, 0
        self._waiting_limit, self._waiting = waiting, 0
        self.refused = 0
        """How many were sent away."""
        self._guard = threading.Lock()
        self._queue: deque[tuple[int, _Waiter]] = deque()

    async def enter(self, size: int) -> None:
        """Returns when the size fits the budget; first come, first served. Raises
        ChannelUnavailable when too much is queued: queued data are in memory.
        """
        with self._guard:
            if not self._queue and self._fits(size):
                self._inside += size
                return
            if self._queue and self._waiting + size > self._waiting_limit:
                self.refused += 1
                raise ChannelUnavailable(
                    "more events come in than the disk can take",
                    code="channel.busy",
                    hint="send them again after a moment; nothing of this append is kept",
                )
            self._waiting += size
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._queue.append((size, (loop, future)))
        try:
            await future
        except asyncio.CancelledError:
            self._withdraw(size, future)
            raise

    def leave(self, size: int) -> None:
        """Releases bytes; callable from any thread."""
        with self._guard:
            self._inside -= size
            admitted = self._admit()
        wake(admitted)

    def _fits(self, size: int) -> bool:
        return self._inside == 0 or self._inside + size <= self._limit

    def _admit(self) -> list[_Waiter]:
        admitted = []
        while self._queue and self._fits(self._queue[0][0]):
            size, waiter = self._queue.popleft()
            self._waiting -= size
            self._inside += size
            admitted.append(waiter)
        return admitted

    def _withdraw(self, size: int, future: asyncio.Future[None]) -> None:
        """Removes a cancelled request from the queue, or releases what it was granted."""
        with self._guard:
            queued = [entry for entry in self._queue if entry[1][1] is not future]
            was_inside = len(queued) == len(self._queue)
            self._queue = deque(queued)
            if was_inside:
                self._inside -= size
            else:
                self._waiting -= size
            admitted = self._admit()
        wake(admitted)


def wake(waiters: Iterable[_Waiter]) -> None:
    resolve((loop, future, None) for loop, future in waiters)


def resolve(
    answers: Iterable[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], object]],
) -> None:
    """Resolves futures with one call per loop; a loop that has ended needs no waking."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
    for loop, future, answer in answers:
        by_loop.setdefault(loop, []).append((future, answer))
    for loop, pairs in by_loop.items():
        call_in(loop, _answer_all, pairs)


def call_in(loop: asyncio.AbstractEventLoop, action: Callable[..., None], *values: object) -> bool:
    """Calls an action in a loop from any thread; False when that loop has ended."""
    try:
        loop.call_soon_threadsafe(action, *values)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


class AppendTarget(Protocol):
    name: str

    def commit(self, appends: Sequence[Sequence[Event]]) -> list[AppendResult]:
        """Makes all appends durable with one sync; raises StoreUnavailable when none of them is."""


class Writer(Protocol):
    fault: str
    """Why the last write failed; empty when it did not."""

    async def write(
        self, target: AppendTarget, events: Sequence[Event], data_bytes: int
    ) -> AppendResult:
        """Returns when the events are durable; raises ChannelUnavailable."""

    def stop(self) -> None:
        """Finishes accepted writes, then ends; blocks meanwhile. Later writes are refused."""


class InlineWriter:
    """Writes in the calling task, for stores that do not wait for a disk."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._stopped = False
        self.fault = ""

    async def write(
        self, target: AppendTarget, events: Sequence[Event], data_bytes: int
    ) -> AppendResult:
        if self._stopped:
            raise closed_error()
        with self._guard:
            try:
                return target.commit((events,))[0]
            except StoreUnavailable as error:
                raise channel_error(error) from error

    def stop(self) -> None:
        self._stopped = True


class StorePace:
    """Whether a store answers fast enough to be waited for in an event loop; it lends its clock.

    One slow answer ends it, and some fast ones begin it again: a disk that stalls now and then
    holds up a loop now and then, one that is slow never does.
    """

    def __init__(self, clock: Clock, *, fast_ns: int = 1_000_000, trust_after: int = 20) -> None:
        self.clock = clock
        self._fast_ns, self._trust_after = fast_ns, trust_after
        self._fast_in_row = 0

    @property
    def is_fast(self) -> bool:
        return self._fast_in_row >= self._trust_after

    def took(self, duration_ns: int) -> None:
        self._fast_in_row = self._fast_in_row + 1 if duration_ns <= self._fast_ns else 0


class _Request(msgspec.Struct):
    target: AppendTarget
    events: Sequence[Event]
    size: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[AppendResult]


class ThreadWriter:
    """The one writing thread of a store. Futures are resolved once per group and loop, not once per
    event.

    A lone append (nothing queued, nothing being written, and no other joins within the same turn of
    its loop) may be committed in its own task, which saves two thread switches, as long as `lone`
    finds the store fast enough to block a loop.
    """

    def __init__(
        self,
        *,
        name: str,
        queue_bytes: int = QUEUE_BYTES,
        waiting_bytes: int = WAITING_BYTES,
        lone: StorePace | None = None,
    ) -> None:
        self._budget = ByteBudget(queue_bytes, waiting_bytes)
        self._pace = lone
        self._lone: _Request | None = None
        self._pending = 0
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._store = threading.Lock()
        """One group at a time, from the thread or from a loop."""
        self.fault = ""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def write(
        self, target: AppendTarget, events: Sequence[Event], data_bytes: int
    ) -> AppendResult:
        """See Writer; waits while the queue is full, and is refused when too many wait."""
        size = data_bytes + len(events) * _OVERHEAD_BYTES
        await self._budget.enter(size)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendResult] = loop.create_future()
        request = _Request(target, events, size, loop, future)
        with self._lock:  # nothing may be queued behind the stop mark
            stopped = self._stopped
            if not stopped:
                self._accept(request)
        if stopped:
            self._budget.leave(size)
            raise closed_error()
        if self._lone is request and self._pace is not None:
            return await self._write_lone(request, self._pace)
        return await future

    def stop(self) -> None:
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._hand_over_lone()
                self._requests.put(None)
        self._thread.join()

    def _accept(self, request: _Request) -> None:
        """Queues a request for the thread, or lets it wait for the end of this turn when it is
        alone; the caller holds the lock.
        """
        self._pending += 1
        if self._pending == 1 and request.events and self._pace and self._pace.is_fast:
            self._lone = request
            return
        self._hand_over_lone()
        self._requests.put(request)

    def _hand_over_lone(self) -> None:
        if self._lone is not None:
            self._requests.put(self._lone)
            self._lone = None

    async def _write_lone(self, request: _Request, pace: StorePace) -> AppendResult:
        """Yields to the loop once; commits in this task if no other append joined."""
        try:
            await pace.clock.sleep(0)
        except asyncio.CancelledError:
            with self._lock:
                if self._lone is request:
                    self._hand_over_lone()
            raise
        with self._lock:
            alone = self._lone is request
            if alone:
                self._lone = None
        if not alone:
            return await request.future
        # Others go to the thread meanwhile, because a request is pending; it waits for the store.
        answer = self._committed([request])[0]
        if isinstance(answer, RapportError):
            raise answer
        return answer

    def _run(self) -> None:
        going_on = True
        while going_on:
            requests, going_on = self._gather()
            by_target: dict[str, list[_Request]] = {}
            for request in requests:
                by_target.setdefault(request.target.name, []).append(request)
            for group in by_target.values():
                self._commit(group)

    def _committed(self, group: list[_Request]) -> Sequence[AppendResult | RapportError]:
        """The result of each request; afterwards none of the group is pending."""
        with self._store:
            began_ns = self._pace.clock.steady_ns() if self._pace else 0
            try:
                committed = group[0].target.commit([request.events for request in group])
                self.fault = ""
                return committed
            except StoreUnavailable as error:
                self.fault = error.message
                return [channel_error(error)] * len(group)
            except Exception as error:  # a fault of ours must reach the callers, not end the thread
                return [_unforeseen(error)] * len(group)
            finally:
                if self._pace:
                    self._pace.took(self._pace.clock.steady_ns() - began_ns)
                # Before the answers: a caller that is answered finds its bytes released.
                self._budget.leave(sum(request.size for request in group))
                with self._lock:
                    self._pending -= len(group)

    def _gather(self) -> tuple[list[_Request], bool]:
        """Everything that waits, up to a sensible size; blocks when nothing does."""
        requests: list[_Request] = []
        size = 0
        request = self._requests.get()
        while request is not None:
            requests.append(request)
            size += request.size
            if size >= _GROUP_BYTES:
                return requests, True
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                return requests, True
        return requests, False

    def _commit(self, group: list[_Request]) -> None:
        answers = self._committed(group)
        resolve(
            (request.loop, request.future, answer)
            for request, answer in zip(group, answers, strict=True)
        )


def _answer_all(pairs: list[tuple[asyncio.Future[Any], object]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, RapportError):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def closed_error() -> ChannelUnavailable:
    return ChannelUnavailable("the channels are closed", code="channel.closed")


def channel_error(error: StoreUnavailable) -> ChannelUnavailable:
    return ChannelUnavailable(
        error.message,
        code=error.code,
        hint=error.hint,
        retry_after_seconds=error.retry_after_seconds,
    )


def _unforeseen(error: Exception) -> RapportError:
    if isinstance(error, RapportError):
        return error
    return ChannelUnavailable(f"the append failed: {error!r}", code="channel.failed")


async def between_appends(writer: Writer, name: str, work: Callable[[], T]) -> T:
    """Does work in the thread that appends to a channel; raises ChannelUnavailable."""
    job = _WriterJob(name, work)
    await writer.write(job, (), 0)
    return job.result


class _WriterJob(Generic[T]):
    result: T

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        # Its own: the writer does the works of one name as one. Names of channels have no slash.
        self.name, self._work = f"{name}/{id(self)}", work

    def commit(self, appends: Sequence[Sequence[Event]]) -> list[AppendResult]:
        self.result = self._work()
        return [AppendResult((), 0)] * len(appends)
