"""Where a node may push to: only where the site says. [CH-2, CH-15]

Whoever may subscribe names an address that the node will call from inside the network; so addresses
are held against a list of the site's, `[channels] push_to`, empty by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from rapport.core.errors import InvalidInput, NotAllowed

LONGEST_ADDRESS = 2_048
_PORTS = {"http": 80, "https": 443}


def check_address(address: str, allowed: Sequence[str]) -> None:
    """Raises InvalidInput for what is no plain http address, NotAllowed for one that is not on the
    list.
    """
    parts = _split(address)
    if parts is None:
        raise InvalidInput(
            f"{address[:200]!r} is no address to push to",
            code="push.bad_address",
            hint="http:// or https://, a host, no user name, no fragment",
        )
    if not any(_covers(entry, parts) for entry in allowed):
        raise NotAllowed(
            f"the site does not let its node push to {parts.scheme}://{parts.netloc}",
            code="push.address_not_allowed",
            hint=f'add push_to = ["{parts.scheme}://{parts.netloc}"] to [channels] of the site',
        )


def is_entry(entry: str) -> bool:
    """Whether a text can stand in the list: scheme and host, perhaps port (`*` = any) and path.

    >>> is_entry("http://127.0.0.1:*"), is_entry("https://*.example.org/hooks"), is_entry("*")
    (True, True, False)
    """
    parts = _split(entry.replace(":*", ":1", 1))
    return parts is not None and not parts.query


def _covers(entry: str, address: SplitResult) -> bool:
    any_port = ":*" in entry
    allowed = _split(entry.replace(":*", "", 1))
    if allowed is None or allowed.scheme != address.scheme:
        return False
    return (
        _is_host(allowed.hostname or "", address.hostname or "")
        and (any_port or _port(allowed) == _port(address))
        and _is_below(allowed.path, address.path)
    )


def _is_host(allowed: str, host: str) -> bool:
    if allowed.startswith("*."):
        return host.endswith(allowed[1:]) and len(host) >= len(allowed)
    return host == allowed


def _is_below(allowed: str, path: str) -> bool:
    """Whether a path is the allowed one or below it; a path with `..` leads nobody knows where."""
    base = allowed.rstrip("/")
    return not base or (
        (path == base or path.startswith(f"{base}/")) and ".." not in path and "%" not in path
    )


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _split(address: str) -> SplitResult | None:
    """The parts of an address that we would call; None for any other."""
    if len(address) > LONGEST_ADDRESS or not address.isascii() or not address.isprintable():
        return None
    if any(character in address for character in ' "<>\\^`{|}'):
        return None
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    is_plain = parts.scheme in _PORTS and parts.hostname and "@" not in parts.netloc
    return parts if is_plain and not parts.fragment and port != 0 else None
