"""Event signatures: checked on arrival, kept by readings, verified afterwards; the node's own keys
and signing. [CH-18]

The node signs its own events on the way into the log; only headers are added, so ids and data stay
the same. Its key is made when it first signs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from rapport.channel.access.identities import NODE, Access, read_key
from rapport.channel.channel import Channels
from rapport.channel.event_lookup import stage_of
from rapport.channel.log.sequences import HOPS
from rapport.channel.validation import is_node_channel, is_reserved
from rapport.core.errors import DuplicateName, InvalidInput, UnknownName
from rapport.core.event import Event, StoredEvent
from rapport.core.signature import (
    RAW_VERDICT,
    SIGNATURE,
    Verdict,
    canonical_form,
    without_raw_signature,
)
from rapport.kernel.files import is_file
from rapport.kernel.signing_keys import (
    KeyRing,
    PublicKey,
    SigningKey,
    sign_event,
    verify_event,
)

REQUIRED, CHECKED = "required", "checked"
"""Values of `[channels.X] signed`; see config.ChannelRules."""
_IN_A_THREAD = 8
"""From so many events on they are checked or signed off the event loop."""
_MOST_PROOFS = 500
_REMEMBERED = 4_096
"""Most cached channels; callers may name any number, also invalid ones."""

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
    """Checks the signatures of received events as channels demand."""

    def __init__(self, keys: KeyRing, demanded: Callable[[str], str | None]) -> None:
        """`demanded` returns REQUIRED, CHECKED or None for a channel; the result is cached."""
        self.keys = keys
        self.demand_of = lru_cache(_REMEMBERED)(demanded)
        """What a channel demands; None = `check` does nothing for it."""

    async def check(self, channel: str, events: Sequence[Event]) -> None:
        """Raises InvalidInput naming the first event with a bad signature."""
        demand = self.demand_of(channel)
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
    """For (reading, raw event): notes the verdict on the raw signature and signs the reading."""

    def sign(reading: Event, raw: Event) -> Event:
        moved = without_raw_signature(reading, raw)
        headers = {**moved.headers, RAW_VERDICT: verify_event(raw, keys).state}
        return sign_event(msgspec.structs.replace(moved, headers=headers), key)

    return sign


class Proof(msgspec.Struct, frozen=True):
    """One event of a chain of causes, and the verdict on its signature."""

    channel: str
    position: int
    id: str
    type: str
    source: str
    verdict: Verdict
    said: str
    """For a signed reading: the node's verdict on the raw event at that time."""


async def proofs_of(channels: Channels, event_id: str, keys: KeyRing) -> list[Proof]:
    """The event and its causes, first received first; raises UnknownName."""
    found: dict[tuple[str, int], StoredEvent] = {}
    visited: set[str] = set()
    waiting = [event_id]
    while waiting and len(found) < _MOST_PROOFS:
        wanted = waiting.pop()
        visited.add(wanted)
        for channel, stored in await channels.find_event(wanted):
            found[channel, stored.position] = stored
            waiting += [cause for cause in stored.event.causes() if cause not in visited]
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


class OwnSigner:
    """Signs the node's own events: all of its own channels, and events changed by its interceptors.

    Deterministic: an event appended again after a crash has the same bytes. About 0.04 ms each.
    """

    def __init__(self, key: SigningKey, keys: KeyRing) -> None:
        self._key = key
        self.changed = sign_readings(key, keys)
        """Signs (what was made, the event it was made of)."""

    async def sign(self, channel: str, events: Sequence[Event]) -> Sequence[Event]:
        """The events as they go into the log of a channel: those made here are signed, those of
        others (a neighbour's, a publisher's) are left alone.
        """
        if not is_reserved(channel):
            return events
        return await self.sign_all(events, neighbours=not is_node_channel(channel))

    async def sign_all(
        self, events: Sequence[Event], *, neighbours: bool = False
    ) -> Sequence[Event]:
        """Signs unsigned events; with `neighbours` only those that came over no link."""
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
    """Whether the original's signature would not cover the result."""
    return made is not given and canonical_form(made) != canonical_form(given)


def node_key_path(data: Path) -> Path:
    return data / "keys" / "node.pem"


def open_node_key(data: Path) -> SigningKey:
    """The node's key, made when there is none; raises InvalidInput, StoreUnavailable."""
    path = node_key_path(data)
    if not is_file(path):
        try:
            SigningKey.new().save(path)
        except DuplicateName:
            return SigningKey.load(path)  # another process made it in this moment
    return SigningKey.load(path)


def find_node_key(data: Path) -> PublicKey | None:
    """The public half of the node's key; None when it has not signed yet."""
    path = node_key_path(data)
    return _as_node(SigningKey.load(path)) if is_file(path) else None


def open_keys(access: Access, directory: Path, node: PublicKey | SigningKey | None) -> KeyRing:
    """All keys that signatures are checked with; raises InvalidInput for the first faulty one."""
    ring = KeyRing(read_key(declared, directory) for declared in access.keys.values())
    if isinstance(node, SigningKey):
        node = _as_node(node)
    return ring if node is None else ring.with_key(node)


def _as_node(key: SigningKey) -> PublicKey:
    return PublicKey(NODE, key.public.raw)
