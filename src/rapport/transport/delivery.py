"""What all endpoints do alike: refuse what is too large, tell of handlers that fail. [CX-2]"""

from __future__ import annotations

from rapport.core.errors import TooLarge
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
