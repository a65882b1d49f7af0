"""The ledger as people ask for it: for every message and person the newest state, read from `log`.
[CO-10]

Built by reading the log from the start and kept up to date by `refresh`; nothing here is stored,
so it can never say anything else than the log does. Medium states stand at an address, a person's
at the person.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.ledger import DELIVERY_PREFIX, UNMAPPED, LedgerLine
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.message import MESSAGE, Message

_PAGE = 2_000
_LOOK_BACK = 200


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


class MessageRow(msgspec.Struct, kw_only=True):
    """One message: what it says, whether it is still open, and who answered first."""

    message: str
    text: str = ""
    receiver: str = ""
    policy: str = ""
    detection: str = ""
    time: int = 0
    urgent: bool = False
    state: str = "open"
    """`open`, `escalated`, `closed`, or `failed` when it could not even begin."""
    result: str = ""
    reason: str = ""
    answered_by: str = ""
    answer: str = ""
    answered_at: int = 0


class Ledger:
    """The newest state of everything sent; keeps `most_messages` in memory, old ones go."""

    def __init__(self, channels: Channels, *, most_messages: int = 20_000) -> None:
        self._log = channels.channel("log")
        self._most = most_messages
        self._position = 0
        self._messages: dict[str, MessageRow] = {}
        self._rows: dict[str, dict[tuple[str, str], LedgerRow]] = {}

    async def refresh(self) -> int:
        """Reads what was logged since; returns how many events it looked at."""
        seen = 0
        while batch := await self._log.read_after(self._position, limit=_PAGE):
            for stored in batch:
                self._take(stored.event)
                self._position = stored.position
            seen += len(batch)
        return seen

    def messages(self, *, limit: int = 100) -> list[MessageRow]:
        """The newest messages, newest first."""
        return list(reversed(self._messages.values()))[:limit]

    def message(self, message: str) -> MessageRow | None:
        """One message, or None when it is not (or no longer) known here."""
        return self._messages.get(message)

    def rows(self, *, message: str = "", peer: str = "", state: str = "") -> list[LedgerRow]:
        """The newest states, oldest message first; empty arguments mean any."""
        return [
            row
            for row in self._all_rows(message)
            if (not peer or row.peer == peer) and (not state or row.state == state)
        ]

    def inbox(self, peer: str) -> list[MessageRow]:
        """Open messages in this peer's inbox that they have not answered, newest first."""
        found = []
        for message in reversed(self._messages.values()):
            rows = self._rows.get(message.message, {})
            waiting = any(
                row.adapter == "inbox" and row.state in ("handed", "confirmed")
                for (name, _), row in rows.items()
                if name == peer
            )
            answered = rows.get((peer, ""))
            if waiting and message.state not in ("closed", "failed") and not _is_answer(answered):
                found.append(message)
        return found

    # --- taking in ---

    def _all_rows(self, message: str) -> Iterator[LedgerRow]:
        chosen = [self._rows.get(message, {})] if message else list(self._rows.values())
        for rows in chosen:
            yield from rows.values()

    def _take(self, event: Event) -> None:
        try:
            if event.type == MESSAGE:
                self._take_message(event)
            elif event.type.startswith(DELIVERY_PREFIX):
                self._take_line(event)
        except InvalidInput:
            return  # `log` is shared: what is no ledger line says nothing about deliveries

    def _take_message(self, event: Event) -> None:
        message = Message.from_event(event)
        origin: _Origin = event.payload_as(_Origin)
        row = self._row_of(event.id)
        row.text, row.urgent, row.time = message.content, message.urgent, event.time
        row.receiver = str(message.receiver or "")
        row.policy, row.detection = origin.policy, origin.detection

    def _take_line(self, event: Event) -> None:
        line: LedgerLine = event.payload_as(LedgerLine)
        state = event.type.removeprefix(DELIVERY_PREFIX)
        if line.reason.startswith(UNMAPPED):
            self._row_of(line.message)
        message = self._messages.get(line.message)
        if message is None:
            return  # it was let go of; a late line must not bring half of it back
        if not line.peer:
            _set_message_state(message, state, line)
            message.time = message.time or event.time
            message.policy, message.detection = line.policy, line.detection
            return
        rows = self._rows[line.message]
        before = rows.get((line.peer, line.address))
        if state == "answered" and not message.answered_by:
            message.answered_by, message.answer = line.peer, line.answer
            message.answered_at = event.time
        if _is_answer(before) and state != "answered":
            return  # who answered has answered, whatever the clock or the medium says later
        rows[line.peer, line.address] = _ledger_row(line, state, event.time)

    def _row_of(self, message: str) -> MessageRow:
        row = self._messages.get(message)
        if row is None:
            row = self._messages[message] = MessageRow(message=message)
            self._rows[message] = {}
            self._drop_oldest()
        return row

    def _drop_oldest(self) -> None:
        """Lets go of an old message that is over; of the oldest when there is none near the end."""
        while len(self._messages) > self._most:
            old = list(islice(self._messages.values(), _LOOK_BACK))
            over = (row for row in old if row.state in ("closed", "failed"))
            gone = next(over, old[0]).message
            del self._messages[gone], self._rows[gone]


class _Origin(msgspec.Struct):
    """Where a message came from, beside its twelve fields."""

    policy: str = ""
    detection: str = ""


def _set_message_state(message: MessageRow, state: str, line: LedgerLine) -> None:
    """What the newest line about the whole message says; closed is the last word."""
    if message.state == "closed":
        return
    message.state, message.reason = state, line.reason
    message.result = line.result


def _ledger_row(line: LedgerLine, state: str, time: int) -> LedgerRow:
    return LedgerRow(
        message=line.message,
        peer=line.peer,
        address=line.address,
        adapter=line.adapter,
        state=state,
        time=time,
        attempt=line.attempt,
        reason=line.reason,
        answer=line.answer,
        until=line.until,
        policy=line.policy,
        detection=line.detection,
    )


def _is_answer(row: LedgerRow | None) -> bool:
    return row is not None and row.state == "answered"
