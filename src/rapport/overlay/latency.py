"""How long a neighbour takes to answer, and how long it is worth waiting for it. [CX-4, CX-5]"""

from __future__ import annotations

LEAST_MS, MOST_MS = 5.0, 1_000.0
UNKNOWN_MS = 200.0
_KEEP = 3


class RoundTrip:
    """Round trips to one neighbour: the mean of the last three for choosing, and a smoothed value
    with its variation for waiting, as TCP does (RFC 6298). Both are asked for far more often than
    measured, so they are worked out then.
    """

    __slots__ = ("_last", "_mean_ms", "_timeout_ms", "smoothed_ms", "variation_ms")

    def __init__(self) -> None:
        self._last: tuple[float, ...] = ()
        self.smoothed_ms = 0.0
        self.variation_ms = 0.0
        self._mean_ms = float("inf")
        self._timeout_ms = UNKNOWN_MS

    def measured(self, took_ms: float) -> None:
        """One more answer, which took so long."""
        if not self._last:
            self.smoothed_ms, self.variation_ms = took_ms, took_ms / 2
        else:
            off = abs(self.smoothed_ms - took_ms)
            self.variation_ms += (off - self.variation_ms) / 4
            self.smoothed_ms += (took_ms - self.smoothed_ms) / 8
        self._last = (*self._last[1 - _KEEP :], took_ms)
        self._mean_ms = sum(self._last) / len(self._last)
        late_ms = self.smoothed_ms + 4 * self.variation_ms
        self._timeout_ms = min(max(late_ms, LEAST_MS), MOST_MS)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._last)

    def mean_ms(self) -> float:
        """Of the last three; infinite before the first."""
        return self._mean_ms

    def timeout_ms(self) -> float:
        """When an answer is so late that it is better to ask again: between 5 ms and 1 s, 200 ms
        before anything was measured.
        """
        return self._timeout_ms
