"""Who decides a plan over files, by what the files and a few of their rows tell."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.policy import building
from rapport.core.detection import detection_order
from rapport.pipeline.history import choosing
from rapport.pipeline.history.choosing import choose_ways, is_cheaper_natively
from rapport.pipeline.history.detection_columns import detections_from, encode_detections
from rapport.pipeline.history.explaining import explain_run
from rapport.pipeline.history.files import ReadingsFiles, readings_files, recorded_files
from rapport.pipeline.history.native.scanning import why_not_scanned
from rapport.policy.runner.local import LocalRunner

PULL = building.Building(200, 100, 1)
SOURCE = building.ONTOLOGY.sources["positions"]
MILLISECONDS = pa.int64()
INSIDE = "  A is inside R\n"


def recorded(folder: Path, time: pa.DataType = MILLISECONDS) -> ReadingsFiles:
    readings = building.walk(200, 100, 6_000, 1).readings
    names = [SOURCE.time, SOURCE.id, SOURCE.key, *SOURCE.value]
    parts = [f"{building.STREAM}.{part}" for part in ("x", "y")]
    columns = [readings.column(name) for name in ("time", "id", "key", *parts)]
    columns[0] = columns[0].cast(time)
    pq.write_table(pa.table(columns, names=names), folder / "r.parquet", row_group_size=1_000)
    return recorded_files(building.ONTOLOGY, [(SOURCE, folder / "r.parquet")])


def test_spark_decides_alone_only_where_much_matters_of_much() -> None:
    assert not is_cheaper_natively(100_000, 1.0)
    assert not is_cheaper_natively(10**9, 0.01)
    assert is_cheaper_natively(10**9, 0.03)
    assert is_cheaper_natively(16_000_000, 0.2)
    assert not is_cheaper_natively(4_000_000, 0.2)


def test_few_rows_are_left_to_the_operators_and_the_reason_is_told(tmp_path: Path) -> None:
    history = recorded(tmp_path)
    [choice] = choose_ways([building.policy(INSIDE)], PULL, history)
    assert choice.way == "filter"
    assert "read every file once more, and 6,000 rows are too few" in choice.text()
    [forced] = choose_ways([building.policy(INSIDE)], PULL, history, way="native")
    assert (forced.way, forced.reason) == ("native", "")
    [asked] = choose_ways([building.policy(INSIDE)], PULL, history, way="operators")
    assert (asked.way, asked.reason) == ("filter", "they were asked for")


def test_a_few_rows_of_the_files_tell_how_many_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = recorded(tmp_path)
    monkeypatch.setattr(choosing, "NATIVE_STARTS_US", 0)
    monkeypatch.setattr(choosing, "_ROWS_NEEDED", 1_000)
    everybody = building.policy(INSIDE, name="everybody", who="status!=''")
    few = building.policy(INSIDE, name="few", who="badge='6'")
    choices = choose_ways([everybody, few, building.policy(building.LASTING)], PULL, history)
    assert [choice.way for choice in choices] == ["native", "filter", "filter"]
    assert "of 6,000 rows matter" in choices[1].reason
    assert "must last" in choices[2].reason


def test_what_must_be_converted_is_left_to_the_operators(tmp_path: Path) -> None:
    history = recorded(tmp_path, pa.timestamp("ms"))
    [choice] = choose_ways([building.policy(INSIDE)], PULL, history, way="native")
    assert choice.way == "filter"
    assert "'time' of r.parquet is timestamp[ms] and has to be converted" in choice.reason
    nothing = why_not_scanned(ReadingsFiles(()), [building.STREAM])
    assert nothing == "there are no files with readings of person.position"


def test_columns_that_spark_does_not_tell_apart_are_left_to_the_operators(tmp_path: Path) -> None:
    table = pa.table(building.walk(9, 4, 10, 1).readings)
    pq.write_table(table.append_column("Time", table["time"]), tmp_path / "r.parquet")
    reason = why_not_scanned(readings_files([tmp_path / "r.parquet"]), [building.STREAM])
    assert "several columns 'time'" in reason


@pytest.mark.parametrize(
    ("conditions", "begin"),
    [
        (INSIDE, "bench: native where files have more than "),
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
