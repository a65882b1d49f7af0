"""A context broker in a process of its own that has at most two neighbours.

Arguments: the addresses it joins. Prints where it listens, then whom it joined.
"""

from __future__ import annotations

import asyncio
import sys

from rapport.context.broker.broker_settings import BrokerSettings
from rapport.context.broker_server import ContextBroker
from rapport.kernel.clock import Chance, SystemClock
from rapport.overlay.membership_steps import MembershipSettings
from rapport.transport.addresses import format_address, parse_address


async def main(others: list[str]) -> None:
    broker = await ContextBroker.open(
        ("127.0.0.1", 0),
        clock=SystemClock(),
        chance=Chance.from_machine(),
        settings=BrokerSettings(membership=MembershipSettings(at_least=1, at_most=2)),
    )
    if others:
        await broker.join([parse_address(one) for one in others])
    print(format_address(broker.address), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
