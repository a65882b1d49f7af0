"""A few at a time, some waiting, the rest refused at once: for work that costs memory or threads.
[CO-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rapport.core.errors import Unavailable


class ConcurrencyLimit:
    """At most `at_once` are in their turn and `most_waiting` wait for one, in order."""

    def __init__(self, at_once: int, most_waiting: int) -> None:
        self._turns, self._most = asyncio.Semaphore(at_once), at_once + most_waiting
        self._here = 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits for a turn, which lasts as long as the block; raises Unavailable when too many
        wait already.
        """
        if self._here >= self._most:
            raise Unavailable("too many logins are checked at the moment", code="auth.busy")
        self._here += 1
        try:
            async with self._turns:
                yield
        finally:
            self._here -= 1
