"""What was said once is not said again: a bounded memory, and one maker for all who ask at the same
time. [ME-9]
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence

from rapport.core.event import StoredEvent
from rapport.mediation.outgoing.speech import Said

MOST_BYTES = 32 * 1024 * 1024
_OVERHEAD_BYTES = 1_000
"""Counted per entry beside the data in it."""

MakeAll = Callable[[list[int]], Awaitable[list[Said]]]
"""From the numbers of the keys that nobody has made to what they are, in the same order."""


class Outcomes:
    """What events became, by a key that says everything it depends on. All calls in one loop.

    Those not used for longest leave first. Cost: `most_bytes`, half of it the data of the keys.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._known: OrderedDict[Hashable, tuple[Said, int]] = OrderedDict()
        self._making: dict[Hashable, asyncio.Future[Said]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    @property
    def is_making(self) -> bool:
        """Whether somebody waits for something."""
        return bool(self._making)

    def get(self, key: Hashable) -> Said | None:
        """What is known of a key."""
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, said: Said, key_bytes: int) -> None:
        """Remembers it, unless it is larger than a quarter of all there is room for."""
        size = key_bytes + sum(len(event.data) for event in said.events) + _OVERHEAD_BYTES
        if size > self._most_bytes // 4 or key in self._known:
            return
        self._known[key] = (said, size)
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._bytes -= self._known.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forgets everything; what is being made still reaches those who wait for it."""
        self._known.clear()
        self._making.clear()
        self._bytes = 0

    async def once(
        self, keys: Sequence[Hashable], sizes: Sequence[int], make: MakeAll
    ) -> list[Said]:
        """What the keys stand for: known, awaited from whoever makes it already, or made now.

        Who gives up does not stop what others wait for. Raises what `make` raises.
        """
        found: list[Said | asyncio.Future[Said] | None] = [
            self.get(key) or self._making.get(key) for key in keys
        ]
        missing = [number for number, one in enumerate(found) if one is None]
        if missing:
            loop = asyncio.get_running_loop()
            for number in missing:
                found[number] = self._making.setdefault(keys[number], loop.create_future())
            first = {keys[number]: number for number in reversed(missing)}
            futures = {number: self._making[keys[number]] for number in reversed(first.values())}
            task = loop.create_task(self._make(futures, keys, sizes, make))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return [
            await asyncio.shield(one) if isinstance(one, asyncio.Future) else _present(one)
            for one in found
        ]

    async def _make(
        self,
        futures: dict[int, asyncio.Future[Said]],
        keys: Sequence[Hashable],
        sizes: Sequence[int],
        make: MakeAll,
    ) -> None:
        numbers = list(futures)
        try:
            for number, said in zip(numbers, await make(numbers), strict=True):
                self.put(keys[number], said, sizes[number])
                futures[number].set_result(said)
        except BaseException as error:
            for future in futures.values():
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # somebody may have given up meanwhile
            if not isinstance(error, Exception):
                raise
        finally:
            for number, future in futures.items():
                if self._making.get(keys[number]) is future:
                    del self._making[keys[number]]


def key_of(words: Hashable, stored: StoredEvent) -> tuple[Hashable, ...]:
    """Everything that what is made of an event in these words depends on: equal keys may share it,
    whoever asks.
    """
    event = stored.event
    return (
        *(words, stored.position, event.source, event.id, event.type, event.subject, event.time),
        *(event.data, *event.headers, *event.headers.values()),
    )


def _present(one: Said | None) -> Said:
    assert one is not None
    return one
