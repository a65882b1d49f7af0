"""The events of one side of a correlation, where pairs are looked for. [PO-6]"""

from __future__ import annotations

from rapport.policy.plan import Side
from rapport.policy.runners.operators.identities import IdentityFilter
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.stream_steps import side_rows
from rapport.policy.runners.operators.table import Table


class SideEvents:
    """The events of one side of a correlation, with the cell they lie in when the term can only
    hold of events near each other.
    """

    def __init__(
        self, side: Side, leaf: IdentityFilter, reach: float | None, shared: SharedCache
    ) -> None:
        self.stream, self._leaf, self._reach = side.stream or "", leaf, reach
        self._shared = shared
        self.table: Table | None = None

    def add(self, rows: StreamRows, first: int) -> None:
        """Takes the rows that satisfy the side's constraints; `first`: the ordinal of the batch's
        first event.
        """
        key = (self._leaf, self._reach)
        columns = self._shared.once_of(rows, key, side_rows, rows, self._leaf, self._reach)
        if columns is None:
            return
        if self.table is None:
            self.table = Table({name: column[:0] for name, column in columns.items()})
        self.table.append(columns | {"event": columns["event"] + first})

    def trim(self, before: int, *, at_once: bool) -> None:
        """Forgets events before a time; unless `at_once`, only where it is worth the work."""
        if self.table is not None:
            self.table.trim(before, at_once=at_once)
