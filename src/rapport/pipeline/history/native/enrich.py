"""Readings with what the tables know of their instances: a join with a small table that travels to
every worker. [PI-5]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.schema import PARTS
from rapport.tables.instances import Instances

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ID = "id"
"""The attribute that is the identity itself."""
_WHOSE = "whose attributes"
_PARTS = {len(parts): parts for parts in PARTS.values() if len(parts) > 1}


def attribute_columns(instances: Instances, attribute: str) -> list[str]:
    """The names under which an attribute stands in `instance_table`: its own, or `<name>_<part>`
    of a point or rectangle.
    """
    column = instances.columns.get(attribute)
    if attribute == ID or column is None or column.ndim == 1:
        return [attribute]
    return [f"{attribute}_{part}" for part in _PARTS[column.shape[1]]]


def instance_table(
    instances: Instances,
    attributes: Sequence[str],
    rows: npt.NDArray[np.int64] | None = None,
    *,
    prefix: str = "",
) -> pa.Table:
    """Some or all instances as columns `<prefix>key` and one per part of the attributes; null where
    a value is missing. An attribute that no table gives is a column of nulls.
    """
    chosen = np.arange(len(instances)) if rows is None else rows
    ids = pa.array([instances.ids[row] for row in chosen.tolist()], pa.string())
    columns: dict[str, pa.Array] = {f"{prefix}key": ids}
    for attribute in dict.fromkeys(attributes):
        names = attribute_columns(instances, attribute)
        column = instances.columns.get(attribute)
        if attribute == ID:
            parts: list[Any] = [ids]
        elif column is None:
            parts = [pa.nulls(len(ids), pa.string())]
        else:
            values = column[chosen].reshape(len(ids), len(names))
            parts = [_as_arrow(values[:, place]) for place in range(len(names))]
        columns |= {f"{prefix}{name}": part for name, part in zip(names, parts, strict=True)}
    return pa.table(columns)


def enriched(
    rows: DataFrame,
    instances: Instances,
    attributes: Sequence[str],
    *,
    key: str = "key",
    prefix: str = "",
) -> DataFrame:
    """The rows with attributes of the instance their column `key` names; null where the tables do
    not know it. No shuffle: the table goes to every worker, so it must fit there.
    """
    from pyspark.sql import functions as sql

    table = instance_table(instances, attributes, prefix=prefix)
    table = table.rename_columns([_WHOSE, *table.column_names[1:]])
    small = sql.broadcast(rows.sparkSession.createDataFrame(table))
    return rows.join(small, sql.col(key) == sql.col(f"`{_WHOSE}`"), "left").drop(_WHOSE)


def _as_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers, texts or booleans; NaN and None are null."""
    if values.dtype != object:
        return pa.array(values, from_pandas=True)
    some = next((value for value in values.tolist() if value is not None), None)
    is_boolean = isinstance(some, bool | np.bool_)
    return pa.array(values.tolist(), pa.bool_() if is_boolean else pa.string())
