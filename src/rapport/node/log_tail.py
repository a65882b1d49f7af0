"""The newest entries of a node's own log file, read within bounds. [CN-14]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rapport.kernel.telemetry import LOG_FILE

LEVELS = ("debug", "info", "warning", "error", "critical")
MOST_ENTRIES = 1_000
_MOST_BYTES = 1024 * 1024
_LONGEST_VALUE = 2_000


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the log."""

    time: str
    """ISO 8601 in UTC; empty for a line that a crash cut."""
    level: str
    event: str
    details: dict[str, str] = {}


def log_tail(data: Path, lines: int, *, level: str = "info") -> list[LogEntry]:
    """The newest entries of this level and above, oldest first: at most `lines`, and of the last
    megabyte of the file and of the one before it. Empty where a node writes no log.
    """
    wanted = LEVELS[LEVELS.index(level) :]
    found: list[LogEntry] = []
    for path in (data / LOG_FILE, data / f"{LOG_FILE}.1"):
        entries = [_entry(line) for line in _last_lines(path)]
        found = [*(one for one in entries if one.level in wanted), *found]
        if len(found) >= lines:
            break
    return found[max(len(found) - lines, 0) :]


def _last_lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = file.seek(max(size - _MOST_BYTES, 0))
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return []
    whole = text[: text.rfind(b"\n") + 1].splitlines()
    return whole[1:] if begin else whole


def _entry(line: bytes) -> LogEntry:
    try:
        values: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        text = line.decode("utf-8", "replace")[:_LONGEST_VALUE]
        return LogEntry(time="", level="info", event=text)
    return LogEntry(
        time=str(values.pop("timestamp", "")),
        level=str(values.pop("level", "info")),
        event=str(values.pop("event", "")),
        details={name: str(value)[:_LONGEST_VALUE] for name, value in values.items()},
    )
