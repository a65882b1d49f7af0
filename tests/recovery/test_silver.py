"""Silver after a driver that was really killed between two commits: the same tables. [PI-10]

Every place between two commits is in tests/pipeline/lake/test_silver_properties.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rapport.pipeline.lake.silver import update_silver
from rapport.policy.engine.stream_steps import late_event
from support.servers.spark import spark
from support.silver_lake import BEGIN, DAY, SilverLake, make_ontology, reading, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]
LONG = pytest.mark.long
CHILD = Path(__file__).with_name("silver_child.py")


def grow(filled: SilverLake, part: int) -> None:
    first = part * 10
    filled.append("events", *(reading(str(n), BEGIN + n * DAY) for n in range(first, first + 5)))
    filled.append("events", *(warm(str(n), BEGIN + n) for n in range(first + 5, first + 9)))
    filled.append("events", reading(f"2~{part}", BEGIN + 2 * DAY, corrects="2"))
    filled.append("detections", late_event("p", (BEGIN + first * DAY, str(first))))
    filled.export()


def rows_of(filled: SilverLake) -> list[tuple[Any, ...]]:
    return [
        (table, row["position"], row["id"], row["status"], row["reason"])
        for table in ("person.position", "room.warmth")
        for row in filled.rows(table)
    ]


@pytest.mark.parametrize(
    "parts", [pytest.param((0,), id="once"), pytest.param((0, 1), id="twice", marks=LONG)]
)
def test_a_really_killed_run_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, parts: Sequence[int]
) -> None:
    clean, killed = SilverLake(tmp_path / "clean"), SilverLake(tmp_path / "killed")
    tests = str(Path(__file__).parents[1])
    for part in parts:
        grow(clean, part)
        update_silver(spark, clean.lake, make_ontology())
        grow(killed, part)
        child = subprocess.run(
            [sys.executable, str(CHILD), str(tmp_path / "killed"), str(part + 1)],
            env=os.environ | {"PYTHONPATH": tests},
            check=False,
            timeout=300,
        )
        assert child.returncode == -signal.SIGKILL
        assert rows_of(killed) != rows_of(clean)
    update_silver(spark, killed.lake, make_ontology())
    assert rows_of(killed) == rows_of(clean)
    assert {row[3] for row in rows_of(clean)} == {"counted", "late", "corrected"}
