"""What routing rules cost: the same messages through the whole engine with ten rules and with a
hundred thousand. [CO-6]
"""

from __future__ import annotations

import time

from benchmarks.communication.room import (
    APPLICATION,
    CONTENT,
    Room,
    directory_of,
    fresh_room,
    peer_name,
)
from rapport.communication.routing import RoutingRule, RoutingTable
from rapport.core.message import Identifier, Message

FEW = 10
_PEERS, _BATCH = 100, 1_000
_AUDIT = Identifier("component", "audit")


async def engine_us(rules: int, messages: int, *, matching: bool) -> float:
    """Processor microseconds that the engine takes for a message, from `input` to `log` and the
    adapter's channel. `matching`: each message matches one rule, else none; one that does is
    handled with a record of its own, so what the rules cost shows less.
    """
    kind = "KIND" if matching else "PLAIN"
    routing = RoutingTable(_rules(rules))
    async with fresh_room(
        directory_of(_PEERS), route=routing.recipients, answering=False, running=False
    ) as room:
        await room.engine.open()
        await _send(room, _BATCH, kind)
        await room.engine.settle()
        await _send(room, messages, kind)
        began = time.process_time()
        await room.engine.settle()
        took = time.process_time() - began
    return took * 1e6 / messages


def _rules(count: int) -> list[RoutingRule]:
    """Rules of all priorities. The first ten match by type what is sent; the others ask for types,
    receivers and senders that nobody has today.
    """
    rules = [RoutingRule(type=f"KIND{number}", to=(_AUDIT,)) for number in range(FEW)]
    for number in range(FEW, count):
        somebody = Identifier("peer", f"x{number}")
        match number % 4:
            case 0:
                rule = RoutingRule(type=f"OTHER{number}", to=(_AUDIT,))
            case 1:
                rule = RoutingRule(type="KIND0", subtype=f"S{number}", to=(_AUDIT,))
            case 2:
                rule = RoutingRule(receiver=somebody, to=(_AUDIT,))
            case _:
                rule = RoutingRule(type="KIND1", sender=somebody, to=(_AUDIT,))
        rules.append(rule)
    return rules


async def _send(room: Room, messages: int, kind: str) -> None:
    for start in range(0, messages, _BATCH):
        await room.arrivals.send(
            [
                Message(
                    type=f"{kind}{number % FEW}",
                    subtype="REQUEST",
                    sender=APPLICATION,
                    receiver=Identifier("peer", peer_name(number % _PEERS)),
                    content=CONTENT,
                    delivery_policy="unreliable",
                )
                for number in range(start, min(start + _BATCH, messages))
            ]
        )
