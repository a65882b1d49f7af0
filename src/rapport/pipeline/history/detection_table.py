"""Detections as columns: millions of them are written, counted and compared without a struct each.
[PI-5, PI-9]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided, detection_order

DETECTION_COLUMNS = (
    "policy STRING, version STRING, time BIGINT, bindings MAP<STRING, STRING>, "
    "cause_times ARRAY<BIGINT>, cause_ids ARRAY<STRING>, silent ARRAY<STRING>, began BIGINT"
)
"""As Spark writes them; `silent` is null for detections and names the silent sources of what is
undecided. `began` is that of the end of a situation, else null.
"""


DETECTIONS = pa.schema(
    [
        ("policy", pa.string()),
        ("version", pa.string()),
        ("time", pa.int64()),
        ("bindings", pa.map_(pa.string(), pa.string())),
        ("cause_times", pa.list_(pa.int64())),
        ("cause_ids", pa.list_(pa.string())),
        ("silent", pa.list_(pa.string())),
        ("began", pa.int64()),
    ]
)
"""The same columns as Arrow has them."""


def encode_detections(found: Sequence[Detection | Undecided]) -> pa.RecordBatch:
    """Detections and what is undecided as columns; about a microsecond each."""
    bindings = [one.bindings for one in found]
    causes = [one.causes for one in found]
    bound, caused = _offsets(bindings), _offsets(causes)
    flat: list[Cause] = list(chain.from_iterable(causes))
    silent = [one.silent if isinstance(one, Undecided) else None for one in found]
    is_certain = not any(each is not None for each in silent)
    arrays = [
        pa.array([one.policy for one in found], pa.string()),
        pa.array([one.version for one in found], pa.string()),
        pa.array([one.time for one in found], pa.int64()),
        pa.MapArray.from_arrays(
            bound,
            pa.array(chain.from_iterable(bindings), pa.string()),
            pa.array(chain.from_iterable(one.values() for one in bindings), pa.string()),
        ),
        pa.ListArray.from_arrays(caused, pa.array([time for time, _ in flat], pa.int64())),
        pa.ListArray.from_arrays(caused, pa.array([id for _, id in flat], pa.string())),
        pa.nulls(len(found), DETECTIONS.field("silent").type)
        if is_certain
        else pa.array(silent, DETECTIONS.field("silent").type),
        pa.array([one.began if isinstance(one, Detection) else None for one in found], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=DETECTIONS)


def detections_from(table: pa.Table) -> list[Detection]:
    """The detections that `encode_detections` wrote."""
    silent = table.column("silent")
    table = table if silent.null_count == len(table) else table.filter(silent.is_null())
    return [one for batch in table.to_batches() for one in _detections(batch)]


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """All rows as one table; none is a table, too."""
    return pa.concat_tables([DETECTIONS.empty_table(), *tables])


def _offsets(lists: Sequence[Any]) -> pa.Array:
    """Where each of some lists begins when they stand one after the other, and the end."""
    ends: npt.NDArray[np.int32] = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(one) for one in lists], out=ends[1:])
    return pa.array(ends)


def _detections(batch: pa.RecordBatch) -> Iterator[Detection]:
    """Column by column: rows as dictionaries would cost several times as much."""
    bindings, times, ids = (batch.column(name) for name in ("bindings", "cause_times", "cause_ids"))
    bound, (names, whose) = _parts(bindings.offsets, bindings.keys, bindings.items)
    caused, (at,) = _parts(times.offsets, times.values)
    _, (named,) = _parts(ids.offsets, ids.values)
    causes = list(zip(at, named, strict=True))
    columns = (batch.column(name).to_pylist() for name in ("policy", "version", "time", "began"))
    for place, (policy, version, time, began) in enumerate(zip(*columns, strict=True)):
        first, end = bound[place], bound[place + 1]
        yield Detection(
            policy=policy,
            version=version,
            time=time,
            bindings=dict(zip(names[first:end], whose[first:end], strict=True)),
            causes=tuple(causes[caused[place] : caused[place + 1]]),
            began=began,
        )


def _parts(offsets: pa.Array, *values: pa.Array) -> tuple[list[int], list[list[Any]]]:
    """Where the lists of a column begin and end, and what stands in them; of a slice only its own,
    whatever else the memory behind it holds.
    """
    places: list[int] = offsets.to_pylist()
    first, count = places[0], places[-1] - places[0]
    own = [value.slice(first, count).to_pylist() for value in values]
    return [place - first for place in places], own


def in_output_order(found: list[Detection]) -> list[Detection]:
    """Detections as every runner gives them out; most differ in time, kind or policy, and that is
    compared quickly.
    """
    times = np.fromiter((item.time for item in found), np.int64, len(found))
    begins = np.fromiter((item.began is None for item in found), np.bool_, len(found))
    ranks = {name: rank for rank, name in enumerate(sorted({item.policy for item in found}))}
    policies = np.fromiter((ranks[item.policy] for item in found), np.int64, len(found))
    order = np.lexsort((policies, begins, times))
    changes = np.diff(times[order]).astype(np.bool_) | np.diff(policies[order]).astype(np.bool_)
    changes |= np.diff(begins[order])
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(found)]
    ordered = [found[place] for place in order.tolist()]
    for first, end in pairwise(edges):
        if end - first > 1:
            ordered[first:end] = sorted(ordered[first:end], key=detection_order)
    return ordered


def undecided_from(table: pa.Table) -> list[Undecided]:
    """The undecided ones that `encode_detections` wrote."""
    rows = table.filter(table.column("silent").is_valid()).to_pylist()
    return [
        Undecided(
            policy=row["policy"],
            version=row["version"],
            time=row["time"],
            bindings=dict(row["bindings"]),
            causes=tuple(zip(row["cause_times"], row["cause_ids"], strict=True)),
            silent=tuple(row["silent"]),
        )
        for row in rows
    ]
