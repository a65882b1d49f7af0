"""Texts sealed on their way to a peer: for addresses that end with `;sealed`. [CO-11, CO-16]

Stands before an adapter that says `seals = True`. The text is encrypted with the peer's newest
session, so whoever carries or keeps it on the way cannot read it; who it is for and the link to
answer at stay readable.
"""

from __future__ import annotations

import secrets

import msgspec

from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    declaration_of,
)
from rapport.communication.sessions.sealing import NONCE_BYTES, Seal, seal_text, split_sealed
from rapport.communication.sessions.sessions import Sessions
from rapport.kernel.clock import Clock


class SealingAdapter:
    """Seals what wants it and passes everything on."""

    def __init__(self, inner: OutputAdapter, sessions: Sessions, clock: Clock) -> None:
        self._inner, self._sessions, self._clock = inner, sessions, clock
        self.name = inner.name
        self.declared = declaration_of(inner)
        self.repeatable = bool(getattr(inner, "repeatable", False))

    async def send(self, delivery: Delivery) -> Outcome | None:
        """A peer without an open session cannot be sent sealed texts now; it may log in later."""
        address, wants_seal = split_sealed(delivery.address)
        if not wants_seal:
            return await self._inner.send(delivery)
        found = await self._sessions.newest_sealing(delivery.peer)
        if found is None:
            reason = "the peer has no open session to seal the text with"
            return Failed(reason, retry=True, unavailable=True)
        session, key = found
        nonce, now_ms = secrets.token_bytes(NONCE_BYTES), self._clock.now_ms()
        seal = Seal("encrypted", delivery.peer, session.id, nonce, now_ms)
        text = seal_text(key, delivery.message, delivery.peer, delivery.text, seal)
        return await self._inner.send(msgspec.structs.replace(delivery, address=address, text=text))

    async def close(self) -> None:
        """Closes what it stands before."""
        await self._inner.close()


def with_seals(adapter: OutputAdapter, sessions: Sessions, clock: Clock) -> OutputAdapter:
    """The adapter, with seals where it says that it carries them."""
    seals = bool(getattr(adapter, "seals", False))
    return SealingAdapter(adapter, sessions, clock) if seals else adapter
