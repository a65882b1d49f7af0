"""Files: atomic durable writes, secret files, and path checks that never raise.
[UX-2, CH-15, CH-18]

`write_atomically` and `atomic_replacement` are the only place that replaces files; the store has
its own, on its injectable file system.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from rapport.core.errors import DuplicateName, InvalidInput, StoreUnavailable

_PRIVATE = 0o700


def is_file(path: Path) -> bool:
    """Whether the file exists; invalid names (too long, with a zero byte) do not."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_inside(path: Path, directory: Path) -> bool:
    """Whether the path is within the directory after resolving links; false for invalid paths."""
    try:
        return path.resolve().is_relative_to(directory.resolve())
    except (OSError, ValueError):
        return False


def files_matching(directory: Path, pattern: str) -> list[Path]:
    """The files that match a pattern, sorted; empty for an invalid pattern."""
    try:
        found = sorted(directory.glob(pattern))
    except (OSError, ValueError, NotImplementedError):  # empty, absolute, or too long
        return []
    return [path for path in found if is_file(path)]


def sync_path(path: Path) -> None:
    """Flushes a file's content, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(path: Path) -> None:
    """Creates a directory that only its owner can enter. An existing directory of ours loses the
    rights of others; rights of the group stay. Raises OSError.
    """
    path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    found = path.stat()
    is_shared = bool(found.st_mode & stat.S_ISVTX)  # such as /tmp
    if found.st_mode & stat.S_IRWXO and found.st_uid == os.geteuid() and not is_shared:
        path.chmod(_PRIVATE)


def temporary_path(path: Path) -> Path:
    """A hidden name beside `path` that no other process uses, on this host or on another one that
    writes the same directory.
    """
    return path.with_name(f".{path.name[:40]}.{uuid4().hex}.tmp")


@contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """A temporary path to write to. After the block its content is made durable and replaces `path`
    in one step; after an error it is removed. Raises OSError.
    """
    temporary = temporary_path(path)
    try:
        yield temporary
        sync_path(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Creates or replaces a file, durably and in one step; a crash leaves the old or the new file.
    A new file gets `mode`, restricted by the umask. Raises OSError.
    """
    with atomic_replacement(path) as temporary:
        _write_new(temporary, content, mode)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def create_secret_file(path: Path, secret: bytes) -> None:
    """Creates a file with mode 0600 and its directories with 0700, durably and in one step.

    Raises DuplicateName if the file exists, StoreUnavailable if the disk fails.
    """
    part = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        try:
            _write_new(part, secret, 0o600)
            sync_path(part)
            os.link(part, path)  # unlike a rename it never overwrites
        finally:
            part.unlink(missing_ok=True)
        sync_path(path.parent)
    except FileExistsError:
        raise DuplicateName(
            f"there is a file {path} already",
            code="access.file_exists",
            hint="choose another name; a secret in use is not overwritten",
        ) from None
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {path}: {error.strerror}", code="store.disk_failed"
        ) from None


def read_secret_file(path: Path) -> bytes:
    """Reads a secret file; raises InvalidInput."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(
            f"cannot read the secret file {path}: {why}", code="settings.no_secret"
        ) from None
