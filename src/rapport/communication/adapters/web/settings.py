"""What the site says about doors that messages come in by, and about pages that show them. [CO-16,
UX-2]

```toml
[inputs.gateway]                       # POST /inputs/gateway
adapter = "webhook"
secret = "file:gateway.secret"         # or a token of who may publish to input.gateway
fields = { sender = "From", content = "Body" }         # of a form or of JSON that is no message
defaults = { type = "REPLY", subtype = "SMS" }
senders = { "+43660123456" = "peer:ana" }

[adapters.ws]
wait = "5s"                            # for an open page to say that the message is shown
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rapport.communication.adapters.secrets import read_secret_field
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from rapport.core.times import format_duration
from rapport.kernel.config_fields import Fields

WEBHOOK_INPUT_KEYS = ("secret", "fields", "defaults", "senders", "most_bytes")
PAGE_KEYS = ("wait",)
MESSAGE_FIELDS = (
    *("id", "type", "subtype", "sender", "receiver", "conversation", "content"),
    *("language", "session_token", "refers_to"),
)
"""What may be taken from a form, or set for all."""
LONGEST_WAIT_MS = 10_000
"""A delivery that takes 15 s counts as failed."""
LARGEST_BODY = 8 * 1024 * 1024
_SHORTEST_SECRET = 16


class WebhookInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an `[inputs.NAME]` with `adapter = "webhook"`; the secret is never shown."""

    secret: str = ""
    """Signs time and body (HMAC-SHA256); empty = only callers with a token and the right."""
    fields: dict[str, str] = {}
    """Where a field of the message stands; empty = the body is JSON of a message."""
    defaults: dict[str, str] = {}
    senders: dict[str, Identifier] = {}
    """Who is meant by what stands in the sender's field; when there are some, no others pass."""
    most_bytes: int = 1024 * 1024

    def __repr__(self) -> str:
        return f"WebhookInputSettings(fields={self.fields!r}, senders={len(self.senders)})"


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.ws]` table."""

    wait_ms: int = 5_000
    """How long an open page may take to say that it shows a message; longer means more often
    "confirmed" than "handed", and later news of a page that is there but asleep."""


def read_page(table: Fields) -> PageSettings:
    """What `[adapters.ws]` says."""
    wait_ms = table.duration_ms("wait", PageSettings().wait_ms, least=1)
    if wait_ms > LONGEST_WAIT_MS:
        message = f"'wait' must be at most {format_duration(LONGEST_WAIT_MS)}"
        table.fault("wait", "site.out_of_range", message, hint='write wait = "5s"')
    return PageSettings(wait_ms=wait_ms)


def read_webhook_input(table: Fields, directory: Path) -> WebhookInputSettings:
    """What an input by HTTP says."""
    secret = read_secret_field("secret", table, directory)
    if secret and len(secret) < _SHORTEST_SECRET:
        message = f"the secret is shorter than {_SHORTEST_SECRET} characters"
        table.fault("secret", "settings.weak_secret", message, hint="openssl rand -hex 32")
    fields, defaults = _texts(table, "fields"), _texts(table, "defaults")
    _check_complete(table, fields, defaults)
    return WebhookInputSettings(
        secret=secret,
        fields=fields,
        defaults=defaults,
        senders=_senders(table),
        most_bytes=table.number(
            "most_bytes", WebhookInputSettings().most_bytes, low=1, high=LARGEST_BODY
        ),
    )


def _texts(table: Fields, key: str) -> dict[str, str]:
    below = table.table(key, MESSAGE_FIELDS, '{ sender = "From" }')
    if below is None:
        return {}
    return {name: below.filled_text(name, "") for name in below.section.values}


def _check_complete(table: Fields, fields: dict[str, str], defaults: dict[str, str]) -> None:
    given: dict[str, Any] = {**fields, **defaults}
    missing = [name for name in ("type", "subtype", "sender") if name not in given]
    if given and missing:
        table.fault(
            "fields",
            "input.missing_field",
            f"nothing says the {missing[0]} of a message",
            hint=f"name it in fields or defaults: {', '.join(missing)}",
        )


def _senders(table: Fields) -> dict[str, Identifier]:
    below = table.table("senders", None, '{ "+43660123456" = "peer:ana" }')
    found: dict[str, Identifier] = {}
    for value in below.section.values if below is not None else ():
        assert below is not None
        text = below.filled_text(value, "", example='"peer:ana"')
        try:
            found[value] = Identifier.parse(text if ":" in text else f"peer:{text}")
        except InvalidInput as error:
            below.report(value, error)
    return found
