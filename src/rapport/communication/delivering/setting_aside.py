"""What cannot be handled becomes a dead letter, and whoever sent it hears of that. [CO-7, CO-12]"""

from __future__ import annotations

from rapport.channel.dead.letters import DEAD_LETTERS, dead_letter
from rapport.communication.delivering.telling import tell_sender
from rapport.communication.delivering.transaction import Transaction
from rapport.core.errors import RapportError
from rapport.core.event import Event, StoredEvent
from rapport.core.message import CONTROL, MESSAGE, Message

READER = "communication"
_LARGEST_BURIED = 100_000
"""A dead letter holds the event itself up to this many bytes; a larger one stays in its channel."""


def set_aside(
    transaction: Transaction, channel: str, stored: StoredEvent, error: Exception, now_ms: int
) -> None:
    """Writes the dead letter of an event and, for a message, tells its sender."""
    whole = len(stored.event.data) <= _LARGEST_BURIED
    letter = dead_letter(channel, READER, stored, error, attempts=1, whole=whole)
    transaction.emit(DEAD_LETTERS, letter)
    if channel == "input" and stored.event.type == MESSAGE:
        _tell_failed(transaction, stored.event, error, now_ms)


def _tell_failed(transaction: Transaction, event: Event, error: Exception, now_ms: int) -> None:
    """Whoever sent a message hears that it was not handled, if it can be told who that was."""
    mark = transaction.mark()
    reason = error.message if isinstance(error, RapportError) else type(error).__name__
    try:
        message = Message.from_event(event)
        if message.type != CONTROL:
            tell_sender(
                transaction,
                str(message.sender),
                message.id or event.id,
                "comerror",
                f"it could not be handled: {reason}",
                now_ms=now_ms,
            )
        transaction.check(mark)
    except Exception:  # what is wrong with it may be its sender or its id
        transaction.roll_back(mark)
