"""What was received behind the readings of an answer, before it was given a meaning. [PO-11]"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from rapport.channel.channel import Channels
from rapport.core.event import StoredEvent
from rapport.policy.explaining.verdict import Candidate, ConditionNode

_LONGEST = 200
_MOST_RAW = 60


class RawValues:
    """Looks raw data up, once per reading, as far as the channels may be shown."""

    def __init__(
        self,
        channels: Channels,
        events: Mapping[str, StoredEvent],
        may_read: Callable[[str], bool] | None,
    ) -> None:
        self._channels, self._events = channels, events
        self._may_read = may_read or (lambda _channel: True)
        self._found: dict[str, str] = {}

    async def filled(self, candidate: Candidate) -> Candidate:
        """The candidate with the raw form of what it shows."""
        for id in _reading_ids(candidate):
            if id not in self._found and id in self._events and len(self._found) < _MOST_RAW:
                self._found[id] = await self._raw(self._events[id])
        clauses = tuple(self._node(one) for one in candidate.clauses)
        return msgspec.structs.replace(candidate, clauses=clauses)

    async def _raw(self, stored: StoredEvent) -> str:
        headers = stored.event.headers
        channel, position = headers.get("rawchannel", ""), headers.get("rawposition", "")
        if not channel or not position.isdigit() or not self._may_read(channel):
            return ""
        found = await self._channels.channel(channel).read_after(int(position) - 1, limit=1)
        if not found or found[0].position != int(position):
            return "no longer in the log"
        return found[0].event.data[:_LONGEST].decode("utf-8", "replace")

    def _node(self, node: ConditionNode) -> ConditionNode:
        return msgspec.structs.replace(
            node,
            readings=tuple(
                msgspec.structs.replace(one, raw=self._found.get(one.id, ""))
                for one in node.readings
            ),
            children=tuple(self._node(child) for child in node.children),
        )


def _reading_ids(candidate: Candidate) -> Iterator[str]:
    nodes = list(candidate.clauses)
    while nodes:
        node = nodes.pop()
        nodes += node.children
        yield from (reading.id for reading in node.readings)
