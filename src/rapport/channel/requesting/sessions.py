"""Sessions of a source: who asks for what, leases, and tokens that name sets. [CH-1, CH-2, CH-3]"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import msgspec

from rapport.channel.finding.scanning import Scanner
from rapport.channel.query.kinds import Query
from rapport.channel.requesting.batch import Limits, Request
from rapport.channel.requesting.lease import Leases, granted_minutes
from rapport.channel.requesting.selection import Chosen
from rapport.channel.requesting.takers import SourceChannels, Taker
from rapport.channel.requesting.tokens import Place, Tokens, identity_digest, request_secret
from rapport.store.memory import MemoryLogStore

_SESSION_BYTES = 8
SHARED_SESSION = bytes(_SESSION_BYTES)
"""Of streams where leases do not matter."""


class Asked(msgspec.Struct, frozen=True):
    """A request understood: who asks where for what, and in which session."""

    name: str
    identity: str
    session: bytes
    query: Query
    limits: Limits
    request: Request
    scanner: Scanner
    lease_minutes: int
    handback: str
    start: int = 0
    """A query begins after this position."""


class Opened(msgspec.Struct, frozen=True):
    """A session that was begun without asking for messages."""

    session: str
    token: str
    lease_minutes: int
    handback: str


class Sessions:
    """Leases (of channels in memory) and signed tokens of one source; keeps no state of readers."""

    def __init__(
        self, channels: SourceChannels, *, chance: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._channels = channels
        self._clock = channels.parts.clock
        self.chance = chance
        self.leases = Leases() if isinstance(channels.parts.log, MemoryLogStore) else None
        self.tokens: Tokens | None = None
        self._signing = asyncio.Lock()

    def new(self) -> bytes:
        """A session of its own."""
        return self.chance(_SESSION_BYTES)

    def of_stream(self) -> bytes:
        """The session of a stream.

        Sessions matter only for leases. Where there are none, all streams share one: then those
        that ask the same get the same tokens, and doors need to write them once.
        """
        return SHARED_SESSION if self.leases is None else self.new()

    def check(self, session: bytes) -> None:
        """Raises LeaseExpired."""
        if self.leases is not None:
            self.leases.check(session, self._steady_ms())

    def grant(self, session: bytes, minutes: int) -> int:
        """The lease given, in minutes."""
        if self.leases is None:
            return granted_minutes(minutes)
        return self.leases.grant(session, minutes, self._steady_ms())

    def end(self, session: bytes) -> None:
        """The reader needs no more."""
        if self.leases is not None:
            self.leases.end(session)

    async def signer(self, taker: Taker) -> Tokens:
        """What signs and reads tokens; its secret is made at the first call."""
        async with self._signing:  # two first requests must not make two secrets
            if self.tokens is None:
                secret = await taker.off_loop(lambda: request_secret(self._channels.records))
                self.tokens = Tokens(secret)
            return self.tokens

    def token(self, asked: Asked, chosen: Chosen) -> str:
        """The token that names a set for ever; after `signer`."""
        assert self.tokens is not None
        return self.tokens.write(
            Place(
                channel=asked.name,
                identity=identity_digest(asked.identity),
                session=asked.session,
                kind=asked.query.kind,
                query=asked.query.text,
                after=chosen.after,
                through=chosen.through,
                count=chosen.count,
                reach=chosen.reach,
                messages=asked.limits.messages,
                time_range_ms=asked.limits.time_range_ms,
                handback=asked.handback,
            )
        )

    def _steady_ms(self) -> int:
        """Leases in memory run on time that never jumps."""
        return self._clock.steady_ns() // 1_000_000
