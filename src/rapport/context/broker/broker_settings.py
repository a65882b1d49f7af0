"""Settings of a broker; the defaults are the decisions of CX-5 and CX-6.
[CX-4, CX-5, CX-6]
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.context.records import TableLimits
from rapport.core.errors import InvalidInput, nearest_names
from rapport.overlay.membership_steps import MANY, MembershipSettings, check_ranges

StrategyName = Literal["walk", "walkers", "flood", "normalized", "ring"]
LookAhead = Literal["probe", "bloom", "off"]
ReplicationName = Literal["random", "path", "passive", "cache", "none"]

STRATEGIES: tuple[StrategyName, ...] = ("walk", "walkers", "flood", "normalized", "ring")
LOOK_AHEADS: tuple[LookAhead, ...] = ("probe", "bloom", "off")
REPLICATIONS: tuple[ReplicationName, ...] = ("random", "path", "passive", "cache", "none")

MOST_HOPS = 500
"""Of a walker over sockets: a message has room for a path of 512 addresses."""
_SEARCH_RANGES = {
    "hop_limit": (1, MANY),
    "walkers": (1, 1_000),
    "flood_ttl": (1, 64),
    "width": (1, MANY),
    "look_ahead_wait_ms": (0, 60_000),
    "filter_bits": (64, 2_000_000),  # a pong carries it
    "rounds": (1, 40),
    "tries": (1, 20),
}
_REPLICATION_RANGES = {
    "copies": (0, MANY),
    "at_most": (0, MANY),
    "least_validity_ms": (0, MANY),
    "invalidate_ttl": (0, 64),
}


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a record is looked for that is not here."""

    strategy: StrategyName = "walk"
    hop_limit: int = 64
    """Steps of one walker."""
    avoid_visited: bool = True
    """Without it a walker may go anywhere but where it just came from."""
    walkers: int = 4
    """At once, with the strategy `walkers`."""
    flood_ttl: int = 6
    """How far a flood and the widest ring go."""
    width: int = 3
    """Neighbours a normalized flood goes to: the least degree of the network."""
    look_ahead: LookAhead = "probe"
    look_ahead_depth: int = 1
    """How far probes go: 0 (none), 1 or 2."""
    look_ahead_wait_ms: float = 50.0
    """The longest wait for what probes find; else two round trips."""
    filter_bits: int = 32_768
    """Of the filter sent with pongs when looking ahead by `bloom`."""
    rounds: int = 4
    """How often a search is begun within its deadline; each round has an equal part of it."""
    tries: int = 3
    """How often a hop is sent until it is acknowledged; 1: hops are not acknowledged."""

    def __post_init__(self) -> None:
        check_ranges(self, _SEARCH_RANGES, code="context.bad_settings")


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where copies of found records are left."""

    kind: ReplicationName = "random"
    copies: int = 0
    """With `random`: so many, or (0) as many as brokers lie on the path."""
    at_most: int = 64
    """The cap of copies that follow the path."""
    least_validity_ms: int = 5_000
    """A record with less left is not worth a copy."""
    invalidate: bool = False
    """Whether an update is flooded so that older replicas are void."""
    invalidate_ttl: int = 3
    recall: bool = True
    """Whether a broker that gave copies away calls them back when it knows something newer."""

    def __post_init__(self) -> None:
        check_ranges(self, _REPLICATION_RANGES, code="context.bad_settings")


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of pending work; beyond them the broker answers TOO_BUSY or forgets the oldest."""

    searches: int = 10_000
    searches_per_sender: int = 2_000
    within_ms: int = 60_000
    """The longest deadline of a request; longer ones are shortened."""
    remembered: int = 20_000
    """Answers kept for repeated requests, and hops kept to know their duplicates."""
    looking: int = 10_000
    """Walkers that wait for probes; beyond they walk on without."""
    watches: int = 10_000
    watches_per_sender: int = 1_000
    lease_ms: int = 3_600_000
    copies_known: int = 100_000
    """Copies that left this broker and can be called back."""
    keeping: int = 100_000
    """Updates on their way to disk."""


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one broker that does not come from its place in the network."""

    search: SearchSettings = msgspec.field(default_factory=SearchSettings)
    replication: ReplicationSettings = msgspec.field(default_factory=ReplicationSettings)
    membership: MembershipSettings = msgspec.field(default_factory=MembershipSettings)
    table: TableLimits = msgspec.field(default_factory=TableLimits)
    limits: BrokerLimits = msgspec.field(default_factory=BrokerLimits)
    monitors: bool = True
    """Whether neighbours are pinged from the beginning, else from `monitor` on."""
    durable: bool = False
    """Whether the shell keeps updates on disk: then 102 waits for `kept`, else it goes out at
    once and there are no StoreRecord effects.
    """
    audits: bool = False
    """Whether operations of clients produce AuditEffects."""
    notice_again_ms: float = 200.0
    """A notice that was not acknowledged is sent again after this, doubling."""

    def __post_init__(self) -> None:
        _one_of("strategy", self.search.strategy, STRATEGIES)
        _one_of("look_ahead", self.search.look_ahead, LOOK_AHEADS)
        _one_of("replication", self.replication.kind, REPLICATIONS)
        if not 0 <= self.search.look_ahead_depth <= 2:
            raise InvalidInput(
                f"look_ahead_depth {self.search.look_ahead_depth} is not 0, 1 or 2",
                code="context.bad_settings",
                hint="deeper probes are a flood: choose the strategy flood",
            )


def check_on_sockets(settings: BrokerSettings) -> None:
    """Raises InvalidInput for what only simulated brokers can do."""
    if settings.search.hop_limit > MOST_HOPS:
        raise InvalidInput(
            f"hop_limit = {settings.search.hop_limit} cannot be: the path would fit no message",
            code="context.bad_settings",
            hint=f"from 1 to {MOST_HOPS}",
        )


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = nearest_names(value, known)
        raise InvalidInput(
            f"there is no {what} {value!r}",
            code="context.bad_settings",
            hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}",
        )
