"""How a running node is, for people and for metrics. [EN-10]"""

from __future__ import annotations

import msgspec

from rapport.ensemble.model.faults import Fault
from rapport.ensemble.model.snapshots import WithheldKnowledge


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another node."""

    name: str
    address: str
    state: str
    """`alive`, `suspect`, `dead` or `left`."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A component of another node, as it is known here."""

    component: str
    node: str
    roles: tuple[str, ...]
    version: int
    age_ms: float
    """Since it was received."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a node holds and does now; counters since it started."""

    node: str
    address: str
    group: str = ""
    """What it broadcasts to; empty without radio."""
    components: tuple[str, ...] = ()
    withheld: tuple[WithheldKnowledge, ...] = ()
    """Components whose knowledge cannot be published now, so that others get none."""
    members: tuple[MemberStatus, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    replica_count: int = 0
    """All of them, also where `replicas` shows only some."""
    faults: tuple[Fault, ...] = ()
    health: int = 0
    """0: this node keeps up; up to 8: it is slow, and waits longer for others."""
    namesakes: tuple[str, ...] = ()
    """Addresses of other nodes that have this node's name."""
    threads: int = 0
    waiting_calls: int = 0
    counters: dict[str, int] = {}
    fault_counts: dict[str, int] = {}
    """Faults by code; never fall, unlike what `faults` shows."""


_SHOWN = 200


def short_status(status: NodeStatus) -> str:
    """The status as JSON of some 100 kB at most: of more than 200 members, replicas or faults the
    first are shown; counters that are 0 are left out.
    """
    counters = {name: count for name, count in status.counters.items() if count}
    short = msgspec.structs.replace(
        status,
        counters=counters,
        members=status.members[:_SHOWN],
        replicas=status.replicas[:_SHOWN],
        faults=status.faults[:_SHOWN],
        withheld=status.withheld[:_SHOWN],
        components=status.components[:_SHOWN],
    )
    return msgspec.json.encode(short).decode()
