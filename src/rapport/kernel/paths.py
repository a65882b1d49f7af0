"""Small doings with files: questions that cannot raise, and making names durable. [UX-2]"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from uuid import uuid4

_PRIVATE = 0o700


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


def make_private_directory(path: Path) -> None:
    """Makes a directory that only its owner can enter, and closes one of ours that everybody could
    enter until now; rights that an owner gave to a group stay. Raises OSError.
    """
    path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    found = path.stat()
    is_shared = bool(found.st_mode & stat.S_ISVTX)  # such as /tmp
    if found.st_mode & stat.S_IRWXO and found.st_uid == os.geteuid() and not is_shared:
        path.chmod(_PRIVATE)


def temporary_path(path: Path) -> Path:
    """A hidden name beside `path` that no other process takes, on this host or on another one that
    writes the same directory; process ids repeat between hosts.
    """
    return path.with_name(f".{path.name}.{uuid4().hex}.tmp")
