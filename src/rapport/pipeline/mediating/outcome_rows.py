"""The columns of what becomes of a raw event; light, since every Python worker loads it. [ME-14,
PI-4]
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
