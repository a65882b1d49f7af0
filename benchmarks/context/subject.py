"""What the benchmarks of context ask for: records of 1 kB, and the keys everything is sealed with.
[CX-12]
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.context.protocol import Answer, Question, encode
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.transport.keys import DatagramKey, DatagramKeys, make_key
from rapport.transport.sealed_datagrams import OVERHEAD_BYTES

Keys = tuple[DatagramKey, DatagramKey]
"""Of the brokers, and of those who load them."""

PAYLOAD_BYTES = 1_024
SCOPE = "status"
MEMBER, CLIENT = "brokers", "load"
VALID_MS = 3_600_000

_FIELDS = 8


def _values_of(size: int) -> dict[str, Any]:
    """Values that take so many bytes on the wire: some numbers and names, then texts."""
    values: dict[str, Any] = {"occupied": True, "temperature": 21.5, "people": 3}
    texts = _FIELDS - len(values)
    for number in range(texts):
        left = size - len(msgspec.msgpack.encode(values))
        share = left // (texts - number)
        values[f"note_{number}"] = "x" * (share - 10)
    values["note_0"] += "x" * (size - len(msgspec.msgpack.encode(values)))
    return values


_VALUES, _SMALL = _values_of(PAYLOAD_BYTES), {"occupied": True}


def question_of(number: int) -> Question:
    """What is asked about thing number so-and-so."""
    return Question(EntityRef("room", f"r{number}"), SCOPE)


def record_of(
    number: int, wall_ms: int, *, provider: str = "p", valid_ms: int = VALID_MS
) -> ContextRecord:
    """What is true of it, 1 kB of values."""
    entity = EntityRef("room", f"r{number}")
    return ContextRecord(provider, entity, SCOPE, wall_ms, wall_ms + valid_ms, _VALUES)


def small_record(number: int, wall_ms: int) -> ContextRecord:
    """The same with hardly a value, so that a million of them fit."""
    entity = EntityRef("room", f"r{number}")
    return ContextRecord("p", entity, SCOPE, wall_ms, wall_ms + VALID_MS, _SMALL)


def answer_bytes() -> int:
    """What an answer is on the wire."""
    return len(encode(Answer(1 << 40, record_of(0, 1 << 40)))) + 1 + OVERHEAD_BYTES


def fresh_keys() -> Keys:
    """Made for one run."""
    return make_key(MEMBER, "network"), make_key(CLIENT, "client")


def client_keys(keys: Keys) -> DatagramKeys:
    """What a client holds."""
    return DatagramKeys((keys[1],), own=CLIENT)
