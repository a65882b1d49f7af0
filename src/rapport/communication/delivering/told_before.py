"""Whom a message of long ago was sent to, when neither a record nor memory tells: the log does.
[CO-10]

A plain message leaves no record, and the engine's memory of it ends with the process. Whoever
replies to it with a session, or through a medium that vouches for them, answered it if the
message's own event in `log` names them. The engine looks that up between two transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.ledger import SOURCE
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.core.message import MESSAGE

_MOST = 10_000
_PEER = "peer:"


class HistoryNeeded(Exception):
    """A message is to be looked up in the log before what refers to it can be taken."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _Told(msgspec.Struct, frozen=True):
    """Of a message's event in `log` who it went to."""

    fate: str = ""
    receiver: str = ""
    peer: str = ""


class ToldBefore:
    """What was looked up lately: at most ten thousand messages, also those that are in no log."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def peer(self, message: str) -> str:
        """The only peer whom the message was meant for; empty = there is none. Raises
        HistoryNeeded when it was not looked up.
        """
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
            peers = [_peer_of(stored) for name, stored in found if name == "log"]
            self._told[message] = next(filter(None, peers), "")


def _peer_of(stored: StoredEvent) -> str:
    """Whom a message's own event says that it was queued for."""
    event = stored.event
    if event.type != MESSAGE or event.source != SOURCE:
        return ""
    try:
        told: _Told = event.payload_as(_Told)
    except InvalidInput:
        return ""
    if told.fate != "queued" or not told.receiver.startswith(_PEER):
        return ""
    return told.peer or told.receiver.removeprefix(_PEER)
