"""The types of attributes and the scalars that each consists of; shared by policies, tables, Spark
jobs and mediation. [PO-1]
"""

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
"""The scalars of a value in their order; each is one column of a batch or table."""
