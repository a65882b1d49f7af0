"""A disk that forgets: only what was synced outlives a power cut, and the rest may survive in
pieces. [CH-13]

It keeps two worlds, what a running process sees and what is on the platter, and moves bytes and
names from the one to the other only when told to sync. So a missing sync loses data in a test, as
it would in a cellar.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from rapport.kernel.clock import Chance
from rapport.store.files import store_locked

_SECTOR_BYTES = 512


class _Content:
    """One file: what processes see, what is durable, and the steps between the two, in order."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes] | int] = []
        """(offset, bytes) is a write, a bare number a change of size."""

    def write(self, offset: int, data: bytes) -> None:
        _write(self.seen, offset, data)
        self.pending.append((offset, bytes(data)))

    def resize(self, size: int) -> None:
        _resize(self.seen, size)
        self.pending.append(size)

    def sync(self) -> None:
        for step in self.pending:
            if isinstance(step, int):
                _resize(self.durable, step)
            else:
                _write(self.durable, *step)
        self.pending.clear()

    def lose_power(self, chance: Chance) -> None:
        """Of what was not synced, a prefix of the steps survives, the last of them in scattered
        sectors.
        """
        survivors = chance.randint(0, len(self.pending))
        for number, step in enumerate(self.pending[:survivors]):
            if isinstance(step, int):
                _resize(self.durable, step)
            elif number < survivors - 1:
                _write(self.durable, *step)
            else:
                _write_torn(self.durable, step[0], step[1], chance)
        self.seen = bytearray(self.durable)
        self.pending.clear()


class ForgetfulDisk:
    """A `Files` in memory whose power can be cut.

    `skip_sync` and `skip_directory_sync` are functions of a path: where they say True the sync is
    promised and not done. Tests use them to show that each sync is needed. `full_after_bytes` makes
    writes fail as a full disk does, half way; `failing_syncs` makes that many syncs fail;
    `steps_left` lets the power fail before the step that would be one too many, so that a test can
    cut between any two.
    """

    def __init__(self) -> None:
        self.skip_sync = _never
        self.skip_directory_sync = _never
        self.full_after_bytes: int | None = None
        self.failing_syncs = 0
        self.steps_left: int | None = None
        self.syncs = 0
        self._guard = threading.RLock()
        self._epoch = 0
        self._names: dict[Path, _Content | None] = {}
        self._durable_names: dict[Path, _Content | None] = {}
        self._locks: dict[Path, int] = {}

    # --- Files ------------------------------------------------------------------------------------

    def open(self, path: Path) -> ForgetfulFile:
        with self._guard:
            self._step()
            self._check_parent(path)
            content = self._names.setdefault(path, _Content())
            return self._opened(path, content)

    def open_to_read(self, path: Path) -> ForgetfulFile:
        with self._guard:
            self._check_there(path)
            return self._opened(path, self._names[path])

    def make_directory(self, path: Path) -> None:
        with self._guard:
            self._step()
            self._names.setdefault(path, None)

    def sync_directory(self, path: Path) -> None:
        with self._guard:
            self._step()
            self._fail_if_told()
            if self.skip_directory_sync(path):
                return
            for name in {*self._names, *self._durable_names}:
                if name.parent == path:
                    self._make_name_durable(name)

    def names(self, path: Path) -> list[str]:
        with self._guard:
            return sorted(name.name for name in self._names if name.parent == path)

    def rename(self, old: Path, new: Path) -> None:
        with self._guard:
            self._step()
            self._check_there(old)
            self._names[new] = self._names.pop(old)

    def remove(self, path: Path) -> None:
        with self._guard:
            self._step()
            self._check_there(path)
            del self._names[path]

    def remove_directory(self, path: Path) -> None:
        with self._guard:
            if self.names(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
            self.remove(path)

    def lock(self, directory: Path) -> ForgetfulLock:
        with self._guard:
            if self._locks.get(directory) == self._epoch:
                raise store_locked(directory, str(os.getpid()))
            self._locks[directory] = self._epoch
            return ForgetfulLock(self, directory, self._epoch)

    # --- the power --------------------------------------------------------------------------------

    def cut_power(self, chance: Chance) -> None:
        """Everything not synced is forgotten, or survives in part as chance has it; open files stop
        working.
        """
        with self._guard:
            self._epoch += 1
            self.steps_left = None
            for name in sorted({*self._names, *self._durable_names}):
                # Names that were never synced may be on the disk all the same: both must be
                # survived.
                if chance.random() < 0.25:
                    self._make_name_durable(name)
            self._durable_names = {
                name: content
                for name, content in self._durable_names.items()
                if self._parents_are_durable(name)
            }
            self._names = dict(self._durable_names)
            for name in sorted(self._names):
                content = self._names[name]
                if content is not None:
                    content.lose_power(chance)

    def damage(self, path: Path, offset: int, data: bytes) -> None:
        """Overwrites durable bytes, as rot does."""
        with self._guard:
            content = self._names[path]
            assert content is not None
            _write(content.seen, offset, data)
            _write(content.durable, offset, data)

    def content(self, path: Path) -> bytes:
        """What a process sees in a file."""
        with self._guard:
            content = self._names[path]
            assert content is not None
            return bytes(content.seen)

    def _opened(self, path: Path, content: _Content | None) -> ForgetfulFile:
        if content is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return ForgetfulFile(self, path, content, self._epoch)

    def _check_there(self, path: Path) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _check_parent(self, path: Path) -> None:
        if self._names.get(path.parent, self) is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _make_name_durable(self, name: Path) -> None:
        if name in self._names:
            self._durable_names[name] = self._names[name]
        else:
            self._durable_names.pop(name, None)

    def _parents_are_durable(self, name: Path) -> bool:
        known = {*self._names, *self._durable_names}
        return all(parent in self._durable_names for parent in name.parents if parent in known)

    def _fail_if_told(self) -> None:
        if self.failing_syncs > 0:
            self.failing_syncs -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    # --- called by its files ----------------------------------------------------------------------

    def write(self, file: ForgetfulFile, offset: int, data: bytes) -> None:
        """A write of an open file; on a full disk half of it happens."""
        with self._guard:
            self._check_power(file)
            if self.full_after_bytes is not None and len(data) > self.full_after_bytes:
                file.content.write(offset, data[: self.full_after_bytes])
                self.full_after_bytes = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.full_after_bytes is not None:
                self.full_after_bytes -= len(data)
            file.content.write(offset, data)

    def sync(self, file: ForgetfulFile) -> None:
        """A sync of an open file."""
        with self._guard:
            self._check_power(file)
            self.syncs += 1
            self._fail_if_told()
            if not self.skip_sync(file.path):
                file.content.sync()

    def resize(self, file: ForgetfulFile, size: int) -> None:
        """A change of size of an open file."""
        with self._guard:
            self._check_power(file)
            file.content.resize(size)

    def unlock(self, directory: Path, epoch: int) -> None:
        """Gives a lock back, unless the power was cut since."""
        with self._guard:
            if self._locks.get(directory) == epoch:
                del self._locks[directory]

    def step(self) -> None:
        """A step of something else on the same power; raises OSError when it fails."""
        with self._guard:
            self._step()

    def _check_power(self, file: ForgetfulFile) -> None:
        if file.epoch != self._epoch:
            raise OSError(errno.EIO, "the power was cut")
        self._step()

    def _step(self) -> None:
        if self.steps_left is not None:
            if self.steps_left <= 0:
                raise OSError(errno.EIO, "the power is failing")
            self.steps_left -= 1


class ForgetfulFile:
    """An open file of a ForgetfulDisk; of no use after a power cut."""

    def __init__(self, disk: ForgetfulDisk, path: Path, content: _Content, epoch: int) -> None:
        self.path, self.content, self.epoch = path, content, epoch
        self._disk = disk

    def write_at(self, offset: int, *pieces: bytes) -> None:
        self._disk.write(self, offset, b"".join(pieces))

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self.content.seen[offset : offset + length])

    def size(self) -> int:
        return len(self.content.seen)

    def allocate(self, size: int) -> None:
        if size > self.size():
            self._disk.resize(self, size)

    def truncate(self, size: int) -> None:
        self._disk.resize(self, size)

    def sync(self) -> None:
        self._disk.sync(self)

    def close(self) -> None:
        """Nothing to give back."""


class ForgetfulLock:
    """A lock that a power cut opens."""

    def __init__(self, disk: ForgetfulDisk, directory: Path, epoch: int) -> None:
        self._disk, self._directory, self._epoch = disk, directory, epoch

    def release(self) -> None:
        self._disk.unlock(self._directory, self._epoch)


def _never(_path: Path) -> bool:
    return False


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset + len(data):
        _resize(content, offset + len(data))
    content[offset : offset + len(data)] = data


def _write_torn(content: bytearray, offset: int, data: bytes, chance: Chance) -> None:
    """A prefix of the bytes, or any of its sectors without the others: disks reorder what was not
    synced.
    """
    if chance.random() < 0.5:
        _write(content, offset, data[: chance.randint(0, len(data))])
        return
    for start in range(0, len(data), _SECTOR_BYTES):
        if chance.random() < 0.5:
            _write(content, offset + start, data[start : start + _SECTOR_BYTES])
