"""How far a message got, shown while it is under way. [CO-10, UX-3]"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.cli.terminal import stderr

if TYPE_CHECKING:
    from rapport.communication.ledger import MessageView

_MOST_PEOPLE = 20
_DONE = ("notified", "forwarded", "routed")
_OVER = (*_DONE, "closed", "failed", "no_receiver", "refused")


def is_over(shown: MessageView) -> bool:
    """Whether nothing more is decided about the message."""
    return shown.message.state in _OVER


def outcome_of(shown: MessageView | None) -> str:
    """`done`, `failed`, `timed_out`, or `undecided`."""
    if shown is None or not is_over(shown):
        return "undecided"
    if shown.message.state in _DONE:
        return "done"
    return shown.message.result or "failed"


class GivenAnswer(msgspec.Struct, frozen=True):
    """What one person answered."""

    time: int
    person: str
    answer: str
    declined: bool


def answers_of(shown: MessageView) -> list[GivenAnswer]:
    """The answers so far, the first one first; the last one of each person."""
    found = [
        GivenAnswer(each.time, each.peer, each.answer, each.fate == "declined")
        for each in shown.people
        if each.fate in ("answered", "declined")
    ]
    return sorted(found, key=lambda one: (one.time, one.person))


class Progress:
    """A live table on a terminal; elsewhere a line whenever something changed."""

    def __init__(self, message: str) -> None:
        self._message, self._last = message, ""
        self._live: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=stderr(), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, shown: MessageView) -> None:
        """How far it is now."""
        if self._live is not None:
            self._live.update(_table(shown), refresh=True)
        elif shown.sentence != self._last:
            stderr().print(shown.sentence, markup=False, soft_wrap=True)
        self._last = shown.sentence


def _table(shown: MessageView) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=shown.sentence, title_justify="left", header_style="bold")
    for column in ("person", "how far", "by", "answer", "why"):
        table.add_column(column)
    newest = sorted(shown.people, key=lambda person: -person.time)[:_MOST_PEOPLE]
    for person in sorted(newest, key=lambda person: person.peer):
        row = (person.peer, person.fate, " ".join(person.by), person.answer, person.reason)
        table.add_row(*(Text(cell) for cell in row))
    return table
