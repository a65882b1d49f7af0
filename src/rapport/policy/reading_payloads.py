"""The data of a reading, read one by one by the decoder that decides what is one. [PO-2, PO-7]"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.errors import Problem
from rapport.core.schema import PARTS, AttributeType
from rapport.policy.reading_columns import Columns

PART_TYPES: dict[AttributeType, pa.DataType] = {
    "text": pa.string(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "point": pa.float64(),
    "rectangle": pa.float64(),
}


class _Text(msgspec.Struct, gc=False):
    key: str
    value: tuple[str]


class _Number(msgspec.Struct, gc=False):
    key: str
    value: tuple[float]


class _Boolean(msgspec.Struct, gc=False):
    key: str
    value: tuple[bool]


class _Point(msgspec.Struct, gc=False):
    key: str
    value: tuple[float, float]


class _Rectangle(msgspec.Struct, gc=False):
    key: str
    value: tuple[float, float, float, float]


Payload = _Text | _Number | _Boolean | _Point | _Rectangle
_PAYLOADS: dict[AttributeType, Any] = {
    "text": _Text,
    "number": _Number,
    "boolean": _Boolean,
    "point": _Point,
    "rectangle": _Rectangle,
}
_READ_ONE: dict[AttributeType, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(payload) for kind, payload in _PAYLOADS.items()
}
_FAULTS = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError)


def read_payload(data: bytes, kind: AttributeType) -> Payload | Problem:
    """The payload of one event, or what keeps it from being a reading."""
    try:
        row: Payload = _READ_ONE[kind].decode(data)
    except _FAULTS as error:
        code = "reading.bad_value" if "$.value" in str(error) else "reading.bad_data"
        hint = f'a reading is {{"key": "5", "value": [...]}} with {", ".join(PARTS[kind])}'
        return Problem(code=code, message=f"not a {kind}: {error}", hint=hint)
    return row if row.key else Problem(code="reading.no_key", message="the key is empty")


def columns_of_each(data: Sequence[bytes], kind: AttributeType) -> Columns | None:
    """Keys and parts of many readings; None when one of them is none."""
    try:
        rows = list(map(_READ_ONE[kind].decode, data))
    except _FAULTS:
        return None
    keys = [row.key for row in rows]
    return None if "" in keys else (pa.array(keys, pa.string()), _parts(rows, kind))


def _parts(rows: Sequence[Payload], kind: AttributeType) -> list[pa.Array]:
    count = len(PARTS[kind])
    if PART_TYPES[kind] != pa.float64():
        return [pa.array([row.value[0] for row in rows], PART_TYPES[kind])]
    numbers = chain.from_iterable([row.value for row in rows])
    values = np.fromiter(numbers, np.float64, count * len(rows))
    return [pa.array(np.ascontiguousarray(values[place::count])) for place in range(count)]
