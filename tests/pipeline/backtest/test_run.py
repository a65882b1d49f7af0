"""A back-test in this process: what replay finds, of any part of history. [PI-9, PO-8]"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from rapport.core.detection import detection_lines
from rapport.core.times import parse_time
from rapport.pipeline.backtest.contenders import Contender, choose
from rapport.pipeline.backtest.execution import BackTestFound, BackTestWork, run_here, total_rows
from rapport.pipeline.backtest.find_history import find_history
from rapport.pipeline.backtest.pieces import History, Window
from rapport.pipeline.history.files import recorded_files
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.replay.replay import Recording, replay
from rapport.site.site import Site


def nothing_on_record() -> list[object]:
    return []


def contender(site: Site, name: str) -> Contender:
    return choose(site, name, nothing_on_record)  # type: ignore[arg-type]


def lines(found: BackTestFound, policy: str, window: Window | None = None) -> bytes:
    begin, end = (None, None) if window is None else (window.begin, window.end)
    return b"".join(found.columns.of(policy, begin, end).lines(policy))


def whole(site: Site, history: History, name: str) -> BackTestFound:
    return run_here(BackTestWork.of(site, [contender(site, name).plan], history))


@pytest.fixture(scope="module")
def history(site: Site, week: Path) -> History:
    return find_history(site, str(week / "history"))


def test_it_finds_what_replay_finds(site: Site, week: Path, history: History) -> None:
    tables = [pq.read_table(path) for path in sorted((week / "history").iterdir())]
    merged = week.parent / "all.parquet"
    with pq.ParquetWriter(merged, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    plan = contender(site, "alone").plan
    expected = replay(
        site.ontology,
        site.tables,
        [plan],
        [Recording(site.ontology.sources["positions"], merged)],
        lateness_ms=site.lateness_ms,
    )
    found = whole(site, history, "alone")
    assert lines(found, "alone") == detection_lines(expected.detections)
    assert len(expected.detections) > 5
    assert (found.events, found.late) == (expected.events, len(expected.late))
    assert (found.first, found.last) == (expected.first, expected.last)


@pytest.mark.parametrize("name", ["alone", "slower", "once"])
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("2025-01-02", "2025-01-04"),
        ("2025-01-03T12:00:00Z", "2025-01-06T12:00:00Z"),
        ("2025-01-05", "2025-01-08"),
    ],
)
def test_a_period_has_what_the_whole_has_there(
    site: Site, history: History, name: str, begin: str, end: str
) -> None:
    period = Window(parse_time(begin), parse_time(end))
    work = BackTestWork.of(site, [contender(site, name).plan], history, period=period)
    found = run_here(work)
    assert lines(found, name, period) == lines(whole(site, history, name), name, period)
    assert found.events > 0


def test_every_finding_can_be_found_alone(site: Site, history: History) -> None:
    found = whole(site, history, "alone").columns.of("alone", None, None)
    for one in found.first(8):
        period = Window(one.time, one.time + 1)
        work = BackTestWork.of(site, [contender(site, "alone").plan], history, period=period)
        again = run_here(work).columns.of("alone", one.time, one.time + 1)
        assert one in again.first(10)


def test_a_period_reads_only_the_files_that_matter(site: Site, history: History) -> None:
    plan = contender(site, "alone").plan
    day = Window(parse_time("2025-01-03"), parse_time("2025-01-04"))
    read = total_rows(BackTestWork.of(site, [plan], history, period=day))
    assert read is not None
    assert 0 < read < (history.rows() or 0) / 2
    # What is left out depends on what was told before: all that came before is read.
    once = BackTestWork.of(site, [contender(site, "once").plan], history, period=day)
    assert (total_rows(once) or 0) > read


def test_progress_counts_the_rows_read(site: Site, history: History) -> None:
    told: list[int] = []
    run_here(BackTestWork.of(site, [contender(site, "alone").plan], history), told.append)
    assert told == sorted(told)
    assert told[-1] == history.rows()


def test_what_is_left_out_is_counted_over_the_whole_only(site: Site, history: History) -> None:
    plan = contender(site, "once").plan
    assert run_here(BackTestWork.of(site, [plan], history)).suppressed == {
        "once": whole(site, history, "once").suppressed["once"]  # type: ignore[index]
    }
    period = Window(parse_time("2025-01-03"), END_OF_TIME)
    assert run_here(BackTestWork.of(site, [plan], history, period=period)).suppressed is None


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_reading_may_be_corrected_in_a_later_file(
    site: Site, week: Path, tmp_path: Path, ending: str
) -> None:
    """As in one file, and as Spark's workers are told."""
    rows = pq.read_table(sorted((week / "history").iterdir())[0]).slice(0, 300)
    place = rows.schema.names.index("id")
    rows = rows.set_column(place, "id", rows["id"].cast(pa.string()))
    old = rows.slice(40, 3)
    first = _corrections(old, "~1", 900.0)
    second = _corrections(old, "~2", 950.0).slice(0, 1)
    nothing = pa.nulls(len(rows), pa.string())
    parts = [
        rows.slice(0, 200),
        pa.concat_tables([rows.slice(200), first], promote_options="default"),
        second,
    ]
    one = pa.concat_tables([rows.append_column("corrects", nothing), first, second])
    for name, table in (("one", [one]), ("many", parts)):
        (tmp_path / name).mkdir()
        for number, part in enumerate(table):
            path = tmp_path / name / f"{number}.{ending}"
            (pq.write_table if ending == "parquet" else pyarrow.csv.write_csv)(part, path)
    plan = contender(site, "alone").plan
    founds = [
        run_here(BackTestWork.of(site, [plan], find_history(site, str(path)), lateness_ms=10**9))
        for path in (tmp_path / "one", tmp_path / "many")
    ]
    assert [found.events for found in founds] == [300, 300]
    assert lines(founds[0], "alone") == lines(founds[1], "alone")
    if ending == "parquet":
        source = site.ontology.sources["positions"]
        given = recorded_files(site.ontology, [(source, tmp_path / "many")])
        ids = old["id"].to_pylist()
        assert given.series[0].left_out == {*ids, f"{ids[0]}~1"}


def _corrections(rows: pa.Table, ending: str, x: float) -> pa.Table:
    ids = rows["id"]
    new = pa.array([f"{id}{ending}" for id in ids.to_pylist()])
    rows = rows.set_column(rows.schema.names.index("id"), "id", new)
    place = rows.schema.names.index("x")
    moved = pa.array([x] * len(rows), rows.schema.field("x").type)
    return rows.set_column(place, "x", moved).append_column("corrects", ids)
