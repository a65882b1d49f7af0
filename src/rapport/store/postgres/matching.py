"""Finding the events of a log that fulfil a condition, where they are. [CH-4]"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from psycopg import sql

from rapport.core.event import StoredEvent
from rapport.store.fields.keys import Lookup
from rapport.store.postgres.connections import Link
from rapport.store.postgres.field_keys import STRETCH_BITS, Steps, lookup_sql
from rapport.store.postgres.rows import BYTES_SQL, CONTENT, events_of_row

READ_POSITIONS = 50_000
"""Positions that a condition without an index is tried on in one call: some 0.1 s."""
_MOST_STRETCHES = 64
_PAGE_BYTES = 4 * 1024 * 1024

# What PostgreSQL cannot look into (packed events, XML) is always among the found. The bytes of the
# events before one decide whether it still belongs to this page; the first one always does.
_FIND = """
WITH found AS (
  (SELECT position FROM (
    SELECT position, received, time, source, id, type, subject, data, headers::jsonb AS headers
    FROM events WHERE log = {log} AND position > {after} AND position <= {until} AND {lookup}
  ) AS event WHERE source IS NOT NULL AND {condition} ORDER BY position LIMIT {limit})
  UNION
  (SELECT position FROM events WHERE log = {log} AND position > {after} AND position <= {until}
  AND (packed IS NOT NULL OR headers ILIKE '%%xml%%') ORDER BY position LIMIT {limit})
  ORDER BY position LIMIT {limit}
), sized AS (
  SELECT {content}, {bytes} AS bytes FROM found JOIN events USING (position) WHERE log = {log}
), counted AS (
  SELECT *, count(*) OVER () AS found, sum(bytes) OVER (ORDER BY position) - bytes AS before
  FROM sized
)
SELECT {content}, found FROM counted WHERE before < {page} ORDER BY position
"""


class Wanted(msgspec.Struct, frozen=True):
    """A condition on the events of a log: SQL with `%s` places for its parameters, and what of it
    may be looked up in indexes on fields.
    """

    log: int
    condition: str
    parameters: Sequence[Any] = ()
    lookup: Lookup | None = None
    steps_of: Mapping[str, Steps] = {}


def find_matching(
    link: Link, wanted: Wanted, *, after: int, until: int, limit: int
) -> tuple[list[StoredEvent], int]:
    """Events after a position that may fulfil the condition, and the position up to which there are
    no others. Some megabytes at most, but at least one event if there is one within reach.
    """
    if wanted.lookup is None:
        return _find(link, wanted, after, min(until, after + READ_POSITIONS), limit)
    found: list[StoredEvent] = []
    for _stretch in range(_MOST_STRETCHES):
        end = (((after + 1) >> STRETCH_BITS) + 1 << STRETCH_BITS) - 1
        found, after = _find(link, wanted, after, min(until, end), limit)
        if found or after >= until:
            break
    return found, after


def fetch_events(link: Link, log: int, positions: Collection[int]) -> list[StoredEvent]:
    """The events at positions, in order, as far as they are there."""
    asked = sorted(positions)
    query = f"SELECT {CONTENT} FROM events WHERE log = %s AND position = ANY(%s) ORDER BY position"
    rows = link.execute(query, (log, asked), binary=True).fetchall()
    wanted = frozenset(asked)
    return [found for row in rows for found in events_of_row(row) if found.position in wanted]


def _find(
    link: Link, wanted: Wanted, after: int, until: int, limit: int
) -> tuple[list[StoredEvent], int]:
    rows = link.execute(
        _query(link, wanted, after, until, limit), wanted.parameters, binary=True, prepare=False
    ).fetchall()
    events = [
        stored for row in rows for stored in events_of_row(row[:-1]) if stored.position > after
    ]
    is_all = len(rows) < limit and (not rows or len(rows) == rows[0][-1])
    return events, until if is_all else rows[-1][0]


def _query(link: Link, wanted: Wanted, after: int, until: int, limit: int) -> sql.Composed:
    """Numbers stand in the text, not in parameters: an index that is for one log only is used when
    the planner sees which log it is.
    """
    lookup = "TRUE"
    if wanted.lookup is not None:
        looked_up = lookup_sql(wanted.log, wanted.lookup, wanted.steps_of).as_string(link)
        lookup = f"(position >> {STRETCH_BITS}) = {after + 1 >> STRETCH_BITS} AND {looked_up}"
    return sql.SQL(_FIND).format(
        log=sql.Literal(wanted.log),
        after=sql.Literal(after),
        until=sql.Literal(until),
        limit=sql.Literal(limit),
        page=sql.Literal(_PAGE_BYTES),
        lookup=sql.SQL(lookup.replace("%", "%%")),  # a percent sign would ask for a parameter
        condition=sql.SQL(wanted.condition),
        content=sql.SQL(CONTENT),
        bytes=sql.SQL(BYTES_SQL),
    )
