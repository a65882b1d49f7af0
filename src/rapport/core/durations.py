"""Many durations in little room: counted by steps, each at most a thirty-second of what it stands
for. Pure. [PI-6]
"""

from __future__ import annotations

import msgspec

_BITS = 6
_LONGEST = 2**53 - 1
"""What JSON carries exactly everywhere; in microseconds 285 years."""


class DurationCounts(msgspec.Struct, frozen=True):
    """How many durations there were, the longest, and how many of each step.

    A step is named by its shortest duration, so what a step says is never more than what was, and
    less by at most a thirty-second of it. Counts of several stretches of time add up.
    """

    count: int = 0
    longest: int = 0
    steps: tuple[tuple[int, int], ...] = ()
    """The step and how many, the shortest first."""


class Durations:
    """Counts durations, whole numbers of any unit. Adding takes 0.2 us; there are at most some
    1,500 steps, and in practice some dozens.
    """

    __slots__ = ("_longest", "_steps")

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._longest = 0

    def __len__(self) -> int:
        """How many were added."""
        return sum(self._steps.values())

    def add(self, duration: int) -> None:
        """One more; a negative one, of a clock that was set back, counts as none at all."""
        if duration > self._longest:
            duration = self._longest = min(duration, _LONGEST)
        shift = duration.bit_length() - _BITS
        # As `step_of`, which a call would cost as much as all of this.
        step = duration >> shift << shift if shift > 0 else duration
        if step < 0:
            step = 0
        self._steps[step] = self._steps.get(step, 0) + 1

    def take(self) -> DurationCounts:
        """What was added since the last time; the counting begins anew."""
        counts = DurationCounts(len(self), self._longest, tuple(sorted(self._steps.items())))
        self._steps, self._longest = {}, 0
        return counts


def step_of(duration: int) -> int:
    """The step that a duration is counted in.

    >>> [step_of(number) for number in (0, 63, 64, 65, 66, 1_000, 1_000_000)]
    [0, 63, 64, 64, 66, 992, 999424]
    """
    shift = duration.bit_length() - _BITS
    return duration >> shift << shift if shift > 0 else duration
