"""What was sent, received and missed in a run, as a Parquet file. [EN-11, EN-12]"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from rapport.core.errors import StoreUnavailable
from rapport.ensemble.protocol import Headers, Message, Part, Published, Pull, PullParts

_WORD: Final = pa.dictionary(pa.int32(), pa.string())
_ROWS: Final = 65_536

SCHEMA: Final = pa.schema(
    [
        pa.field("time_ms", pa.float64(), nullable=False),
        pa.field("what", _WORD, nullable=False),
        pa.field("node", _WORD, nullable=False),
        pa.field("other", _WORD, nullable=False),
        pa.field("medium", _WORD, nullable=False),
        pa.field("kind", _WORD, nullable=False),
        pa.field("component", _WORD, nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("bytes", pa.int32(), nullable=False),
        pa.field("age_ms", pa.int64()),
    ]
)
"""`what` is sent, received, aged (a newer version took the place of an older one, `age_ms` old) or
why something was missed: collided, lost, gave up, overflowed, nobody. `kind` is KN, HD, PL, PT or
PP.
"""

KINDS: Final[dict[type, str]] = {
    Published: "KN",
    Headers: "HD",
    Pull: "PL",
    Part: "PT",
    PullParts: "PP",
}


class RequestLog:
    """Writes rows to a file as they come, one row group in memory at a time; whole after `close`.

    About 1 us per row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._columns: list[list[object]] = [[] for _ in SCHEMA.names]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        except OSError as error:
            raise StoreUnavailable(
                f"cannot write the request log {path}: {error.strerror or error}",
                code="ensemble.log_unavailable",
                hint="name a file in a directory that can be written",
            ) from None

    def write(
        self,
        time_ms: float,
        what: str,
        node: str,
        other: str,
        medium: str,
        message: Message,
        size_bytes: int,
        age_ms: int | None = None,
    ) -> None:
        """One row."""
        component = getattr(message, "component", "")
        version = getattr(message, "version", 0)
        kind = KINDS[type(message)]
        row = (time_ms, what, node, other, medium, kind, component, version, size_bytes, age_ms)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self.rows += 1
        if len(self._columns[0]) >= _ROWS:
            self._flush()

    def close(self) -> None:
        """Writes the rest and ends the file; a second time is no error."""
        self._flush()
        self._writer.close()

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _flush(self) -> None:
        if self._columns[0]:
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(self._columns, SCHEMA, strict=True)
            ]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
            for column in self._columns:
                column.clear()
