"""What is so at present: the last reading of every attribute, to be looked up. [ME-4]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rapport.core.errors import Corrupt
from rapport.core.event import Event

MOST_VALUES = 1_000_000
"""So many are kept, some 300 bytes each; then the one heard of least recently is forgotten."""


class _Data(msgspec.Struct):
    key: str
    value: list[Any]


class PresentValue(msgspec.Struct, array_like=True):
    """One value as it is kept; `heard` counts readings, so that the order of hearing is known."""

    stream: str
    key: str
    time_ms: int
    parts: list[Any]
    heard: int = 0


_READ = msgspec.json.Decoder(_Data)
_READ_VALUE = msgspec.json.Decoder(PresentValue)


class PresentValues:
    """The newest value by event time of each attribute of each instance; in memory.

    Fed with readings as they are in the channel `events`. A `Context` for typed conversions.
    """

    def __init__(self, *, most: int = MOST_VALUES) -> None:
        self._values: dict[tuple[str, str], tuple[int, list[Any]]] = {}
        self._most = most
        self._changed: dict[tuple[str, str], int] = {}
        self._heard = 0

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

    def changed(self) -> Iterator[tuple[tuple[str, str], PresentValue | None]]:
        """What changed since `saved`, by stream and key; None for what was forgotten."""
        for place, heard in self._changed.items():
            kept = self._values.get(place)
            yield place, None if kept is None else PresentValue(*place, *kept, heard)

    def saved(self) -> None:
        """All that `changed` gave is on record; nothing was fed meanwhile."""
        self._changed.clear()

    @staticmethod
    def of(
        values: Iterable[PresentValue], *, most: int = MOST_VALUES, are_saved: bool = True
    ) -> PresentValues:
        """These, in the order they were heard of."""
        found = PresentValues(most=most)
        for each in sorted(values, key=lambda one: one.heard):
            found._heard = max(found._heard, each.heard - 1)
            found._put(each.stream, each.key, each.time_ms, each.parts)
        if are_saved:
            found.saved()
        return found

    def _put(self, stream: str, key: str, time_ms: int, parts: list[Any]) -> bool:
        place = stream, key
        known = self._values.pop(place, None)
        newer = known is None or known[0] <= time_ms
        self._values[place] = (time_ms, parts) if newer or known is None else known
        self._heard += 1
        self._changed[place] = self._heard
        if len(self._values) > self._most:
            forgotten = next(iter(self._values))
            del self._values[forgotten]
            self._changed[forgotten] = self._heard
        return newer


def read_present(saved: Iterable[bytes]) -> list[PresentValue]:
    """Values from their records; raises Corrupt."""
    try:
        return [_READ_VALUE.decode(each) for each in saved]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"present values cannot be read: {error}"
        raise Corrupt(message, code="mediation.bad_memory") from None
