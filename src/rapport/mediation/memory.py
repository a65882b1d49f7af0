"""What mediation remembers between the events of a source, and how it outlives a restart. [ME-4]"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.errors import Corrupt
from rapport.mediation.model.runtime import Memory


class _Saved(msgspec.Struct):
    position: int
    content: msgspec.Raw


class _Content(msgspec.Struct):
    format: dict[str, Any]
    states: dict[str, Any]


class SourceMemory:
    """What a format and stateful conversions remember; JSON.

    `position` is the place in the raw channel up to which events are in it. It is saved after their
    readings are stored and before the reader's place is: events up to here must not be taken in a
    second time.
    """

    def __init__(self) -> None:
        self.position = 0
        self.format: dict[str, Any] = {}
        self.states = Memory()
        self._saved = msgspec.json.encode(_Content({}, {}))

    def save(self, position: int) -> bytes | None:
        """The record to keep once everything up to `position` is taken in; None while it says what
        the last one said.
        """
        content = msgspec.json.encode(_Content(self.format, self.states.states))
        if content == self._saved:
            return None
        self._saved, self.position = content, position
        return msgspec.json.encode(_Saved(position, msgspec.Raw(content)))

    @staticmethod
    def restore(record: bytes | None) -> SourceMemory:
        """From the record, empty without one; raises Corrupt."""
        memory = SourceMemory()
        if record is None:
            return memory
        try:
            saved = msgspec.json.decode(record, type=_Saved)
            content = msgspec.json.decode(saved.content, type=_Content)
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"what a source's mediation remembered cannot be read: {error}",
                code="mediation.bad_memory",
            ) from None
        memory.position, memory._saved = saved.position, bytes(saved.content)
        memory.format, memory.states = content.format, Memory(content.states)
        return memory
