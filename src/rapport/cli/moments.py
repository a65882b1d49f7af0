"""Times as people write them at a terminal: a moment, a time of today, or how long ago. [UX-3]"""

from __future__ import annotations

import re

from rapport.core.errors import InvalidInput
from rapport.core.times import format_time, parse_duration, parse_time
from rapport.kernel.clock import SystemClock

_DURATION = re.compile(r"\d+(\.\d+)?\s*[a-z]+\Z")
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d{1,3})?)?\Z")
_NOW = "now"


def moment(text: str | None) -> int | None:
    """The time in ms, None for nothing said; see `said_moment`."""
    return said_moment(text) if text else None


def said_moment(text: str) -> int:
    """The time in ms: `2026-03-02T09:00:00Z`, milliseconds, `2h` for two hours ago, `09:14` of
    today in UTC, or `now`. Raises InvalidInput for what is none of these.
    """
    text, now_ms = text.strip(), SystemClock().now_ms()
    if text == _NOW:
        return now_ms
    if _DURATION.match(text):
        return now_ms - parse_duration(text)
    if _CLOCK.match(text):
        return parse_time(f"{format_time(now_ms)[:10]}T{text.zfill(5)}")
    try:
        return parse_time(text)
    except InvalidInput as error:
        error.hint = "2h for two hours ago, 09:14 of today, or 2026-03-02T09:14:05Z"
        raise
