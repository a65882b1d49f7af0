"""What became of messages, read from their ledger lines. [CO-13, CO-10]"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.query_kinds import Query
from rapport.channel.query.tree import And, Compare, Condition, Field, In, Like, Literal
from rapport.channel.requests.scanner import ChannelPager, matching
from rapport.communication.ledger import DELIVERY_PREFIX
from rapport.kernel.clock import Clock

_AT_ONCE = 60
"""Messages whose lines are looked up together; an index takes some more."""
_PAGE = 1_000
MOST_CLOSED = 20_000
"""Messages of one fate that are looked for in advance."""


class Fates:
    """Looks up the results that messages were closed with. Cost: the lines of these messages where
    `log` is indexed, else the log from the first of them on, until all are known.
    """

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._log, self._clock = channels.channel("log"), clock

    async def results(self, messages: Sequence[str], *, after: int, through: int) -> dict[str, str]:
        """The results of those messages that were closed between two positions, by their ids."""
        found: dict[str, str] = {}
        for start in range(0, len(messages), _AT_ONCE):
            found |= await self._look_up(messages[start : start + _AT_ONCE], after, through)
        return found

    async def closed_with(self, result: str, *, after: int, through: int) -> set[str] | None:
        """Every message that a line between two positions closed with a result; None when there are
        more than MOST_CLOSED. For results that are rare.
        """
        query = _query_for(Compare("=", Field(("data", "result")), Literal(result)))
        pages, found = ChannelPager(self._log, query), set[str]()
        while after < through:
            page = await pages.after(after, through, wanted=_PAGE)
            lines = matching(query, page.events, None, decided=page.decided)
            found.update(line.event.subject for line in lines)
            if len(found) > MOST_CLOSED:
                return None
            after = page.through
            await self._clock.sleep(0)
        return found

    async def _look_up(self, messages: Sequence[str], after: int, through: int) -> dict[str, str]:
        query = _query_for(
            In(Field(("subject",)), tuple(Literal(message) for message in messages)),
            Compare(">", Field(("data", "result")), Literal("")),
        )
        pages, left = ChannelPager(self._log, query), set(messages)
        found: dict[str, str] = {}
        while after < through and left:
            page = await pages.after(after, through, wanted=_PAGE)
            for line in matching(query, page.events, None, decided=page.decided):
                # The first is the last word: what is closed is not closed again.
                found.setdefault(line.event.subject, line.event.payload_as(_Result).result)
                left.discard(line.event.subject)
            after = page.through
            await self._clock.sleep(0)
        return found


class _Result(msgspec.Struct):
    """What a ledger line says of the whole message."""

    result: str = ""


def _query_for(*parts: Condition) -> Query:
    condition = And((Like(Field(("type",)), DELIVERY_PREFIX + "%"), *parts))
    return Query("ledger", "", compile_condition(condition), condition=condition)
