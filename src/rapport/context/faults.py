"""What a refused request becomes for the program that asked. [CX-2, CX-3]"""

from __future__ import annotations

from rapport.context.messages import (
    BAD_REQUEST,
    MEANINGS,
    NOT_ALLOWED,
    NOT_FOUND,
    TOO_BUSY,
)
from rapport.core.errors import InvalidInput, NotAllowed, RapportError, Unavailable


class ContextNotFound(RapportError):
    """No valid record was found within the deadline; there may be one later."""

    code = "context.not_found"
    status = 404


def refusal(status: int, why: str, what: str) -> RapportError:
    """The error that stands for a status of refusal; `what` was asked for or told."""
    said = f": {why}" if why and why != MEANINGS.get(status) else ""
    if status == NOT_FOUND:
        return ContextNotFound(
            f"no valid record of {what} was found{said}",
            hint="it may have expired, or no broker that can be reached has it; "
            "`rapport context status` shows a broker's neighbours",
        )
    if status == NOT_ALLOWED:
        return NotAllowed(
            f"not allowed: {what}{said}",
            code="context.not_allowed",
            hint="the broker's site gives rights by the owner of the key: [context.rights.NAME]",
        )
    if status == BAD_REQUEST:
        return InvalidInput(f"the broker refused {what}{said}", code="context.bad_request")
    if status == TOO_BUSY:
        return Unavailable(f"the broker is too busy for {what}{said}", code="context.too_busy")
    return Unavailable(
        f"the broker could not do it: {what}{said} (status {status})", code="context.failed"
    )


def no_broker(brokers: str, what: str) -> Unavailable:
    """Nobody answered."""
    return Unavailable(
        f"no broker answered: {what} ({brokers})",
        code="context.no_broker",
        hint="is one running there, and with the same keys? "
        "A broker hears nobody without a key: `rapport context broker --listen ADDRESS`",
    )
