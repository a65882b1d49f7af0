"""Work on a message that is too much for one transaction: done in slices, and taken up again after
a crash. [CO-8, CO-10]
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.communication.delivering.case_records import member_key
from rapport.communication.delivering.transaction import Transaction
from rapport.core.errors import Corrupt
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)
SLICE = 1_000
"""Members that are begun, told or let go of in one transaction."""
_TABLE = "communication.chores"
_PAGES = "communication.spreads"
_PAGES_AT_ONCE = 100

ChoreKind = Literal["begin", "time_out", "stop", "forget"]


class Chore(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to the members of a case, and how far it has got."""

    case: str
    kind: ChoreKind
    stage: int = -1
    page: int = 0
    found: int = 0
    """Names in the whole stage, for `begin`."""
    after: str = ""
    """The last member it was done to, for the others."""

    @property
    def key(self) -> str:
        """Names its record: one of a kind for each stage."""
        return member_key(self.case, f"{self.kind}.{self.stage + 1:06d}")


class Chores:
    """All chores, and the names that are still to be begun: as the directory had them when the
    stage began, in pages.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._resting: set[str] = set()
        self.any = True
        """Whether there may be one that does not rest."""

    def first(self) -> Chore | None:
        """Something to do, or None; for the beginning of a transaction. One that cannot be read
        rests.
        """
        while (key := self._first_key()) is not None:
            try:
                return self._transaction.get_struct(_TABLE, key, Chore)
            except Corrupt as error:
                _log.error("chore rests", key=key, error=error.message, hint=error.hint)
                self._resting.add(key)
        return None

    def _first_key(self) -> str | None:
        found = self._transaction.find(_TABLE, limit=len(self._resting) + 1)
        key = next((key for key, _ in found if key not in self._resting), None)
        self.any = key is not None
        return key

    def put(self, chore: Chore) -> None:
        """To be done, or done so far."""
        self._transaction.put(_TABLE, chore.key, chore)
        self.any = True

    def done(self, chore: Chore) -> None:
        """Nothing is left to do; names that were not begun are forgotten."""
        self._transaction.delete(_TABLE, chore.key)
        after = ""
        while chore.kind == "begin" and (pages := self._pages(chore, after)):
            after = pages[-1]
            for key in pages:
                self._transaction.delete(_PAGES, key)

    def rest(self, chore: Chore) -> None:
        """Not to be done before the next start, by when what it needs may have been mended."""
        self._resting.add(chore.key)

    def put_page(self, chore: Chore, page: int, names: list[str]) -> None:
        """Keeps names that are begun later."""
        value = msgspec.msgpack.encode(names)
        self._transaction.put(_PAGES, _page_key(chore, page), value)

    def take_page(self, chore: Chore) -> list[str] | None:
        """The names of the chore's page, which is forgotten; None after the last. Raises Corrupt
        when they cannot be read.
        """
        key = _page_key(chore, chore.page)
        names = self._transaction.get_struct(_PAGES, key, list[str])
        if names is not None:
            self._transaction.delete(_PAGES, key)
        return names

    def _pages(self, chore: Chore, after: str) -> list[str]:
        """The keys of the next pages that were not taken."""
        prefix = f"{chore.key}."
        found = self._transaction.find(_PAGES, prefix=prefix, after=after, limit=_PAGES_AT_ONCE)
        return [key for key, _ in found]


def _page_key(chore: Chore, page: int) -> str:
    return f"{chore.key}.{page:08d}"
