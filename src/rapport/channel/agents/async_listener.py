"""The listener agent for programs with an event loop: same cache, same place, same promises.
[CH-7]
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rapport.channel.agents.listener import Listener
from rapport.channel.agents.listener_cache import ReceivedEvent
from rapport.channel.agents.listener_place import FailedEvent
from rapport.channel.agents.listener_settings import ListenerStatus
from rapport.core.event import Gap


class AsyncListener:
    """See Listener; waiting happens in threads, so the loop goes on meanwhile.

    Made by `open`, or used as `async with AsyncListener(...)`. Callbacks run in the loop and may be
    coroutine functions. A `pull` that is cancelled loses nothing: what it had taken comes next.
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
        """Takes what Listener takes; nothing is opened yet."""
        self._open = partial(Listener, url, channel, query, directory=directory, **options)
        self._inner: Listener | None = None
        self._turn = asyncio.Lock()

    @staticmethod
    async def open(url: str, channel: str, *given: Any, **options: Any) -> AsyncListener:
        """A listener that is at work; raises what Listener raises."""
        listener = AsyncListener(url, channel, *given, **options)
        await listener.__aenter__()
        return listener

    async def push(self, callback: Callable[[ReceivedEvent], Any]) -> None:
        """See Listener; the callback runs in this loop."""
        loop = asyncio.get_running_loop()

        async def call(received: ReceivedEvent) -> None:
            outcome = callback(received)
            if inspect.isawaitable(outcome):
                await outcome

        def hand_over(received: ReceivedEvent) -> None:
            asyncio.run_coroutine_threadsafe(call(received), loop).result()

        await asyncio.to_thread(self._listener.push, hand_over)

    async def pull(self, count: int = 1, timeout: float | None = 0.0) -> list[ReceivedEvent]:  # noqa: ASYNC109
        """See Listener; one pull at a time."""
        given_up = False
        listener = self._listener
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
        """See Listener."""
        await asyncio.to_thread(self._listener.acknowledge, event)

    def renew(self, lease: float | None = None) -> None:
        """See Listener."""
        self._listener.renew(lease)

    def cancel(self) -> None:
        """See Listener."""
        self._listener.cancel()

    def resume(self, token: str | None = None) -> None:
        """See Listener."""
        self._listener.resume(token)

    def status(self) -> ListenerStatus:
        """See Listener; looks at no disk."""
        return self._listener.status()

    def gaps(self) -> list[Gap]:
        """See Listener."""
        return self._listener.gaps()

    async def failed(self) -> list[FailedEvent]:
        """See Listener."""
        return await asyncio.to_thread(self._listener.failed)

    async def close(self) -> None:
        """See Listener."""
        await asyncio.to_thread(self._listener.close)

    async def __aenter__(self) -> AsyncListener:
        if self._inner is None:
            self._inner = await asyncio.to_thread(self._open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._listener.__exit__, kind, error, trace)

    @property
    def _listener(self) -> Listener:
        if self._inner is None:
            raise RuntimeError("use `async with`, or `await AsyncListener.open(...)`")
        return self._inner


async def _outlast(work: asyncio.Future[Any]) -> None:
    """Returns when the work has ended, however often the caller is cancelled meanwhile."""
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            continue
