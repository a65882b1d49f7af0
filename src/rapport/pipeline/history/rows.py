"""Rows on their way to operators: columns of Arrow in which numbers stand for texts. [PI-5]

Columns: time, id, stream, source and key (numbers), clock (the largest time the series has shown up
to the row), series, then the parts of the streams that matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rapport.core.schema import PARTS
from rapport.pipeline.history.files import Series
from rapport.pipeline.history.footers import cannot_read
from rapport.pipeline.history.texts import Texts
from rapport.policy.readings import part_type

TIME, ID, STREAM, SOURCE, KEY, CLOCK, SERIES = range(7)
FIRST_PART = 7
_FIELDS = [
    ("time", pa.int64()),
    ("id", pa.string()),
    ("stream", pa.int32()),
    ("source", pa.int32()),
    ("key", pa.int32()),
    ("clock", pa.int64()),
    ("series", pa.int32()),
]
_MANY_TIES = 4


class Codes(msgspec.Struct):
    """The texts of one task's rows."""

    streams: Texts
    sources: Texts
    keys: Texts

    @staticmethod
    def none() -> Codes:
        """Nothing met yet."""
        return Codes(Texts(), Texts(), Texts())


def rows_schema(series: Iterable[Series], streams: Collection[str]) -> pa.Schema:
    """The columns of rows in which the values of these streams matter."""
    parts: dict[str, pa.DataType] = {}
    for one in series:
        if one.stream in streams:
            parts |= {f"{one.stream}.{part}": part_type(one.kind) for part in PARTS[one.kind]}
        elif not one.stream:
            parts |= _parts_in_files(one, streams)
    # Operators take the parts of a stream in the order of the columns: that is not to be touched.
    by_stream = sorted(parts.items(), key=lambda part: part[0].rpartition(".")[0])
    return pa.schema([*_FIELDS, *by_stream])


def _parts_in_files(series: Series, streams: Collection[str]) -> dict[str, pa.DataType]:
    """Of readings as they are the footers say which parts there are."""
    found: dict[str, pa.DataType] = {}
    for file in series.files:
        try:
            schema = pyarrow.parquet.read_schema(file.path)
        except (OSError, pa.ArrowException) as error:
            raise cannot_read(Path(file.path), error) from None
        for field in schema:
            if field.name.rpartition(".")[0] in streams:
                found[field.name] = field.type
    return found


def as_readings(rows: pa.RecordBatch, codes: Codes) -> pa.RecordBatch:
    """Rows as operators take them."""
    columns = rows.columns
    arrays = [
        columns[TIME],
        columns[ID],
        codes.streams.column(columns[STREAM]),
        codes.sources.column(columns[SOURCE]),
        codes.keys.column(columns[KEY]),
        *columns[FIRST_PART:],
    ]
    names = [*rows.schema.names[:CLOCK], *rows.schema.names[FIRST_PART:]]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def in_event_order(rows: pa.RecordBatch, codes: Codes) -> pa.RecordBatch:
    """Rows by time, equal times by id (code points), stream and key, and what is alike in all of
    these as it arrived. Rows of one series must stand in arrival order.
    """
    times = rows.column(TIME).to_numpy()
    order = None
    if (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times = times[order]
    ties = np.flatnonzero(times[1:] == times[:-1])
    if len(ties) * _MANY_TIES > len(times):
        return rows.take(_sorted_by_all(rows, codes))
    if len(ties):
        places = np.union1d(ties, ties + 1)
        tied = places if order is None else order[places]
        sorting = _sorted_by_all(rows.take(pa.array(tied)), codes).to_numpy()
        if (sorting[1:] < sorting[:-1]).any():  # else ids go up with time, as most often
            order = np.arange(len(times)) if order is None else order
            order[places] = tied[sorting]
    return rows if order is None else rows.take(pa.array(order))


def _sorted_by_all(rows: pa.RecordBatch, codes: Codes) -> pa.Array:
    texts: Sequence[pa.Array] = (
        codes.streams.column(rows.column(STREAM)).cast(pa.string()),
        codes.keys.column(rows.column(KEY)).cast(pa.string()),
    )
    columns = [rows.column(TIME), rows.column(ID), *texts, rows.column(CLOCK), rows.column(SERIES)]
    names = ["time", "id", "stream", "key", "clock", "series"]
    table = pa.RecordBatch.from_arrays(columns, names=names)
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
