"""Values of instances that a table has lost. [SI-4]"""

from __future__ import annotations

import numpy as np

from rapport.policy.situations.traces import NO_ROWS, TRUE, Points, Step, Trace
from rapport.policy.situations.truth_traces import WhileKnown


class Rows:
    """Two instances."""

    size, is_passing = 2, False


class Positions(Trace):
    """A value of one part until the first reading shows that it has two."""

    def read(self, step: Step, positions: np.ndarray) -> None:
        if self.now.ndim == 1:
            self.now = self._base = np.full((len(self.now), 2), np.nan)
            self._none = Points(NO_ROWS, NO_ROWS, self.now[:0])
            self.points = self._none
        self.values = positions
        self.run(step)

    def compute(self, step: Step) -> Points:
        return Points(np.array([0]), np.array([step.begin]), self.values)


class Known:
    """The first instance is known, the table has lost the second."""

    may_be_lost = True
    fresh = Points(NO_ROWS, NO_ROWS, np.zeros(0, np.int8))

    def sample(self, rows: np.ndarray, _times: np.ndarray) -> np.ndarray:
        return np.where(rows == 0, TRUE, 0).astype(np.int8)


def test_a_table_may_lose_an_instance_before_the_first_position_is_read() -> None:
    inner = Positions(Rows(), np.nan, kind=np.float64)
    masked = WhileKnown(inner, Known())
    early, late = Step(0, 10, 0, 0), Step(10, 20, 0, 0)
    inner.values = np.zeros(2)
    inner.fresh = Points(NO_ROWS, NO_ROWS, np.zeros(0))
    masked.run(early)
    masked.commit(early)
    inner.read(late, np.array([[1.0, 2.0]]))
    masked.run(late)
    rows, times = np.array([0, 1]), np.array([15, 15])
    found = masked.sample(rows, times)
    assert found[0].tolist() == [1.0, 2.0]
    assert np.isnan(found[1]).all()
