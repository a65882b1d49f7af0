"""PostgreSQL evaluates conditions itself, where the events are kept. [CH-4, CH-13]"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from rapport.channel.query.index_plan import IndexMatches, plan_lookup
from rapport.channel.query.parser import TokenCursor, parse_field
from rapport.channel.query.postgres_sql import to_sql
from rapport.channel.query.query_kinds import Query
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.store.postgres_log import PostgresLogStore

_log = get_logger(__name__)

_NEAR = 256
"""So few events are rather read: they are mostly in memory, where trying them costs less."""


class PostgresFinder:
    """See Finder. `indexed` returns the indexed fields of a channel: their indexes are made in the
    background from the first query on, and used when complete.
    """

    def __init__(self, store: PostgresLogStore, indexed: Callable[[str], Sequence[str]]) -> None:
        self._store, self._indexed = store, indexed

    def find(
        self,
        log: str,
        query: Query,
        *,
        after: int,
        until: int,
        limit: int,
        read: int | None = None,
    ) -> IndexMatches | None:
        """See Finder; reads the log where PostgreSQL refuses to evaluate. Events come with their
        positions, so all of them are read.
        """
        condition = to_sql(query)
        if condition.text == "TRUE":
            return None
        ready = self._store.index_fields(log, _steps(tuple(self._indexed(log))))
        if until - after <= _NEAR:
            return IndexMatches(None, until)
        try:
            events, through = self._store.find_matching(
                log,
                condition.text,
                condition.parameters,
                after=after,
                until=until,
                limit=limit,
                lookup=plan_lookup(query.condition, ready),
            )
        except InvalidInput as error:
            _log.warning("condition not evaluated by PostgreSQL", log=log, why=error.message)
            return None
        return IndexMatches(events, through)

    def fetch(self, log: str, positions: Collection[int]) -> list[StoredEvent]:
        return self._store.fetch(log, positions)


@lru_cache(maxsize=64)
def _steps(paths: tuple[str, ...]) -> dict[str, tuple[str | int, ...]]:
    return {path: parse_field(TokenCursor(path)).path for path in paths}
