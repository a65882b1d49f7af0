"""What was done for consumers, by interpretation: counted, logged once per reason, listed.
[ME-9]
"""

from __future__ import annotations

from collections import deque

import msgspec

from rapport.core.event import StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.mediation.outgoing.speech import Said

_MOST_TOLD = 100
_log = get_logger(__name__)


class SpokenCounts(msgspec.Struct):
    """What was done for the consumers of one interpretation since the start."""

    transformed: int = 0
    from_cache: int = 0
    """Handed over without doing anything again."""
    originals: int = 0
    """Read as they were received."""
    rejected: dict[str, int] = {}
    """By code: events that cannot be said. They are not delivered."""


class Unsaid(msgspec.Struct, frozen=True):
    """An event that the consumers of an interpretation do not get, and why."""

    channel: str
    position: int
    interpretation: str
    code: str
    message: str


class Told:
    """The counts of all interpretations, and the last events that could not be said."""

    def __init__(self) -> None:
        self.counts: dict[str, SpokenCounts] = {}
        self.unsaid: deque[Unsaid] = deque(maxlen=_MOST_TOLD)
        self._logged: set[tuple[str, str]] = set()

    def of(self, interpretation: str) -> SpokenCounts:
        """The counts of one, which go on counting."""
        if interpretation not in self.counts:
            self.counts[interpretation] = SpokenCounts()
        return self.counts[interpretation]

    def events(self) -> dict[str, int]:
        """How many events consumers were given, by interpretation."""
        return {
            name: each.transformed + each.from_cache + each.originals
            for name, each in self.counts.items()
        }

    def made(self, interpretation: str, channel: str, stored: StoredEvent, said: Said) -> None:
        """Notes what became of an event for the first time."""
        counts = self.of(interpretation)
        if said.is_made and (said.events or not said.code):
            counts.transformed += 1
        if not said.code:
            return
        counts.rejected[said.code] = counts.rejected.get(said.code, 0) + 1
        unsaid = Unsaid(channel, stored.position, interpretation, said.code, said.message)
        self.unsaid.append(unsaid)
        if (interpretation, said.code) not in self._logged:
            self._logged.add((interpretation, said.code))
            _log.warning("event cannot be said", **msgspec.structs.asdict(unsaid))
