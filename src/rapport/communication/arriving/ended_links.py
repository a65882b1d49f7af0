"""Which links to inboxes count no more, though their time is not over: those of peers that were
removed, and those that were made before a password was set or taken away. [CO-11, CO-16]

A link is signed for an edition of its peer; ending links gives the peer another one. So nothing is
kept of a link itself, and whoever gets a name later does not get the links of who had it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial

import msgspec

from rapport.communication.arriving.inbox_links import LONGEST_DAYS
from rapport.communication.aside import run_aside
from rapport.core.ids import content_id
from rapport.kernel.clock import Clock
from rapport.store.base import Delete, Guard, GuardFailed, Put, RecordStore, as_guarded

_TABLE = "inbox.links"
_PAGE = 500
_DAY_MS = 86_400_000


class _Links(msgspec.Struct, frozen=True):
    """Of one peer."""

    peer: str
    edition: str
    is_open: bool
    """Whether a link of this edition was made."""
    until_ms: int
    """When the last link of any edition is over: then there is nothing to be known."""


class EndedLinks:
    """The editions of all peers, in the record store."""

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records, self._clock = records, clock

    async def edition(self, peer: str) -> str:
        """The edition whose links count; one short read."""
        return await run_aside(partial(self._edition, peer))

    async def begin(self, peer: str) -> str:
        """A link is made: that there is one is known when it returns, and the edition told."""
        return await run_aside(partial(self._begin, peer))

    async def end(self, peer: str) -> None:
        """No link that was made before counts any more; durable when it returns."""
        await run_aside(partial(self._end, peer))

    async def peers(self) -> list[str]:
        """Who may have a link that counts, sorted; reads all, and lets go of what is over."""
        return await run_aside(self._peers)

    # --- in a worker thread ---

    def _edition(self, peer: str) -> str:
        return _edition_of(self._records.get(_TABLE, _key(peer)))

    def _begin(self, peer: str) -> str:
        """Who ends links meanwhile is not overwritten: what was ended would count again."""
        while True:
            kept = self._records.get(_TABLE, _key(peer))
            edition = _edition_of(kept)
            made = self._made(peer, edition, is_open=True)
            try:
                as_guarded(self._records).apply_guarded([made], [Guard(_TABLE, made.key, kept)])
            except GuardFailed:
                continue
            return edition

    def _end(self, peer: str) -> None:
        self._records.apply([self._made(peer, secrets.token_hex(8), is_open=False)])

    def _made(self, peer: str, edition: str, *, is_open: bool) -> Put:
        until_ms = self._clock.now_ms() + (LONGEST_DAYS + 1) * _DAY_MS
        links = _Links(peer, edition, is_open, until_ms)
        return Put(_TABLE, _key(peer), msgspec.msgpack.encode(links))

    def _peers(self) -> list[str]:
        now_ms, found, over = self._clock.now_ms(), list[str](), list[str]()
        for key, links in self._all():
            if links.until_ms <= now_ms:
                over.append(key)
            elif links.is_open:
                found.append(links.peer)
        if over:
            self._records.apply([Delete(_TABLE, key) for key in over])
        return sorted(found)

    def _all(self) -> Iterator[tuple[str, _Links]]:
        after = ""
        while page := self._records.find(_TABLE, after=after, limit=_PAGE):
            for after, value in page:
                yield after, msgspec.msgpack.decode(value, type=_Links)


def _edition_of(kept: bytes | None) -> str:
    return msgspec.msgpack.decode(kept, type=_Links).edition if kept else ""


def _key(peer: str) -> str:
    return content_id("peer", peer)
