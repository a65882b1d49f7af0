"""What all endpoints do alike: refuse what is too large, tell of handlers that fail; and how
addresses of media without sockets are given out. [CX-2]
"""

from __future__ import annotations

from collections.abc import Container

from rapport.core.errors import DuplicateName, TooLarge
from rapport.kernel.telemetry import get_logger
from rapport.transport.base import Address

_log = get_logger(__name__)


def check_size(datagram: bytes, max_datagram: int) -> None:
    """Raises TooLarge (an InvalidInput) for a datagram that the medium does not carry."""
    if len(datagram) > max_datagram:
        raise TooLarge(
            f"a datagram of {len(datagram)} bytes; this medium carries {max_datagram}",
            code="transport.too_large",
            hint="send it through a Station, which cuts messages into datagrams",
        )


def tell_failure(error: Exception, sender: Address) -> None:
    """Logs what a handler raised; one datagram must not stop those after it."""
    _log.error("a datagram's handler failed", sender=sender, error=repr(error))


def check_is_free(address: Address, taken: Container[Address]) -> None:
    """Raises DuplicateName when an endpoint is there already."""
    if address in taken:
        raise DuplicateName(
            f"there is an endpoint at {address[0]}:{address[1]} already",
            code="transport.address_taken",
            hint="choose another address, or close the other endpoint",
        )
