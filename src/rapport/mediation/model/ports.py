"""What a conversion of values takes and gives, by name. [ME-4]

A conversion such as polar to Cartesian works on named values. How they reach it, its signature
says: as attributes of one object (`Polar -> Point`), for rules, or one by one (`deg, m -> m, m`),
for merging and splitting in a mapping.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PortKind = Literal["number", "integer", "text", "scalar"]
"""`scalar`: text, number or truth value, as the signature says."""


class Port(msgspec.Struct, frozen=True):
    """A value that goes in or comes out; `unit` is what its number is in, if that is known."""

    name: str
    kind: PortKind
    unit: str = ""


def numbers(*names: str, unit: str = "") -> tuple[Port, ...]:
    """Several numbers of one unit."""
    return tuple(Port(name, "number", unit) for name in names)
