"""How the built-in adapters reach their servers: the `[adapters.*]` tables of the site file.
[CO-16]

Apart from the adapters, so that checking a site needs no driver.
"""

from __future__ import annotations

import msgspec

from rapport.communication.adapters.mail.settings import MailSettings as MailSettings


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.webhook]` table. The secret is read from a file or variable, never shown."""

    secret: str = ""
    """Signs every body (HMAC-SHA256); empty = unsigned."""
    timeout_ms: int = 10_000

    def __repr__(self) -> str:
        return f"WebhookSettings(timeout_ms={self.timeout_ms})"
