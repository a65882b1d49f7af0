"""Rows that travel to Python workers and back; light, since every worker loads it. [ME-14, PI-4]

Uncertain rows travel as one text each: nested columns, null for nearly every row, would cost more
than the conversion.
"""

from __future__ import annotations

import pyarrow as pa

from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA

NUMBERS = ("n1", "n2", "n3", "n4")
PART_COLUMNS = (*NUMBERS, "words", "truth")
OUTCOME = pa.struct(
    [
        ("time", pa.int64()),
        ("id", pa.string()),
        ("stream", pa.string()),
        ("source", pa.string()),
        ("key", pa.string()),
        *((name, pa.float64()) for name in NUMBERS),
        ("words", pa.string()),
        ("truth", pa.bool_()),
        ("interpretation", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("hint", pa.string()),
    ]
)
NAMES = tuple(field.name for field in OUTCOME)
OUTCOME_ROWS = (
    "time BIGINT, id STRING, stream STRING, source STRING, key STRING, n1 DOUBLE, n2 DOUBLE, "
    "n3 DOUBLE, n4 DOUBLE, words STRING, truth BOOLEAN, interpretation STRING, reason STRING, "
    "message STRING, hint STRING"
)
"""The same in Spark's words."""

RAW_COLUMNS = tuple(CHANNEL_SCHEMA.names)
"""Those of a raw event in its channel."""


class WorkerMediation:
    """Made on the driver, called in tasks; carries the meanings as bytes."""

    def __init__(self, digest: str, packed: bytes) -> None:
        self._digest, self._packed = digest, packed

    def outcomes(self, rows: pa.Array) -> pa.Array:
        """For an Arrow function: from raw events as JSON objects, `data` in base64, to JSON lists
        of outcomes; null for null.
        """
        if rows.null_count == len(rows):
            return pa.nulls(len(rows), pa.string())
        from rapport.pipeline.mediation.python_rows import answers

        there = rows.drop_null().to_pylist()
        found = iter(answers(self._digest, self._packed, there))
        valid = rows.is_valid().to_pylist()
        return pa.array([next(found) if each else None for each in valid], pa.string())
