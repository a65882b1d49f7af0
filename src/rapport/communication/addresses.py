"""What an address must look like for each built-in adapter; checked before anything runs. [CO-3]"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from rapport.communication.peers import adapter_of
from rapport.core.errors import InvalidInput
from rapport.kernel.fields import suggest

# Deliberately narrow: one plain address, nothing that a mail header could read as more than one.
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})\Z")


def address_fault(address: str, adapters: Collection[str]) -> InvalidInput | None:
    """What is wrong with an address, or None."""
    adapter, rest = adapter_of(address), address.partition(":")[2]
    if ":" not in address:
        return InvalidInput(
            f"{address!r} names no adapter",
            code="peer.bad_address",
            hint="write mail:..., webhook:... or inbox:",
        )
    if adapter not in adapters:
        return InvalidInput(
            f"there is no adapter named {adapter!r}",
            code="adapter.unknown",
            hint=suggest(adapter, adapters),
        )
    if adapter == "mail" and not _MAIL.match(rest):
        return _bad(address, "mail:someone@example.org")
    if adapter == "webhook" and not _is_web_address(rest):
        return _bad(address, "webhook:https://example.org/hook")
    if adapter == "inbox" and rest:
        return _bad(address, "inbox:")
    return None


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port_fits = parts.port is None or 0 < parts.port < 65_536
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port_fits
        and text.isprintable()
        and " " not in text
    )


def _bad(address: str, example: str) -> InvalidInput:
    # The adapter only: the rest may hold a secret, and its place is named anyway.
    return InvalidInput(
        f"the {adapter_of(address)} address cannot be used",
        code="peer.bad_address",
        hint=f"write it like {example}",
    )
