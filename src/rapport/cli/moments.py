"""Times as people write them at a terminal: a moment, or how long ago. [UX-3]"""

from __future__ import annotations

import re

from rapport.core.times import parse_duration, parse_time
from rapport.kernel.clock import SystemClock

_DURATION = re.compile(r"\s*\d+(\.\d+)?\s*[a-z]+\s*\Z")


def moment(text: str) -> int | None:
    """The time in ms, None for nothing: `2026-03-02T09:00:00Z`, or `2h` for two hours ago.

    Raises InvalidInput for what is neither.
    """
    if not text:
        return None
    if _DURATION.match(text):
        return SystemClock().now_ms() - parse_duration(text)
    return parse_time(text)
