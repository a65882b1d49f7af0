"""The settings of a running node. [EN-10]"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.ensemble.gossip.settings import GossipSettings
from rapport.ensemble.grouping.settings import GroupingSettings
from rapport.ensemble.model.host_settings import HostSettings
from rapport.overlay.swim_protocol import SwimSettings
from rapport.transport import station
from rapport.transport.base import Address


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node gossips, what it allows its components, how it watches the others."""

    gossip: GossipSettings = GossipSettings()
    """Which media there are (`radio`, `ip`) follows from how the node is opened."""
    host: HostSettings = HostSettings()
    swim: SwimSettings = SwimSettings()
    grouping: GroupingSettings = GroupingSettings()
    """Of groupers and their clients."""
    threads: int = 4
    """Processes of components that run at the same time, beside those that hang."""


def check_sealed(addresses: Iterable[Address], *, has_keys: bool) -> None:
    """Raises InvalidInput for an address that others reach while nothing would be sealed."""
    station.check_sealed(
        addresses,
        has_keys=has_keys,
        code="ensemble.no_keys",
        hint="make keys with `rapport ensemble keys make FILE OWNER --kind network` and name them "
        "with --keys FILE; without keys only addresses of this machine are used",
    )
