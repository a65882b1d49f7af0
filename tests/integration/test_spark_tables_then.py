"""Back-tests of a lake on the real engine with the rows that tables had then: tables that changed,
and context that a node was told. [PI-9, PO-2, PO-8]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rapport.cli.backtest_run import BacktestRequest, prepare
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from rapport.pipeline.backtest.execution import BackTestFound, run_here, run_on_spark
from support.varied.changing_tables import NOW, Life, living, make_place, people, seen
from support.varied.known_context import live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def lines_of(found: BackTestFound, policy: str) -> list[bytes]:
    return list(found.columns.of(policy, None, None).lines(policy))


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Ann is a guest now and then, and walks in all the time."""
    site = make_place(tmp_path)
    clock = ManualClock(NOW)

    async def story(life: Life) -> None:
        for number in range(12):
            is_guest = number // 3 % 2 == 0
            people(site, *(("guest", "employee") if is_guest else ("employee", "guest")), "guest")
            await life.refresh()
            who = ("ann", "eve", "bob")[number % 3]
            await life.send(seen(f"e{number}", who, clock.now_ms()))
            await life.send(seen(f"f{number}", "ann", clock.now_ms() + 10))
            await life.pass_by(1_500)
        await life.pass_by(10_000)
        await export_channels(life.node.channels, life.node.site.data_directory / "lake")

    living(site, story, clock)
    return site


@pytest.mark.parametrize("policy", ["inside", "alone", "lasting"])
def test_rows_that_changed_are_those_of_then(
    spark: SparkSession, changed: Path, policy: str
) -> None:
    work = prepare(BacktestRequest(directory=changed, policy=policy, engine="spark")).work
    assert work.then is not None
    here = lines_of(run_here(work), policy)
    assert here
    assert lines_of(run_on_spark(spark, work, partitions=3), policy) == here
    now = prepare(BacktestRequest(directory=changed, policy=policy, tables="now")).work
    assert lines_of(run_here(now), policy) != here


def test_context_is_what_the_node_was_told(spark: SparkSession, tmp_path: Path) -> None:
    live(tmp_path)
    for policy in ("closed", "stays"):
        work = prepare(BacktestRequest(directory=tmp_path, policy=policy, engine="spark")).work
        here = lines_of(run_here(work), policy)
        assert here
        assert lines_of(run_on_spark(spark, work, partitions=2), policy) == here
