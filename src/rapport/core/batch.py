"""Events as columns: the form in which rooms hand many events on. [CH-1]

An `EventBatch` is an Arrow record batch of envelope columns. Payload bytes stay raw; a room that
needs typed columns derives them once (`policy/readings.py`), so no reader pays for another's
decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from rapport.core.event import Event, StoredEvent

ENVELOPE = pa.schema(
    [
        pa.field("position", pa.uint64(), nullable=False),
        pa.field("received", pa.int64(), nullable=False),
        pa.field("time", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)


class EventBatch:
    """An immutable, ordered set of stored events as one Arrow record batch with the ENVELOPE
    schema.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.columns = columns

    @staticmethod
    def from_stored(stored: Sequence[StoredEvent]) -> EventBatch:
        """Columns of the events, in their order; cost linear in their number."""
        events = [item.event for item in stored]
        arrays = [
            pa.array([item.position for item in stored], pa.uint64()),
            pa.array([item.received for item in stored], pa.int64()),
            pa.array([event.time for event in events], pa.int64()),
            pa.array([event.source for event in events], pa.string()),
            pa.array([event.id for event in events], pa.string()),
            pa.array([event.type for event in events], pa.string()),
            pa.array([event.subject for event in events], pa.string()),
            pa.array([list(event.headers.items()) for event in events], ENVELOPE.field(7).type),
            pa.array([event.data for event in events], pa.binary()),
        ]
        return EventBatch(pa.RecordBatch.from_arrays(arrays, schema=ENVELOPE))

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def to_stored(self) -> Iterator[StoredEvent]:
        """The events as structs again; for low-rate code only."""
        for row in self.columns.to_pylist():
            event = Event(
                source=row["source"],
                id=row["id"],
                type=row["type"],
                subject=row["subject"],
                time=row["time"],
                data=row["data"],
                headers=dict(row["headers"]),
            )
            yield StoredEvent(row["position"], row["received"], event)

    @staticmethod
    def concat(batches: Iterable[EventBatch]) -> EventBatch:
        """One batch holding all rows in order."""
        tables = [batch.columns for batch in batches]
        if not tables:
            return EventBatch.from_stored(())
        return EventBatch(pa.concat_batches(tables))
