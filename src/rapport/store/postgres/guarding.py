"""Guarded changes in PostgreSQL: all in one statement where that can be, so that a process that is
frozen at any point keeps no lock. [CH-13, CO-17]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rapport.store.base import Change, Delete, Put
from rapport.store.guarding import Guard, GuardFailed
from rapport.store.postgres.connections import Link

_AT_ONCE = """
WITH wanted AS (
  SELECT * FROM unnest(%s::text[], %s::bytea[], %s::bytea[]) AS guards (in_table, key, value)
), held AS MATERIALIZED (
  SELECT kept.in_table, kept.key, kept.value FROM records AS kept
  JOIN wanted ON kept.in_table = wanted.in_table AND kept.key = wanted.key
  ORDER BY kept.in_table, kept.key FOR SHARE OF kept
), fine AS (
  SELECT count(*) = 0 AS is_so FROM wanted LEFT JOIN held
  ON held.in_table = wanted.in_table AND held.key = wanted.key AND held.value = wanted.value
  WHERE held.key IS NULL
), written AS (
  INSERT INTO records (in_table, key, value)
  SELECT added.* FROM unnest(%s::text[], %s::bytea[], %s::bytea[]) AS added, fine WHERE is_so
  ON CONFLICT (in_table, key) DO UPDATE SET value = EXCLUDED.value
), forgotten AS (
  DELETE FROM records AS kept USING unnest(%s::text[], %s::bytea[]) AS gone (in_table, key), fine
  WHERE is_so AND kept.in_table = gone.in_table AND kept.key = gone.key
)
SELECT in_table, key, value FROM held
"""
_LOCK = "SELECT value FROM records WHERE in_table = %s AND key = %s FOR"
_LIMIT = "SET LOCAL idle_in_transaction_session_timeout = '1s'"
"""A process that is frozen between two statements is cut off after this, so that others go on."""


def apply_guarded(
    link: Link,
    changes: Sequence[Change],
    guards: Sequence[Guard],
    change_one: Callable[[Link, Change], None],
) -> None:
    """See GuardedRecordStore; the changes are in order, one for each key."""
    changed = {(change.table, change.key) for change in changes}
    moves = any((guard.table, guard.key) in changed for guard in guards)
    if moves or any(guard.expected is None for guard in guards):
        _step_by_step(link, changes, guards, changed, change_one)
    else:
        _at_once(link, changes, guards)


def _at_once(link: Link, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
    """One statement. Transactions that share guards do not wait for each other; who changes a
    guarded record waits for them.
    """
    puts = [change for change in changes if isinstance(change, Put)]
    deletes = [change for change in changes if isinstance(change, Delete)]
    values = (
        [guard.table for guard in guards],
        [guard.key.encode() for guard in guards],
        [guard.expected for guard in guards],
        [put.table for put in puts],
        [put.key.encode() for put in puts],
        [put.value for put in puts],
        [delete.table for delete in deletes],
        [delete.key.encode() for delete in deletes],
    )
    found = link.execute(_AT_ONCE, values, binary=True).fetchall()
    held = {(table, bytes(key).decode()): bytes(value) for table, key, value in found}
    for guard in guards:
        if held.get((guard.table, guard.key)) != guard.expected:
            raise GuardFailed(guard)


def _step_by_step(
    link: Link,
    changes: Sequence[Change],
    guards: Sequence[Guard],
    changed: set[tuple[str, str]],
    change_one: Callable[[Link, Change], None],
) -> None:
    """For few changes: of records that are guarded themselves, or while others are not there."""
    with link.transaction():
        if any(guard.expected is None for guard in guards):
            # What is not there cannot be locked: the server watches for it instead.
            link.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        link.execute(_LIMIT)
        for guard in sorted(guards, key=lambda guard: (guard.table, guard.key)):
            # Who will change the row takes the stronger lock at once: two that had the weaker one
            # would wait for each other.
            strength = "UPDATE" if (guard.table, guard.key) in changed else "SHARE"
            place = (guard.table, guard.key.encode())
            row = link.execute(f"{_LOCK} {strength}", place, binary=True).fetchone()
            if (None if row is None else bytes(row[0])) != guard.expected:
                raise GuardFailed(guard)
        for change in changes:
            change_one(link, change)
