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
from types import TracebackType
from typing import Self

PREFIX = "rapport-bench-"
_SHARE_OF_DISK = 4
"""No more than a part of this many of what is free is filled."""


class Places:
    """Directories, one after the other; the oldest go when all have `most_bytes`."""

    def __init__(self, most_bytes: int | None = None) -> None:
        """`most_bytes`: None = the memory of the machine, as far as the disk has room."""
        self._root = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._most = most_bytes if most_bytes is not None else _usual_bytes(self._root)
        self._kept: deque[tuple[Path, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

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
def one_place() -> Iterator[Path]:
    """A directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as place:
        yield Path(place)


def _usual_bytes(root: Path) -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory, shutil.disk_usage(root).free // _SHARE_OF_DISK)


def _bytes_in(place: Path) -> int:
    return sum(one.stat().st_size for one in place.rglob("*") if one.is_file())
