"""Where the time of a message goes: the same way as in the grid, one stage after the other.
[CO-7, CO-10]

By themselves the stages cannot overlap, so their sum is the processor time of a message, waiting
for the disk included; in the grid they run side by side.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from benchmarks.communication.room import (
    APPLICATION,
    CLOCK,
    CONTENT,
    Room,
    by_medium,
    directory_of,
    fresh_room,
    peer_name,
)
from rapport.communication.adapters.base import Delivery
from rapport.core.message import Identifier, Message

_BATCH, _AT_ONCE = 500, 5_000
_PEERS = 100

Stages = dict[str, tuple[float, float]]
"""By name of the stage: microseconds per message, and of these on the processor."""


async def stages(messages: int) -> Stages:
    """The stages of one message to a peer and of its answer, in their order; as many messages at a
    time as are on their way in the grid.
    """
    rounds = max(messages // _AT_ONCE, 1)
    found: Stages = {}
    told: list[str] = []
    handed: list[Delivery] = []
    async with fresh_room(directory_of(_PEERS), running=False) as room:
        room.output.hand_to(handed.extend)
        room.engine.add_notification(lambda message: told.append(message.id))
        await room.engine.open()
        await room.dispatch.open()
        for _ in range(rounds):
            handed.clear()
            for name, work in _in_order(room, handed):
                took, before = await _timed(work), found.get(name, (0.0, 0.0))
                found[name] = (before[0] + took[0] / rounds, before[1] + took[1] / rounds)
    if len(told) != rounds * _AT_ONCE:
        raise RuntimeError(f"{len(told)} answers were told of {rounds * _AT_ONCE}")
    return found


def _in_order(
    room: Room, handed: list[Delivery]
) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    return [
        ("send: made, checked, durable in input", lambda: _send(room)),
        ("handle: logged and queued for the adapter", room.engine.settle),
        ("dispatch: marked, handed over, told to the ledger", room.dispatch.settle),
        ("answer: made, proven, durable in input", lambda: _answer(room, handed)),
        ("handle the answer and tell the application", room.engine.settle),
    ]


async def _timed(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    began_ns, began_processor = CLOCK.steady_ns(), time.process_time()
    await work()
    processor = time.process_time() - began_processor
    took = (CLOCK.steady_ns() - began_ns) / 1e9
    return took * 1e6 / _AT_ONCE, processor * 1e6 / _AT_ONCE


async def _send(room: Room) -> None:
    receivers = [Identifier("peer", peer_name(number)) for number in range(_PEERS)]
    for start in range(0, _AT_ONCE, _BATCH):
        await room.arrivals.send(
            [
                Message(
                    type="TASK",
                    subtype="REQUEST",
                    sender=APPLICATION,
                    receiver=receivers[number % _PEERS],
                    conversation="0",
                    content=CONTENT,
                    delivery_policy="unreliable",
                )
                for number in range(start, start + _BATCH)
            ]
        )


async def _answer(room: Room, handed: list[Delivery]) -> None:
    for start in range(0, len(handed), _BATCH):
        answers = [by_medium(one) for one in handed[start : start + _BATCH]]
        await room.arrivals.publish(answers, adapter="in0", trusted=lambda _message: True)
