"""Changes that happen only while other records still say what they said: fences for several
processes on one record store. [CH-13, CO-17]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

import msgspec

from rapport.core.errors import StoreUnavailable, Unsupported
from rapport.store.base import Change, Put, RecordStore


class Guard(msgspec.Struct, frozen=True):
    """What a record must say for a change to happen; None = it must not be there."""

    table: str
    key: str
    expected: bytes | None


class GuardFailed(StoreUnavailable):
    """A guarded record says something else: nothing was changed. Look again before trying again."""

    code = "store.guard_failed"

    def __init__(self, guard: Guard) -> None:
        super().__init__(
            f"the record {guard.key!r} of {guard.table} was changed by another process",
            code=self.code,
            hint="read it again; what was to be changed may be another's now",
        )
        self.guard = guard


class GuardedRecordStore(RecordStore, Protocol):
    """A RecordStore that several processes may share."""

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        """All changes if every guard holds at that moment, else none and GuardFailed; durable when
        it returns. One transaction: no change of a guarded record comes in between.

        After a broken connection it may be done twice; the second time fails when the first one
        changed a guarded record, so who changes one looks at it after a failure.
        """


class _Keeping(Protocol):
    def get(self, table: str, key: str) -> bytes | None: ...
    def put(self, table: str, key: str, value: bytes) -> None: ...


def as_guarded(records: RecordStore) -> GuardedRecordStore:
    """The store as one with guards; raises Unsupported when it has none."""
    if not hasattr(records, "apply_guarded"):
        raise Unsupported("changing records under a guard", type(records).__name__)
    return cast(GuardedRecordStore, records)


def check_guards(guards: Iterable[Guard], get: Callable[[str, str], bytes | None]) -> None:
    """Raises GuardFailed for the first record that says something else."""
    for guard in guards:
        if get(guard.table, guard.key) != guard.expected:
            raise GuardFailed(guard)


def keep_first(records: _Keeping, table: str, key: str, value: bytes) -> bytes:
    """What a record says, `value` when there was none: of several processes that try at the same
    time one is first, and all get its value.
    """
    kept = records.get(table, key)
    if kept is not None:
        return kept
    if not hasattr(records, "apply_guarded"):
        records.put(table, key, value)
        return value
    try:
        cast(GuardedRecordStore, records).apply_guarded(
            [Put(table, key, value)], [Guard(table, key, None)]
        )
    except GuardFailed:
        kept = records.get(table, key)
    return value if kept is None else kept
