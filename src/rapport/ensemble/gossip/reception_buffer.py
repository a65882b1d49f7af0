"""What a node knows of each component: the version it holds, when it was received here and by
anybody, and whether somebody pulls it. [EN-8]
"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.ensemble.messages import Published
from rapport.transport.base import Address, Now

_NEVER = 0.0


class Reception:
    """One component, as far as its node knows. Fields are read and written on the hot path of the
    machine, so they are open.
    """

    __slots__ = (
        "address",
        "asked",
        "component",
        "global_ms",
        "listed",
        "local_ms",
        "message",
        "pulled_until_ms",
        "received_ms",
        "sent_ms",
        "version",
    )

    def __init__(self, component: str, steady_ms: float) -> None:
        self.component = component
        self.version = 0
        """Of the message held; 0 for none."""
        self.message: Published | None = None
        self.received_ms = steady_ms
        """Steady time of the last news."""
        self.local_ms = 0
        """Time of the version held here; of the first header while none is."""
        self.global_ms = 0
        """Greatest time known of anybody's reception."""
        self.listed = False
        """Its header is in the buffer; a version may be held longer than its header."""
        self.pulled_until_ms = _NEVER
        """Steady time until when the next version is passed on surely; 0: nobody pulls."""
        self.address: Address | None = None
        """Of the node it lives on."""
        self.asked = 0
        """Pulls sent since the last news."""
        self.sent_ms = float("-inf")
        """Steady time when the version held was last said to all; minus infinity: not yet."""


class ReceptionBuffer:
    """All components that a node knows of, at most `capacity`; for more, the one known longest is
    forgotten. Looking up costs a dictionary access; going through headers is linear.
    """

    def __init__(self, capacity: int, local_ms: float, global_ms: float) -> None:
        self.entries: dict[str, Reception] = {}
        self._capacity = capacity
        self._local_ms, self._global_ms = local_ms, global_ms

    def add(self, component: str, now: Now) -> tuple[Reception, Reception | None]:
        """A new entry without version and header, and the one that had to go for it."""
        gone = None
        if len(self.entries) >= self._capacity:
            gone = self.entries.pop(next(iter(self.entries)))
        entry = self.entries[component] = Reception(component, now.steady_ms)
        return entry, gone

    def expire(self, now: Now) -> list[Reception]:
        """Takes headers out whose component nobody received for too long, and returns them. A
        clock that was set back by more than that also ends them.
        """
        expired = [entry for entry in self.entries.values() if self._is_expired(entry, now)]
        for entry in expired:
            entry.listed = False
        return expired

    def is_current(self, global_ms: int, now: Now) -> bool:
        """Whether a header of that time may be in the buffer."""
        return abs(now.wall_ms - global_ms) <= self._global_ms

    def listed(self) -> Iterator[Reception]:
        """Those whose header is in the buffer."""
        return (entry for entry in self.entries.values() if entry.listed)

    def outdated(self, now: Now) -> list[Reception]:
        """Those listed whose held version is too old."""
        before_ms = now.wall_ms - self._local_ms
        return [entry for entry in self.listed() if entry.local_ms < before_ms]

    def forget(self, before_ms: float) -> list[Reception]:
        """Forgets and returns those without news since a steady time, whose header is gone too."""
        old = [
            entry
            for entry in self.entries.values()
            if entry.received_ms < before_ms and not entry.listed
        ]
        for entry in old:
            del self.entries[entry.component]
        return old

    def _is_expired(self, entry: Reception, now: Now) -> bool:
        return entry.listed and not self.is_current(entry.global_ms, now)
