"""Where a batch of events shows that the node's clock jumped back. Pure. [PO-7]"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from rapport.core.event import BareStored, StoredEvent
from rapport.core.event_blocks import BlockEvents

Times = npt.NDArray[np.int64]
_NEVER = -(2**62)


def first_clock_jump(
    batch: Sequence[StoredEvent | BareStored],
    streams: Collection[str],
    latest: int,
    skew_ms: int,
) -> int:
    """The first event of a stream at whose arrival time had reached more than the allowed skew
    beyond the clock, `latest` being the time reached before the batch; the length of the batch
    when there is none.

    Readings themselves move time no further than to their arrival, so only a clock that was ahead
    before can be the cause. Readings too far ahead of their arrival are not used, and tell nothing.
    Costs two passes over the times of arrival unless there may be one.
    """
    arrived = _arrived(batch)
    if not len(arrived) or int(arrived.min()) + skew_ms >= max(latest, int(arrived.max())):
        return len(batch)
    times = _times(batch)
    is_used = _is_of(batch, streams) & (times <= arrived + skew_ms)
    reached = np.where(is_used, np.minimum(times, arrived), _NEVER)
    before = np.maximum.accumulate(np.concatenate((np.array([latest], np.int64), reached)))[:-1]
    jumps = np.flatnonzero(is_used & (before > arrived + skew_ms))
    return int(jumps[0]) if len(jumps) else len(batch)


def _arrived(batch: Sequence[StoredEvent | BareStored]) -> Times:
    if isinstance(batch, BlockEvents):
        return batch.received
    return np.array([item.received for item in batch], np.int64)


def _times(batch: Sequence[StoredEvent | BareStored]) -> Times:
    if isinstance(batch, BlockEvents):
        return batch.columns.times
    return np.array([min(max(item.event.time, _NEVER), -_NEVER) for item in batch], np.int64)


def _is_of(
    batch: Sequence[StoredEvent | BareStored], streams: Collection[str]
) -> npt.NDArray[np.bool_]:
    if isinstance(batch, BlockEvents):
        return np.full(len(batch), batch.columns.type in streams)
    return np.array([item.event.type in streams for item in batch], np.bool_)
