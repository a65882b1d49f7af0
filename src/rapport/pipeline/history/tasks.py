"""Detections as columns of Spark, for tasks that make them natively. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rapport.core.detection import Detection, Undecided

DETECTIONS = (
    "policy STRING, version STRING, time BIGINT, bindings MAP<STRING, STRING>, "
    "cause_times ARRAY<BIGINT>, cause_ids ARRAY<STRING>, silent ARRAY<STRING>"
)
"""Columns of detections, as Spark writes them; `silent` is null for detections and names the silent
sources of what is undecided.
"""

_DETECTIONS = pa.schema(
    [
        ("policy", pa.string()),
        ("version", pa.string()),
        ("time", pa.int64()),
        ("bindings", pa.map_(pa.string(), pa.string())),
        ("cause_times", pa.list_(pa.int64())),
        ("cause_ids", pa.list_(pa.string())),
        ("silent", pa.list_(pa.string())),
    ]
)


def encode_detections(detections: Sequence[Detection | Undecided]) -> pa.RecordBatch:
    """Detections and what is undecided as columns."""
    columns = [
        [item.policy for item in detections],
        [item.version for item in detections],
        [item.time for item in detections],
        [list(item.bindings.items()) for item in detections],
        [[time for time, _ in item.causes] for item in detections],
        [[id for _, id in item.causes] for item in detections],
        [item.silent if isinstance(item, Undecided) else None for item in detections],
    ]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, _DETECTIONS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_DETECTIONS)


def detections_from(table: pa.Table) -> list[Detection]:
    """The detections that `encode_detections` wrote."""
    silent = table.column("silent")
    table = table if silent.null_count == len(table) else table.filter(silent.is_null())
    return [one for batch in table.to_batches() for one in _detections(batch)]


def undecided_from(table: pa.Table) -> list[Undecided]:
    """What is undecided of that which `encode_detections` wrote."""
    return [
        Undecided.of(_detection(row), tuple(row["silent"]))
        for row in table.to_pylist()
        if row["silent"] is not None
    ]


def _detections(batch: pa.RecordBatch) -> Iterator[Detection]:
    """Column by column: rows as dictionaries would cost several times as much."""
    bindings, times, ids = (batch.column(name) for name in ("bindings", "cause_times", "cause_ids"))
    bound, (names, whose) = _parts(bindings.offsets, bindings.keys, bindings.items)
    caused, (at,) = _parts(times.offsets, times.values)
    _, (named,) = _parts(ids.offsets, ids.values)
    causes = list(zip(at, named, strict=True))
    columns = (batch.column(name).to_pylist() for name in ("policy", "version", "time"))
    for place, (policy, version, time) in enumerate(zip(*columns, strict=True)):
        first, end = bound[place], bound[place + 1]
        yield Detection(
            policy=policy,
            version=version,
            time=time,
            bindings=dict(zip(names[first:end], whose[first:end], strict=True)),
            causes=tuple(causes[caused[place] : caused[place + 1]]),
        )


def _parts(offsets: pa.Array, *values: pa.Array) -> tuple[list[int], list[list[Any]]]:
    """Where the lists of a column begin and end, and what stands in them; of a slice only its own,
    whatever else the memory behind it holds.
    """
    places: list[int] = offsets.to_pylist()
    first, count = places[0], places[-1] - places[0]
    own = [value.slice(first, count).to_pylist() for value in values]
    return [place - first for place in places], own


def _detection(row: Mapping[str, Any]) -> Detection:
    return Detection(
        policy=row["policy"],
        version=row["version"],
        time=row["time"],
        bindings=dict(row["bindings"]),
        causes=tuple(zip(row["cause_times"], row["cause_ids"], strict=True)),
    )
