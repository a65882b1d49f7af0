"""The instances of a concept as columns, joined from the fewest tables that have all needed
attributes. [PO-2]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, repeat
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.schema import AttributeType
from rapport.tables.rows import empty_column


class Instances:
    """All known instances of one concept at one time.

    `ids[i]` has attribute values `columns[name][i]`: an object array of `str | None` for text,
    float64 with NaN for missing numbers, object of `bool | None` for booleans, float64 of shape
    (n, 2) for points and (n, 4) (x1, y1, x2, y2) for rectangles. Looking an id up costs O(1).
    """

    def __init__(self, concept: str, ids: list[str], columns: dict[str, npt.NDArray[Any]]) -> None:
        self.concept, self.ids, self.columns = concept, ids, columns
        self._index = {identity: row for row, identity in enumerate(ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, identity: str) -> int:
        """The row of an id, -1 when it is not known."""
        return self._index.get(identity, -1)

    def rows(self, identities: list[str]) -> npt.NDArray[np.int64]:
        """Rows of many ids, -1 where unknown."""
        found = map(self._index.get, identities, repeat(-1))
        return np.fromiter(found, np.int64, len(identities))


_EXACT_UP_TO = 16


def smallest_cover(
    offers: Mapping[str, frozenset[str]], wanted: frozenset[str] | None = None
) -> list[str]:
    """The fewest names whose offers contain all that is wanted and that any offers (by default
    everything); of equal ones the first in order.

    Exact up to 16 candidates (the problem is NP-hard: 65,536 sets are some 20 ms), greedy above
    and then without any name that could be left out; the same result every time.

    >>> smallest_cover({"a": frozenset("xy"), "b": frozenset("yz"), "c": frozenset("xyz")})
    ['c']
    >>> smallest_cover({"a": frozenset("xy"), "c": frozenset("xyz")}, frozenset("x"))
    ['a']
    """
    offered = frozenset().union(*offers.values()) if offers else frozenset()
    bits = {item: 1 << place for place, item in enumerate(sorted(offered, key=repr))}
    needed = offered if wanted is None else offered & wanted
    target = sum(bits[item] for item in needed)
    masks = {name: sum(bits[item] for item in items) & target for name, items in offers.items()}
    useful = {name: mask for name, mask in masks.items() if mask}
    chosen = _exact(useful, target) if len(useful) <= _EXACT_UP_TO else _greedy(useful, target)
    return [name for name in offers if name in chosen]


def _exact(masks: Mapping[str, int], target: int) -> set[str]:
    for size in range(len(masks) + 1):
        for chosen in combinations(masks, size):
            if _union(masks, chosen) == target:
                return set(chosen)
    raise AssertionError("all offers together cover what they offer")


def _greedy(masks: Mapping[str, int], target: int) -> set[str]:
    chosen: list[str] = []
    left = target
    while left:
        best = max(masks, key=lambda name: (masks[name] & left).bit_count())
        chosen.append(best)
        left &= ~masks[best]
    for name in reversed(chosen.copy()):
        others = [other for other in chosen if other != name]
        if _union(masks, others) == target:
            chosen = others
    return set(chosen)


def _union(masks: Mapping[str, int], names: list[str] | tuple[str, ...]) -> int:
    union = 0
    for name in names:
        union |= masks[name]
    return union


class TypedTable(msgspec.Struct, frozen=True):
    """The columns of a table for a concept."""

    name: str
    concept: str
    keys: list[str]
    columns: dict[str, npt.NDArray[Any]]


def join(
    concept: str, tables: Sequence[TypedTable], attributes: Mapping[str, AttributeType]
) -> Instances:
    """All keys of all tables in order of appearance; an attribute comes from the first table that
    has it.
    """
    ids = list(dict.fromkeys(key for table in tables for key in table.keys))
    columns: dict[str, npt.NDArray[Any]] = {}
    for table in tables:
        aligned = table.keys == ids
        for attribute, values in table.columns.items():
            if attribute not in columns:
                column = (
                    values if aligned else _spread(ids, table.keys, values, attributes[attribute])
                )
                columns[attribute] = column
    return Instances(concept, ids, columns)


def join_fewest(
    concept: str,
    tables: Sequence[TypedTable],
    attributes: Mapping[str, AttributeType],
    needed: frozenset[str],
) -> Instances:
    """Joins the fewest tables that have every needed attribute that any table has.

    A table without any of them adds instances; it is always joined.
    """
    offers = {table.name: frozenset(table.columns) for table in tables}
    chosen = smallest_cover(offers, needed)
    used = [each for each in tables if each.name in chosen or not offers[each.name] & needed]
    return join(concept, used, attributes)


def _spread(
    ids: list[str], keys: list[str], values: npt.NDArray[Any], kind: AttributeType
) -> npt.NDArray[Any]:
    """Values at the rows of their keys, missing elsewhere."""
    rows = {identity: row for row, identity in enumerate(ids)}
    column = empty_column(kind, len(ids))
    column[np.fromiter((rows[key] for key in keys), np.int64, len(keys))] = values
    return column
