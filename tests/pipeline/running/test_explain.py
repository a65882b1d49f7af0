"""The physical plan of every job is known, and which of its steps are Python. [LK-9]

The plans are those of the newest pyspark. After a change that is meant: write what the failed test
shows into `tests/pipeline/plans`, and read the difference.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rapport.core.errors import InvalidInput, UnknownName
from rapport.lake.places import Lake
from rapport.pipeline.explain import WITHOUT_SPARK, explain_job
from rapport.pipeline.lake.silver import update_silver
from rapport.pipeline.running.jobs import export_step, history_jobs
from rapport.site.site import load_site
from support.servers.spark import product_plans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.slow]

PLANS = Path(__file__).parent.parent / "plans"


def test_the_physical_plans_are_known(spark: SparkSession, directory: Path) -> None:
    import pyspark

    if pyspark.__version__ != "4.3.0":
        pytest.skip("plans are those of the newest pyspark")
    site = load_site(directory)
    lake = Lake.at(site.data_directory / "lake")
    export_step(site, Path(lake.uri))
    with pytest.raises(InvalidInput, match="silver has no readings"):
        explain_job(spark, site, lake, "history")
    update_silver(spark, lake, site.ontology)
    changed = []
    for job in ("silver", "figures", "history", "live"):
        with product_plans(spark):
            found = normal(explain_job(spark, site, lake, job))
        if job == "figures":
            found = what_is_read(found)
        file = PLANS / f"{job}.txt"
        if found != file.read_text(encoding="utf-8"):
            changed.append(f"{file.name}:\n{found}")
    assert not changed, "\n".join(changed)


def test_every_job_of_the_service_can_be_explained(
    spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    import threading

    site = load_site(directory)
    jobs = history_jobs(spark, site, tmp_path / "lake", threading.Event())
    assert jobs.keys() - WITHOUT_SPARK.keys() == {"silver", "figures"}
    with pytest.raises(UnknownName, match="silvr"):
        explain_job(spark, site, Lake.at(tmp_path / "lake"), "silvr")


def what_is_read(plan: str) -> str:
    """The scans of each table and what is Python. Spark joins two projections of these plans in
    one session and not in another.
    """
    kept = re.compile(r"\w+$|Location|PushedFilters|ReadSchema|PartitionFilters|MapInArrow \w+ is")
    return "".join(f"{line}\n" for line in plan.splitlines() if kept.match(line))


def normal(plan: str) -> str:
    """A plan without numbers of expressions, paths, and bytes that differ from run to run, and
    without marks of compiled stages, of which a session of tests has none.
    """
    plan = re.sub(r"\* (?=\w)|\*\(\d+\) | \[codegen id : \d+\]", "", plan)
    plan = re.sub(r"#\d+L?", "", plan)
    plan = re.sub(r"(plan_id=|runId = |RDD\[)[\w-]+", r"\1", plan)
    plan = re.sub(r"\[file:[^\]\n]*?(\]|\.\.\.)", "[...]", plan)
    return re.sub(r"/\S*/(site|lake)\b", r"\1", plan)
