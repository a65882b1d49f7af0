"""What occurs: identities, the readings that show it, and when it ended; and what nearly occurred
because it did not last. [PO-6, PO-11]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rapport.policy.explaining.world import Evidence, Reading


class Occurrence(msgspec.Struct, frozen=True):
    """A term holding; `until` is its end, None for a fact of the tables."""

    pairs: tuple[tuple[str, str], ...]
    events: tuple[Reading, ...]
    until: int | None
    uncertainty: int = 0
    since: int | None = None
    """When a state became true or a silence began."""

    @property
    def bindings(self) -> dict[str, str]:
        """Its identities by alias."""
        return dict(self.pairs)

    @property
    def is_fact(self) -> bool:
        """Facts take no part in any test of time."""
        return self.until is None

    @property
    def end(self) -> int:
        """When it is complete."""
        assert self.until is not None, "a fact has no end"
        return self.until

    @property
    def start(self) -> int:
        """The smallest time of its readings."""
        return min((event.time for event in self.events), default=self.end)

    @property
    def first_moment(self) -> int:
        """From when on it can be seen to happen."""
        return min(self.start, self.end if self.since is None else self.since)


class StateSpan(msgspec.Struct, frozen=True):
    """A state that was true, or a silence, from the occurrence's `since` on; `ended` is None when
    it goes on for ever.
    """

    occurrence: Occurrence
    ended: int | None
    ended_by: Reading | None = None
    """None: nothing ended it, or a value that grew stale did."""

    @property
    def has_lasted(self) -> bool:
        """Whether it went on long enough to occur."""
        return self.ended is None or self.ended >= self.occurrence.end


def occurrence(
    world: Evidence,
    bindings: Mapping[str, str],
    events: Iterable[Reading],
    until: int | None,
    *,
    since: int | None = None,
) -> Occurrence:
    """With the uncertainty of its events."""
    shown = tuple(events)
    pairs = tuple(sorted(bindings.items()))
    return Occurrence(pairs, shown, until, world.uncertainty(shown), since)
