"""What is so at present: the last reading of every attribute, to be looked up. [ME-4]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.core.errors import Corrupt
from rapport.core.event import Event

MOST_VALUES = 1_000_000
"""So many are kept, some 300 bytes each; then the one heard of least recently is forgotten."""


class _Data(msgspec.Struct):
    key: str
    value: list[Any]


class _Saved(msgspec.Struct, array_like=True):
    stream: str
    key: str
    time_ms: int
    parts: list[Any]


_READ = msgspec.json.Decoder(_Data)


class PresentValues:
    """The newest value by event time of each attribute of each instance; in memory.

    Fed with readings as they are in the channel `events`. A `Context` for typed conversions.
    """

    def __init__(self, *, most: int = MOST_VALUES) -> None:
        self._values: dict[tuple[str, str], tuple[int, list[Any]]] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._values)

    def feed(self, reading: Event) -> bool:
        """Takes in a reading; False: it is none, or older than what is known."""
        try:
            data = _READ.decode(reading.data)
        except msgspec.MsgspecError:
            return False
        return self._put(reading.type, data.key, reading.time, data.value)

    def value(self, concept: str, key: str, attribute: str) -> Sequence[Any] | None:
        """The parts of the present value; None: nothing was heard of it."""
        found = self._values.get((f"{concept}.{attribute}", key))
        return None if found is None else found[1]

    def to_json(self) -> bytes:
        """All values, least recently heard of first."""
        return msgspec.json.encode(
            [_Saved(stream, key, *kept) for (stream, key), kept in self._values.items()]
        )

    @staticmethod
    def from_json(saved: bytes, *, most: int = MOST_VALUES) -> PresentValues:
        """What `to_json` gave; raises Corrupt."""
        found = PresentValues(most=most)
        try:
            entries = msgspec.json.decode(saved, type=list[_Saved])
        except msgspec.MsgspecError as error:
            message = f"present values cannot be read: {error}"
            raise Corrupt(message, code="mediation.bad_memory") from None
        for each in entries:
            found._put(each.stream, each.key, each.time_ms, each.parts)
        return found

    def _put(self, stream: str, key: str, time_ms: int, parts: list[Any]) -> bool:
        known = self._values.pop((stream, key), None)
        newer = known is None or known[0] <= time_ms
        self._values[stream, key] = (time_ms, parts) if newer or known is None else known
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]
        return newer
