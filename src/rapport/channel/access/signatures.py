"""Signatures on the way: checked at the door, kept by readings, looked at afterwards. [CH-18]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.finding.causes import stage_of
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, StoredEvent
from rapport.core.signature import RAW_VERDICT, Verdict, without_raw_signature
from rapport.kernel.signing import KeyRing, SigningKey, sign_event, verify_event

REQUIRED, CHECKED = "required", "checked"
"""What `[channels.X] signed` may say; see declared.ChannelRules."""
_IN_A_THREAD = 8
"""From so many events on they are checked off the event loop."""
_MOST_PROOFS = 500
_REMEMBERED = 4_096
"""Channels; callers may name as many as they like, also such that cannot be."""

_HINTS = {
    "unsigned": "sign with Publisher(..., sign_with=KEY), and declare the key in [access.keys]",
    "unknown_key": "declare the public key in the site's [access.keys]",
    "bad": "send the event exactly as it was signed",
}
_CODES = {
    "unsigned": "signature.missing",
    "unknown_key": "signature.unknown_key",
    "bad": "signature.bad",
}


class SignatureCheck:
    """What channels demand of the signatures of events that come in through a door."""

    def __init__(self, keys: KeyRing, demanded: Callable[[str], str | None]) -> None:
        """`demanded` says of a channel REQUIRED, CHECKED or None; the answer is remembered."""
        self.keys = keys
        self._demanded = lru_cache(_REMEMBERED)(demanded)

    async def check(self, channel: str, events: Sequence[Event]) -> None:
        """Raises InvalidInput naming the first event that may not come in; costs nothing for
        channels that demand nothing.
        """
        demand = self._demanded(channel)
        if demand is None:
            return
        if len(events) < _IN_A_THREAD:
            check_signatures(events, self.keys, demand)
        else:
            await asyncio.to_thread(check_signatures, tuple(events), self.keys, demand)


def check_signatures(events: Sequence[Event], keys: KeyRing, demand: str) -> None:
    """Raises InvalidInput for the first event whose signature does not meet the demand."""
    for index, event in enumerate(events):
        verdict = verify_event(event, keys)
        if verdict.state == "bad" or (demand == REQUIRED and verdict.state != "ok"):
            why = verdict.why or "it carries no signature"
            signer = f" ({verdict.key})" if verdict.key else ""
            raise InvalidInput(
                f"event {index}: {why}{signer}",
                code=_CODES[verdict.state],
                hint=_HINTS[verdict.state],
            )


def sign_readings(key: SigningKey, keys: KeyRing) -> Callable[[Event, Event], Event]:
    """What a node does with each (reading, raw event): notes what the raw event's signature is
    worth, and signs what it made of it.
    """

    def sign(reading: Event, raw: Event) -> Event:
        moved = without_raw_signature(reading, raw)
        headers = {**moved.headers, RAW_VERDICT: verify_event(raw, keys).state}
        return sign_event(msgspec.structs.replace(moved, headers=headers), key)

    return sign


class Proof(msgspec.Struct, frozen=True):
    """One event on the way, and what its signature is worth."""

    channel: str
    position: int
    id: str
    type: str
    source: str
    verdict: Verdict
    said: str
    """For a signed reading: what the node found of the raw event when it read it."""


async def proofs_of(channels: Channels, event_id: str, keys: KeyRing) -> list[Proof]:
    """The event and all it follows from, what was received first; raises UnknownName."""
    found: dict[tuple[str, int], StoredEvent] = {}
    asked: set[str] = set()
    waiting = [event_id]
    while waiting and len(found) < _MOST_PROOFS:
        wanted = waiting.pop()
        asked.add(wanted)
        for channel, stored in await channels.find_event(wanted):
            found[channel, stored.position] = stored
            waiting += [cause for cause in stored.event.causes() if cause not in asked]
    if not found:
        raise UnknownName("event", event_id, code="event.unknown")
    order = sorted(found, key=lambda place: (stage_of(place[0]), place))
    return [_proof(place[0], found[place], keys) for place in order]


def _proof(channel: str, stored: StoredEvent, keys: KeyRing) -> Proof:
    event = stored.event
    return Proof(
        channel=channel,
        position=stored.position,
        id=event.id,
        type=event.type,
        source=event.source,
        verdict=verify_event(event, keys),
        said=event.headers.get(RAW_VERDICT, ""),
    )
