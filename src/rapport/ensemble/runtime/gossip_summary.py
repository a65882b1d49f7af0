"""Counts messages by kind and ages of replaced knowledge; one summary event per interval.
[EN-10, EN-12, PI-6]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable

import msgspec

from rapport.core.event import Event, content_id
from rapport.core.times import DurationCounts, DurationHistogram
from rapport.ensemble.protocol import Headers, Message, Part, PublishedKnowledge, Pull, PullParts

GOSSIP_SUMMARY = "rapport.ensemble.summary"
KINDS: dict[type, str] = {
    PublishedKnowledge: "knowledge",
    Headers: "headers",
    Pull: "pull",
    Part: "part",
    PullParts: "pull_parts",
}

_MOST = 100_000
"""Components whose last version is remembered."""


class GossipSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A node's gossip between `since` and `until`."""

    node: str
    since: int
    until: int
    sent: dict[str, int]
    """Messages by kind; one to all in range counts once, one to several addresses for each."""
    received: dict[str, int]
    first: int
    """Versions of components of which nothing was held."""
    ages: DurationCounts
    """Of versions that newer ones replaced, in ms: from their creation by the clock of their node
    to their replacement by the clock of this one.
    """
    replicas: int
    """Components of other nodes that were known at the end."""

    def to_event(self, *, source: str) -> Event:
        """As an event of the channel `overlay.summaries`."""
        data = msgspec.json.encode(self)
        return Event(
            source=source,
            id=content_id(GOSSIP_SUMMARY, source, data.decode()),
            type=GOSSIP_SUMMARY,
            subject=self.node,
            time=self.until,
            data=data,
        )


class GossipCounters:
    """Counts of one node since the last summary. A message costs 0.1 us, a newer version 0.5."""

    def __init__(self, node: str, wall_ms: int) -> None:
        self._node, self._since = node, wall_ms
        self._sent: Counter[type] = Counter()
        self._received: Counter[type] = Counter()
        self._ages = DurationHistogram()
        self._first = 0
        self._created: dict[str, int] = {}
        """When the version held of a component was created; the last one renewed is last."""

    def sent(self, message: Message) -> None:
        """Counts a message given to a medium."""
        self._sent[type(message)] += 1

    def received(self, message: Message) -> None:
        """Counts a message from another node."""
        self._received[type(message)] += 1

    def replaced(self, versions: Iterable[PublishedKnowledge], wall_ms: int) -> None:
        """Counts versions that became replicas, and the age of those that they replaced."""
        for version in versions:
            before_ms = self._created.pop(version.component, None)
            if before_ms is None:
                self._first += 1
            else:
                self._ages.add(wall_ms - before_ms)
            self._created[version.component] = version.created_ms
        while len(self._created) > _MOST:  # `take` may never be called, and components come and go
            del self._created[next(iter(self._created))]

    def take(self, known: Container[str], replicas: int, wall_ms: int) -> GossipSummary | None:
        """What happened since the last time; none: nothing did. `known`: components of which
        something is still held; of the others the next version is a first one.
        """
        since, self._since = self._since, max(wall_ms, self._since)
        self._created = {name: ms for name, ms in self._created.items() if name in known}
        if not self._sent and not self._received:
            return None
        summary = GossipSummary(
            node=self._node,
            since=since,
            until=self._since,
            sent=_by_name(self._sent),
            received=_by_name(self._received),
            first=self._first,
            ages=self._ages.take(),
            replicas=replicas,
        )
        self._sent, self._received, self._first = Counter(), Counter(), 0
        return summary


def _by_name(counts: Counter[type]) -> dict[str, int]:
    return {name: counts[kind] for kind, name in KINDS.items() if counts[kind]}
