"""Asks Python about the rows that columns are not certain about. [ME-14, PI-4]

Rows go there and back as one text each: nested columns, null for nearly every row, would cost more
than all the rest. Loaded by every Python worker; what an answer needs is loaded with the first.
"""

from __future__ import annotations

import pyarrow as pa


class Asking:
    """Made on the driver, called in tasks; carries the meanings as bytes."""

    def __init__(self, digest: str, packed: bytes) -> None:
        self._digest, self._packed = digest, packed

    def outcomes(self, rows: pa.Array) -> pa.Array:
        """For an Arrow function: from raw events as JSON objects, `data` in base64, to JSON lists
        of outcomes; null for null.
        """
        if rows.null_count == len(rows):
            return pa.nulls(len(rows), pa.string())
        from rapport.pipeline.mediating.by_rows import answers

        there = rows.drop_null().to_pylist()
        found = iter(answers(self._digest, self._packed, there))
        valid = rows.is_valid().to_pylist()
        return pa.array([next(found) if each else None for each in valid], pa.string())
