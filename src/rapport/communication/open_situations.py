"""Open situations and the messages of their beginnings, so that the end reaches everybody who was
notified. [SI-5, SI-14, CO-8]

The record of a situation is found by policy, bindings and time of the beginning, without the
version: a replaced policy ends what its former version began. It stays until the last message of
the beginning is forgotten, because a medium may report late that it took such a message.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rapport.communication.texts import TextPiece
from rapport.communication.transaction import Transaction
from rapport.core.detection import situation_key
from rapport.core.message import Message
from rapport.store.base import RecordStore

SITUATIONS = "communication.situations"


class EndNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What people who were notified of a beginning are told of its end."""

    detection: str
    """Id of the event of the end."""
    time: int
    message: Message | None = None
    """Without id and receiver; None = the policy tells nobody."""
    pieces: tuple[TextPiece, ...] = ()
    """Of its text, for readers in other zones or languages."""
    messages: tuple[str, ...] = ()
    """Keys of the delivery records of the receivers that the policy names."""


class OpenSituation(msgspec.Struct, frozen=True, kw_only=True):
    """A situation whose beginning was acted on, and its messages."""

    key: str
    policy: str
    detection: str
    """Id of the event of the beginning."""
    messages: tuple[str, ...] = ()
    """Keys of the delivery records of the beginning."""
    is_waiting: bool = False
    """A receiver of the beginning could not be looked up yet."""
    acknowledged_by: str = ""
    end: EndNotice | None = None
    """None while it is open."""


def acknowledged_by(records: RecordStore, key: str) -> str:
    """Who looks after a situation; empty = nobody, or its beginning was not acted on."""
    kept = records.get(SITUATIONS, key)
    if kept is None:
        return ""
    return msgspec.msgpack.decode(kept, type=OpenSituation).acknowledged_by


class OpenSituations:
    """The records of situations within a transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def find(self, policy: str, bindings: Mapping[str, str], began: int) -> OpenSituation | None:
        """The situation, open or ended; None when its beginning was not acted on."""
        return self.get(situation_key(policy, bindings, began))

    def get(self, key: str) -> OpenSituation | None:
        if not key:
            return None
        return self._transaction.get_struct(SITUATIONS, key, OpenSituation)

    def save(self, situation: OpenSituation) -> None:
        """Writes the record; one that has ended and has no message left is deleted."""
        is_over = situation.end is not None and not situation.is_waiting
        if is_over and not situation.messages:
            self._transaction.delete(SITUATIONS, situation.key)
        else:
            self._transaction.put(SITUATIONS, situation.key, situation)

    def is_open(self, key: str) -> bool:
        """Whether the situation of that key has not ended."""
        found = self.get(key)
        return found is not None and found.end is None

    def forget_message(self, key: str, message: str) -> None:
        """Notes that a message of the beginning was deleted."""
        found = self.get(key)
        if found is not None:
            left = tuple(each for each in found.messages if each != message)
            self.save(msgspec.structs.replace(found, messages=left))
