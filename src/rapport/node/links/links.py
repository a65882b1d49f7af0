"""All links of a node: started and stopped with it. [CH-11]"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.federation import Link
from rapport.core.urls import without_password
from rapport.kernel.tasks import Tasks, close_all
from rapport.node.links.link import LinkParts, RunningLink
from rapport.node.links.status import ChannelStatus, LinkStatus


class Links:
    """The node's neighbours. `parts.receiver` also serves the door where neighbours hand over."""

    def __init__(self, links: Sequence[tuple[Link, str]], parts: LinkParts) -> None:
        self._running = [RunningLink(link, token, parts) for link, token in links]
        self._tasks = Tasks(parts.clock)
        self.node, self.receiver = parts.node, parts.receiver

    def start(self) -> None:
        """Begins to share; unreachable neighbours are tried again for ever."""
        for running in self._running:
            self._tasks.start(f"link {running.link.name}", running.run)

    async def stop(self) -> None:
        """Ends; what is under way is asked for again at the next start."""
        links = [(f"links.{running.link.name}", running.close) for running in self._running]
        await close_all([("links.tasks", self._tasks.stop), *links])

    def status(self) -> list[LinkStatus]:
        """One row per link, direction and channel; a link that was not reached yet has one."""
        return [row for running in self._running for row in _rows(running)]


def _rows(running: RunningLink) -> list[LinkStatus]:
    shared = running.status or {("", ""): ChannelStatus()}
    rows = []
    for (way, channel), counts in shared.items():
        told = counts
        if running.trouble and not counts.trouble:
            told = msgspec.structs.replace(counts, trouble=running.trouble)
        rows.append(
            LinkStatus(
                link=running.link.name,
                url=without_password(running.link.url),
                peer=running.peer,
                way=way,
                channel=channel,
                counts=told,
            )
        )
    return rows
