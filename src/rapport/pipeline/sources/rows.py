"""The columns of a channel as Spark sees them: one row per stored event. [PI-2]

Times are milliseconds UTC as 64-bit numbers; `data` is the event's JSON, untouched.
"""

from __future__ import annotations

import pyarrow as pa

CHANNEL_ROWS = (
    "channel STRING, position BIGINT, received BIGINT, time BIGINT, source STRING, id STRING, "
    "type STRING, subject STRING, headers MAP<STRING, STRING>, data BINARY"
)
"""The columns in Spark's words."""

CHANNEL_SCHEMA = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("received", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("source", pa.string()),
        pa.field("id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("data", pa.binary()),
    ]
)
"""The same columns in Arrow's words."""

EVENT_COLUMNS = ("source", "id", "type", "subject", "time", "headers", "data")
"""What the sink takes of a row: the event itself, without the place that append gives it."""
