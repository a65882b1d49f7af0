"""What is decided stays decided, however much is decided after it."""

from __future__ import annotations

import msgspec

from rapport.communication.delivering.case_records import CASES, Case
from rapport.communication.delivering.deciding import Decided
from rapport.communication.delivering.tracking import Result, Tracking
from rapport.store.memory import MemoryRecordStore

MANY = 250_000
"""More than are remembered."""


def keep(records: MemoryRecordStore, result: Result) -> None:
    case = Case(tracking=Tracking(message="m", result=result), message="m", sender="")
    records.put(CASES, "m", msgspec.msgpack.encode(case))


def test_a_message_that_was_asked_for_while_it_was_open_is_decided_after_very_many_others() -> None:
    """It waits for a slow medium while answers to others come in."""
    records = MemoryRecordStore()
    decided = Decided(records)
    keep(records, "")
    assert not decided.has("m")
    keep(records, "done")
    decided.closed("m")
    assert decided.has("m")
    for number in range(MANY):
        decided.closed(f"other{number}")
    assert decided.has("m")
