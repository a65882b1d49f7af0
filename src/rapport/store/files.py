"""Access of the log to a disk, small enough to be replaced by a simulated one. [CH-13]

Segments are written through `Files` only. The simulated disk of the tests loses bytes that were
not synced, so a missing sync shows in a test and not in a power cut.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

from rapport.core.errors import StoreUnavailable
from rapport.kernel.files import sync_path

LOCK_NAME = "lock"
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_CANNOT_ALLOCATE = frozenset(
    (errno.ENOSPC, errno.EOPNOTSUPP, errno.EINVAL, errno.EDQUOT, errno.EFBIG)
)
_MOST_PIECES = 1_024 if hasattr(os, "pwritev") else 0
"""Most buffers that the system writes in one call."""


class OpenFile(Protocol):
    """A file open for reading and writing at offsets. Raises OSError as the disk does."""

    def write_at(self, offset: int, *pieces: bytes) -> None:
        """Writes all bytes, one piece behind the other, or raises; not durable before `sync`."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def size(self) -> int:
        """Bytes in the file now."""

    def allocate(self, size: int) -> None:
        """Reserves room up to `size`, which reads as zeros; only a hint for speed, so a disk that
        cannot do it raises nothing.
        """

    def truncate(self, size: int) -> None:
        """Cuts the file to `size`."""

    def sync(self) -> None:
        """Makes content and size durable (fdatasync)."""

    def close(self) -> None:
        """Ends; what was not synced may be lost."""


class Lock(Protocol):
    """The exclusive right to write a directory."""

    def release(self) -> None:
        """Releases it; a second call is no error."""


class Files(Protocol):
    """A tree of files. A changed name is durable after `sync_directory` of its parent."""

    def open(self, path: Path) -> OpenFile:
        """Opens for reading and writing; creates the file when absent."""

    def open_to_read(self, path: Path) -> OpenFile:
        """Opens an existing file for reading; raises FileNotFoundError."""

    def make_directory(self, path: Path) -> None:
        """Creates one directory; an existing one is no error."""

    def sync_directory(self, path: Path) -> None:
        """Makes the names in a directory durable."""

    def names(self, path: Path) -> list[str]:
        """Names in a directory, sorted; none when it does not exist."""

    def rename(self, old: Path, new: Path) -> None:
        """Replaces `new` in one step."""

    def remove(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None:
        """Removes an empty directory."""

    def lock(self, directory: Path) -> Lock:
        """Acquires the writer's lock; raises StoreUnavailable naming the process that holds it."""


class DiskFile:
    __slots__ = ("_descriptor",)

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write_at(self, offset: int, *pieces: bytes) -> None:
        written = 0
        if 1 < len(pieces) <= _MOST_PIECES:  # as they are: joining them would copy every byte
            written = os.pwritev(self._descriptor, pieces, offset)
            if written == sum(map(len, pieces)):
                return
        data = memoryview(b"".join(pieces))
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], offset + written)

    def read_at(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def allocate(self, size: int) -> None:
        if not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE:
                raise

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        # macOS has no fdatasync; fsync promises at least as much.
        getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class DiskLock:
    """`flock` on a file that names its holder; the system releases it when the process ends."""

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK_NAME
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            self.release()
            raise store_locked(directory, holder or "unknown") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class DiskFiles:
    def open(self, path: Path) -> DiskFile:
        return DiskFile(path, os.O_RDWR | os.O_CREAT)

    def open_to_read(self, path: Path) -> DiskFile:
        return DiskFile(path, os.O_RDONLY)

    def make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True, mode=0o700)

    def sync_directory(self, path: Path) -> None:
        sync_path(path)

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def lock(self, directory: Path) -> DiskLock:
        return DiskLock(directory)


def store_locked(directory: Path, holder: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{directory} is being written by process {holder}",
        code="store.locked",
        hint="one process writes a log; stop that one, or publish through its API",
    )


def read_whole(files: Files, path: Path) -> bytes:
    """All bytes of a small file; raises FileNotFoundError."""
    file = files.open_to_read(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def replace_whole(files: Files, path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces a small file in one step: a cut at any moment leaves the old one or the new one.

    Durable when it returns, unless the old one does as well; raises OSError.
    """
    fresh = path.with_name(f"{path.name}-new")
    file = files.open(fresh)
    try:
        file.truncate(0)
        file.write_at(0, data)
        file.sync()  # before the rename, or a power cut could leave an empty file in its place
    finally:
        file.close()
    files.rename(fresh, path)
    if durable:
        files.sync_directory(path.parent)


def disk_error(what: str, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"{what}: {error.strerror or error}",
        code="store.disk_full" if error.errno in _FULL else "store.disk_failed",
        hint="free some space, then try again"
        if error.errno in _FULL
        else "look at the disk and the file's rights; nothing of this append is kept",
    )
