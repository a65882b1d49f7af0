"""Provider and consumer for programs without an event loop: calls wait for their answer. [CX-3]"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from rapport.context.clients.consumer import ContextConsumer, LocatedRecord
from rapport.context.clients.provider import ContextProvider
from rapport.context.connections import ClientSettings
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import Conflict
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own. A daemon: a program that forgets to close can end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="context")
        self._thread.start()
        self._is_closed = False

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it there; raises what it raises, and Conflict once closed."""
        if self._is_closed or threading.current_thread() is self._thread:
            work.close()
            raise Conflict(
                "this client is closed, or called from its own thread",
                code="context.closed",
                hint="open a new one; inside a loop use the client that is awaited",
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Runs `last`, then ends the thread; a second call is no error."""
        if self._is_closed:
            last.close()
            return
        self.call(last)
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Blocking:
    """Common part of the blocking clients."""

    def __init__(self) -> None:
        self._loop = _Loop()

    def close(self) -> None:
        """Ends; a second call is no error."""
        self._loop.close(self._end())

    async def _end(self) -> None:
        """Closes the client on its loop."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class BlockingProvider(_Blocking):
    """See ContextProvider."""

    def __init__(
        self,
        brokers: Sequence[Address],
        *,
        name: str = "",
        keys: DatagramKeys | None = None,
        settings: ClientSettings | None = None,
    ) -> None:
        super().__init__()
        try:
            self._provider = self._loop.call(
                ContextProvider.open(brokers, name=name, keys=keys, settings=settings)
            )
        except BaseException:
            self._loop.close(_nothing())
            raise

    def update(
        self,
        entity: EntityRef | str,
        scope: str,
        values: Mapping[str, Any],
        *,
        valid_for_ms: int,
        valid_from: int | None = None,
        within_ms: int = 5_000,
    ) -> ContextRecord:
        """Returns when the broker has kept it."""
        return self._loop.call(
            self._provider.update(
                entity,
                scope,
                values,
                valid_for_ms=valid_for_ms,
                valid_from=valid_from,
                within_ms=within_ms,
            )
        )

    async def _end(self) -> None:
        await self._provider.close()


class BlockingConsumer(_Blocking):
    """See ContextConsumer."""

    def __init__(
        self,
        brokers: Sequence[Address],
        *,
        keys: DatagramKeys | None = None,
        settings: ClientSettings | None = None,
    ) -> None:
        super().__init__()
        try:
            self._consumer = self._loop.call(
                ContextConsumer.open(brokers, keys=keys, settings=settings)
            )
        except BaseException:
            self._loop.close(_nothing())
            raise

    def request(
        self, entity: EntityRef | str, scope: str, *, within_ms: int = 2_000, fresh: bool = False
    ) -> LocatedRecord:
        """The current record; with `fresh` not from a replica."""
        return self._loop.call(
            self._consumer.request(entity, scope, within_ms=within_ms, fresh=fresh)
        )

    def subscribe(
        self, entity: EntityRef | str, scope: str, *, every_ms: int = 0
    ) -> Iterator[ContextRecord]:
        """Each record as it becomes known; waits for the next."""
        records = self._consumer.subscribe(entity, scope, every_ms=every_ms)
        try:
            while True:
                yield self._loop.call(_next(records))
        finally:
            self._loop.call(_close(records))

    async def _end(self) -> None:
        await self._consumer.close()


async def _next(records: AsyncGenerator[ContextRecord, None]) -> ContextRecord:
    return await anext(records)


async def _close(records: AsyncGenerator[ContextRecord, None]) -> None:
    await records.aclose()


async def _nothing() -> None:
    """There is nothing to close."""
