"""The types an attribute can have, and the flat parts each is made of. [PO-1]"""

from __future__ import annotations

from typing import Literal, get_args

AttributeType = Literal["text", "number", "boolean", "point", "rectangle"]

TYPE_NAMES: tuple[AttributeType, ...] = get_args(AttributeType)

PARTS: dict[AttributeType, tuple[str, ...]] = {
    "text": ("value",),
    "number": ("value",),
    "boolean": ("value",),
    "point": ("x", "y"),
    "rectangle": ("x1", "y1", "x2", "y2"),
}
"""A value of the type is this many scalars, in this order: one column each in a batch or table."""
