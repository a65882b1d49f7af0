"""Publisher and listeners for programs with an event loop; the same promises. [CH-5, CH-7]"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from rapport.channel.agents.connection import Reason
from rapport.channel.agents.leased_listener import LeasedEvent, LeasedListener
from rapport.channel.agents.listener import Listener
from rapport.channel.agents.listener_directory import FailedEvent
from rapport.channel.agents.listener_state import ListenerStatus, ReceivedEvent
from rapport.channel.agents.outbox import RejectedEvent
from rapport.channel.agents.publisher import Publisher, Status
from rapport.core.event import Event, Gap

E = TypeVar("E")
Inner = TypeVar("Inner", Listener, Publisher)


class _OpenedInThread(Generic[Inner]):
    """A blocking agent that is made in a thread, by `open` or `async with`."""

    def __init__(self, make: Callable[[], Inner]) -> None:
        self._make: Callable[[], Inner] = make
        self._opened: Inner | None = None

    @classmethod
    async def open(cls, *given: Any, **options: Any) -> Self:
        """Takes the arguments of the blocking agent, and raises as it does."""
        agent = cls(*given, **options)
        await agent.__aenter__()
        return agent

    async def __aenter__(self) -> Self:
        if self._opened is None:
            self._opened = await asyncio.to_thread(self._make)
        return self

    @property
    def _inner(self) -> Inner:
        if self._opened is None:
            name = type(self).__name__
            raise RuntimeError(f"use `async with`, or `await {name}.open(...)`")
        return self._opened


class AsyncListener(_OpenedInThread[Listener]):
    """See Listener; waiting happens in threads, so the loop is not blocked.

    Made by `open`, or used as `async with AsyncListener(...)`. Callbacks run in the loop and may be
    coroutine functions. A cancelled `pull` loses nothing: its events are returned by the next one.
    """

    def __init__(
        self,
        url: str,
        channel: str,
        query: str | dict[str, Any] | None = None,
        *,
        directory: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(partial(Listener, url, channel, query, directory=directory, **options))
        self._turn = asyncio.Lock()

    async def push(self, callback: Callable[[ReceivedEvent], Any]) -> None:
        """See Listener; the callback runs in this loop."""
        await asyncio.to_thread(self._inner.push, _called_in_loop(callback))

    async def pull(self, count: int = 1, timeout: float | None = 0.0) -> list[ReceivedEvent]:  # noqa: ASYNC109
        """See Listener; one pull at a time."""
        given_up = False
        listener = self._inner
        async with self._turn:
            work = asyncio.ensure_future(
                asyncio.to_thread(listener.pull_unless, count, timeout, lambda: given_up)
            )
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                given_up = True
                listener.wake()
                await _outlast(work)
                if not work.cancelled() and work.exception() is None:
                    listener.give_back(work.result())
                raise

    async def acknowledge(self, event: ReceivedEvent | int) -> None:
        await asyncio.to_thread(self._inner.acknowledge, event)

    def renew(self, lease: float | None = None) -> None:
        self._inner.renew(lease)

    def cancel(self) -> None:
        self._inner.cancel()

    def resume(self, token: str | None = None) -> None:
        self._inner.resume(token)

    def status(self) -> ListenerStatus:
        """See Listener; looks at no disk."""
        return self._inner.status()

    def gaps(self) -> list[Gap]:
        return self._inner.gaps()

    async def failed(self) -> list[FailedEvent]:
        return await asyncio.to_thread(self._inner.failed)

    async def close(self) -> None:
        await asyncio.to_thread(self._inner.close)

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._inner.__exit__, *error)


class AsyncLeasedListener:
    """See LeasedListener; waiting happens in threads, so the loop is not blocked.

    Used as `async with AsyncLeasedListener(...)`, or closed with `close`. A cancelled `pull` loses
    nothing: the messages it leases are returned by the next one.
    """

    def __init__(
        self,
        url: str,
        channel: str,
        query: str | dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._listener = LeasedListener(url, channel, query, **options)
        self._turn = asyncio.Lock()
        self._pulling: asyncio.Future[list[LeasedEvent]] | None = None
        """A pull whose caller was cancelled."""
        self._pulled: list[LeasedEvent] = []

    @property
    def trouble(self) -> Reason | None:
        return self._listener.trouble

    async def pull(self, count: int = 1, timeout: float | None = 0.0) -> list[LeasedEvent]:  # noqa: ASYNC109
        """See LeasedListener; one pull at a time."""
        async with self._turn:
            if self._pulling is None and not self._pulled:
                work = asyncio.to_thread(self._listener.pull, count, timeout)
                self._pulling = asyncio.ensure_future(work)
            if self._pulling is not None:
                await asyncio.wait((self._pulling,))
                pulling, self._pulling = self._pulling, None
                self._pulled += pulling.result()
            events, self._pulled = self._pulled[:count], self._pulled[count:]
            return events

    async def ack(self, *events: LeasedEvent) -> bool:
        return await asyncio.to_thread(self._listener.ack, *events)

    async def nak(self, *events: LeasedEvent, delay: float = 0.0, error: str = "") -> bool:
        return await asyncio.to_thread(self._listener.nak, *events, delay=delay, error=error)

    async def renew(self, *events: LeasedEvent, lease: float | None = None) -> bool:
        return await asyncio.to_thread(self._listener.renew, *events, lease=lease)

    async def push(
        self, callback: Callable[[LeasedEvent], Any], *, retry_after: float = 1.0
    ) -> None:
        """See LeasedListener; the callback runs in this loop and may be a coroutine function."""
        self._listener.push(_called_in_loop(callback), retry_after=retry_after)

    async def close(self) -> None:
        await asyncio.to_thread(self._listener.close)
        if self._pulling is not None:
            await asyncio.wait((self._pulling,))
            self._pulling.exception()  # that it was closed meanwhile is no news

    async def __aenter__(self) -> AsyncLeasedListener:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def _called_in_loop(callback: Callable[[E], Any]) -> Callable[[E], None]:
    """The callback for a thread: runs in the current loop, returns or raises when it has ended."""
    loop = asyncio.get_running_loop()

    async def call(event: E) -> None:
        outcome = callback(event)
        if inspect.isawaitable(outcome):
            await outcome

    return lambda event: asyncio.run_coroutine_threadsafe(call(event), loop).result()


async def _outlast(work: asyncio.Future[Any]) -> None:
    """Returns when the work has ended, however often the caller is cancelled meanwhile."""
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            continue


class AsyncPublisher(_OpenedInThread[Publisher]):
    """See Publisher; waiting for the disk happens in threads, so the loop is not blocked.

    Made by `open`, or used as `async with AsyncPublisher(...)`; concurrent `publish` calls share
    their disk syncs.
    """

    def __init__(self, outbox: str | Path, url: str, **options: Any) -> None:
        super().__init__(partial(Publisher, outbox, url, **options))

    async def publish(
        self, event: Event | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> str:
        return await asyncio.to_thread(partial(self._inner.publish, event, **fields))

    async def publish_many(self, events: Iterable[Event | Mapping[str, Any]]) -> list[str]:
        return await asyncio.to_thread(self._inner.publish_many, list(events))

    async def flush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        return await asyncio.to_thread(self._inner.flush, timeout)

    async def rejected(self) -> list[RejectedEvent]:
        return await asyncio.to_thread(self._inner.rejected)

    def resume(self, token: str | None = None) -> None:
        self._inner.resume(token)

    def status(self) -> Status:
        """See Publisher; looks at no disk."""
        return self._inner.status()

    async def close(self, wait: float | None = 0.0) -> bool:
        return await asyncio.to_thread(self._inner.close, wait)

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        await self.close(wait=0.0 if kind else 5.0)
