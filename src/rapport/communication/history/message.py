"""One message as people look at it: how it stands, how far it got with each person, what happened.
[CO-10]
"""

from __future__ import annotations

from functools import partial
from typing import get_args

import msgspec

from rapport.communication.aside import run_aside
from rapport.communication.delivering.steps import LedgerState
from rapport.communication.history.ledger import Ledger, MessageRow, Question, TimelineLine
from rapport.communication.history.rows import CLOSED
from rapport.communication.history.summary import PersonFate, Summary, fates_of, summarise
from rapport.communication.ledger import OPEN, ROUTED, MessageFate
from rapport.core.errors import InvalidInput, UnknownName
from rapport.kernel.config_fields import suggest

STATES: tuple[str, ...] = get_args(LedgerState)
MESSAGE_STATES = (OPEN, "escalated", CLOSED, ROUTED, *get_args(MessageFate)[1:])
_MOST_PEOPLE = 10_000


class MessageShown(msgspec.Struct, frozen=True):
    """Everything about one message; of a large collective the people heard of last."""

    message: MessageRow
    summary: Summary
    sentence: str
    people: list[PersonFate]
    timeline: list[TimelineLine]


async def show_message(ledger: Ledger, message: str, *, with_timeline: bool = True) -> MessageShown:
    """The message as it stands now; raises UnknownName."""
    page = await ledger.find(Question(message=message, limit=_MOST_PEOPLE))
    row = await run_aside(partial(ledger.message, message))
    if row is None:
        raise UnknownName("message", message, code="message.unknown")
    summary = summarise(page.rows)
    return MessageShown(
        row,
        summary,
        summary.sentence(),
        fates_of(sorted(page.rows, key=lambda each: each.first)),
        await ledger.timeline(message) if with_timeline else [],
    )


def known_state(state: str, *, of: tuple[str, ...] = STATES) -> str:
    """The state; raises InvalidInput with the nearest one when there is none of that name."""
    if state and state not in of:
        raise InvalidInput(
            f"there is no state {state[:40]!r}",
            code="ledger.unknown_state",
            hint=suggest(state, of),
        )
    return state
