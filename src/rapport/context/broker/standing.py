"""How a broker stands, for people and metrics. [CX-3, CX-12]"""

from __future__ import annotations

import msgspec

from rapport.transport.base import Address


class NeighbourStatus(msgspec.Struct, frozen=True):
    """A neighbour as seen from here."""

    address: Address
    mean_ms: float | None


class MachineStatus(msgspec.Struct, frozen=True):
    """How a broker stands."""

    neighbours: tuple[NeighbourStatus, ...]
    own_records: int
    replicas: int
    replica_bytes: int
    searches: int
    hops_waiting: int
    looking: int
    watchers: int
    followed: int
    load: float
    counts: dict[str, int]
