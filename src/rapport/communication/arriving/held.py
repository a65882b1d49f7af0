"""Messages that wait for their peer to log in again: bounded, durable, without their token.
[CO-11]

Blocks on the disk: called from a worker thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rapport.communication.arriving.limits import ArrivalSettings
from rapport.core.event import Event
from rapport.core.ids import content_id
from rapport.store.base import Change, Delete, Put, RecordStore

_TABLE = "arriving.held"
_PAGE = 500


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One message that waits, as the event it will be."""

    peer: str
    since_ms: int
    number: int
    """Its place among those that came with it."""
    until_ms: int
    event: Event

    @property
    def key(self) -> str:
        """Where it is kept: in the order in which they came, whichever node took them."""
        return f"{_of(self.peer)}/{self.since_ms:015d}.{self.number:06d}.{self.event.id}"


def too_many(held: Sequence[Held], settings: ArrivalSettings) -> list[Held]:
    """The oldest that have to go, so that the rest is within bounds; `held` is in order."""
    size, kept = 0, 0
    for one in reversed(held):
        size += len(one.event.data)
        if kept >= settings.most_held or size > settings.most_held_bytes:
            break
        kept += 1
    return list(held[: len(held) - kept])


class HeldMessages:
    """All that waits, by peer."""

    def __init__(self, records: RecordStore, settings: ArrivalSettings) -> None:
        self._records, self._settings = records, settings

    def hold(self, peer: str, events: Sequence[Event], now_ms: int) -> list[Held]:
        """Keeps events of one peer; returns those (older or among them) that had to go for it. An
        event that waits already waits once.
        """
        before = list(self.of_peer(peer))
        known = {one.event.id for one in before}
        until_ms = now_ms + self._settings.hold_ms
        since_ms, first = _after(before, now_ms)
        new = [
            Held(peer=peer, since_ms=since_ms, number=number, until_ms=until_ms, event=event)
            for number, event in enumerate(events, first)
            if event.id not in known
        ]
        gone = too_many([*before, *new], self._settings)
        dropped = {one.key for one in gone}
        changes: list[Change] = [Delete(_TABLE, one.key) for one in before if one.key in dropped]
        changes += [
            Put(_TABLE, one.key, msgspec.msgpack.encode(one))
            for one in new
            if one.key not in dropped
        ]
        if changes:
            self._records.apply(changes)
        return gone

    def of_peer(self, peer: str) -> Iterator[Held]:
        """What waits for one peer, in order."""
        return self._find(f"{_of(peer)}/")

    def over(self, now_ms: int) -> list[Held]:
        """What waits no longer; reads all that waits."""
        return [one for one in self._find("") if one.until_ms <= now_ms]

    def forget(self, held: Sequence[Held]) -> None:
        """They wait no more; durable when it returns."""
        if held:
            self._records.apply([Delete(_TABLE, one.key) for one in held])

    def _find(self, prefix: str) -> Iterator[Held]:
        after = ""
        while page := self._records.find(_TABLE, prefix=prefix, after=after, limit=_PAGE):
            yield from (msgspec.msgpack.decode(value, type=Held) for _key, value in page)
            after = page[-1][0]


def _after(before: Sequence[Held], now_ms: int) -> tuple[int, int]:
    """Time and first number of what comes behind those; the clock may have stood still, or been
    set back.
    """
    if not before or before[-1].since_ms < now_ms:
        return now_ms, 0
    return before[-1].since_ms, before[-1].number + 1


def _of(peer: str) -> str:
    return content_id("peer", peer)
