"""Work of the writing thread that is no append: done between two groups of appends. [CH-13]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rapport.channel.channel import Appended
from rapport.channel.logged.writer import Writer
from rapport.core.event import Event

T = TypeVar("T")


async def between_appends(writer: Writer, name: str, work: Callable[[], T]) -> T:
    """Does work on a channel in the thread that appends to it; raises ChannelUnavailable when the
    store refuses.
    """
    chore = _Chore(name, work)
    await writer.write(chore, (), 0)
    return chore.result


class _Chore(Generic[T]):
    """See writer.Target."""

    result: T

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        # Its own: the writer does the works of one name as one. Names of channels have no slash.
        self.name, self._work = f"{name}/{id(self)}", work

    def commit(self, appends: Sequence[Sequence[Event]]) -> list[Appended]:
        """Does the work once."""
        self.result = self._work()
        return [Appended((), 0)] * len(appends)
