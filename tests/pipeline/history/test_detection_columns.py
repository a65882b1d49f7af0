"""Detections as columns."""

from __future__ import annotations

import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.pipeline.history.detection_columns import (
    detections_from,
    encode_detections,
    undecided_from,
)


def test_detections_come_back_as_they_were() -> None:
    found = [
        Detection(policy="p", version="1", time=-3, bindings={"A": "ü", "B": ""}, causes=()),
        Detection(policy="q", time=2**62, bindings={}, causes=((1, "e1"), (1, "e2"))),
    ]
    assert detections_from(pa.Table.from_batches([encode_detections(found)])) == found
    assert detections_from(pa.Table.from_batches([encode_detections([])])) == []


def test_what_is_undecided_comes_back_beside_the_detections() -> None:
    found = Detection(policy="p", version="1", time=3, bindings={"A": "1"}, causes=((1, "e"),))
    unsure = Undecided.of(found, ("cameras", "gate"))
    table = pa.Table.from_batches([encode_detections([found, unsure])])
    assert detections_from(table) == [found]
    assert undecided_from(table) == [unsure]
