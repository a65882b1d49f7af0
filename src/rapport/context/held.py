"""What a table is made of: records and where they come from, and which of them count. [CX-1]"""

from __future__ import annotations

from enum import Enum

import msgspec

from rapport.context.messages import Question
from rapport.core.context_record import ContextRecord
from rapport.transport.base import Address

QuestionKey = tuple[str, str, str]
"""Entity type, entity id, scope."""

NEVER = 1 << 62


class Outcome(Enum):
    """What became of a record that was put."""

    TAKEN = "taken"
    SAME = "same"
    """It is here already."""
    STALE = "stale"
    """Something newer of its provider is here."""
    PAST = "past"
    """Its validity is over."""
    FULL = "full"


class Held(msgspec.Struct, frozen=True, gc=False):
    """A record and where it comes from: `holder` is none for the broker's own, else the broker
    that its provider gives it to.
    """

    record: ContextRecord
    holder: Address | None = None
    size: int = 0
    """Bytes of a replica; those of own records are not counted."""


class TableLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a table takes."""

    own_records: int = 2_000_000
    replicas: int = 100_000
    replica_bytes: int = 64 * 1024 * 1024
    ahead_per_provider: int = 16
    """Records of one provider for one question whose validity is still to begin."""


def key_of(question: Question) -> QuestionKey:
    """What a question is looked up by."""
    entity = question.entity
    return entity.type, entity.id, question.scope


def arrange(held: list[Held], wall_ms: int) -> tuple[list[Held], int]:
    """What counts of these at a time, the answer first, and when that changes.

    Of each provider the latest that has begun counts, and once it is over nothing: what came
    before it never comes back. What is still to begin is kept behind.
    """
    latest: dict[str, Held] = {}
    ahead: list[Held] = []
    for one in held:
        record = one.record
        if record.valid_from > wall_ms:
            ahead.append(one)
            continue
        other = latest.get(record.provider)
        if other is None or record.valid_from > other.record.valid_from:
            latest[record.provider] = one
    valid = [one for one in latest.values() if one.record.valid_until > wall_ms]
    if len(valid) > 1:
        valid.sort(key=lambda one: one.record.rank(), reverse=True)
    turns = [one.record.valid_until for one in valid] + [one.record.valid_from for one in ahead]
    return valid + ahead, min(turns, default=NEVER)
