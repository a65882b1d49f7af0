"""Finding events of sites whose logs are in several stores: each log as its store can best. [CH-4,
CH-13]
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from rapport.channel.finding.planning import Finder, Found
from rapport.channel.query.kinds import Query
from rapport.core.event import StoredEvent


class MixedFinder:
    """See Finder. Logs whose store evaluates conditions itself are asked there, the others are
    looked up in the index beside the logs.
    """

    def __init__(self, own: Finder, beside: Finder, is_own: Callable[[str], bool]) -> None:
        self._own, self._beside, self._is_own = own, beside, is_own

    def find(
        self,
        log: str,
        query: Query,
        *,
        after: int,
        until: int,
        limit: int,
        read: int | None = None,
    ) -> Found | None:
        """See Finder."""
        finder = self._of(log)
        return finder.find(log, query, after=after, until=until, limit=limit, read=read)

    def fetch(self, log: str, positions: Collection[int]) -> list[StoredEvent]:
        """See Finder."""
        return self._of(log).fetch(log, positions)

    def _of(self, log: str) -> Finder:
        return self._own if self._is_own(log) else self._beside
