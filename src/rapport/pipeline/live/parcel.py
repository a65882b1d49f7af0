"""What a bucket is given of a stretch of the stream: its own readings, and as much of the others as
is needed to judge lateness as one runner would. [PI-5, PO-8]
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.errors import Corrupt
from rapport.policy.engine.stream_steps import TimeMoved

POSITION, HIGH = "position", "high"
"""Columns before those of a reading: its place in `events`, and the time that the stretch had
reached with it, whoever's readings those are: no reading moves it beyond its arrival.
"""
Times = npt.NDArray[np.int64]


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of positions of `events`, `first` to `last` (0 when there is none in it), as one
    bucket needs it.
    """

    first: int = 0
    last: int = 0
    latest: int | None = None
    """The largest time of the stretch, whoever's readings those are."""
    beats: tuple[TimeMoved, ...] = ()
    """Where the clock moved time on."""
    readings: bytes = b""
    """Arrow: POSITION, HIGH, then the columns of readings, in the order of positions."""
    others: bytes = b""
    """Arrow: POSITION, HIGH, time and id of readings that no policy looks at; they may be late."""
    aside: bytes = b""
    """Events for `quarantine`, as a block."""


_READ = msgspec.msgpack.Decoder(Parcel)


def encode_parcel(parcel: Parcel) -> bytes:
    """As it travels and as it is kept."""
    return msgspec.msgpack.encode(parcel)


def decode_parcel(raw: bytes) -> Parcel:
    """What `encode_parcel` wrote; raises Corrupt."""
    try:
        return _READ.decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(f"a parcel cannot be read: {error}", code="live.bad_state") from None


def pack_rows(rows: pa.RecordBatch) -> bytes:
    """Rows as an Arrow stream; none as nothing."""
    if not len(rows):
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def unpack_rows(raw: bytes) -> pa.RecordBatch | None:
    """The rows that `pack_rows` wrote, None when there are none; raises Corrupt."""
    if not raw:
        return None
    try:
        return pa.ipc.open_stream(raw).read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise Corrupt(f"a parcel cannot be read: {error}", code="live.bad_state") from None


def running_high(times: Times) -> Times:
    """The largest time up to and with each."""
    high: Times = np.maximum.accumulate(times)
    return high
