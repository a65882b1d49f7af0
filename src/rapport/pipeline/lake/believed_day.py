"""The time by which days of the lake are old: a clock that jumps ahead is believed once it has
stood. [PI-3, PI-10]

Jobs begin and end, so what was seen of the clock is kept in the lake: the last time that was
believed, and since when there is another far ahead of it. A lake without such a note goes by when
its folders last changed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rapport.channel.export.parquet_files import replaced_file
from rapport.core.times import format_time

MOST_AWAY_MS = 48 * 3_600_000
"""So far ahead of the last time that was believed is what a service that was off looks like."""
CONFIRM_MS = 30 * 60_000
"""How long a time further ahead must have stood, at least two looks at it apart."""
_NOTE = ".clock.json"


class Seen(msgspec.Struct, frozen=True):
    """What is known of the clock."""

    believed_ms: int
    ahead_ms: int = 0
    """The first sight of a time that is not believed yet; 0 when there is none."""


def look(seen: Seen, now_ms: int) -> Seen:
    """What to believe after a look at the clock. Time that goes back is believed at once: nothing
    is lost by keeping more. Pure.

    >>> hour = 3_600_000
    >>> ahead = look(Seen(10 * hour), 9_000 * hour)
    >>> ahead.believed_ms // hour, look(ahead, 9_001 * hour).believed_ms // hour
    (10, 9001)
    """
    if now_ms <= seen.believed_ms + MOST_AWAY_MS:
        return Seen(now_ms)
    stood_ms = now_ms - seen.ahead_ms
    if not seen.ahead_ms or not 0 <= stood_ms <= MOST_AWAY_MS:
        return Seen(seen.believed_ms, now_ms)  # a first jump, or another one: counts from here
    return Seen(now_ms) if stood_ms >= CONFIRM_MS else seen


def why_not_believed(seen: Seen) -> str:
    """What to tell where days stay because of it; empty when the clock is believed."""
    if not seen.ahead_ms:
        return ""
    return (
        f"the clock says {format_time(seen.ahead_ms)}, and the last time known is "
        f"{format_time(seen.believed_ms)}; if that is right, run it again in half an hour"
    )


def read_seen(lake: Path, newest_ms: int) -> Seen:
    """What the lake's note says; of one that is missing or damaged, when the lake last changed."""
    try:
        return msgspec.json.decode((lake / _NOTE).read_bytes(), type=Seen)
    except (OSError, msgspec.DecodeError):
        return Seen(newest_ms)


def keep_seen(lake: Path, seen: Seen) -> None:
    """Puts the note into the lake; raises StoreUnavailable."""
    with replaced_file(lake / _NOTE) as path:
        path.write_bytes(msgspec.json.encode(seen))
