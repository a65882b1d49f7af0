"""When events go to the lake: closed pieces at once, the rest within an hour. Pure. [CH-16]"""

from __future__ import annotations

import msgspec

from rapport.channel.log.logged_channel import Cursor, cursor_change
from rapport.store.base import Put

READER = "export"
"""The named reader of the export: events behind its cursor are not trimmed."""
LAKE_MARK = b"lake"
"""Its state, which distinguishes its cursor from that of another reader of this name."""
WITHIN_MS = 3_600_000
"""Longest time that an event waits for its piece to be closed; then the exporter closes it."""
ENOUGH_ROWS = 50_000
"""Where any block can go there are no closed pieces: so many events are worth files."""


class ExportBacklog(msgspec.Struct, frozen=True, kw_only=True):
    exported: int
    last: int
    closed: int
    """Last position of the closed pieces."""
    is_fluid: bool
    """Whether any block can go; see LogStore.trims_blocks."""
    oldest_ms: int
    """When the first event after `exported` was received."""


class ExportDecision(msgspec.Struct, frozen=True):
    until: int
    """Last position to export; not after `exported` when there is nothing to do."""
    close: bool = False
    """Whether the growing piece is to be closed first."""


def decide_export(waiting: ExportBacklog, now_ms: int) -> ExportDecision:
    """Decides for one channel.

    >>> backlog = ExportBacklog(exported=5, last=9, closed=7, is_fluid=False, oldest_ms=0)
    >>> decide_export(backlog, 1000)
    ExportDecision(until=7, close=False)
    >>> decide_export(msgspec.structs.replace(backlog, exported=7), 3600000)
    ExportDecision(until=9, close=True)
    """
    if waiting.last <= waiting.exported:
        return ExportDecision(waiting.exported)
    # An event from the future arrived while the clock was wrong: it has no age.
    if abs(now_ms - waiting.oldest_ms) >= WITHIN_MS:
        return ExportDecision(
            waiting.last, close=not waiting.is_fluid and waiting.closed < waiting.last
        )
    if waiting.is_fluid:
        enough = waiting.last - waiting.exported >= ENOUGH_ROWS
        return ExportDecision(waiting.last if enough else waiting.exported)
    return ExportDecision(max(waiting.closed, waiting.exported))


def position_change(channel: str, position: int) -> Put:
    return cursor_change(channel, READER, Cursor(position, LAKE_MARK))
