"""Rows of the ledger, how its lines fold into them, and their summary in a sentence. Pure.
[CO-10]

For each message, person and address the newest line is the state; but a person who answered has
answered, whatever comes later, and a closed message stays as it was closed. States of a medium
belong to an address, states of a person to the person. In a summary each person counts once per
message, by the furthest state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec

from rapport.communication.delivery_state import SENT_STATES
from rapport.communication.ledger_events import (
    DELIVERY_PREFIX,
    OPEN,
    LedgerLine,
    LoggedData,
    state_when_handled,
)
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.message import MESSAGE

LONGEST_KEPT_TEXT = 10_000
"""Characters of a message's text; the whole stands in the log."""
CLOSED = "closed"

RowKey = tuple[str, str, str]

PersonFateName = Literal[
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
_TOLD: tuple[PersonFateName, ...] = ("told", "answered", "declined")


class LedgerRow(msgspec.Struct, kw_only=True):
    """The newest state of one message at a person (`address` empty) or at one address."""

    message: str
    peer: str
    address: str
    adapter: str
    state: str
    time: int
    attempt: int
    reason: str
    answer: str
    until: int
    policy: str
    detection: str
    receiver: str = ""
    """The receiver through which the person got it, the first or one of the escalation."""
    stage: int = 0
    declined: bool = False
    """The answer is a refusal."""
    first: int = 0
    """Positions in `log` of its first line and of the one that its state is from."""
    position: int = 0

    @property
    def key(self) -> RowKey:
        return self.message, self.peer, self.address


class MessageRow(msgspec.Struct, kw_only=True):
    """One message: its text, whether it is open, and who answered first, refusals aside."""

    message: str
    text: str = ""
    receiver: str = ""
    policy: str = ""
    detection: str = ""
    time: int = 0
    urgent: bool = False
    state: str = "open"
    """`open`, `escalated`, `closed`; without a delivery of its own, the fate when it was handled
    (`notified`, `routed`, `forwarded`, `no_receiver`, `refused`, `failed`)."""
    result: str = ""
    reason: str = ""
    answered_by: str = ""
    answer: str = ""
    answered_at: int = 0
    sender: str = ""
    type: str = ""
    subtype: str = ""
    conversation: str = ""
    refers_to: str = ""
    choices: str = ""
    """Answers to choose from, one per line; empty = yes."""
    closed_at: int = 0
    first: int = 0
    position: int = 0

    @property
    def ended_at(self) -> int:
        """When the message was closed or handled; 0 while it is open."""
        is_open = self.state in (OPEN, "escalated", "held")
        return 0 if is_open else self.closed_at or self.time


class LedgerEntry(msgspec.Struct, frozen=True):
    """One change of the ledger, read from an event of `log`."""

    message: str
    state: str
    """A state of the ledger; empty = the message was written."""
    line: LedgerLine | None
    written: LoggedData | None
    time: int
    position: int

    @property
    def keys(self) -> tuple[RowKey, ...]:
        """The rows that it may change; none when it concerns the message as a whole."""
        if self.line is None or not self.line.peer:
            return ()
        person = (self.message, self.line.peer, "")
        return ((*person[:2], self.line.address), person) if self.line.address else (person,)


def read_entries(stored: StoredEvent) -> tuple[LedgerEntry, ...]:
    """The changes of the ledger in an event of `log`; the event of a message may also answer
    another message.
    """
    event = stored.event
    try:
        if event.type == MESSAGE:
            return _read_message(event, stored.position)
        if event.type.startswith(DELIVERY_PREFIX):
            return (_read_line(event, stored.position),)
    except InvalidInput:
        return ()  # `log` is shared with other writers
    return ()


def read_line(stored: StoredEvent) -> LedgerRow | None:
    """A line about a person as a row; None for other events."""
    for entry in read_entries(stored):
        if entry.line is not None and entry.line.peer:
            return _row(entry.line, entry, entry.position)
    return None


def _read_message(event: Event, position: int) -> tuple[LedgerEntry, ...]:
    written: LoggedData = event.payload_as(LoggedData)
    line, answer = written.queued_line(event.id), written.answered_line()
    state = "queued" if line else ""
    own = LedgerEntry(event.id, state, line, written, event.time, position)
    if answer is None:
        return (own,)
    return own, LedgerEntry(answer.message, "answered", answer, None, written.answered, position)


def _read_line(event: Event, position: int) -> LedgerEntry:
    line: LedgerLine = event.payload_as(LedgerLine)
    state = event.type.removeprefix(DELIVERY_PREFIX)
    return LedgerEntry(line.message, state, line, None, event.time, position)


class LedgerFold:
    """Rows while entries are applied to them; `gone` are the keys of rows that ended."""

    def __init__(self, messages: Iterable[MessageRow] = (), rows: Iterable[LedgerRow] = ()) -> None:
        self.messages = {row.message: row for row in messages}
        self.rows = {row.key: row for row in rows}
        self.gone: set[RowKey] = set()

    def apply(self, entry: LedgerEntry) -> None:
        """Applies the next entry, in the order of the log."""
        message = self.messages.get(entry.message)
        if message is None:
            message = self.messages[entry.message] = MessageRow(
                message=entry.message, time=entry.time, first=entry.position
            )
        message.position = entry.position
        if entry.written is not None:
            _write(message, entry.written, entry.time)
        if entry.line is not None:
            self._apply_line(message, entry, entry.line)

    def _apply_line(self, message: MessageRow, entry: LedgerEntry, line: LedgerLine) -> None:
        message.policy = message.policy or line.policy
        message.detection = message.detection or line.detection
        if not line.peer:
            _set_state(message, entry, line)
            return
        if entry.state == "answered":
            _set_answer(message, line, entry.time)
        if line.result:  # the line closes the message as well
            _close(message, line, entry.time)
        key = (entry.message, line.peer, line.address)
        before = self.rows.get(key)
        if before is not None and before.state == "answered" and entry.state != "answered":
            return
        first = before.first if before is not None else entry.position
        self.rows[key] = _row(line, entry, first)
        self.gone.discard(key)
        if entry.state == "queued" and line.address:
            self._end_hold((entry.message, line.peer, ""))
            _go_on(message, line)

    def _end_hold(self, key: RowKey) -> None:
        held = self.rows.get(key)
        if held is not None and held.state == "held":
            del self.rows[key]
            self.gone.add(key)


def _write(message: MessageRow, written: LoggedData, time: int) -> None:
    message.time, message.text = time, written.content[:LONGEST_KEPT_TEXT]
    message.type, message.subtype = written.type, written.subtype
    message.sender, message.receiver = written.sender, written.receiver
    message.conversation, message.refers_to = written.conversation, written.refers_to
    message.policy, message.detection = written.policy, written.detection
    message.urgent = written.urgent
    message.choices = "\n".join(written.options.choices) if written.options is not None else ""
    if message.state in (OPEN, "held"):  # a deferred message is handled now
        message.state = state_when_handled(written.fate, written.receiver)
        message.reason = ""


def _set_answer(message: MessageRow, line: LedgerLine, time: int) -> None:
    """Sets the first answer; a later refusal of the same person takes it back."""
    if line.declined and message.answered_by == line.peer:
        message.answered_by, message.answer, message.answered_at = "", "", 0
    elif not line.declined and not message.answered_by:
        message.answered_by, message.answer, message.answered_at = line.peer, line.answer, time


def _set_state(message: MessageRow, entry: LedgerEntry, line: LedgerLine) -> None:
    """Applies a line about the whole message; a closed message stays closed."""
    if message.state == CLOSED:
        return
    if entry.state == CLOSED:
        _close(message, line, entry.time)
        return
    message.state, message.reason, message.result = entry.state, line.reason, line.result


def _go_on(message: MessageRow, line: LedgerLine) -> None:
    """The next receiver was looked up at last: the message is held no more."""
    if message.state == "held":
        message.state, message.reason = "escalated" if line.stage > 1 else OPEN, ""


def _close(message: MessageRow, line: LedgerLine, time: int) -> None:
    if message.state != CLOSED:
        reason = "" if line.peer else line.reason  # that of one delivery is not the message's
        message.state, message.reason, message.result = CLOSED, reason, line.result
        message.closed_at = time


def _row(line: LedgerLine, entry: LedgerEntry, first: int) -> LedgerRow:
    fields = msgspec.structs.asdict(line)
    del fields["result"], fields["queued"]
    fields |= {"message": entry.message, "state": entry.state, "time": entry.time}
    return LedgerRow(**fields, first=first, position=entry.position)


class PersonFate(msgspec.Struct, frozen=True, kw_only=True):
    """How far one message got with one person."""

    message: str
    peer: str
    fate: PersonFateName
    reason: str = ""
    answer: str = ""
    by: list[str] = []
    """The addresses whose media took it."""
    time: int = 0


class Summary(msgspec.Struct, kw_only=True):
    """Counts of people; those who answered or declined count as told, too."""

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
        """The counts in a sentence.

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
    """The furthest state of each message and person, in the order of the rows."""
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
    numbers = {name.replace(" ", "_"): counts[name] for name in get_args(PersonFateName)}
    numbers["told"] += counts["answered"] + counts["declined"]
    return Summary(**numbers, reasons=dict(reasons))


def shown_reason(reason: str) -> str:
    """A reason in words.

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
        by=[row.address for row in rows if row.address and row.state in SENT_STATES],
        time=spoken.time if fate in ("answered", "declined") else newest.time,
    )


def _furthest(rows: Sequence[LedgerRow]) -> tuple[PersonFateName, LedgerRow | None]:
    person = next((row for row in rows if not row.address), None)
    if person is not None and person.state == "answered":
        return ("declined" if person.declined else "answered"), person
    if any(row.state in SENT_STATES for row in rows):
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
