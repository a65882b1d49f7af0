"""A disk that becomes full at any chosen step, and has room again when told. For tests. [CH-13,
CH-14]

It stands before another `Files`. From the chosen step on everything that needs room is refused as
the system does it; of a write that is refused a half may happen. Removing, shortening and reading
still work.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rapport.store.files import Files, Lock, OpenFile


class FullDisk:
    """A `Files` whose room ends after `room` steps that need some; None = there is enough.

    `steps` counts them, so that a test can go through all; `refused` counts refusals.
    """

    def __init__(self, files: Files, room: int | None = None) -> None:
        self._files, self._room = files, room
        self.steps = self.refused = 0

    def free(self) -> None:
        """From now on there is room."""
        self._room = None

    def fill(self, *, after: int = 0) -> None:
        """There is room for so many steps more."""
        self._room = self.steps + after

    def need_room(self) -> None:
        """One step that needs room; raises OSError when there is none."""
        if self._room is not None and self.steps >= self._room:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.steps += 1

    # --- Files ------------------------------------------------------------------------------------

    def open(self, path: Path) -> OpenFile:
        """See Files; a name that is new needs room."""
        if path.name not in self._files.names(path.parent):
            self.need_room()
        return _FillingFile(self, self._files.open(path))

    def open_to_read(self, path: Path) -> OpenFile:
        """See Files."""
        return self._files.open_to_read(path)

    def make_directory(self, path: Path) -> None:
        """See Files."""
        if path.name not in self._files.names(path.parent):
            self.need_room()
        self._files.make_directory(path)

    def sync_directory(self, path: Path) -> None:
        """See Files; what was only promised must find room now."""
        self.need_room()
        self._files.sync_directory(path)

    def names(self, path: Path) -> list[str]:
        """See Files."""
        return self._files.names(path)

    def rename(self, old: Path, new: Path) -> None:
        """See Files."""
        self.need_room()
        self._files.rename(old, new)

    def remove(self, path: Path) -> None:
        """See Files."""
        self._files.remove(path)

    def remove_directory(self, path: Path) -> None:
        """See Files."""
        self._files.remove_directory(path)

    def lock(self, directory: Path) -> Lock:
        """See Files."""
        return self._files.lock(directory)


class _FillingFile:
    """An open file on it."""

    def __init__(self, disk: FullDisk, file: OpenFile) -> None:
        self._disk, self._file = disk, file

    def write_at(self, offset: int, *pieces: bytes) -> None:
        data = b"".join(pieces)
        try:
            self._disk.need_room()
        except OSError:
            self._file.write_at(offset, data[: len(data) // 2])
            raise
        self._file.write_at(offset, data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._file.read_at(offset, length)

    def size(self) -> int:
        return self._file.size()

    def allocate(self, size: int) -> None:
        """Without room nothing is reserved, which is no error."""
        try:
            self._disk.need_room()
        except OSError:
            return
        self._file.allocate(size)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.need_room()
        self._file.sync()

    def close(self) -> None:
        self._file.close()
