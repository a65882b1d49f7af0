"""Detections as columns are the same detections. [PI-9]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection, Undecided, detection_lines, detection_order
from rapport.pipeline.backtest.findings import DetectionColumns

names = st.sampled_from(["1", "2", "10", "b", "é"])
detections = st.builds(
    Detection,
    policy=st.just("p"),
    time=st.integers(0, 3),
    bindings=st.dictionaries(st.sampled_from("ABR"), names, max_size=2),
    causes=st.lists(st.tuples(st.integers(0, 3), names), max_size=2).map(
        lambda causes: tuple(sorted(set(causes)))
    ),
    version=st.just("v"),
)


@given(st.lists(detections, max_size=40))
def test_lines_are_those_of_the_fixed_output(found: list[Detection]) -> None:
    columns = DetectionColumns()
    columns.add(found)
    own = columns.of("p", None, None)
    assert b"".join(own.lines("p")) == detection_lines(found)
    unique = {detection_order(one): one for one in found}
    assert own.first(1_000) == [unique[key] for key in sorted(unique)]


@given(st.lists(detections, max_size=20), st.integers(0, 3), st.integers(0, 4))
def test_a_period_is_cut_out_of_the_whole(found: list[Detection], begin: int, end: int) -> None:
    columns = DetectionColumns()
    columns.add(found)
    inside = [one for one in found if begin <= one.time < end]
    assert b"".join(columns.of("p", begin, end).lines("p")) == detection_lines(inside)


def test_what_is_undecided_is_kept_apart_with_the_silent_sources() -> None:
    one = Detection(policy="p", time=1, bindings={"A": "1"}, causes=((1, "e"),))
    columns = DetectionColumns()
    columns.add([one, Undecided.of(one, ("gate", "cameras")), Undecided.of(one, ("gate",))])
    found = columns.of("p", None, None)
    assert (len(found), found.undecided.num_rows, found.silent()) == (1, 2, ["cameras", "gate"])
    assert len(columns.of("another", None, None)) == 0
    assert columns.of("another", None, None).aliases() == []


@pytest.mark.slow
def test_many_are_packed_on_the_way() -> None:
    columns = DetectionColumns()
    columns.add(
        Detection(policy="p", time=number // 3, bindings={"A": str(number % 7)}, causes=())
        for number in range(25_000)
    )
    found = columns.of("p", None, None)
    assert len(columns) == len(found) == 25_000
    assert found.aliases() == ["A"]
    assert next(found.identities("A")).to_pylist()[:4] == ["0", "1", "2", "3"]
