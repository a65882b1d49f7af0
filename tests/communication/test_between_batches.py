"""What is done about phrases changes between two batches: what waited is acted on as it was meant.
[CO-7, UX-2]
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest


def test_detections_that_wait_are_acted_on_before_actions_change(room: Any) -> None:
    async def scenario() -> None:
        await room.start()
        await room.detect()
        async with room.engine.between_batches():
            room.engine.use_actions({})
        await room.detect("6")
        await room.settle()
        log = await room.channels.channel("log").read_after(0)
        assert sum(b"action.unmapped" in one.event.data for one in log) == 1
        texts = [row.text for row in (await room.ledger()).messages() if row.text]
        assert texts == ["Guest 5 alone in r1"]

    asyncio.run(scenario())


def test_phrases_are_found_however_they_are_written(room: Any) -> None:
    async def scenario() -> None:
        await room.start()
        (phrase,) = room.actions
        action = msgspec.structs.replace(room.actions[phrase], text="other words")
        async with room.engine.between_batches():
            room.engine.use_actions({f" {phrase.upper()} ": action})
        await room.detect()
        await room.settle()
        assert [row.text for row in (await room.ledger()).messages()] == ["other words"]

    asyncio.run(scenario())


def test_a_failure_inside_lets_the_engine_go_on(room: Any) -> None:
    async def scenario() -> None:
        await room.start()
        with pytest.raises(KeyError):
            async with room.engine.between_batches():
                raise KeyError
        await room.detect()
        await room.settle()
        assert (await room.ledger()).messages()

    asyncio.run(scenario())
