"""Where rooms have their logs while a grid is measured. [CO-7]

A room of a million messages leaves gigabytes. Removed at once, their memory goes back to the
machine, or from a virtual one to its host, and the next room pays for getting it again: 5 instead
of 2 µs of the system's time for a message with its answer. A node's log stays. So does a finished
room here, until as much was written after it as there is memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "rapport-bench-"
_SHARE_OF_DISK = 4
"""No more than a part of this many of what is free is filled."""


class Places:
    """Directories below one, one after the other; the oldest go when all have `most_bytes`."""

    def __init__(self, root: Path, most_bytes: int) -> None:
        self._root, self._most = root, most_bytes
        self._kept: deque[tuple[Path, int]] = deque()

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """An empty directory; afterwards it stays for a while."""
        place = Path(tempfile.mkdtemp(dir=self._root))
        try:
            yield place
        finally:
            self._kept.append((place, _bytes_in(place)))
            while sum(size for _, size in self._kept) > self._most:
                shutil.rmtree(self._kept.popleft()[0])


@contextmanager
def many_places() -> Iterator[Places]:
    """They have the memory of the machine, as far as the disk has room; all are removed
    afterwards.
    """
    with one_place() as root:
        yield Places(root, _usual_bytes(root))


@contextmanager
def one_place() -> Iterator[Path]:
    """A directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as place:
        yield Path(place)


def _usual_bytes(root: Path) -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory, shutil.disk_usage(root).free // _SHARE_OF_DISK)


def _bytes_in(place: Path) -> int:
    return sum(one.stat().st_size for one in place.rglob("*") if one.is_file())
