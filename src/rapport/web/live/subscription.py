"""One subscription of a socket: sets of a query, pushed as far as credit goes. [CH-12, CH-14]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rapport.channel.requests.source import ChannelFollower, FollowedSet
from rapport.core.event import StoredEvent
from rapport.web.live.encoding import EncodedEvents
from rapport.web.live.frames import MOST_CREDIT, to_text
from rapport.web.terms import Wording

Send = Callable[[str], Awaitable[None]]


class Credit:
    """How many batches may still be sent; None = as many as the connection carries."""

    def __init__(self, batches: int | None) -> None:
        self._left = batches
        self._given = asyncio.Event()

    def give(self, batches: int) -> None:
        """Adds credit; a subscription without a limit has one from then on."""
        self._left = min((self._left or 0) + batches, MOST_CREDIT)
        self._given.set()

    async def take(self) -> None:
        """Uses up one batch, waiting until there is credit for it."""
        while self._left is not None and self._left < 1:
            self._given.clear()
            await self._given.wait()
        if self._left is not None:
            self._left -= 1


class Subscription:
    """Pushes what a following gives. Nothing is read before there is credit for it, and nothing
    more before the last batch has left: memory holds one batch, however slow the reader.
    """

    def __init__(
        self,
        id: str,
        channel: str,
        identity: str,
        following: ChannelFollower,
        credit: Credit,
        wording: Wording,
    ) -> None:
        self.id, self.credit = id, credit
        self._channel, self._identity, self._following = channel, identity, following
        self._wording = wording
        head: dict[str, str] = {"id": id}
        if following.handback:
            head["handback"] = following.handback
        self._head = msgspec.json.encode(head).decode()[:-1]

    async def run(self, encoded: EncodedEvents, send: Send) -> None:
        """Sends batches until the query's end or until it is cancelled."""
        while True:
            await self.credit.take()
            followed = await self._next_batch(send)
            if followed is None:
                await send(to_text({"end": self.id, "position": self._following.reach}))
                return
            events = await self._wording.said(followed)
            await send(f"{self._head},{self._tail(encoded, followed, events)}")

    async def _next_batch(self, send: Send) -> FollowedSet | None:
        """The next set that is a batch; gaps before and within it are sent on the way, and cost no
        credit.
        """
        while (followed := await self._following.next_set()) is not None:
            for gap in followed.gaps:
                await send(to_text({"id": self.id, "gap": gap}))
            if followed.chosen.events or followed.gone:
                return followed
        return None

    def _tail(
        self, encoded: EncodedEvents, followed: FollowedSet, events: Sequence[StoredEvent]
    ) -> str:
        """What all subscriptions of one identity, query and place have in common."""
        chosen, following = followed.chosen, self._following
        key = (
            *(self._channel, self._identity, following.query.kind, following.query.text),
            *(following.limits.messages, following.limits.time_range_ms, following.handback),
            *(chosen.after, chosen.through, chosen.reach, len(chosen.events), followed.gone),
            self._wording.stamp,
        )
        if following.has_own_session or not self._wording.is_shared:
            return self._written(encoded, followed, events)
        return encoded.whole(key, lambda: self._written(encoded, followed, events))

    def _written(
        self, encoded: EncodedEvents, followed: FollowedSet, events: Sequence[StoredEvent]
    ) -> str:
        current, following = self._following.tokens(followed)
        gone = ',"gone":true' if followed.gone else ""
        return (
            f'"batch":[{encoded.joined(self._channel, events, self._wording.stamp)}],'
            f'"position":{followed.chosen.reach},'
            f'"current_token":"{current}","next_token":"{following}"{gone}}}'
        )
