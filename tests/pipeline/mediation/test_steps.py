"""Single conversions in Python on columns. [ME-14, PI-4]"""

from __future__ import annotations

import pyarrow as pa

from rapport.pipeline.mediation.steps import InstantStep, PolarStep, StepRunner
from rapport.units.coordinates import polar_to_cartesian


def test_a_step_gives_what_its_function_gives_to_the_last_bit() -> None:
    bearings, distances = [0.1, 90.0, None, 359.9], [1.0, 2.5, 3.0, 1e300]
    found = StepRunner(PolarStep(), ("number", "number")).run(
        pa.array(bearings, pa.float64()), pa.array(distances, pa.float64())
    )
    for one, bearing, distance in zip(found.to_pylist(), bearings, distances, strict=True):
        expected = (None, None) if bearing is None else polar_to_cartesian(bearing, distance)
        assert (one["r0"], one["r1"]) == expected


def test_what_a_step_refuses_is_nothing() -> None:
    step, texts = InstantStep("%d %b %Y", "UTC"), ["02 Mar 2026", "soon", None]
    found = StepRunner(step, ("integer",)).run(pa.array(texts, pa.string()))
    assert [each["r0"] for each in found.to_pylist()] == [1772409600000, None, None]


def test_a_batch_without_rows_is_a_batch_without_results() -> None:
    found = StepRunner(PolarStep(), ("number", "number")).run(
        pa.array([], pa.float64()), pa.array([], pa.float64())
    )
    assert len(found) == 0
    assert [field.name for field in found.type] == ["r0", "r1"]
