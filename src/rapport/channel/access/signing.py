"""What a node makes is signed with its key on the way into the log; only headers are added, so ids
and data stay what they are. [CH-18]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rapport.channel.access.signatures import sign_readings
from rapport.channel.reserved import is_of_the_node, is_reserved
from rapport.channel.sequences.numbers import HOPS
from rapport.core.event import Event
from rapport.core.signature import SIGNATURE, canonical_form
from rapport.kernel.signing import KeyRing, SigningKey, sign_event

_IN_A_THREAD = 8
"""From so many events on they are signed off the event loop."""


class OwnSigner:
    """Signs what this node makes: all of its own channels, and what its interceptors changed.

    Deterministic, so what is appended again after a crash has the same bytes. About 0.04 ms each.
    """

    def __init__(self, key: SigningKey, keys: KeyRing) -> None:
        self._key = key
        self.changed = sign_readings(key, keys)
        """Given (what was made, the event it was made of)."""

    async def sign(self, channel: str, events: Sequence[Event]) -> Sequence[Event]:
        """The events as they go into the log of a channel: those made here are signed, those of
        others (a neighbour's, a publisher's) are left alone.
        """
        if not is_reserved(channel):
            return events
        return await self.sign_all(events, neighbours=not is_of_the_node(channel))

    async def sign_all(
        self, events: Sequence[Event], *, neighbours: bool = False
    ) -> Sequence[Event]:
        """Signs what carries no signature; with `neighbours` only what came over no link."""
        if len(events) < _IN_A_THREAD:
            return self._signed(events, neighbours)
        return await asyncio.to_thread(self._signed, events, neighbours)

    def _signed(self, events: Sequence[Event], neighbours: bool) -> list[Event]:
        return [
            event
            if SIGNATURE in event.headers or (neighbours and HOPS in event.headers)
            else sign_event(event, self._key)
            for event in events
        ]


def is_changed(made: Event, given: Event) -> bool:
    """Whether a signature of what was given would not cover what was made of it."""
    return made is not given and canonical_form(made) != canonical_form(given)
