"""What is decided stays decided, however much is decided after it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.communication.delivery_state import DeliveryResult, DeliveryState
from rapport.communication.records import DELIVERIES, DecisionCache, DeliveryRecord
from rapport.core.errors import StoreUnavailable
from rapport.store.memory import MemoryRecordStore

MANY = 250_000
"""More than are remembered."""


def keep(records: MemoryRecordStore, result: DeliveryResult) -> None:
    case = DeliveryRecord(
        tracking=DeliveryState(message="m", result=result), message="m", sender=""
    )
    records.put(DELIVERIES, "m", msgspec.msgpack.encode(case))


def test_a_message_that_was_asked_for_while_it_was_open_is_decided_after_very_many_others() -> None:
    """It waits for a slow medium while answers to others come in."""
    records = MemoryRecordStore()
    decided = DecisionCache(records)
    keep(records, "")
    assert not decided.is_decided("m")
    keep(records, "done")
    decided.close("m")
    assert decided.is_decided("m")
    for number in range(MANY):
        decided.close(f"other{number}")
    assert decided.is_decided("m")


def test_what_a_store_kept_though_it_failed_is_decided_once_the_store_is_there_again(room) -> None:
    """A connection may break behind the commit: then nobody was told that it was one."""

    async def scenario() -> None:
        await room.start()
        await room.detect()
        await room.engine.settle()
        (row,) = (await room.ledger()).messages()
        assert not room.engine.is_decided(row.message)
        await room.answer(row.message, "ana")
        records = room.channels.records
        apply = records.apply

        def keep_and_fail(changes) -> None:
            apply(changes)
            raise StoreUnavailable("the connection is gone")

        records.apply = keep_and_fail
        with pytest.raises(StoreUnavailable):
            await room.engine.settle()
        records.apply = apply
        await room.engine.settle()
        assert (await room.ledger()).messages()[0].result == "done"
        assert room.engine.is_decided(row.message)

    asyncio.run(scenario())
