"""Knowledge that waits for its turn: bounded, and at most one version of a component within a time
where that is wanted. [EN-14]
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rapport.core.knowledge import Knowledge

MOST = 10_000


class Inbox:
    """Versions in the order they came. When there are too many, only the newest of each component
    stays. Belongs to one event loop.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._waiting: list[Knowledge] = []
        self._came = asyncio.Event()
        self.skipped = 0
        """Versions that a newer one overtook here."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, knowledge: Knowledge) -> None:
        """One more; costs nothing unless there are too many."""
        self._waiting.append(knowledge)
        if len(self._waiting) > self._most:
            self._make_room()
        self._came.set()

    def put_back(self, versions: Iterable[Knowledge]) -> None:
        """What could not be handled: it is first again."""
        self._waiting[:0] = versions
        self._came.set()

    async def wait(self) -> None:
        """Returns as soon as there is one."""
        await self._came.wait()

    def take_all(self) -> list[Knowledge]:
        """All that wait."""
        self._came.clear()
        batch, self._waiting = self._waiting, []
        return batch

    def _make_room(self) -> None:
        newest: dict[str, Knowledge] = {}
        for one in self._waiting:
            newest.pop(one.component, None)
            newest[one.component] = one
        kept = list(newest.values())[-self._most // 2 :]
        self.skipped += len(self._waiting) - len(kept)
        self._waiting = kept


class Thinning:
    """Lets pass at most one version of a component within a time, and in the end the newest. Pure:
    times are steady ms.
    """

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._passed: dict[str, float] = {}
        self._waiting: dict[str, Knowledge] = {}

    def take(self, versions: Iterable[Knowledge], now_ms: float) -> list[Knowledge]:
        """Those that pass now, of these and of what waited."""
        if not self._every_ms:
            return list(versions)
        for one in versions:
            self._waiting[one.component] = one
        since_ms = now_ms - self._every_ms
        self._passed = {name: at for name, at in self._passed.items() if at > since_ms}
        passing = [one for name, one in self._waiting.items() if name not in self._passed]
        for one in passing:
            del self._waiting[one.component]
            self._passed[one.component] = now_ms
        return passing

    def next_due_ms(self) -> float | None:
        """When the next one passes; None when none waits."""
        times = [self._passed[name] + self._every_ms for name in self._waiting]
        return min(times, default=None)
