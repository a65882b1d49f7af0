"""What a local runner saves, and how it is read back. [PO-8, design 14]"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from rapport.core.errors import Corrupt
from rapport.policy.runners.sharing.given_lately import RecentOutput
from rapport.policy.runners.sharing.saved import FailedPlan, SavedGroup
from rapport.policy.runners.silence import SilenceState

SNAPSHOT = 4
"""The version of the form; another one is refused."""


class RunnerSnapshot(msgspec.Struct):
    """A snapshot of the runner: no pickle, so reading a foreign one runs no code."""

    snapshot: int
    lateness_ms: int
    latest: int
    watermark: int
    late: int
    buffer: bytes
    groups: list[SavedGroup]
    plans: dict[str, str]
    silence: dict[str, SilenceState] = {}
    failed: dict[str, FailedPlan] = {}
    given: RecentOutput = {}
    """Missing in snapshots of before; they say that nothing was given out lately."""


def pack_buffer(batches: list[pa.RecordBatch]) -> bytes:
    """Readings that wait for their turn, as bytes."""
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack_buffer(raw: bytes) -> list[pa.RecordBatch]:
    """The readings that `pack_buffer` wrote; raises Corrupt."""
    if not raw:
        return []
    try:
        return list(pa.ipc.open_stream(raw))
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"a snapshot cannot be read: {error}", code="policy.bad_snapshot") from None


def read_snapshot(snapshot: bytes) -> RunnerSnapshot:
    """The snapshot of the bytes; raises Corrupt when they are none, or of another version."""
    try:
        saved = msgspec.msgpack.decode(snapshot, type=RunnerSnapshot)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(f"a snapshot cannot be read: {error}", code="policy.bad_snapshot") from None
    if saved.snapshot != SNAPSHOT:
        raise Corrupt(
            f"snapshots of version {saved.snapshot} cannot be read", code="policy.bad_snapshot"
        )
    return saved
