"""Whole columns of a recorded file converted at once; anything doubtful is left to a closer look.
[PO-2]
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.schema import PARTS
from rapport.policy.readings import FARTHEST_MS
from rapport.policy.recorded.rows import FieldMapping


def convert_columns(rows: pa.RecordBatch, wanted: FieldMapping) -> pa.RecordBatch | None:
    """The columns time, id, key and parts; None when a value needs a closer look, row by row."""
    try:
        arrays = [
            _time_column(rows.column(wanted.time)),
            _name_column(rows.column(wanted.id)),
            _name_column(rows.column(wanted.key)),
            *(_value_column(wanted, rows.column(field)) for field in wanted.value),
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if len(arrays) != 3 + len(PARTS[wanted.kind]) or any(array.null_count for array in arrays):
        return None
    return pa.RecordBatch.from_arrays(arrays, schema=wanted.schema())


def in_ms(column: pa.Array) -> pa.Array:
    """Times cut to milliseconds, as ISO 8601 text is: Python has no finer than microseconds. Any
    other column as it is.
    """
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False)


def _time_column(column: pa.Array) -> pa.Array:
    times = in_ms(column).cast(pa.int64())
    if times.null_count:
        raise pa.ArrowInvalid("a time is missing")
    if (
        len(times)
        and not -FARTHEST_MS < pc.min(times).as_py() <= pc.max(times).as_py() < FARTHEST_MS
    ):
        raise pa.ArrowInvalid("a time is out of range")
    return times


def _name_column(column: pa.Array) -> pa.Array:
    if not (pa.types.is_integer(column.type) or _is_text(column.type)):
        raise pa.ArrowInvalid("not an id")
    names = column.cast(pa.string())
    if pc.any(pc.equal(names, "")).as_py():
        raise pa.ArrowInvalid("an id is empty")
    return names


def _value_column(wanted: FieldMapping, column: pa.Array) -> pa.Array:
    if wanted.kind == "text":
        values = column.cast(pa.string())
        if pc.any(pc.equal(values, "")).as_py():
            raise pa.ArrowInvalid("a value is missing")
        return values
    if wanted.kind == "boolean":
        return (
            pc.utf8_lower(column).cast(pa.bool_())
            if _is_text(column.type)
            else column.cast(pa.bool_())
        )
    if pa.types.is_boolean(column.type):
        raise pa.ArrowInvalid("not a number")
    numbers = column.cast(pa.float64())
    if not pc.all(pc.is_finite(numbers)).as_py():
        raise pa.ArrowInvalid("a number is not finite")
    return numbers


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
