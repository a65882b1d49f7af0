"""Detections as columns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection, Undecided
from rapport.pipeline.history.detection_table import detections_from, encode_detections, joined
from rapport.pipeline.history.results import OutputFiles

TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
TIMES = st.integers(-(2**63), 2**63 - 1)
DETECTIONS = st.builds(
    Detection,
    policy=TEXTS,
    version=TEXTS,
    time=TIMES,
    bindings=st.dictionaries(TEXTS, TEXTS, max_size=3),
    causes=st.lists(st.tuples(TIMES, TEXTS), max_size=3).map(tuple),
)


@pytest.mark.slow
@given(st.lists(st.lists(DETECTIONS, max_size=5), max_size=4))
def test_detections_come_back_as_they_were_however_they_were_parted(
    parts: list[list[Detection]],
) -> None:
    table = joined(pa.Table.from_batches([encode_detections(part)]) for part in parts)
    assert detections_from(table) == [one for part in parts for one in part]


def test_what_is_undecided_stands_beside_the_detections_and_is_none() -> None:
    found = Detection(policy="p", version="1", time=3, bindings={"A": "1"}, causes=((1, "e"),))
    unsure = Undecided.of(found, ("cameras", "gate"))
    table = pa.Table.from_batches([encode_detections([found, unsure])])
    assert detections_from(table) == [found]
    assert table.column("silent").to_pylist() == [None, ["cameras", "gate"]]


def test_mapped_detections_are_those_of_the_files_and_stay_when_these_are_gone(
    tmp_path: Path,
) -> None:
    found = [
        Detection(policy="p", time=time, bindings={"A": str(time)}, causes=((time, "e"),))
        for time in range(5)
    ]
    folder = tmp_path / "kind=detection"
    folder.mkdir()
    for number, some in enumerate((found[:2], found[2:])):
        rows = pa.Table.from_batches([encode_detections(some)])
        pq.write_table(rows, folder / f"part-{number}.parquet")
    output = OutputFiles(str(tmp_path))
    kept = output.detections()
    mapped = output.mapped()
    shutil.rmtree(folder)
    assert mapped.sort_by("time").equals(kept.sort_by("time"))
    assert output.mapped().num_rows == 0
