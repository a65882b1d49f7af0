"""Files in a local directory, written and taken so that a crash leaves each whole or absent.
[CO-16]

Blocking: called from a thread. Names that come from outside are used as single names only.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from rapport.communication.adapters.files.file_messages import FileEntry, is_ignored
from rapport.core.errors import InvalidInput

DONE, BAD, WHY = "done", "bad", ".why"
_MOST_LOOKED_AT = 100_000
_PIECE = 1 << 20
_MOST_SAME_NAMES = 10_000
_LONGEST_NAME = 255 - len(f".{WHY}.tmp")
"""Bytes of a name in a folder below: what is written next to it must fit, too."""
_LONGEST_END = 20


def write_atomically(directory: Path, name: str, content: bytes) -> None:
    """The file is there whole, and durable, or not at all; one of that name is replaced."""
    hidden = directory / f".{name}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(hidden, flags, 0o640), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, directory / name)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Makes renames in it durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def files_in(directory: Path) -> list[FileEntry]:
    """Plain files that are not passed over; links are never followed."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_ignored(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            try:
                seen = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # somebody has taken it away
            found.append(FileEntry(entry.name, seen.st_size, f"{seen.st_mtime_ns:020d}"))
            if len(found) >= _MOST_LOOKED_AT:
                break
    return found


def read_file(directory: Path, name: str, most: int) -> bytes:
    """At most `most` + 1 bytes; raises OSError, also for what has become a link."""
    with os.fdopen(os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput("this is no plain file", code="message.not_a_message")
        return file.read(most + 1)


def digest_of(directory: Path, name: str) -> str:
    """The SHA-256 of a file of any size."""
    digest = hashlib.sha256()
    with os.fdopen(os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def move_aside(directory: Path, name: str, folder: str, why: str = "") -> None:
    """Moves a file into a folder below, beside others of its name; `why` is written next to it.

    A file that has gone already is no error: the move was done before a crash.
    """
    below = directory / folder
    below.mkdir(exist_ok=True)
    target = _free_name(below, name)
    if why:
        write_atomically(below, f"{target}{WHY}", why.encode())
    try:
        os.rename(directory / name, below / target)
    except FileNotFoundError:
        return
    sync_directory(below)
    sync_directory(directory)


def _free_name(directory: Path, name: str) -> str:
    """The name, cut where it is too long, with a number where there is one already."""
    stem, dot, end = name.rpartition(".") if "." in name else (name, "", "")
    if len(os.fsencode(end)) > _LONGEST_END:
        stem, dot, end = name, "", ""
    for number in range(1, _MOST_SAME_NAMES):
        candidate = _cut(stem, f"{dot}{end}" if number == 1 else f"-{number}{dot}{end}")
        if not os.path.lexists(directory / candidate):
            return candidate
    raise FileExistsError(f"too many files are named like {name!r}")


def _cut(stem: str, end: str) -> str:
    while len(os.fsencode(stem + end)) > _LONGEST_NAME:
        stem = stem[:-1]
    return stem + end
