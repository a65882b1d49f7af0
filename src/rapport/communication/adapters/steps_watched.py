"""Whether an adapter keeps the event loop from turning, and which one it is. [CO-4, CO-5]

An adapter's work runs in the one event loop: a step that computes for long, or waits without
`await`, stops everything else. It cannot be interrupted, so it is timed and told of.
"""

from __future__ import annotations

from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

SLOW_MS = 500
"""A step that takes longer is told of: some steps of a healthy adapter take a few milliseconds."""
_TELL_EVERY_NS = 60_000_000_000
_NS_PER_MS = 1_000_000
_log = get_logger(__name__)


class StepMonitor:
    """The steps of one adapter. Two readings of the clock for each, some tenths of a
    microsecond.
    """

    def __init__(self, adapter: str, clock: Clock, *, slow_ms: int = SLOW_MS) -> None:
        """`adapter` is how people know it: `output pager`, `input front-desk`."""
        self.adapter, self.now_ns = adapter, clock.steady_ns
        self.slow_ns = slow_ms * _NS_PER_MS
        self.blocked = 0
        """Steps that took too long."""
        self.longest_ms = 0
        self._told_ns: int | None = None

    def took(self, began_ns: int, now_ns: int) -> None:
        """A step was slow: counted, and told of at most once a minute."""
        took_ms = (now_ns - began_ns) // _NS_PER_MS
        self.blocked += 1
        self.longest_ms = max(self.longest_ms, took_ms)
        if self._told_ns is not None and now_ns - self._told_ns < _TELL_EVERY_NS:
            return
        self._told_ns = now_ns
        _log.warning(
            "an adapter kept the event loop from turning",
            code="adapter.blocks",
            adapter=self.adapter,
            took_ms=took_ms,
            times=self.blocked,
            hint="await what waits; run what computes or blocks with asyncio.to_thread",
        )
