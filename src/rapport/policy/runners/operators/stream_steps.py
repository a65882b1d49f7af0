"""Steps without memory: the rows of a stream, and the occurrences that they are by themselves.
[PO-6, PO-13]

What they give may be shared by many plans, so nobody can write to it; events are numbered from the
beginning of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rapport.policy.runners.operators.causes import NO_EVENT
from rapport.policy.runners.operators.identities import Codes, Identities, IdentityFilter
from rapport.policy.runners.operators.intake import StreamRows, blurs_of, rows_of_stream
from rapport.policy.runners.operators.near import cells_of
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.queries import TermQuery
from rapport.policy.runners.operators.table import Columns, Rows


class StreamOccurrences(NamedTuple):
    """Occurrences of a term, and the rows of the stream that show them."""

    places: Rows
    columns: Columns

    def numbered_from(self, first: int) -> Columns:
        """The columns with the ordinals that a plan gives the events."""
        return self.columns | {"event": self.columns["event"] + first}


_NOTHING = StreamOccurrences(np.zeros(0, np.int64), {})


def stream_rows(
    readings: pa.RecordBatch, stream: str, identities: Identities, blurs: Mapping[str, int]
) -> StreamRows | None:
    """The readings of one stream; `blurs`: how far the clocks of sources may be wrong."""
    rows = rows_of_stream(readings, stream, identities, 0)
    if rows is not None and blurs:
        rows.blurs = blurs_of(readings, blurs)[rows.ordinals]
    return rows


def query_occurrences(
    rows: StreamRows, asking: TermQuery, places: Rows, instances: Codes
) -> StreamOccurrences:
    """Of pairs of rows and instances those that this one asks about."""
    if not len(places):
        return _NOTHING
    fits = asking.leaf.allowed()[rows.codes[places]]
    places, instances = places[fits], instances[fits]
    keys = rows.codes[places]
    if asking.is_one_alias:
        same = keys == instances
        places, instances, keys = places[same], instances[same], keys[same]
    first, second = (keys, instances) if asking.event_is_first else (instances, keys)
    return _occurred(rows, places, first, second)


def reading_occurrences(
    rows: StreamRows, leaf: IdentityFilter, predicate: Predicate
) -> StreamOccurrences:
    """The rows of which a comparison holds with what is known of their instance."""
    chosen = np.flatnonzero(leaf.allowed()[rows.codes])
    values, codes = rows.values[chosen], rows.codes[chosen]
    places = chosen[predicate.holds(values, values, codes, codes)]
    return _occurred(rows, places, rows.codes[places], rows.codes[places])


def side_rows(rows: StreamRows, leaf: IdentityFilter, reach: float | None) -> Columns | None:
    """The rows that one side of a correlation asks for, with the cell each lies in where only
    events near each other matter; None when there are none.
    """
    chosen = np.flatnonzero(leaf.allowed()[rows.codes])
    if not len(chosen):
        return None
    values = rows.values[chosen]
    columns: Columns = {
        "code": rows.codes[chosen],
        "end": rows.times[chosen],
        "event": rows.ordinals[chosen],
        "value": values,
    }
    if reach is not None:
        columns["cell"] = cells_of(values, reach)
    if rows.blurs is not None:
        columns["blur"] = rows.blurs[chosen]
    return _for_reading(columns)


def _occurred(rows: StreamRows, places: Rows, first: Codes, second: Codes) -> StreamOccurrences:
    if not len(places):
        return _NOTHING
    times = rows.times[places]
    columns = {
        "first": first,
        "second": second,
        "end": times,
        "start": times,
        "event": rows.ordinals[places],
        "other": np.full(len(places), NO_EVENT),
    }
    if rows.blurs is not None:
        columns["blur"] = rows.blurs[places]
    return StreamOccurrences(places, _for_reading(columns))


def _for_reading(columns: Columns) -> Columns:
    for column in columns.values():
        column.flags.writeable = False
    return columns
