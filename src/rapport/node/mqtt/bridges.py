"""All bridges of a node: started and stopped with it. [CH-12]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.kernel.tasks import close_all
from rapport.node.links.status import ChannelStatus, LinkStatus
from rapport.node.mqtt.bridge import RunningBridge


class Bridges:
    """The node's brokers."""

    def __init__(self, running: Sequence[RunningBridge]) -> None:
        self._running = tuple(running)

    def start(self) -> None:
        """Begins to connect; unreachable brokers are tried again for ever."""
        for bridge in self._running:
            bridge.start()

    async def stop(self) -> None:
        """Ends; brokers keep what was not acknowledged."""
        await close_all((f"mqtt.{one.bridge.name}", one.stop) for one in self._running)

    def status(self) -> list[LinkStatus]:
        """One row per bridge and direction."""
        return [row for bridge in self._running for row in _rows(bridge)]


def _rows(running: RunningBridge) -> list[LinkStatus]:
    bridge = running.bridge
    counts = {
        "mqtt in": ChannelStatus(
            stored=running.taken,
            known=running.repeated,
            refused=running.refused,
            trouble=running.trouble,
        ),
        "mqtt out": ChannelStatus(forwarded=running.published, trouble=running.trouble),
    }
    channels = {
        "mqtt in": sorted({one.channel for one in bridge.incoming}),
        "mqtt out": sorted({one.channel for one in bridge.outgoing}),
    }
    return [
        LinkStatus(
            link=bridge.name,
            url=f"{bridge.host}:{bridge.port}",
            peer="",
            way=way,
            channel=" ".join(channels[way]),
            counts=counts[way],
        )
        for way in counts
        if channels[way]
    ]
