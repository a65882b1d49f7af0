"""The publisher agent for programs with an event loop: same outbox, same promises. [CH-5]"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rapport.channel.agents.outbox_reading import RejectedEvent
from rapport.channel.agents.publisher import Publisher, Status
from rapport.core.event import Event


class AsyncPublisher:
    """See Publisher; waiting for the disk happens in threads, so the loop goes on meanwhile.

    Made by `open`, or used as `async with AsyncPublisher(...)`; many `publish` at a time share
    their disk syncs.
    """

    def __init__(self, outbox: str | Path, url: str, **options: Any) -> None:
        """Takes what Publisher takes; nothing is opened yet."""
        self._open = partial(Publisher, outbox, url, **options)
        self._inner: Publisher | None = None

    @staticmethod
    async def open(outbox: str | Path, url: str, **options: Any) -> AsyncPublisher:
        """A publisher that is at work; raises what Publisher raises."""
        publisher = AsyncPublisher(outbox, url, **options)
        await publisher.__aenter__()
        return publisher

    async def publish(
        self, event: Event | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> str:
        """See Publisher."""
        return await asyncio.to_thread(partial(self._publisher.publish, event, **fields))

    async def publish_many(self, events: Iterable[Event | Mapping[str, Any]]) -> list[str]:
        """See Publisher."""
        return await asyncio.to_thread(self._publisher.publish_many, list(events))

    async def flush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """See Publisher."""
        return await asyncio.to_thread(self._publisher.flush, timeout)

    async def rejected(self) -> list[RejectedEvent]:
        """See Publisher."""
        return await asyncio.to_thread(self._publisher.rejected)

    def resume(self, token: str | None = None) -> None:
        """See Publisher."""
        self._publisher.resume(token)

    def status(self) -> Status:
        """See Publisher; looks at no disk."""
        return self._publisher.status()

    async def close(self, wait: float | None = 0.0) -> bool:
        """See Publisher."""
        return await asyncio.to_thread(self._publisher.close, wait)

    async def __aenter__(self) -> AsyncPublisher:
        if self._inner is None:
            self._inner = await asyncio.to_thread(self._open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(wait=0.0 if kind else 5.0)

    @property
    def _publisher(self) -> Publisher:
        if self._inner is None:
            raise RuntimeError("use `async with`, or `await AsyncPublisher.open(...)`")
        return self._inner
