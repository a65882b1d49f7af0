"""The form of an address for each built-in adapter; checked before anything runs. [CO-3]"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from rapport.channel.mqtt.bridge import is_topic
from rapport.communication.adapters.apprise import LONGEST_TARGET, is_service_address
from rapport.communication.adapters.folder import is_place_name
from rapport.communication.peers import adapter_of
from rapport.communication.sessions.seals import SEALED_MARK
from rapport.core.errors import InvalidInput
from rapport.kernel.config_fields import suggest

# Deliberately narrow: one plain address, nothing that a mail header could read as more than one.
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})\Z")

_UNSEALED = ("apprise", "folder", "ftp", "inbox", "mail", "ws")
"""People read what these carry: a sealed text would be of no use to them."""


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
    if address.endswith(SEALED_MARK) and adapter in _UNSEALED:
        return InvalidInput(
            f"the {adapter} adapter carries no sealed texts",
            code="peer.cannot_seal",
            hint=f"webhook: and mqtt: do; leave {SEALED_MARK} out, or use one of them",
        )
    if adapter == "mail" and not _MAIL.match(rest):
        return _bad(address, "mail:someone@example.org")
    if adapter == "webhook" and not _is_web_address(rest):
        return _bad(address, "webhook:https://example.org/hook")
    if adapter in ("inbox", "ws") and rest:
        return _bad(address, f"{adapter}:")
    if adapter in ("folder", "ftp") and not is_place_name(rest):
        return _bad(address, f"{adapter}:NAME, a {adapter} that the site declares")
    if adapter == "mqtt" and not is_topic(rest):
        return _bad(address, "mqtt:panels/ana/show")
    if adapter == "apprise" and not (is_service_address(rest) or _is_target(rest)):
        return _bad(address, "apprise:ntfy://example.org/topic, or apprise:NAME of a target")
    return None


def _is_target(text: str) -> bool:
    return 0 < len(text) <= LONGEST_TARGET and text.isprintable() and "://" not in text


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
