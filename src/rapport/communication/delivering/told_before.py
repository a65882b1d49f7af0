"""Whom a message of long ago was sent to, and by whom, when neither a record nor memory tells: the
log does. [CO-7, CO-10]

A plain message leaves no record, and the engine's memory of it ends with the process. Whoever
replies to it with a session, or through a medium that vouches for them, answered it if the
message's own event in `log` names them. The engine looks that up between two transactions. It also
says who is to be told when a medium gives back what it took.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.ledger import SOURCE
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.core.message import CONTROL, MESSAGE

_MOST = 10_000
_PEER = "peer:"


class HistoryNeeded(Exception):
    """A message is to be looked up in the log before what refers to it can be taken."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _Told(msgspec.Struct, frozen=True):
    """Of a message's event in `log` who it went to, and from whom."""

    fate: str = ""
    receiver: str = ""
    peer: str = ""
    sender: str = ""
    type: str = ""


_NOTHING = _Told()


class ToldBefore:
    """What was looked up lately: at most ten thousand messages, also those that are in no log."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def peer(self, message: str) -> str:
        """The only peer whom the message was meant for; empty = there is none. Raises
        HistoryNeeded when it was not looked up.
        """
        found = self._found(message)
        if found.fate != "queued" or not found.receiver.startswith(_PEER):
            return ""
        return found.peer or found.receiver.removeprefix(_PEER)

    def sender(self, message: str) -> str:
        """Who is told what became of the message; empty = nobody. Raises HistoryNeeded."""
        found = self._found(message)
        return "" if found.type == CONTROL else found.sender

    def _found(self, message: str) -> _Told:
        found = self._told.get(message)
        if found is None:
            raise HistoryNeeded(message)
        return found

    def has(self, message: str) -> bool:
        """Whether it was looked up."""
        return message in self._told

    async def look_up(self, channels: Channels, messages: Sequence[str]) -> None:
        """One question to the history index for each. Raises ChannelUnavailable."""
        if len(self._told) + len(messages) > _MOST:
            self._told.clear()
        for message in messages:
            found = await channels.find_event(message)
            told = [_told_by(stored) for name, stored in found if name == "log"]
            self._told[message] = next(filter(None, told), _NOTHING)


def _told_by(stored: StoredEvent) -> _Told | None:
    """What a message's own event says; None for any other."""
    event = stored.event
    if event.type != MESSAGE or event.source != SOURCE:
        return None
    try:
        told: _Told = event.payload_as(_Told)
    except InvalidInput:
        return None
    return told
