"""What the site says about how much an adapter does at a time: `[adapters.NAME.sending]`. [CO-4,
UX-2]

```toml
[adapters.mail.sending]
workers = 4            # calls of the adapter at once
deadline = "30s"       # for one call
```
"""

from __future__ import annotations

from rapport.communication.adapters.outgoing.dispatch_settings import (
    DEFAULT_SETTINGS,
    DispatchSettings,
)
from rapport.core.errors import Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile

SENDING = "sending"
_KEYS = ("workers", "batch", "deadline", "in_flight")
_EXAMPLE = '{ workers = 4, deadline = "30s" }'


def read_sending(file: TomlFile, problems: list[Problem]) -> dict[str, DispatchSettings]:
    """By adapter what its table `sending` says; adapters without one have the usual settings."""
    found = {}
    for name, section in file.section("adapters").sections():
        table = Fields(section, problems, strict=True).table(SENDING, _KEYS, _EXAMPLE)
        if table is not None:
            found[name] = _settings(table)
    return found


def _settings(table: Fields) -> DispatchSettings:
    usual = DEFAULT_SETTINGS
    return DispatchSettings(
        workers=table.number("workers", usual.workers, low=1, high=1_000),
        batch=table.number("batch", usual.batch, low=1, high=100_000),
        deadline_ms=table.duration_ms("deadline", usual.deadline_ms, least=1),
        in_flight=table.number("in_flight", usual.in_flight, low=1, high=100_000),
    )
