"""Several tables of one concept, joined on the key. [PO-2]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.schema import AttributeType
from rapport.tables.cover import smallest_cover
from rapport.tables.instances import Instances
from rapport.tables.values import empty_column


class TypedTable(msgspec.Struct, frozen=True):
    """The part of a table that speaks of a concept."""

    name: str
    concept: str
    keys: list[str]
    columns: dict[str, npt.NDArray[Any]]


def join(
    concept: str, tables: Sequence[TypedTable], attributes: Mapping[str, AttributeType]
) -> Instances:
    """All keys of all tables in order of appearance; an attribute comes from the first table that
    gives it."""
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
    """The same of the fewest tables that give every needed attribute that some give.

    A table that gives none of them says which instances exist; it is always joined.
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
