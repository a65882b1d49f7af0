"""How a plan is run over files, in words; which files Spark can scan."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.policy import building
from rapport.core.detection import detection_order
from rapport.pipeline.history.detection_table import detections_from, encode_detections
from rapport.pipeline.history.files import readings_files
from rapport.pipeline.history.runner import explain_run
from rapport.pipeline.history.scan import why_not_scanned
from rapport.policy.runner.local import LocalRunner

PULL = building.Building(200, 100, 1)


def test_files_that_spark_would_read_otherwise_are_named(tmp_path: Path) -> None:
    table = pa.table(building.walk(9, 4, 10, 1).readings)
    nanoseconds = table.set_column(
        0, "time", table["time"].cast(pa.timestamp("ms")).cast(pa.timestamp("ns"))
    )
    written = {
        "good": table,
        "confused": table.append_column("Time", table["time"]),
        "fine": nanoseconds,
        "a{b}": table,
    }
    reasons = {}
    for name, rows in written.items():
        pq.write_table(rows, tmp_path / f"{name}.parquet")
        history = readings_files([tmp_path / f"{name}.parquet"])
        reasons[name] = why_not_scanned(history, [building.STREAM])
    assert reasons["good"] == ""
    assert "several columns 'time'" in reasons["confused"]
    assert "'time' of fine.parquet is timestamp[ns]" in reasons["fine"]
    assert "a file called a{b}.parquet" in reasons["a{b}"]


@pytest.mark.parametrize(
    ("conditions", "begin"),
    [
        ("  A is inside R\n", "bench: filter + slices"),
        (building.ALONE, "bench: slices"),
        (building.LASTING, "bench: filter + buckets by alias A"),
        ("  A is inside R\n  at most once per 5 s\n", "bench: filter + buckets by alias A"),
    ],
)
def test_the_way_is_told_in_plain_words(conditions: str, begin: str) -> None:
    told = explain_run(building.policy(conditions), PULL)
    assert told[0].startswith(begin)
    assert "operators are given person.position of " in told[-1]
    assert all(line.startswith("bench: ") for line in told)


def test_a_plan_in_one_piece_is_told_so() -> None:
    plan = building.policy(building.TOGETHER, who="status='employee'")
    first, why, *_ = explain_run(plan, PULL)
    assert first == "bench: filter + one piece"
    assert "may stand for A may stand for B too" in why


def test_detections_in_columns_are_the_same_again_in_parts_too() -> None:
    runner = LocalRunner([building.policy(building.ALONE)], PULL, lateness_ms=0)
    found = runner.feed(building.walk(200, 100, 4_000, 1).readings) + runner.finish()
    assert len(found) > 20
    batch = encode_detections(found)
    assert detections_from(pa.Table.from_batches([batch])) == found
    parts = [batch.slice(first, 7) for first in range(0, len(batch), 7)]
    again = detections_from(pa.Table.from_batches(parts))
    assert sorted(again, key=detection_order) == sorted(found, key=detection_order)
    assert detections_from(pa.Table.from_batches([batch.slice(0, 0)])) == []
