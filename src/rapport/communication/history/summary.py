"""The ledger in a sentence: how many were told, how many answered, who was not reached and why.
[CO-10]

Pure. Each person counts once per message, by the furthest that is known of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from rapport.communication.history.rows import TAKEN, LedgerRow

Fate = Literal[
    "answered",
    "declined",
    "told",
    "held",
    "refused",
    "waiting",
    "in doubt",
    "not reached",
    "skipped",
]

_REASONS = {
    "peer.no_address": "no address",
    "peer.unknown": "nobody of that name",
    "people.directory_failed": "the directory did not say who it is",
    "not reached": "every address failed",
}
_SHOWN_REASONS = 3
_TOLD: tuple[Fate, ...] = ("told", "answered", "declined")


class PersonFate(msgspec.Struct, frozen=True, kw_only=True):
    """How far one message got with one person."""

    message: str
    peer: str
    fate: Fate
    reason: str = ""
    answer: str = ""
    by: list[str] = []
    """The addresses whose media took it."""
    time: int = 0


class Summary(msgspec.Struct, kw_only=True):
    """Counts of people; who answered or declined counts as told, too."""

    told: int = 0
    answered: int = 0
    declined: int = 0
    held: int = 0
    refused: int = 0
    waiting: int = 0
    in_doubt: int = 0
    not_reached: int = 0
    skipped: int = 0
    """Recorded and not carried out."""
    reasons: dict[str, int] = {}
    """Why people were not reached, refused included."""

    def sentence(self) -> str:
        """The counts as a person reads them.

        >>> Summary(told=3, answered=2, not_reached=1, reasons={"no address": 1}).sentence()
        '3 told, 2 answered, 1 not reached: no address'
        """
        parts = [f"{self.told} told", f"{self.answered} answered"]
        for count, word in (
            (self.declined, "declined"),
            (self.waiting, "waiting"),
            (self.held, "held"),
            (self.in_doubt, "in doubt"),
            (self.refused, "refused"),
            (self.not_reached, "not reached"),
            (self.skipped, "not carried out"),
        ):
            parts += [f"{count} {word}"] if count else []
        why = sorted(self.reasons, key=lambda reason: (-self.reasons[reason], reason))
        return ", ".join(parts) + (f": {'; '.join(why[:_SHOWN_REASONS])}" if why else "")


def fates_of(rows: Iterable[LedgerRow]) -> list[PersonFate]:
    """Of each message and person the furthest that the rows say, in their order."""
    grouped: dict[tuple[str, str], list[LedgerRow]] = {}
    for row in rows:
        grouped.setdefault((row.message, row.peer), []).append(row)
    return [_fate(of_one) for of_one in grouped.values()]


def summarise(rows: Iterable[LedgerRow]) -> Summary:
    """The counts over all people and messages of the rows."""
    fates = fates_of(rows)
    counts = Counter(each.fate for each in fates)
    reasons = Counter(
        each.reason for each in fates if each.fate in ("refused", "not reached") and each.reason
    )
    return Summary(
        told=counts["told"] + counts["answered"] + counts["declined"],
        answered=counts["answered"],
        declined=counts["declined"],
        held=counts["held"],
        refused=counts["refused"],
        waiting=counts["waiting"],
        in_doubt=counts["in doubt"],
        not_reached=counts["not reached"],
        skipped=counts["skipped"],
        reasons=dict(reasons),
    )


def shown_reason(reason: str) -> str:
    """A reason as people read it.

    >>> shown_reason("peer.no_address")
    'no address'
    """
    return _REASONS.get(reason, reason)


def _fate(rows: Sequence[LedgerRow]) -> PersonFate:
    newest = max(rows, key=lambda row: row.position)
    fate, by = _furthest(rows)
    spoken = by or newest
    return PersonFate(
        message=newest.message,
        peer=newest.peer,
        fate=fate,
        reason=shown_reason(spoken.reason) if fate not in _TOLD else "",
        answer=spoken.answer,
        by=[row.address for row in rows if row.address and row.state in TAKEN],
        time=spoken.time if fate in ("answered", "declined") else newest.time,
    )


def _furthest(rows: Sequence[LedgerRow]) -> tuple[Fate, LedgerRow | None]:
    """The fate, and the row that says so."""
    person = next((row for row in rows if not row.address), None)
    if person is not None and person.state == "answered":
        return ("declined" if person.declined else "answered"), person
    if any(row.state in TAKEN for row in rows):
        return "told", None
    if person is not None and person.state == "skipped":
        return "skipped", person
    if person is not None and person.state in ("refused", "held"):
        return ("refused" if person.state == "refused" else "held"), person
    for row in rows:
        if row.state == "queued" or (row.state == "failed" and row.until):
            return "waiting", row
    for row in rows:
        if row.state == "held":  # the next attempt at this address
            return "held", row
    for row in rows:
        if row.state == "unknown":
            return "in doubt", row
    return "not reached", person
