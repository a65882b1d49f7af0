"""The progress of a long command as lines on stderr, for a parent process that asks for them by an
environment variable. [CN-13]
"""

from __future__ import annotations

import os
import sys

import msgspec

PROGRESS_LINES = "RAPPORT_PROGRESS_LINES"
"""Set in the environment of a command whose parent reads its progress."""
_PREFIX = b"rapport-progress "


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a command is."""

    done: int = 0
    total: int | None = None
    """None: nobody knows."""
    spark_ui: str = ""
    """The address of Spark's own page; empty: as before."""


def wants_progress_lines() -> bool:
    return PROGRESS_LINES in os.environ


def write_progress(progress: Progress) -> None:
    sys.stderr.write(f"{_PREFIX.decode()}{msgspec.json.encode(progress).decode()}\n")
    sys.stderr.flush()


def read_progress(line: bytes) -> Progress | None:
    """The progress that a line tells; None for any other line."""
    if not line.startswith(_PREFIX):
        return None
    try:
        return msgspec.json.decode(line.removeprefix(_PREFIX), type=Progress)
    except msgspec.MsgspecError:
        return None
