"""The same transformations as a careful programmer would write them for these two types alone, with
the same decoder and encoder: what generated code is to be measured by. [ME-8]

The source says of its own that it is as effective as transformations coded by hand at the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from benchmarks.mediation.events import AFFECTED, ATTRIBUTES, Form
from rapport.core.event import StoredEvent

_COLDEST_C = -240.0


class Flat(msgspec.Struct, gc=False):
    """An event of fifteen attributes beside each other, of which five are temperatures."""

    a0: float
    a1: float
    a2: float
    a3: float
    a4: float
    a5: str
    a6: str
    a7: str
    a8: str
    a9: str
    a10: str
    a11: str
    a12: str
    a13: str
    a14: str


def flat_by_hand(batch: Sequence[StoredEvent]) -> list[Any]:
    """The bytes for a consumer, None for what the filter keeps back; formulas where they stand,
    since a call would cost more than they do.
    """
    decode, encode = msgspec.json.Decoder(Flat).decode, msgspec.json.Encoder().encode
    told: list[Any] = []
    for item in batch:
        value = decode(item.event.data)
        first = (value.a0 - 32.0) / 1.8
        if first <= _COLDEST_C:
            told.append(None)
            continue
        value.a0 = first + 273.15
        value.a1 = (value.a1 - 32.0) / 1.8 + 273.15
        value.a2 = (value.a2 - 32.0) / 1.8 + 273.15
        value.a3 = (value.a3 - 32.0) / 1.8 + 273.15
        value.a4 = (value.a4 - 32.0) / 1.8 + 273.15
        told.append(encode(value))
    return told


def _deep_type() -> type[msgspec.Struct]:
    """Fifteen structs, each in the one before."""
    below: type[msgspec.Struct] | None = None
    for number in range(ATTRIBUTES - 1, -1, -1):
        own: type = float if number < AFFECTED else str
        fields: list[Any] = [(f"a{number}", own)]
        if below is not None:
            fields.append(("below", below))
        below = msgspec.defstruct(f"Deep{number}", fields, gc=False)
    assert below is not None
    return below


_DEEP = _deep_type()


def deep_by_hand(batch: Sequence[StoredEvent]) -> list[Any]:
    """The same for fifteen levels, of which the five upper ones have a temperature each."""
    decode, encode = msgspec.json.Decoder(_DEEP).decode, msgspec.json.Encoder().encode
    told: list[Any] = []
    for item in batch:
        value: Any = decode(item.event.data)
        first = (value.a0 - 32.0) / 1.8
        if first <= _COLDEST_C:
            told.append(None)
            continue
        value.a0 = first + 273.15
        second = value.below
        second.a1 = (second.a1 - 32.0) / 1.8 + 273.15
        third = second.below
        third.a2 = (third.a2 - 32.0) / 1.8 + 273.15
        fourth = third.below
        fourth.a3 = (fourth.a3 - 32.0) / 1.8 + 273.15
        fifth = fourth.below
        fifth.a4 = (fifth.a4 - 32.0) / 1.8 + 273.15
        told.append(encode(value))
    return told


BY_HAND: dict[Form, Callable[[Sequence[StoredEvent]], list[Any]]] = {
    "flat": flat_by_hand,
    "deep": deep_by_hand,
}
