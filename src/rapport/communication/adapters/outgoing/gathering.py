"""Group commit for anything: while one group is worked on, the next gathers. [CO-4, design 1]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class GroupCommit(Generic[T]):
    """Holds what came in since the last group began. A group costs one call of `work`, however many
    brought something; who waits for it wakes once.
    """

    def __init__(self, work: Callable[[list[T]], Awaitable[None]]) -> None:
        self._work = work
        self._waiting: list[T] = []
        self._news = asyncio.Event()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, entry: T) -> asyncio.Future[None]:
        """Adds to the next group; the future ends with it, and never when `run` failed."""
        self._waiting.append(entry)
        self._news.set()
        return self._done

    async def run(self) -> None:
        """Works until cancelled, or until `work` raises: what gathered is lost then, and whoever
        restarts it begins with a new gathering.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            group, self._waiting = self._waiting, []
            done, self._done = self._done, asyncio.get_running_loop().create_future()
            await self._work(group)
            done.set_result(None)
