"""The events of one side of a correlation, where pairs are looked for. [PO-6]"""

from __future__ import annotations

import numpy as np

from rapport.policy.plan import Side
from rapport.policy.runners.operators.identities import Leaf
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.near import cells_of
from rapport.policy.runners.operators.table import Columns, Table


class SideEvents:
    """The events of one side of a correlation, with the cell they lie in when the term can only
    hold of events near each other.
    """

    def __init__(self, side: Side, leaf: Leaf, reach: float | None) -> None:
        self.stream, self._leaf, self._reach = side.stream or "", leaf, reach
        self.table: Table | None = None

    def add(self, rows: StreamRows) -> None:
        """Takes the rows that satisfy the side's constraints."""
        chosen = np.flatnonzero(self._leaf.allowed()[rows.codes])
        if not len(chosen) and self.table is not None:
            return
        values = rows.values[chosen]
        columns: Columns = {
            "code": rows.codes[chosen],
            "end": rows.times[chosen],
            "event": rows.ordinals[chosen],
            "value": values,
        }
        if self._reach is not None:
            columns["cell"] = cells_of(values, self._reach)
        if rows.blurs is not None:
            columns["blur"] = rows.blurs[chosen]
        if self.table is None:
            self.table = Table({name: column[:0] for name, column in columns.items()})
        self.table.append(columns)
