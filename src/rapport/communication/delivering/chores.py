"""Work on a message that is too much for one transaction: done in slices, and taken up again after
a crash. [CO-8, CO-10]
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.communication.delivering.case_records import member_key
from rapport.communication.delivering.transaction import Transaction

SLICE = 1_000
"""Members that are begun, told or let go of in one transaction."""
_TABLE = "communication.chores"
_PAGES = "communication.spreads"

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
        self.any = True
        """Whether there may be one."""

    def first(self) -> Chore | None:
        """Something to do, or None; for the beginning of a transaction."""
        found = self._transaction.find(_TABLE, limit=1)
        self.any = bool(found)
        return self._transaction.get_struct(_TABLE, found[0][0], Chore) if found else None

    def put(self, chore: Chore) -> None:
        """To be done, or done so far."""
        self._transaction.put(_TABLE, chore.key, chore)
        self.any = True

    def done(self, chore: Chore) -> None:
        """Nothing is left to do."""
        self._transaction.delete(_TABLE, chore.key)

    def put_page(self, chore: Chore, page: int, names: list[str]) -> None:
        """Keeps names that are begun later."""
        value = msgspec.msgpack.encode(names)
        self._transaction.put(_PAGES, _page_key(chore, page), value)

    def take_page(self, chore: Chore) -> list[str] | None:
        """The names of the chore's page, which is forgotten; None after the last."""
        key = _page_key(chore, chore.page)
        kept = self._transaction.get(_PAGES, key)
        if kept is None:
            return None
        self._transaction.delete(_PAGES, key)
        return msgspec.msgpack.decode(kept, type=list[str])


def _page_key(chore: Chore, page: int) -> str:
    return f"{chore.key}.{page:08d}"
