"""Instances by id."""

import numpy as np

from rapport.tables.instances import Instances


def test_rows_are_found_by_id_and_unknown_ids_are_minus_one() -> None:
    instances = Instances("room", ["r1", "r2"], {"floor": np.array([1.0, 2.0])})
    assert len(instances) == 2
    assert instances.row("r2") == 1
    assert instances.row("r9") == -1
    assert instances.rows(["r2", "r9", "r1"]).tolist() == [1, -1, 0]
