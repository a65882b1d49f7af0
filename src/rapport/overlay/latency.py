"""How long a neighbour takes to answer, and how long it is worth waiting for it. [CX-4, CX-5]"""

from __future__ import annotations

from collections import deque

LEAST_MS, MOST_MS = 5.0, 1_000.0
UNKNOWN_MS = 200.0
_KEEP = 3


class RoundTrip:
    """Round trips to one neighbour: the mean of the last three for choosing, and a smoothed value
    with its variation for waiting, as TCP does (RFC 6298).
    """

    __slots__ = ("_last", "smoothed_ms", "variation_ms")

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_KEEP)
        self.smoothed_ms = 0.0
        self.variation_ms = 0.0

    def measured(self, took_ms: float) -> None:
        """One more answer, which took so long."""
        if not self._last:
            self.smoothed_ms, self.variation_ms = took_ms, took_ms / 2
        else:
            off = abs(self.smoothed_ms - took_ms)
            self.variation_ms += (off - self.variation_ms) / 4
            self.smoothed_ms += (took_ms - self.smoothed_ms) / 8
        self._last.append(took_ms)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._last)

    def mean_ms(self) -> float:
        """Of the last three; infinite before the first."""
        return sum(self._last) / len(self._last) if self._last else float("inf")

    def timeout_ms(self) -> float:
        """When an answer is so late that it is better to ask again: between 5 ms and 1 s, 200 ms
        before anything was measured.
        """
        if not self._last:
            return UNKNOWN_MS
        return min(max(self.smoothed_ms + 4 * self.variation_ms, LEAST_MS), MOST_MS)
