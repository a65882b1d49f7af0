"""What the site says about several engines: `[engines]`. [CO-17, UX-2]

```toml
[engines]
several = true              # other processes may work on the same channels and records
lease = "6 s"               # one that was not heard of for so long is taken over
shares = 16                 # the work is divided into so many parts; the same for good
```
"""

from __future__ import annotations

from rapport.channel.config import ChannelsConfig, channels_from_site
from rapport.communication.sharing.shares import LEASE_MS, SHARES, ShareSettings
from rapport.core.errors import Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile

_KEYS = ("several", "lease", "shares")
_CHANNELS = ("input", "control", "detections", "handed", "log", "output.x")
_SHARED = ("nats", "postgres")
_LEAST_LEASE_MS = 1_000
_MOST_SHARES = 256


def engines_from_site(file: TomlFile) -> tuple[ShareSettings | None, list[Problem]]:
    """How work is divided among several engines, None for a single one; and all problems."""
    problems: list[Problem] = []
    table = Fields(file.section("engines"), problems, known=_KEYS, strict=True)
    several = table.flag("several")
    settings = ShareSettings(
        count=table.number("shares", SHARES, low=1, high=_MOST_SHARES),
        lease_ms=table.duration_ms("lease", LEASE_MS, least=_LEAST_LEASE_MS),
    )
    if not several:
        return None, problems
    _check_stores(table, channels_from_site(file)[0])
    return settings, problems


def _check_stores(table: Fields, channels: ChannelsConfig) -> None:
    if channels.records != "postgres":
        table.fault(
            "several",
            "engines.records_not_shared",
            "several engines need records that they share",
            hint='add records = "postgres" to [channels]',
        )
    alone = [name for name in _CHANNELS if channels.rules_for(name).log not in _SHARED]
    if alone:
        named = ", ".join(name.replace(".x", ".*") for name in alone)
        table.fault(
            "several",
            "engines.channels_not_shared",
            f"several engines need channels that they share, but not so: {named}",
            hint='add log = "nats" or log = "postgres" to [channels]',
        )
