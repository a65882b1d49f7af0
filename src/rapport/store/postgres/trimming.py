"""Letting go of the oldest events of a log, a bounded number at a time. [CH-14]"""

from __future__ import annotations

from rapport.store.postgres.connections import Link
from rapport.store.postgres.rows import BYTES_SQL

TRIM_RECORDS = 50_000
"""Positions that go in one transaction, unless one block alone has more."""

_DELETE = f"""
WITH gone AS (
  DELETE FROM events WHERE log = %(log)s AND position < %(floor)s RETURNING {BYTES_SQL} AS bytes
)
UPDATE logs SET first = %(floor)s, bytes = bytes - (SELECT COALESCE(sum(bytes), 0) FROM gone)
WHERE number = %(log)s
"""


def trim_some(link: Link, log: int, before: int) -> bool:
    """Deletes whole blocks that end before a position, oldest first; whether there is more to do.

    The lock of the log's row keeps appends out meanwhile, so that no block is cut in two.
    """
    with link.transaction():
        query = "SELECT first, last FROM logs WHERE number = %s FOR UPDATE"
        row = link.execute(query, (log,)).fetchone()
        if row is None:
            return False
        first, last = int(row[0]), int(row[1])
        near = first + TRIM_RECORDS
        floor = _floor(link, log, min(before, near), last)
        if floor <= first and near < before:
            floor = _floor(link, log, before, last)
        if floor <= first:
            return False
        link.execute(_DELETE, {"log": log, "floor": floor})
        return floor < min(before, last + 1)


def _floor(link: Link, log: int, before: int, last: int) -> int:
    """First position of the block that holds `before`; everything before it may go."""
    if before > last:
        return last + 1
    query = "SELECT block FROM events WHERE log = %s AND position >= %s ORDER BY position LIMIT 1"
    row = link.execute(query, (log, before)).fetchone()
    return last + 1 if row is None else int(row[0])
