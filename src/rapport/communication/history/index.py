"""The ledger's rows kept with their indexes, so that a question costs what it finds. [CO-10, CO-12]

Fed from `log` page by page, in bounded memory, by whoever asks; it can be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rapport.communication.history.rows import Fold, LedgerRow, MessageRow, Said, read_said
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
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


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the ledger; empty means any. Times in ms UTC, `until` not included."""

    message: str = ""
    peer: str = ""
    state: str = ""
    policy: str = ""
    conversation: str = ""
    since: int = 0
    until: int = 0
    after: str = ""
    """Where the page before ended, as it said."""
    limit: int = 200


class LedgerIndex:
    """Rows, messages and lines of the ledger; every call blocks for as long as SQLite takes."""

    def __init__(self, path: Path = IN_MEMORY) -> None:
        """Opens the file, or keeps everything in memory."""
        self._kept = DerivedRows(path, _SHAPES)

    def fed(self) -> int:
        """The position of `log` that was taken in last."""
        return self._kept.fed(LOG)

    def take_in(self, page: Sequence[StoredEvent], before: int) -> bool:
        """Takes in the events after position `before`; False when somebody else was faster."""
        said = [found for stored in page for found in read_said(stored)]
        fold = self._loaded(said)
        for each in said:
            fold.take(each)
        writes: dict[str, list[DerivedRow]] = {
            MESSAGES: [msgspec.structs.astuple(row) for row in fold.messages.values()],
            ROWS: [msgspec.structs.astuple(row) for row in fold.rows.values()],
            LINES: [(each.message, each.position) for each in said],
        }
        gone = {ROWS: sorted(fold.gone)}
        return self._kept.ingest(LOG, before, page[-1].position, writes, gone)

    def begin_anew(self) -> None:
        """Forgets everything."""
        self._kept.reset(LOG)

    def prune(self, first_kept: int) -> None:
        """Lets go of messages of which the log keeps nothing any more."""
        self._kept.prune(MESSAGES, "position", first_kept, beside=(ROWS, LINES))

    def rows(self, question: Question) -> list[LedgerRow]:
        """The rows that fit, newest change first."""
        where = _where(question, ROW_ORDER)
        if question.conversation:
            messages = self.messages(Question(conversation=question.conversation, limit=_NEVER))
            fitting = _narrow(self._rows_of([row.message for row in messages]), question)
            return fitting[: question.limit]
        found = self._kept.find(ROWS, where, newest_by=ROW_ORDER, limit=question.limit)
        return [_as(LedgerRow, row) for row in found]

    def messages(self, question: Question) -> list[MessageRow]:
        """The messages that fit, newest first; `peer` is not asked here."""
        where = _where(question, MESSAGE_ORDER)
        found = self._kept.find(MESSAGES, where, newest_by=MESSAGE_ORDER, limit=question.limit)
        return [_as(MessageRow, row) for row in found]

    def message(self, message: str) -> MessageRow | None:
        """One message, or None."""
        found = self._kept.by_key(MESSAGES, [[message]])
        return _as(MessageRow, found[0]) if found else None

    def lines(self, message: str) -> list[int]:
        """Positions in `log` of all that is said about a message, in order."""
        return sorted(row[1] for row in self._kept.by_key(LINES, [[message]]))

    def counts(self, question: Question) -> dict[str, int]:
        """How many rows fit, by state; looks at all of them."""
        return self._kept.counts(ROWS, _where(question, ROW_ORDER), "state")

    def plan(self, question: Question) -> list[str]:
        """How `rows` looks; for tests of what a question costs."""
        return self._kept.plan(ROWS, _where(question, ROW_ORDER), newest_by=ROW_ORDER)

    def close(self) -> None:
        """Ends; a second call is no error."""
        self._kept.close()

    def _loaded(self, said: Sequence[Said]) -> Fold:
        """What is known so far of what is spoken of."""
        messages = sorted({each.message for each in said})
        keys = sorted({key for each in said for key in each.keys})
        return Fold(
            [_as(MessageRow, row) for row in self._kept.by_key(MESSAGES, [[m] for m in messages])],
            [_as(LedgerRow, row) for row in self._kept.by_key(ROWS, keys)],
        )

    def _rows_of(self, messages: Sequence[str]) -> list[LedgerRow]:
        found = self._kept.by_key(ROWS, [[message] for message in messages])
        rows = [_as(LedgerRow, row) for row in found]
        return sorted(rows, key=lambda row: (row.time, row.position), reverse=True)


def cursor_after(row: LedgerRow | MessageRow) -> str:
    """What a page says that ends with this row."""
    second = row.position if isinstance(row, LedgerRow) else row.first
    return f"{row.time}-{second}"


def _where(question: Question, order: tuple[str, ...]) -> list[RowCondition]:
    """The conditions of a question; columns that are the same first, as the indexes have them."""
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
    """The rows of a conversation that fit the rest of the question."""
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
            f"{text[:40]!r} is not where a page ended",
            code="ledger.bad_cursor",
            hint="give what the page before said in 'next'",
        ) from None


def _as(kind: type[S], row: DerivedRow) -> S:
    values: dict[str, Any] = dict(zip(kind.__struct_fields__, row, strict=True))
    if kind is MessageRow:
        values["urgent"] = bool(values["urgent"])
    else:
        values["declined"] = bool(values["declined"])
    return kind(**values)
