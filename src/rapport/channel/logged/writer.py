"""Group commit: while one sync runs the next group gathers. [CH-13, CH-14]

A `Target` does the work of one group; `ThreadWriter` calls it in the one writing thread of a store,
`InlineWriter` at once, for stores that do not wait for a disk.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from typing import Protocol

import msgspec

from rapport.channel.channel import Appended
from rapport.channel.waiting import WAITING_BYTES, Room, call_in
from rapport.core.errors import ChannelUnavailable, RapportError, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import Clock

QUEUE_BYTES = 32 * 1024 * 1024
"""Data waiting to be written before `append` makes its callers wait."""
_GROUP_BYTES = 8 * 1024 * 1024
_OVERHEAD_BYTES = 256
"""Counted per event beside its data, so that a million empty events are not free."""


class Target(Protocol):
    """A channel as the writer sees it."""

    name: str

    def commit(self, appends: Sequence[Sequence[Event]]) -> list[Appended]:
        """Makes all appends durable with one sync; raises StoreUnavailable when none of them is."""


class Writer(Protocol):
    """How appends reach the store."""

    fault: str
    """Why the last write failed; empty when it did not."""

    async def write(self, target: Target, events: Sequence[Event], data_bytes: int) -> Appended:
        """Returns when the events are durable; raises ChannelUnavailable."""

    def stop(self) -> None:
        """Finishes what was accepted, then ends; blocks meanwhile. Later writes are refused."""


class InlineWriter:
    """Writes in the calling task. The next write of the same loop cannot begin before, so nothing
    is to be grouped.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._stopped = False
        self.fault = ""

    async def write(self, target: Target, events: Sequence[Event], data_bytes: int) -> Appended:
        """See Writer."""
        if self._stopped:
            raise closed_error()
        with self._guard:
            try:
                return target.commit((events,))[0]
            except StoreUnavailable as error:
                raise as_channel_error(error) from error

    def stop(self) -> None:
        """See Writer."""
        self._stopped = True


class Pace:
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
        """The latest answers were all fast."""
        return self._fast_in_row >= self._trust_after

    def took(self, duration_ns: int) -> None:
        """Takes in how long an answer took."""
        self._fast_in_row = self._fast_in_row + 1 if duration_ns <= self._fast_ns else 0


class _Request(msgspec.Struct):
    """One append under way."""

    target: Target
    events: Sequence[Event]
    size: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Appended]


_Answer = tuple["asyncio.Future[Appended]", Appended | RapportError]


class ThreadWriter:
    """The one writing thread of a store. Futures are resolved once per group and loop, not once per
    event.

    An append that is alone (nothing waits, nothing is being written, and nobody joins it within the
    same turn of its loop) may be written where it is, which saves two changes of threads: as long
    as `lone` says that the store is fast enough to hold up a loop.
    """

    def __init__(
        self,
        *,
        name: str,
        queue_bytes: int = QUEUE_BYTES,
        waiting_bytes: int = WAITING_BYTES,
        lone: Pace | None = None,
    ) -> None:
        self._room = Room(queue_bytes, waiting_bytes)
        self._pace = lone
        self._lone: _Request | None = None
        self._under_way = 0
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._store = threading.Lock()
        """One group at a time, from the thread or from a loop."""
        self.fault = ""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def write(self, target: Target, events: Sequence[Event], data_bytes: int) -> Appended:
        """See Writer; waits while the queue is full, and is refused when too many wait."""
        size = data_bytes + len(events) * _OVERHEAD_BYTES
        await self._room.enter(size)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        request = _Request(target, events, size, loop, future)
        with self._door:  # nothing may be put in behind the sign that ends the thread
            stopped = self._stopped
            if not stopped:
                self._accept(request)
        if stopped:
            self._room.leave(size)
            raise closed_error()
        if self._lone is request and self._pace is not None:
            return await self._write_lone(request, self._pace)
        return await future

    def stop(self) -> None:
        """See Writer."""
        with self._door:
            if not self._stopped:
                self._stopped = True
                self._hand_over_lone()
                self._requests.put(None)
        self._thread.join()

    def _accept(self, request: _Request) -> None:
        """To the thread, or to wait for the end of this turn when it is alone; the door is held."""
        self._under_way += 1
        if self._under_way == 1 and request.events and self._pace and self._pace.is_fast:
            self._lone = request
            return
        self._hand_over_lone()
        self._requests.put(request)

    def _hand_over_lone(self) -> None:
        if self._lone is not None:
            self._requests.put(self._lone)
            self._lone = None

    async def _write_lone(self, request: _Request, pace: Pace) -> Appended:
        """Lets the loop turn once; if nobody has joined by then, commits in this very task."""
        try:
            await pace.clock.sleep(0)
        except asyncio.CancelledError:
            with self._door:
                if self._lone is request:
                    self._hand_over_lone()
            raise
        with self._door:
            alone = self._lone is request
            if alone:
                self._lone = None
        if not alone:
            return await request.future
        # Others go to the thread meanwhile, because something is under way; it waits for the store.
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

    def _committed(self, group: list[_Request]) -> Sequence[Appended | RapportError]:
        """What came of each; afterwards nothing of the group is under way."""
        with self._store:
            began_ns = self._pace.clock.steady_ns() if self._pace else 0
            try:
                committed = group[0].target.commit([request.events for request in group])
                self.fault = ""
                return committed
            except StoreUnavailable as error:
                self.fault = error.message
                return [as_channel_error(error)] * len(group)
            except Exception as error:  # a fault of ours must reach the callers, not end the thread
                return [_unforeseen(error)] * len(group)
            finally:
                if self._pace:
                    self._pace.took(self._pace.clock.steady_ns() - began_ns)
                # Before the answers: whoever hears that it is done finds the room free again.
                self._room.leave(sum(request.size for request in group))
                with self._door:
                    self._under_way -= len(group)

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
        by_loop: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
        for request, answer in zip(group, answers, strict=True):
            by_loop.setdefault(request.loop, []).append((request.future, answer))
        for loop, pairs in by_loop.items():
            call_in(loop, _answer_all, pairs)


def _answer_all(pairs: list[_Answer]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, RapportError):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def closed_error() -> ChannelUnavailable:
    """The error of channels that were closed."""
    return ChannelUnavailable("the channels are closed", code="channel.closed")


def as_channel_error(error: StoreUnavailable) -> ChannelUnavailable:
    """What the store said, as the channel says it."""
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
