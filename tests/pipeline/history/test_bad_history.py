"""Files that are not what they should be: named, never passed over."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.core.detection import detection_lines
from rapport.core.errors import InvalidInput, SiteError, Unsupported
from rapport.pipeline.history.files import (
    ReadingsFiles,
    parquet_files,
    readings_files,
    recorded_files,
    why_not_files,
)
from rapport.pipeline.history.results import SparkReplay
from rapport.pipeline.history.runner import PartCounts, evaluate_history
from rapport.policy.replay.replay import Recording, ReplayResult, replay
from rapport.site.site import Site
from support.history_here import Here

Rows = Callable[..., list[pa.RecordBatch]]
Recorded = dict[str, list[Any]]


@pytest.fixture
def rows(small_policies: Site, readings: Rows) -> Recorded:
    """The columns of a recorded file."""
    (batch,) = readings(small_policies.directory / "events.csv")
    names = {"ts": "time", "id": "id", "person": "key"}
    names |= {"x": "person.position.x", "y": "person.position.y"}
    return {name: batch.column(column).to_pylist() for name, column in names.items()}


def history_of(site: Site, *paths: Path) -> ReadingsFiles:
    return recorded_files(site.ontology, [(site.ontology.sources["positions"], list(paths))])


def run(site: Site, history: ReadingsFiles, lateness_ms: int = 0) -> SparkReplay:
    plans = [compiled.plan for compiled in site.policies.values()]
    found = evaluate_history(
        plans,
        site.tables,
        history,
        Here(site.tables),
        lateness_ms=lateness_ms,
        parts=PartCounts(2, 2),
        sources=site.ontology.sources,
    )
    return SparkReplay.of(found)


def locally(site: Site, path: Path, lateness_ms: int = 0) -> ReplayResult:
    plans = [compiled.plan for compiled in site.policies.values()]
    recording = Recording(site.ontology.sources["positions"], path)
    return replay(site.ontology, site.tables, plans, [recording], lateness_ms=lateness_ms)


def write(path: Path, columns: Recorded, **kinds: pa.DataType) -> Path:
    arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path, row_group_size=32)
    return path


def assert_as_local(site: Site, path: Path, lateness_ms: int = 0) -> SparkReplay:
    found, expected = (
        run(site, history_of(site, path), lateness_ms),
        locally(site, path, lateness_ms),
    )
    assert detection_lines(found.detections) == detection_lines(expected.detections)
    assert (found.late, found.events, found.problems) == (
        expected.late,
        expected.events,
        expected.problems,
    )
    return found


def test_a_damaged_file_and_half_a_file_are_named(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    whole = write(tmp_path / "whole.parquet", rows).read_bytes()
    for name, content in {"noise": b"PAR1 no PAR1", "half": whole[: len(whole) // 2]}.items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(content)
        with pytest.raises(SiteError) as caught:
            history_of(small_policies, tmp_path / "whole.parquet", path)
        assert caught.value.problems[0].code == "events.bad_file"
        assert f"{name}.parquet" in caught.value.problems[0].message


def test_pages_that_were_damaged_behind_a_good_footer_are_named(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    path = write(tmp_path / "r.parquet", rows)
    history = history_of(small_policies, path)
    content = bytearray(path.read_bytes())
    content[4:600] = b"\xff" * 596
    path.write_bytes(content)
    with pytest.raises(SiteError) as caught:
        run(small_policies, history)
    assert caught.value.problems[0].code == "events.bad_file"
    assert "r.parquet" in caught.value.problems[0].message


def test_a_file_that_is_gone_or_changed_in_between_is_named(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    paths = [write(tmp_path / f"{name}.parquet", rows) for name in "abc"]
    with pytest.raises(SiteError) as caught:
        history_of(small_policies, paths[0], tmp_path / "missing.parquet", paths[2])
    assert caught.value.problems[0].code == "events.unreadable"
    history = history_of(small_policies, *paths)
    write(paths[1], {name: values[:40] for name, values in rows.items()})
    with pytest.raises(SiteError) as caught:
        run(small_policies, history)
    assert caught.value.problems[0].code == "history.changed"
    paths[1].unlink()
    with pytest.raises(SiteError) as caught:
        run(small_policies, history)
    assert caught.value.problems[0].code == "events.unreadable"


def test_a_missing_column_is_named_with_the_nearest(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    good = write(tmp_path / "good.parquet", rows)
    drifted = {("persons" if name == "person" else name): own for name, own in rows.items()}
    with pytest.raises(SiteError) as caught:
        history_of(small_policies, good, write(tmp_path / "drifted.parquet", drifted))
    (problem,) = caught.value.problems
    assert (problem.file, problem.code) == ("drifted.parquet", "events.missing_column")
    assert problem.hint == "did you mean 'persons'?"


def test_files_may_differ_in_types_and_in_columns_nobody_reads(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    cut = {name: (values[:90], values[90:]) for name, values in rows.items()}
    first = {name: parts[0] for name, parts in cut.items()} | {"remark": ["x"] * 90}
    second = {name: parts[1] for name, parts in cut.items()}
    paths = [
        write(tmp_path / "a.parquet", first, ts=pa.int64(), x=pa.float32()),
        write(tmp_path / "b.parquet", second, ts=pa.uint32(), id=pa.large_string()),
    ]
    whole = locally(small_policies, write(tmp_path / "whole.parquet", rows))
    found = run(small_policies, history_of(small_policies, *paths))
    assert detection_lines(found.detections) == detection_lines(whole.detections)
    assert found.events == 200


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_may_be_timestamps(
    small_policies: Site, rows: Recorded, tmp_path: Path, unit: str
) -> None:
    rows["ts"] = [time - time % 1_000 if unit == "s" else time for time in rows["ts"]]
    times = pa.array(rows["ts"], pa.timestamp("ms", "UTC")).cast(pa.timestamp(unit, "UTC"))
    table = pa.table({**rows, "ts": times})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=32)
    assert assert_as_local(small_policies, tmp_path / "r.parquet", 2_000).events == 200


def test_times_that_footers_do_not_tell_are_surveyed_first(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    texts = [datetime.fromtimestamp(time / 1_000, UTC).isoformat() for time in rows["ts"]]
    assert_as_local(small_policies, write(tmp_path / "text.parquet", rows | {"ts": texts}), 2_000)
    bare = tmp_path / "bare.parquet"
    pq.write_table(pa.table(rows), bare, row_group_size=32, write_statistics=False)
    assert history_of(small_policies, bare).series[0].files[0].groups[0].first is None
    assert_as_local(small_policies, bare, 2_000)


def test_rows_that_cannot_be_used_are_told_as_the_local_reader_tells_them(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    rows["x"][3], rows["person"][40], rows["id"][41] = None, None, ""
    rows["ts"][100], rows["y"][150] = None, float("nan")
    found = assert_as_local(small_policies, write(tmp_path / "r.parquet", rows))
    assert [problem.line for problem in found.problems] == [4, 41, 42, 101, 151]
    assert sum(one.count for one in found.faulty) == 5


def test_a_row_group_without_any_time_is_told_row_by_row(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    rows["ts"][32:64] = [None] * 32
    found = assert_as_local(small_policies, write(tmp_path / "r.parquet", rows))
    assert (found.events, len(found.problems)) == (168, 32)
    nothing = {name: values[:3] for name, values in rows.items()} | {"ts": [None] * 3}
    path = write(tmp_path / "nothing.parquet", nothing, ts=pa.int64())
    assert assert_as_local(small_policies, path).events == 0


def test_what_a_faulty_row_says_of_time_makes_nothing_late(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    """The footer believes its time; who reads it does not, and what rested on it is done again."""
    rows["ts"][10], rows["x"][10] = max(rows["ts"]) + 10**6, float("nan")
    found = assert_as_local(small_policies, write(tmp_path / "r.parquet", rows))
    assert found.late == []
    assert len(found.problems) == 1


def test_times_beyond_all_bounds_are_faulty_rows(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    rows["ts"][0], rows["ts"][60] = -(2**61), 2**62
    found = assert_as_local(small_policies, write(tmp_path / "r.parquet", rows))
    assert [problem.code for problem in found.problems] == ["events.bad_time"] * 2


def test_a_source_whose_clock_ran_ahead_once_makes_the_rest_late(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    rows["ts"][100] += 10**9
    assert len(assert_as_local(small_policies, write(tmp_path / "r.parquet", rows)).late) == 99


def test_corrected_rows_are_left_out(small_policies: Site, rows: Recorded, tmp_path: Path) -> None:
    corrects: list[str | None] = [None] * 200
    corrects[199] = rows["id"][5]
    rows["ts"][5] += 5_000  # what it said of time does not count either
    path = write(tmp_path / "r.parquet", rows | {"corrects": corrects})
    assert assert_as_local(small_policies, path).events == 199


def test_ids_and_keys_may_be_numbers(small_policies: Site, rows: Recorded, tmp_path: Path) -> None:
    rows["person"] = [int(name) for name in rows["person"]]
    assert_as_local(small_policies, write(tmp_path / "r.parquet", rows))


def test_readings_without_a_key_are_no_readings(
    small_policies: Site, readings: Rows, tmp_path: Path
) -> None:
    (batch,) = readings(small_policies.directory / "events.csv")
    keys = [*batch.column("key").to_pylist()[:-1], None]
    broken = pa.table(batch).set_column(4, "key", pa.array(keys))
    pq.write_table(broken, tmp_path / "r.parquet")
    with pytest.raises(SiteError) as caught:
        run(small_policies, readings_files([tmp_path / "r.parquet"]))
    assert "rows without time, id, stream or key" in caught.value.problems[0].message


def test_a_folder_stands_for_its_files_by_name(tmp_path: Path) -> None:
    for name in ("b/2.parquet", "a/1.parquet", "_tmp/3.parquet", "a/.4.parquet", "a/5.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in parquet_files(tmp_path)] == ["1.parquet", "2.parquet"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput) as caught:
        parquet_files(tmp_path / "empty")
    assert caught.value.code == "history.no_files"


def test_only_parquet_in_root_form_is_read_by_workers(small_policies: Site, tmp_path: Path) -> None:
    source = small_policies.ontology.sources["positions"]
    spoken = msgspec.structs.replace(source, interpretation="feet")
    path = tmp_path / "r.parquet"
    assert why_not_files([Recording(source, path)]) == ""
    assert "interpretation" in why_not_files([Recording(spoken, path)])
    assert "no Parquet file" in why_not_files([Recording(source, tmp_path / "r.csv")])
    assert why_not_files([Recording(source, path, strict=True)])
    with pytest.raises(Unsupported):
        recorded_files(small_policies.ontology, [(spoken, path)])


def test_a_worker_that_lacks_a_function_says_which_and_what_to_do(
    small_policies: Site, rows: Recorded, tmp_path: Path
) -> None:
    """As where the module of a site's own relationship is installed at the driver only."""
    history = history_of(small_policies, write(tmp_path / "r.parquet", rows))
    plan = small_policies.policies["or"].plan
    terms = tuple(
        msgspec.structs.replace(term, function="absent.module:near") for term in plan.terms
    )
    with pytest.raises(SiteError) as caught:
        evaluate_history(
            [msgspec.structs.replace(plan, terms=terms)],
            small_policies.tables,
            history,
            Here(small_policies.tables),
            lateness_ms=0,
            parts=PartCounts(2, 2),
        )
    (problem,) = caught.value.problems
    assert problem.code == "history.not_on_workers"
    assert "absent.module" in problem.message
    assert "PYTHONPATH" in problem.hint
