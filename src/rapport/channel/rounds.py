"""Chains of detections: how many detections in a row led to an event, and the end of a chain that
goes round. [PO-10, PO-12]

An event that is appended because of a detection says in its header `rounds` how many detections lie
behind it, one after the other. Policies that set each other off would go on for ever; above
`MOST_ROUNDS` nothing more is appended. Not `hops`: that header names the nodes a copy has passed.
"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.channel.channel import Channels
from rapport.core.errors import Problem
from rapport.core.event import Event

ROUNDS = "rounds"
MOST_ROUNDS = 16
_MOST_DIGITS = 4


def rounds_of(event: Event) -> int:
    """How many detections lie behind an event; 0 for one that came from outside, or that says
    something else there.

    >>> rounds_of(Event("s", "1", "t", "", 0, headers={"rounds": "3"}))
    3
    """
    text = event.headers.get(ROUNDS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


async def next_round(channels: Channels, causes: Iterable[str]) -> int:
    """What an event says that is appended because of a detection with these causes: one more than
    the largest of them. Costs one look into the index of ids per cause.
    """
    most = 0
    for cause in causes:
        for _channel, stored in await channels.find_event(cause):
            most = max(most, rounds_of(stored.event))
    return most + 1


def rounds_problem(rounds: int) -> Problem | None:
    """Why nothing more is appended in this chain; None while it may go on."""
    if rounds <= MOST_ROUNDS:
        return None
    return Problem(
        code="policy.too_many_rounds",
        message=f"{rounds} detections in a row led to this: policies set each other off",
        hint="rapport check names the policies that go round; narrow one of them",
    )
