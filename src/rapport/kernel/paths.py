"""Small doings with files: questions that cannot raise, and making names durable. [UX-2]"""

from __future__ import annotations

import os
from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether there is a file; impossible names (too long, a zero byte) are no files."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_inside(path: Path, directory: Path) -> bool:
    """Whether the path stays in the directory, links followed; an impossible one stays nowhere."""
    try:
        return path.resolve().is_relative_to(directory.resolve())
    except (OSError, ValueError):
        return False


def files_matching(directory: Path, pattern: str) -> list[Path]:
    """The files that a pattern names, sorted; none for a pattern that cannot be one."""
    try:
        found = sorted(directory.glob(pattern))
    except (OSError, ValueError, NotImplementedError):  # empty, absolute, or too long
        return []
    return [path for path in found if is_file(path)]


def sync_path(path: Path) -> None:
    """Makes a file's content, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
