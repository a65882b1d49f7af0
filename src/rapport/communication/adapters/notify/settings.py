"""What the site says about Apprise: `[adapters.apprise]`, targets by name. [CO-16, UX-2]

```toml
[adapters.apprise]
timeout = "10s"
[adapters.apprise.targets]              # addresses are apprise:ana, or apprise:URL
ana = "file:ana.apprise"                # holds e.g. tgram://BOTTOKEN/CHAT
hall = "ntfy://ntfy.example.org/hall"   # without a secret it may stand here
```
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.config_fields import Fields
from rapport.kernel.settings import read_secret

LONGEST_TARGET = 100
APPRISE_KEYS = ("targets", "timeout", "threads")


class AppriseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.apprise]` table; never shown, as addresses of services hold secrets."""

    targets: dict[str, str] = {}
    timeout_ms: int = 7_000
    """How long a service may take to be reached, and as long again to answer. Twice that should be
    less than the 15 s after which a delivery is given up: the library cannot be stopped."""
    threads: int = 8
    """Services spoken to at the same time; each takes a thread while it answers."""

    def __repr__(self) -> str:
        return f"AppriseSettings(targets={sorted(self.targets)}, timeout_ms={self.timeout_ms})"


def read_apprise(table: Fields, directory: Path) -> AppriseSettings:
    """What the table says; secrets are read from where they are named."""
    default = AppriseSettings()
    targets = table.table("targets", None, '{ ana = "file:ana.apprise" }')
    named = targets.section.values if targets is not None else {}
    return AppriseSettings(
        targets={name: _target(targets, name, directory) for name in named} if targets else {},
        timeout_ms=table.duration_ms("timeout", default.timeout_ms, least=1),
        threads=table.number("threads", default.threads, low=1, high=100),
    )


def _target(targets: Fields, name: str, directory: Path) -> str:
    text = targets.filled_text(name, "", example='"file:ana.apprise"')
    if not text.startswith(("file:", "env:")) or text.startswith("file://"):
        return _checked(targets, name, text)
    try:
        return read_secret(text, directory)
    except InvalidInput as error:
        targets.report(name, error)
        return ""


def _checked(targets: Fields, name: str, text: str) -> str:
    if text and not is_service_address(text):
        targets.fault(
            name,
            "adapter.bad_target",
            "this is not the address of a service",
            hint="such as ntfy://host/topic, or file:PATH or env:NAME of one that holds a secret",
        )
    return text


def is_service_address(text: str) -> bool:
    """Whether it may be an address of Apprise; the library knows the rest."""
    scheme, mark, rest = text.partition("://")
    is_scheme = scheme.isascii() and scheme.replace("+", "a").isalnum() and scheme.islower()
    return bool(mark) and is_scheme and bool(rest) and text.isprintable() and " " not in text
