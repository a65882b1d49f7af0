"""An ensemble node without components in a process of its own: it only passes on, loses a third of
what it sends and doubles some of the rest.

Arguments: the node to join, the port of the multicast group. Prints its address.
"""

from __future__ import annotations

import asyncio
import sys

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.kernel.clock import Chance, SystemClock
from rapport.overlay.swim_protocol import SwimSettings
from rapport.transport.addresses import format_address, parse_address
from rapport.transport.base import Endpoint
from rapport.transport.udp import MulticastGroup
from support.faults.lossy import LossyEndpoint


def losing(endpoint: Endpoint) -> Endpoint:
    return LossyEndpoint(endpoint, Chance(), loss=0.33, duplication=0.3, jitter_ms=40)


async def main(node: str, group: str) -> None:
    carrier = await EnsembleNode.open(
        "carrier",
        listen=("127.0.0.1", 0),
        clock=SystemClock(),
        chance=Chance.from_machine(),
        group=MulticastGroup("239.77.4.12", int(group)),
        join=[parse_address(node)],
        settings=RuntimeSettings(
            gossip=GossipSettings(knowledge_ms=200, probability=1.0),
            swim=SwimSettings(period_ms=300, ack_ms=75, gossip_ms=60),
        ),
        link=losing,
    )
    print(format_address(carrier.address), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
