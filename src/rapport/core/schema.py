"""The types of attributes and the scalars that each consists of; shared by policies, tables, Spark
jobs and mediation. [PO-1]
"""

from __future__ import annotations

from typing import Literal, get_args

AttributeType = Literal[
    "text", "number", "boolean", "point", "rectangle", "area", "geo_point", "geo_area"
]

TYPE_NAMES: tuple[AttributeType, ...] = get_args(AttributeType)

PARTS: dict[AttributeType, tuple[str, ...]] = {
    "text": ("value",),
    "number": ("value",),
    "boolean": ("value",),
    "point": ("x", "y"),
    "rectangle": ("x1", "y1", "x2", "y2"),
    "area": ("value",),
    "geo_point": ("lon", "lat"),
    "geo_area": ("value",),
}
"""The scalars of a value in their order; each is one column of a batch or table."""

AREAS: frozenset[AttributeType] = frozenset(("area", "geo_area"))
"""Types whose value is the canonical text of an area (`units/areas.py`); only tables give them."""

PART_UNITS: dict[AttributeType, str] = {"point": "m", "rectangle": "m", "geo_point": "deg"}
"""The canonical unit of the parts, for types that fix it."""
