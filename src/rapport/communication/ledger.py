"""The ledger as people query it: the newest state of every message and person, and the timeline
of a message. [CO-10, CO-12]

Rows are folded from the lines of `log` (`ledger_rows.py`) into an SQLite index that `refresh`
brings up to date page by page. A query costs what it finds, however long the log is. The index can
be deleted at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.delivery_state import SENT_STATES, LedgerState
from rapport.communication.ledger_events import OPEN, ROUTED, MessageFate
from rapport.communication.ledger_rows import (
    CLOSED,
    LedgerEntry,
    LedgerFold,
    LedgerRow,
    MessageRow,
    PersonFate,
    Summary,
    fates_of,
    read_entries,
    summarise,
)
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import StoredEvent
from rapport.kernel.config_fields import suggest
from rapport.kernel.tasks import run_blocking
from rapport.store.derived_rows import IN_MEMORY, DerivedRow, DerivedRows, RowCondition, TableShape

LEDGER_FILE = "ledger.sqlite"
LOG = "log"
ROWS, MESSAGES, LINES = "ledger_rows", "messages", "lines"
_ROW_FIELDS = LedgerRow.__struct_fields__
_MESSAGE_FIELDS = MessageRow.__struct_fields__
ROW_ORDER = ("time", "position")
MESSAGE_ORDER = ("time", "first")
_NEVER = 1 << 62

_SHAPES = {
    ROWS: TableShape(
        _ROW_FIELDS,
        ("message", "peer", "address"),
        (
            ROW_ORDER,
            ("peer", *ROW_ORDER),
            ("peer", "state", *ROW_ORDER),
            ("state", *ROW_ORDER),
            ("policy", *ROW_ORDER),
        ),
    ),
    MESSAGES: TableShape(
        _MESSAGE_FIELDS,
        ("message",),
        (
            MESSAGE_ORDER,
            ("state", *MESSAGE_ORDER),
            ("policy", *MESSAGE_ORDER),
            ("conversation", *MESSAGE_ORDER),
        ),
    ),
    LINES: TableShape(("message", "position"), ("message", "position")),
}

S = TypeVar("S", LedgerRow, MessageRow)

_PAGE = 5_000
_MOST = 100_000
IN_INBOX = ("inbox", "ws")
"""Adapters whose messages stand in the inbox: it keeps those of an open page, too."""
PAGE = "ws"
_INBOX_LOOK = 5_000
"""Rows of a person among which the inbox looks for open messages."""
_MISSED = ("failed", CLOSED)
"""States of a delivery to an open page while no page was open."""
STATES: tuple[str, ...] = get_args(LedgerState)
MESSAGE_STATES = (OPEN, "escalated", CLOSED, ROUTED, *get_args(MessageFate)[1:])
_MOST_PEOPLE = 10_000


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A query of the ledger; empty means any. Times in ms UTC, `until` not included."""

    message: str = ""
    peer: str = ""
    state: str = ""
    policy: str = ""
    conversation: str = ""
    since: int = 0
    until: int = 0
    after: str = ""
    """The cursor of the page before."""
    limit: int = 200


class LedgerIndex:
    """Rows, messages and lines of the ledger in SQLite; every call blocks."""

    def __init__(self, path: Path = IN_MEMORY) -> None:
        """Opens the file, or keeps everything in memory."""
        self._kept = DerivedRows(path, _SHAPES)

    def fed(self) -> int:
        """The position of `log` that was indexed last."""
        return self._kept.fed(LOG)

    def ingest(self, page: Sequence[StoredEvent], before: int) -> bool:
        """Indexes the events after position `before`; False when another process was faster."""
        entries = [found for stored in page for found in read_entries(stored)]
        fold = self._loaded(entries)
        for each in entries:
            fold.apply(each)
        writes: dict[str, list[DerivedRow]] = {
            MESSAGES: [msgspec.structs.astuple(row) for row in fold.messages.values()],
            ROWS: [msgspec.structs.astuple(row) for row in fold.rows.values()],
            LINES: [(each.message, each.position) for each in entries],
        }
        gone = {ROWS: sorted(fold.gone)}
        return self._kept.ingest(LOG, before, page[-1].position, writes, gone)

    def reset(self) -> None:
        self._kept.reset(LOG)

    def prune(self, first_kept: int) -> None:
        """Deletes messages of which the log keeps nothing any more."""
        self._kept.prune(MESSAGES, "position", first_kept, beside=(ROWS, LINES))

    def rows(self, question: Question) -> list[LedgerRow]:
        """The matching rows, newest change first."""
        where = _where(question, ROW_ORDER)
        if question.conversation:
            messages = self.messages(Question(conversation=question.conversation, limit=_NEVER))
            fitting = _narrow(self._rows_of([row.message for row in messages]), question)
            return fitting[: question.limit]
        found = self._kept.find(ROWS, where, newest_by=ROW_ORDER, limit=question.limit)
        return [_as(LedgerRow, row) for row in found]

    def messages(self, question: Question) -> list[MessageRow]:
        """The matching messages, newest first; `peer` does not count here."""
        where = _where(question, MESSAGE_ORDER)
        found = self._kept.find(MESSAGES, where, newest_by=MESSAGE_ORDER, limit=question.limit)
        return [_as(MessageRow, row) for row in found]

    def message(self, message: str) -> MessageRow | None:
        found = self._kept.by_key(MESSAGES, [[message]])
        return _as(MessageRow, found[0]) if found else None

    def messages_named(self, names: Collection[str]) -> dict[str, MessageRow]:
        """The known ones of these messages, by name."""
        found = self._kept.by_key(MESSAGES, [[name] for name in sorted(names)])
        return {row.message: row for row in (_as(MessageRow, each) for each in found)}

    def lines(self, message: str) -> list[int]:
        """Positions in `log` of all lines about a message, in order."""
        return sorted(row[1] for row in self._kept.by_key(LINES, [[message]]))

    def counts(self, question: Question) -> dict[str, int]:
        """The number of matching rows by state; reads all of them."""
        return self._kept.counts(ROWS, _where(question, ROW_ORDER), "state")

    def close(self) -> None:
        """Closes the index; a second call is no error."""
        self._kept.close()

    def _loaded(self, entries: Sequence[LedgerEntry]) -> LedgerFold:
        """The rows that the entries may change."""
        messages = sorted({each.message for each in entries})
        keys = sorted({key for each in entries for key in each.keys})
        return LedgerFold(
            [_as(MessageRow, row) for row in self._kept.by_key(MESSAGES, [[m] for m in messages])],
            [_as(LedgerRow, row) for row in self._kept.by_key(ROWS, keys)],
        )

    def _rows_of(self, messages: Sequence[str]) -> list[LedgerRow]:
        found = self._kept.by_key(ROWS, [[message] for message in messages])
        rows = [_as(LedgerRow, row) for row in found]
        return sorted(rows, key=lambda row: (row.time, row.position), reverse=True)


def cursor_after(row: LedgerRow | MessageRow) -> str:
    second = row.position if isinstance(row, LedgerRow) else row.first
    return f"{row.time}-{second}"


def _where(question: Question, order: tuple[str, ...]) -> list[RowCondition]:
    """The conditions of a query; equalities first, as the indexes have them."""
    is_row = order is ROW_ORDER
    same = [
        (column, value)
        for column, value in (
            ("message", question.message),
            ("peer", question.peer if is_row else ""),
            ("state", question.state),
            ("policy", question.policy),
            ("conversation", "" if is_row else question.conversation),
        )
        if value
    ]
    found = [RowCondition((column,), "=", (value,)) for column, value in same]
    if question.since:
        found.append(RowCondition(("time",), ">=", (question.since,)))
    if question.until:
        found.append(RowCondition(("time",), "<", (question.until,)))
    if question.after:
        found.append(RowCondition(order, "<", _read_cursor(question.after)))
    return found


def _narrow(rows: Sequence[LedgerRow], question: Question) -> list[LedgerRow]:
    """The rows of a conversation that match the rest of the query."""
    after = _read_cursor(question.after) if question.after else (_NEVER, 0)
    return [
        row
        for row in rows
        if question.message in ("", row.message)
        and question.peer in ("", row.peer)
        and question.state in ("", row.state)
        and question.policy in ("", row.policy)
        and question.since <= row.time < (question.until or _NEVER)
        and (row.time, row.position) < after
    ]


def _read_cursor(text: str) -> tuple[int, int]:
    time, _, place = text.rpartition("-")
    try:
        return int(time), int(place)
    except ValueError:
        raise InvalidInput(
            f"{text[:40]!r} is not the cursor of a page",
            code="ledger.bad_cursor",
            hint="send the 'next' of the page before",
        ) from None


def _as(kind: type[S], row: DerivedRow) -> S:
    values: dict[str, Any] = dict(zip(kind.__struct_fields__, row, strict=True))
    if kind is MessageRow:
        values["urgent"] = bool(values["urgent"])
    else:
        values["declined"] = bool(values["declined"])
    return kind(**values)


class LedgerPage(msgspec.Struct, frozen=True):
    """Rows of the ledger, newest first; `next` is the cursor of the next page, empty at the end."""

    rows: list[LedgerRow]
    next: str = ""


class LedgerMessagePage(msgspec.Struct, frozen=True):
    """Messages, newest first; `next` is the cursor of the next page, empty at the end."""

    messages: list[MessageRow]
    next: str = ""


class TimelineLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    """The newest state of every message; memory does not grow with the log."""

    def __init__(self, channels: Channels, index: LedgerIndex | None = None) -> None:
        """Without an index everything is read into memory; `close` closes the index."""
        self._log = channels.channel(LOG)
        self._index = index or LedgerIndex()
        self._turn = asyncio.Lock()
        self._first = 1
        """Oldest known position of the log."""

    async def closed_before(self, messages: Collection[str], time_ms: int) -> set[str]:
        """The messages that ended before that time, or that the log does not know any more."""
        await self.refresh()
        rows = await run_blocking(lambda: [(name, self._index.message(name)) for name in messages])
        return {name for name, row in rows if row is None or 0 < row.ended_at < time_ms}

    async def refresh(self) -> int:
        """Indexes what was logged since; returns the number of events."""
        async with self._turn:
            await self._prune()
            before, seen = await run_blocking(self._index.fed), 0
            while page := await self._log.read_after(before, limit=_PAGE):
                if await run_blocking(partial(self._index.ingest, page, before)):
                    before, seen = page[-1].position, seen + len(page)
                else:
                    before = await run_blocking(self._index.fed)
            return seen

    async def _prune(self) -> None:
        """Deletes what the log has deleted, or everything when it is another log."""
        fed = await run_blocking(self._index.fed)
        # Another process may have indexed events that this one has not seen yet.
        is_there = bool(fed) and await self._log.read_after(fed - 1, limit=1)
        if fed > self._log.last_position() and not is_there:
            await run_blocking(self._index.reset)
        oldest = await self._log.read_after(0, limit=1)
        first = oldest[0].position if oldest else 1
        if first > self._first:
            await run_blocking(partial(self._index.prune, first))
            self._first = first

    async def find(self, question: Question) -> LedgerPage:
        """A page of matching rows, newest change first, up to date."""
        await self.refresh()
        rows = await run_blocking(partial(self._index.rows, question))
        full = len(rows) == question.limit
        return LedgerPage(rows, cursor_after(rows[-1]) if rows and full else "")

    async def count(self, question: Question) -> int:
        """How many rows match, however many a page has; reads all of them."""
        await self.refresh()
        return sum((await run_blocking(partial(self._index.counts, question))).values())

    async def messages_named(self, names: Collection[str]) -> dict[str, MessageRow]:
        """The known ones of these messages, by name, as at the last refresh."""
        return await run_blocking(partial(self._index.messages_named, names))

    async def find_messages(self, question: Question) -> LedgerMessagePage:
        """A page of matching messages, newest first, up to date."""
        await self.refresh()
        found = await run_blocking(partial(self._index.messages, question))
        full = len(found) == question.limit
        return LedgerMessagePage(found, cursor_after(found[-1]) if found and full else "")

    async def timeline(self, message: str) -> list[TimelineLine]:
        """All lines about a message, in order; raises UnknownName."""
        await self.refresh()
        positions = await run_blocking(partial(self._index.lines, message))
        if not positions:
            raise UnknownName("message", message, code="message.unknown")
        lines = []
        for position in positions:
            for stored in await self._log.read_after(position - 1, limit=1):
                # For a deleted position the log gives the next event.
                for entry in read_entries(stored) if stored.position == position else ():
                    if entry.message == message:
                        lines += _timeline_lines(entry)
        return lines

    # --- as it was at the last refresh ---

    def position(self) -> int:
        """The position of `log` up to which everything is indexed."""
        return self._index.fed()

    def messages(self, *, limit: int = 100) -> list[MessageRow]:
        """The newest messages, newest first."""
        return self._index.messages(Question(limit=limit))

    def message(self, message: str) -> MessageRow | None:
        return self._index.message(message)

    def rows(
        self, *, message: str = "", peer: str = "", state: str = "", limit: int = _MOST
    ) -> list[LedgerRow]:
        """The newest states in the order of their first lines; empty arguments mean any. Of more
        than `limit` those that changed last.
        """
        question = Question(message=message, peer=peer, state=state, limit=limit)
        return sorted(self._index.rows(question), key=lambda row: row.first)

    def inbox(self, peer: str) -> list[MessageRow]:
        """Open messages in this peer's inbox that are not answered, newest first; those for an open
        page are among them even if no page was open.
        """
        return self.open_to(peer, IN_INBOX)

    def open_to(self, peer: str, adapters: Collection[str]) -> list[MessageRow]:
        """Open messages that one of these media took for this peer and that the peer has not
        answered, newest first.
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
    """Whether the medium took a message, or it was for an open page."""
    return row.state in SENT_STATES or (row.adapter == PAGE and row.state in _MISSED)


def _timeline_lines(entry: LedgerEntry) -> list[TimelineLine]:
    """The lines of one event; that of a fast-path message stands for `written` and `queued`."""
    found = []
    if entry.written is not None:
        receiver = entry.written.receiver
        found.append(TimelineLine(time=entry.time, state="written", receiver=receiver))
    if entry.line is not None:
        fields = {
            name: getattr(entry.line, name)
            for name in TimelineLine.__struct_fields__
            if name not in ("time", "state")
        }
        found.append(TimelineLine(time=entry.time, state=entry.state, **fields))
    return found


class MessageView(msgspec.Struct, frozen=True):
    """Everything about one message; of a large collective the people that changed last."""

    message: MessageRow
    summary: Summary
    sentence: str
    people: list[PersonFate]
    timeline: list[TimelineLine]


async def show_message(ledger: Ledger, message: str, *, with_timeline: bool = True) -> MessageView:
    """The message as it is now; raises UnknownName."""
    page = await ledger.find(Question(message=message, limit=_MOST_PEOPLE))
    row = await run_blocking(partial(ledger.message, message))
    if row is None:
        raise UnknownName("message", message, code="message.unknown")
    summary = summarise(page.rows)
    return MessageView(
        row,
        summary,
        summary.sentence(),
        fates_of(sorted(page.rows, key=lambda each: each.first)),
        await ledger.timeline(message) if with_timeline else [],
    )


def check_state(state: str, *, of: tuple[str, ...] = STATES) -> str:
    """Returns the state; raises InvalidInput with the nearest name for an unknown one."""
    if state and state not in of:
        raise InvalidInput(
            f"there is no state {state[:40]!r}",
            code="ledger.unknown_state",
            hint=suggest(state, of),
        )
    return state
