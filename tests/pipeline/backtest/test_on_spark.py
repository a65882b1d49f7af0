"""The same back-test on the real engine. [PI-9, PI-5]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from rapport.core.times import parse_time
from rapport.pipeline.backtest.contenders import choose, opponents
from rapport.pipeline.backtest.execution import (
    BackTestFound,
    BackTestWork,
    run_here,
    run_on_spark,
)
from rapport.pipeline.backtest.find_history import find_history
from rapport.pipeline.backtest.pieces import Window
from rapport.site.site import Site

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def lines(found: BackTestFound, work: BackTestWork) -> list[bytes]:
    begin, end = (None, None) if work.period is None else (work.period.begin, work.period.end)
    return [
        b"".join(found.columns.of(plan.policy, begin, end).lines(plan.policy))
        for plan in work.plans
    ]


def work_of(site: Site, path: Path, period: Window | None = None) -> BackTestWork:
    first, second, _by = opponents(choose(site, "alone", list), choose(site, "slower", list))
    history = find_history(site, str(path))
    return BackTestWork.of(site, [first.plan, second.plan], history, period=period)


def test_spark_finds_what_this_process_finds(spark: Any, site: Site, week: Path) -> None:
    work, told = work_of(site, week / "history"), list[int]()
    here, there = run_here(work), run_on_spark(spark, work, partitions=3, progress=told.append)
    assert lines(there, work) == lines(here, work)
    assert all(lines(here, work))
    assert (there.events, there.late, there.first, there.last) == (
        here.events,
        here.late,
        here.first,
        here.last,
    )
    once = BackTestWork.of(site, [choose(site, "once", list).plan], work.history)
    left_out = run_on_spark(spark, once, partitions=3).suppressed
    assert left_out == run_here(once).suppressed
    assert left_out
    assert left_out["once"] > 0
    period = Window(parse_time("2025-01-03T12:00:00Z"), parse_time("2025-01-06T12:00:00Z"))
    part = work_of(site, week / "history", period)
    there, here = run_on_spark(spark, part), run_here(part)
    assert lines(there, part) == lines(here, part)
    assert (there.events, there.late, there.first, there.last) == (
        here.events,
        here.late,
        here.first,
        here.last,
    )


def test_spark_finds_the_episodes_that_this_process_finds(
    spark: Any, site: Site, week: Path, tmp_path: Path
) -> None:
    plan, day = choose(site, "lasting", list).plan, "2025-01-07"
    rows = pq.read_table(week / "history" / f"{day}.parquet")
    pyarrow.csv.write_csv(rows, tmp_path / "day.csv")
    history = find_history(site, str(week / "history" / f"{day}.parquet"))
    work = BackTestWork.of(site, [plan], history)
    here = run_here(work)
    (expected,) = lines(here, work)
    assert expected.count(b'"began"') > 0
    times = here.columns.of("lasting", None, None).times()
    period = Window(int(times[0]), int(times[-1]))
    for found_in in (history, find_history(site, str(tmp_path))):
        for cut in (None, period):
            part = BackTestWork.of(site, [plan], found_in, period=cut)
            here, there = run_here(part), run_on_spark(spark, part, partitions=3)
            assert lines(there, part) == lines(here, part)
            assert there.ended == here.ended
            assert (there.ended == period.end - 1) is (cut is not None)


def test_files_that_workers_cannot_read_go_through_this_process(
    spark: Any, site: Site, week: Path, tmp_path: Path
) -> None:
    rows = pq.read_table(week / "history" / "2025-01-05.parquet")
    pyarrow.csv.write_csv(rows, tmp_path / "day.csv")
    work = work_of(site, tmp_path)
    here, there = run_here(work), run_on_spark(spark, work)
    assert lines(there, work) == lines(here, work)
    assert there.events == len(rows)


def test_a_policy_that_fails_is_told_however_its_readings_reach_the_workers(
    spark: Any, site: Site, week: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "breaking_there.py"
    module.write_text(
        "import msgspec\n"
        "from rapport.policy.relations import get\n"
        "def _breaks(first, second, parameter):\n"
        "    raise RuntimeError('no idea')\n"
        "near = msgspec.structs.replace(\n"
        "    get('inside'), holds=_breaks, holds_many=_breaks, shape='opaque')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spark.sparkContext.addPyFile(str(module))
    rows = pq.read_table(week / "history" / "2025-01-05.parquet")
    plan = choose(site, "alone", list).plan
    terms = tuple(
        msgspec.structs.replace(term, function="breaking_there:near") for term in plan.terms
    )
    broken = msgspec.structs.replace(plan, terms=terms)
    for name in ("day.csv", "day.parquet"):
        folder = tmp_path / name.partition(".")[2]
        folder.mkdir()
        (pyarrow.csv.write_csv if name == "day.csv" else pq.write_table)(rows, folder / name)
        work = BackTestWork.of(site, [broken], find_history(site, str(folder)))
        for found in (run_here(work), run_on_spark(spark, work)):
            assert {one.code for one in found.problems} == {"policy.failed"}
