"""Following a channel: the sets of a query one after the other, from history on into what arrives.
[CH-4, CH-12]

For doors that push. Each set is closed and has its tokens like the batches of a request, so a
reader may go on by request where its stream broke, and the other way round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rapport.channel.channel import Channel
from rapport.channel.finding.scanning import Scanner
from rapport.channel.query.kinds import Query
from rapport.channel.requesting.batch import Limits
from rapport.channel.requesting.selection import Chosen
from rapport.core.event import Gap, StoredEvent

WriteToken = Callable[[Chosen], str]
GiveOut = Callable[[Chosen], Awaitable[bool]]
"""Notes durably that messages of a set are given out; False when another reader was faster."""


class Followed(msgspec.Struct, frozen=True):
    """A set to be handed over; `gone` when messages of a token's set are no longer there, `gaps`
    when something between the set before and this one's end cannot be read. It has messages, gaps
    or both.
    """

    chosen: Chosen
    gone: bool = False
    gaps: tuple[Gap, ...] = ()


class Following:
    """One reader's way through a channel, kept in memory only. It ends by being dropped.

    Nothing is read ahead: a reader that is slow to ask costs nothing.
    """

    def __init__(
        self,
        channel: Channel,
        scanner: Scanner,
        query: Query,
        limits: Limits,
        *,
        reach: int,
        write_token: WriteToken,
        give_out: GiveOut,
        first: Followed | None = None,
        handback: str = "",
        has_own_session: bool = True,
    ) -> None:
        self.query, self.limits, self.handback = query, limits, handback
        self.reach = reach
        """How far was looked: the next set begins after it."""
        self.has_own_session = has_own_session
        """Whether its tokens differ from those of others that follow the same."""
        self._channel, self._scanner = channel, scanner
        self._write_token, self._give_out, self._first = write_token, give_out, first

    @property
    def is_over(self) -> bool:
        """Whether the query bounds its positions and the last of them has been passed."""
        last = self.query.bounds.last
        return self._first is None and last is not None and self.reach >= last

    async def next_set(self, *, wait_ms: int | None = None) -> Followed | None:
        """The next set with messages or gaps, waiting for one up to `wait_ms` (None = for ever).

        None when the time passed, the doors close, or nothing can come any more (`is_over`).
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while not self.is_over:
            chosen = await self._scanner.choose(self.query, self.limits, self.reach)
            if chosen.events and not await self._give_out(chosen):
                continue  # then there are fewer to choose from
            gaps = self._scanner.gaps(self.query, self.reach, chosen.reach)
            self.reach = chosen.reach
            if chosen.events or gaps:
                return Followed(chosen, gaps=gaps)
            if chosen.at_end and not await self._wait(chosen, wait_ms):
                return None
        return None

    async def _wait(self, chosen: Chosen, wait_ms: int | None) -> bool:
        if wait_ms is not None:
            return await self._scanner.wait(self.query, chosen, wait_ms)
        return self.is_over or await self._channel.wait_after(chosen.reach)

    def go_on_after(self, position: int) -> None:
        """Moves on to a place that the reader had reached before, leaving out a token's own set."""
        self.reach, self._first = max(self.reach, position), None

    def given(self, followed: Followed) -> Sequence[StoredEvent]:
        """The messages of a set as the reader is given them, through interceptors."""
        return self._scanner.delivery.given(self.query, followed.chosen.events)

    @property
    def is_intercepted(self) -> bool:
        """Whether the reader may be given anything but what is stored."""
        return self._scanner.delivery.is_intercepted

    def tokens(self, followed: Followed) -> tuple[str, str]:
        """The token of a set, and one that goes on after it (it names the empty set there)."""
        chosen = followed.chosen
        after = Chosen((), chosen.reach, chosen.reach, chosen.reach, at_end=True)
        return self._write_token(chosen), self._write_token(after)
