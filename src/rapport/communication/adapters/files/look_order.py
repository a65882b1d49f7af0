"""Which files of a folder a look takes: what it cannot get rid of keeps nothing back. Pure. [CO-5,
CO-16]
"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.communication.adapters.files.file_messages import FileEntry, unchanged

_SHARE = 10
"""Of a look, one part in so many is for files that were tried before."""


class FileQueue:
    """The memory of one input about files that still lie there; no longer than they do. A file that
    was changed since is another one, and a restart begins anew.
    """

    def __init__(self) -> None:
        self._tried: dict[FileEntry, None] = {}
        self._left: set[FileEntry] = set()

    def next(self, before: list[FileEntry], now: list[FileEntry], most: int) -> list[FileEntry]:
        """At most `most` complete files: new ones in the order of their change, and those that were
        tried before, the one whose turn is longest ago first.
        """
        there = set(now)
        self._left &= there
        self._tried = {file: None for file in self._tried if file in there}
        complete = [file for file in unchanged(before, now) if file not in self._left]
        new = [file for file in complete if file not in self._tried]
        known = set(complete)
        again = [file for file in self._tried if file in known]
        room = min(len(again), max(most // _SHARE, most - len(new)))
        return new[: most - room] + again[:room]

    def tried(self, file: FileEntry) -> None:
        """It had its turn: while it lies there others go first."""
        self._tried.pop(file, None)
        self._tried[file] = None

    def not_yet(self, file: FileEntry) -> None:
        """Nothing is wrong with it, it only came too soon: it keeps its place before later ones."""
        self._tried.pop(file, None)

    def leave(self, files: Iterable[FileEntry]) -> None:
        """They are dealt with and cannot be taken away: as they are, they are left alone."""
        self._left.update(files)
