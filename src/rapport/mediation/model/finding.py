"""Kinds of conversion that look a value up: in a table of the site, or in what is so at present.
[ME-4]

What they do is in `looking_up.py`.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.model.ports import Port

Scalar = str | int | float | bool | None


class TableLookup(msgspec.Struct, frozen=True, tag="table"):
    """Columns of the row whose key the value is; text becomes what the signature says.

    No such row, or an empty field: `otherwise`, or rejected when there is none.
    """

    table: str
    columns: tuple[str, ...]
    key: str = "key"
    attributes: tuple[str, ...] = ()
    """What the columns are called in an object; empty: as they are."""
    otherwise: tuple[Scalar, ...] | msgspec.UnsetType = msgspec.UNSET

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port(self.key, "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return tuple(Port(name, "scalar") for name in self.attributes or self.columns)


class ContextLookup(msgspec.Struct, frozen=True, tag="context"):
    """The present value of an attribute of a concept, for the instance whose key the value is.

    `parts` are what its parts are called: one for numbers, texts and truth values, `x, y` for a
    point. Nothing heard of it yet: `otherwise`, or rejected when there is none.
    """

    concept: str
    attribute: str
    key: str = "key"
    parts: tuple[str, ...] = ("value",)
    otherwise: tuple[Scalar, ...] | msgspec.UnsetType = msgspec.UNSET

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port(self.key, "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return tuple(Port(name, "scalar") for name in self.parts)


Finding = TableLookup | ContextLookup
