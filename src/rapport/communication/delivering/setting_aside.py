"""What cannot be handled becomes a dead letter, and whoever sent it hears of that. [CO-7, CO-12]"""

from __future__ import annotations

from msgspec.structs import replace

from rapport.channel.dead_letters import DEAD_LETTERS, dead_letter_event
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.communication.adapters.outcome_events import OutcomeData, outcome_event
from rapport.communication.delivering.telling import tell_sender
from rapport.communication.delivering.transaction import Transaction
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Event, StoredEvent
from rapport.core.message import CONTROL, MESSAGE, Message
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)
READER = "communication"
_LARGEST_BURIED = 100_000
"""A dead letter holds the event itself up to this many bytes; a larger one stays in its channel."""


def set_aside(
    transaction: Transaction, channel: str, stored: StoredEvent, error: Exception, now_ms: int
) -> None:
    """Writes the dead letter of an event and, for a message, tells its sender."""
    whole = len(stored.event.data) <= _LARGEST_BURIED
    letter = dead_letter_event(channel, READER, stored, error, attempts=1, whole=whole)
    transaction.emit(DEAD_LETTERS, letter)
    if channel == "input" and stored.event.type == MESSAGE:
        _tell_failed(transaction, stored.event, error, now_ms)


def _tell_failed(transaction: Transaction, event: Event, error: Exception, now_ms: int) -> None:
    """Whoever sent a message hears that it was not handled, if it can be told who that was."""
    mark = transaction.mark()
    try:
        message = Message.from_event(event)
        if message.type != CONTROL:
            tell_sender(
                transaction,
                str(message.sender),
                message.id or event.id,
                "comerror",
                f"it could not be handled: {why(error)}",
                now_ms=now_ms,
            )
        transaction.check(mark)
    except Exception:  # what is wrong with it may be its sender or its id
        transaction.roll_back(mark)


def why(error: Exception) -> str:
    """The reason that people are told."""
    return error.message if isinstance(error, RapportError) else type(error).__name__


def pass_on(transaction: Transaction, data: OutcomeData, error: Exception, now_ms: int) -> None:
    """Sends an outcome that was handed over directly, and could not be taken, through `control`.

    A dead letter is sent back by the place of its event in a channel: there it gets one.
    """
    about = {"message": data.message, "peer": data.peer, "state": data.state}
    hint = error.hint if isinstance(error, RapportError) else ""
    try:
        transaction.emit("control", _fitting(data, now_ms))
        _log.warning("outcome not taken directly", **about, error=repr(error), hint=hint)
    except (InvalidInput, ValueError, OverflowError):
        # No channel keeps what it says: nothing but this line can tell of it.
        _log.error("outcome given up", **about, error=repr(error), hint=hint)


def _fitting(data: OutcomeData, now_ms: int) -> Event:
    """The outcome as an event that its channel takes; without the delivery where that is long."""
    event = outcome_event(data, now_ms=now_ms)
    if len(event.data) <= MAX_DATA_BYTES:
        return event
    return outcome_event(replace(data, delivery=None), now_ms=now_ms)
