"""The ledger on a terminal, as lines, and as CSV. [CO-10, UX-3]"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rapport.cli.terminal import stderr, visible, write_bytes, write_table
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.communication.ledger import MessageView, TimelineLine
    from rapport.communication.ledger_rows import LedgerRow

COLUMNS = ("time", "person", "address", "state", "attempt", "message", "text", "why")
_CSV_COLUMNS = (
    "time",
    "message",
    "person",
    "address",
    "adapter",
    "state",
    "attempt",
    "answer",
    "declined",
    "why",
    "receiver",
    "policy",
    "detection",
    "text",
)
_TIMELINE = ("time", "what", "person", "how", "attempt", "answer", "why")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What a spreadsheet would carry out instead of showing."""


def write_rows(rows: Sequence[LedgerRow], texts: Mapping[str, str]) -> None:
    """The rows as a table, oldest first as they are given."""
    write_table("ledger", COLUMNS, [cells(row, texts.get(row.message, "")) for row in rows])


def cells(row: LedgerRow, text: str) -> tuple[str, ...]:
    """One row, each cell on one line."""
    return (
        format_time(row.time),
        _plain(row.peer) or "-",
        _plain(row.address) or "-",
        _state(row),
        str(row.attempt or ""),
        _plain(row.message),
        _plain(text),
        _why(row.state, row.reason),
    )


def _why(state: str, reason: str) -> str:
    """What the ledger says of it; a medium that took a message gave it a name of its own."""
    given = _plain(reason)
    return f"the medium calls it {given}" if given and state == "handed" else given


def _state(row: LedgerRow) -> str:
    """A no is an answer, but it is not to be taken for a yes."""
    state = "declined" if row.declined else row.state
    return state + (f": {_plain(row.answer)}" if row.answer else "")


def write_csv(rows: Sequence[LedgerRow], texts: Mapping[str, str]) -> None:
    """The rows as CSV that a spreadsheet shows and does not carry out."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in rows:
        given = (
            format_time(row.time),
            row.message,
            row.peer,
            row.address,
            row.adapter,
            row.state,
            str(row.attempt or ""),
            row.answer,
            "yes" if row.declined else "",
            row.reason,
            row.receiver,
            row.policy,
            row.detection,
            texts.get(row.message, ""),
        )
        writer.writerow([_cell(text) for text in given])
    write_bytes(out.getvalue().encode())


def _cell(text: str) -> str:
    """A lone carriage return would begin a row of its own: the writer does not quote it."""
    kept = text.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{kept}" if kept.startswith(_FORMULA) else kept


def write_message(shown: MessageView) -> None:
    """One message: what it says and what happened to it, in order."""
    message = shown.message
    out = stderr()
    how = f" ({message.result})" if message.result else ""
    for line in (
        f"{_plain(message.message)}: {_plain(message.text)}",
        f"to {_plain(message.receiver) or 'nobody'}, from {_plain(message.sender) or 'nobody'}, "
        f"{message.state}{how}{', urgent' if message.urgent else ''}",
        visible(shown.sentence),
    ):
        out.print(line, soft_wrap=True, markup=False)
    write_table("what happened", _TIMELINE, [_happened(line) for line in shown.timeline])


def _happened(line: TimelineLine) -> tuple[str, ...]:
    until = f", again {format_time(line.until)}" if line.until else ""
    next_one = f"asking {line.receiver}" if line.state == "escalated" and line.receiver else ""
    return (
        format_time(line.time),
        line.state + (f": {line.result}" if line.result else ""),
        _plain(line.peer) or "-",
        _plain(line.address) or "-",
        str(line.attempt or ""),
        _plain(line.answer),
        (_why(line.state, line.reason) or next_one) + until,
    )


def _plain(text: str) -> str:
    """A text on one line that steers no terminal."""
    return visible(" ".join(text.split()))
