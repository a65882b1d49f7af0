"""The ledger as people ask for it: for every message and person the newest state, and every line
about a message in order. [CO-10]

Nothing is said here that the log does not say: rows are folded from its lines (`history_rows`) into
an index (`history_index`) that `refresh` brings up to date. Asking costs what is found, however
long the log is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.aside import run_aside
from rapport.communication.history.index import LOG, LedgerIndex, Question, cursor_after
from rapport.communication.history.rows import (
    CLOSED,
    TAKEN,
    LedgerRow,
    MessageRow,
    Said,
    read_said,
)
from rapport.core.errors import UnknownName

__all__ = ["Ledger", "LedgerRow", "MessageRow", "Page", "Question", "TimelineLine"]

_PAGE = 5_000
_MOST = 100_000
IN_INBOX = ("inbox", "ws")
"""Adapters whose messages stand in the inbox: it keeps what an open page was shown, too."""
PAGE = "ws"
_INBOX_LOOK = 5_000
"""Rows of a person among which the inbox looks for what is open."""


_MISSED = ("failed", CLOSED)
"""States of a delivery to an open page while none was open, and once it was given up."""


class Page(msgspec.Struct, frozen=True):
    """Rows of the ledger, newest first; `next` goes on where they end, empty at the end."""

    rows: list[LedgerRow]
    next: str = ""


class MessagePage(msgspec.Struct, frozen=True):
    """Messages, newest first; `next` goes on where they end, empty at the end."""

    messages: list[MessageRow]
    next: str = ""


class TimelineLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to a message."""

    time: int
    state: str
    peer: str = ""
    address: str = ""
    adapter: str = ""
    attempt: int = 0
    reason: str = ""
    answer: str = ""
    declined: bool = False
    until: int = 0
    result: str = ""
    receiver: str = ""
    stage: int = 0


class Ledger:
    """The newest state of everything sent; memory does not grow with the log."""

    def __init__(self, channels: Channels, index: LedgerIndex | None = None) -> None:
        """Without an index everything is folded anew, into memory; `close` closes the index."""
        self._log = channels.channel(LOG)
        self._index = index or LedgerIndex()
        self._turn = asyncio.Lock()
        self._first = 1
        """Oldest position that the log keeps, as far as is known."""

    async def refresh(self) -> int:
        """Takes in what was logged since; returns how many events it looked at."""
        async with self._turn:
            await self._let_go()
            before, seen = await run_aside(self._index.fed), 0
            while page := await self._log.read_after(before, limit=_PAGE):
                if await run_aside(partial(self._index.take_in, page, before)):
                    before, seen = page[-1].position, seen + len(page)
                else:
                    before = await run_aside(self._index.fed)
            return seen

    async def _let_go(self) -> None:
        """Of what the log has let go of; of everything when it is another log than before."""
        fed = await run_aside(self._index.fed)
        # Somebody else may have fed it with what this reader of the log has not noticed yet.
        is_there = bool(fed) and await self._log.read_after(fed - 1, limit=1)
        if fed > self._log.last_position() and not is_there:
            await run_aside(self._index.begin_anew)
        oldest = await self._log.read_after(0, limit=1)
        first = oldest[0].position if oldest else 1
        if first > self._first:
            await run_aside(partial(self._index.prune, first))
            self._first = first

    async def find(self, question: Question) -> Page:
        """The rows that fit, newest change first, a page of them; up to date."""
        await self.refresh()
        rows = await run_aside(partial(self._index.rows, question))
        full = len(rows) == question.limit
        return Page(rows, cursor_after(rows[-1]) if rows and full else "")

    async def find_messages(self, question: Question) -> MessagePage:
        """The messages that fit, newest first, a page of them; up to date."""
        await self.refresh()
        found = await run_aside(partial(self._index.messages, question))
        full = len(found) == question.limit
        return MessagePage(found, cursor_after(found[-1]) if found and full else "")

    async def timeline(self, message: str) -> list[TimelineLine]:
        """All that was said about a message, in order, as the log has it; raises UnknownName."""
        await self.refresh()
        positions = await run_aside(partial(self._index.lines, message))
        if not positions:
            raise UnknownName("message", message, code="message.unknown")
        lines = []
        for position in positions:
            for stored in await self._log.read_after(position - 1, limit=1):
                # Of what the log has let go of comes what is there instead, in its own turn.
                for said in read_said(stored) if stored.position == position else ():
                    if said.message == message:
                        lines += _timeline_lines(said)
        return lines

    # --- as it was at the last refresh ---

    def position(self) -> int:
        """Up to where in `log` everything is taken in."""
        return self._index.fed()

    def messages(self, *, limit: int = 100) -> list[MessageRow]:
        """The newest messages, newest first."""
        return self._index.messages(Question(limit=limit))

    def message(self, message: str) -> MessageRow | None:
        """One message, or None when nothing is known of it."""
        return self._index.message(message)

    async def closed_before(self, messages: Collection[str], time_ms: int) -> set[str]:
        """The messages that ended before that time, or that the log does not know any more."""
        await self.refresh()
        rows = await run_aside(lambda: [(name, self._index.message(name)) for name in messages])
        return {name for name, row in rows if row is None or 0 < row.ended_at < time_ms}

    def rows(
        self, *, message: str = "", peer: str = "", state: str = "", limit: int = _MOST
    ) -> list[LedgerRow]:
        """The newest states, oldest first by when each was first heard of; empty arguments mean
        any. Of more than `limit` those that changed last.
        """
        asked = Question(message=message, peer=peer, state=state, limit=limit)
        return sorted(self._index.rows(asked), key=lambda row: row.first)

    def inbox(self, peer: str) -> list[MessageRow]:
        """Open messages in this peer's inbox that they have not answered, newest first. What was to
        be shown on an open page is among them also if none was open then.
        """
        return self.open_to(peer, IN_INBOX)

    def open_to(self, peer: str, adapters: Collection[str]) -> list[MessageRow]:
        """Messages that one of these media took for this peer, on which nothing is decided yet and
        which they have not answered, newest first.
        """
        rows = self._index.rows(Question(peer=peer, limit=_INBOX_LOOK))
        answered = {row.message for row in rows if not row.address and row.state == "answered"}
        waiting = [row.message for row in rows if row.adapter in adapters and is_there(row)]
        found = [self._index.message(each) for each in dict.fromkeys(waiting)]
        still = [
            row
            for row in found
            if row is not None
            and row.state not in (CLOSED, "failed")
            and row.message not in answered
        ]
        return sorted(still, key=lambda row: (row.time, row.first), reverse=True)

    def close(self) -> None:
        """Closes the index; a second call is no error."""
        self._index.close()


def is_there(row: LedgerRow) -> bool:
    """Whether a message stands where its address says: the medium took it; or it was for an open
    page, and whoever looks has one.
    """
    return row.state in TAKEN or (row.adapter == PAGE and row.state in _MISSED)


def _timeline_lines(said: Said) -> list[TimelineLine]:
    """What one event says; that of a plain message says that it was written and queued."""
    found = []
    if said.written is not None:
        receiver = said.written.receiver
        found.append(TimelineLine(time=said.time, state="written", receiver=receiver))
    if said.line is not None:
        fields = {
            name: getattr(said.line, name)
            for name in TimelineLine.__struct_fields__
            if name not in ("time", "state")
        }
        found.append(TimelineLine(time=said.time, state=said.state, **fields))
    return found
