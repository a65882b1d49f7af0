"""How a broker is, for people and for metrics. [CX-3, CX-4]"""

from __future__ import annotations

import msgspec

from rapport.context.codec import MAX_WHY


class NeighbourStatus(msgspec.Struct, frozen=True, kw_only=True, rename={"round_trip_ms": "rtt"}):
    """A neighbour and how far away it is."""

    address: str
    round_trip_ms: float | None = None


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker holds and does now; counters since it started."""

    address: str
    neighbours: tuple[NeighbourStatus, ...] = ()
    records: int = 0
    """Its own, told by providers."""
    replicas: int = 0
    replica_bytes: int = 0
    searches: int = 0
    """Under way."""
    watches: int = 0
    queued: int = 0
    """Updates on their way to disk."""
    load: float = 0.0
    counters: dict[str, int] = {}


def short_status(status: BrokerStatus) -> str:
    """The status in as many bytes as an answer has: counters that are 0 are left out first, then
    all counters, then far neighbours.
    """
    counters = {name: count for name, count in status.counters.items() if count}
    status = msgspec.structs.replace(status, counters=counters)
    while len(text := msgspec.json.encode(status).decode()) > MAX_WHY:
        if status.counters:
            status = msgspec.structs.replace(status, counters={})
        elif status.neighbours:
            status = msgspec.structs.replace(status, neighbours=status.neighbours[:-1])
        else:
            break
    return text
