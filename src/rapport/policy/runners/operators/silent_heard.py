"""When everybody was last heard of, by code. [PO-3, PO-6]"""

from __future__ import annotations

from typing import Any

import numpy as np

from rapport.policy.runners.operators.table import Array, Mask, Rows

_FIRST_SIZE = 64
_COLUMNS = ("times", "ids", "blurs", "marks", "waiting")


class LastHeard:
    """Columns with one row per code; grow by doubling, with the number of identities only."""

    def __init__(self) -> None:
        self.times: Rows = np.zeros(0, np.int64)
        self.ids: Array = np.zeros(0, object)
        """Of the last reading; None: there was none, and `times` is from when it is expected."""
        self.blurs: Rows = np.zeros(0, np.int64)
        self.marks: Rows = np.zeros(0, np.int64)
        """Changes with every reading; 0: never heard of nor expected."""
        self.waiting: Mask = np.zeros(0, np.bool_)
        """False once its silence has been told."""
        self._last_mark = 0

    def note(self, codes: Rows, times: Rows, ids: Array, blurs: Rows) -> None:
        """Takes over the last reading of some codes, each once."""
        self._grow(int(codes.max()) + 1 if len(codes) else 0)
        self.times[codes], self.ids[codes], self.blurs[codes] = times, ids, blurs
        self.waiting[codes] = True
        self.marks[codes] = np.arange(self._last_mark + 1, self._last_mark + 1 + len(codes))
        self._last_mark += len(codes)

    def forget(self, codes: Rows) -> None:
        """As if they had never been heard of, nor expected."""
        self.waiting[codes] = False
        self.marks[codes] = 0

    def has(self, codes: Rows) -> Mask:
        """Who was heard of, or is expected."""
        return self._at(self.marks > 0, codes)

    def waits(self, codes: Rows) -> Mask:
        """Whose silence would be news."""
        return self._at(self.waiting, codes)

    def is_waiting(self, codes: Rows, marks: Rows) -> Mask:
        """Whose silence would be news, if nothing was heard since a mark."""
        return np.asarray(self.waiting[codes] & (self.marks[codes] == marks))

    def state(self) -> dict[str, Any]:
        """What `restored` takes."""
        codes = np.flatnonzero(self.marks)
        kept = {name: getattr(self, name)[codes] for name in ("times", "ids", "blurs", "waiting")}
        return {"codes": codes, **kept}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> LastHeard:
        """That whose `state` this is."""
        made, codes = cls(), state["codes"]
        made.note(codes, state["times"], state["ids"], state["blurs"])
        made.waiting[codes] = state["waiting"]
        return made

    def _at(self, column: Mask, codes: Rows) -> Mask:
        known = codes < len(column)
        found = np.zeros(len(codes), np.bool_)
        found[known] = column[codes[known]]
        return found

    def _grow(self, size: int) -> None:
        if size > len(self.times):
            wider = max(2 * len(self.times), size, _FIRST_SIZE)
            for name in _COLUMNS:
                column = getattr(self, name)
                grown = np.zeros(wider, column.dtype)
                grown[: len(column)] = column
                setattr(self, name, grown)
