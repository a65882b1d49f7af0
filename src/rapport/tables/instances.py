"""The instances of a concept as columns: what policies and mediation look things up in. [PO-2]"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Instances:
    """All known instances of one concept at one time.

    `ids[i]` has attribute values `columns[name][i]`: an object array of `str | None` for text,
    float64 with NaN
    for missing numbers, object of `bool | None` for booleans, float64 of shape (n, 2) for points
    and (n, 4)
    (x1, y1, x2, y2) for rectangles. Looking an id up costs O(1).
    """

    def __init__(self, concept: str, ids: list[str], columns: dict[str, npt.NDArray[Any]]) -> None:
        self.concept, self.ids, self.columns = concept, ids, columns
        self._index = {identity: row for row, identity in enumerate(ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, identity: str) -> int:
        """The row of an id, -1 when it is not known."""
        return self._index.get(identity, -1)

    def rows(self, identities: list[str]) -> npt.NDArray[np.int64]:
        """Rows of many ids, -1 where unknown."""
        index = self._index
        return np.fromiter((index.get(i, -1) for i in identities), np.int64, len(identities))
