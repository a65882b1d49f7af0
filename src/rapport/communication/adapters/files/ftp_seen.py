"""Which files of a folder were taken: durable, and no longer than they lie there. [CO-5]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rapport.communication.adapters.files.file_messages import FileEntry
from rapport.communication.adapters.incoming.input_base import AdapterState
from rapport.core.ids import content_id

_PREFIX = "seen/"
_PAGE = 1_000


class ProcessedFiles:
    """The memory of one input. A file that was changed since is new again."""

    def __init__(self, state: AdapterState) -> None:
        self._state = state
        self._marks: dict[str, str] = {}

    async def open(self) -> None:
        """Reads what was noted, a page at a time."""
        after = ""
        while page := await self._state.keys(prefix=_PREFIX, after=after, limit=_PAGE):
            self._marks |= {key: mark.decode() for key, mark in page}
            after = page[-1][0]

    def has(self, file: FileEntry) -> bool:
        """Whether the file was taken as it is now."""
        return self._marks.get(_key(file.name)) == _mark(file)

    async def note(self, files: Iterable[FileEntry]) -> None:
        """Durable when it returns."""
        marks = {_key(file.name): _mark(file) for file in files}
        await self._state.put_many({key: mark.encode() for key, mark in marks.items()})
        self._marks |= marks

    async def forget_others(self, listed: Sequence[FileEntry]) -> None:
        """Lets go of files that lie there no longer."""
        there = {_key(file.name) for file in listed}
        gone = [key for key in self._marks if key not in there]
        if gone:
            await self._state.forget(*gone)
            for key in gone:
                del self._marks[key]


def _key(name: str) -> str:
    return _PREFIX + content_id(name)


def _mark(file: FileEntry) -> str:
    return f"{file.size} {file.changed}"
