"""A node that has its pipeline run on Spark: started, seen from outside, stopped, resumed.
[PI-12]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rapport.pipeline.running.run_state import wait_until
from rapport.site.pipeline import RunPlaces, RunStatus, is_held, read_status
from support.processes.node import NodeProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

CHECKS = Path(__file__).parent.parent / "data" / "checks"
PATIENCE_SECONDS = 240
SETTINGS = """
[pipeline]
on = true
every = "1s"
figures = false
buckets = 1

[spark]
master = "local[2]"
memory = "512m"
java_options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""


def rapport(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rapport.cli.main", "pipeline", *arguments, "--site", str(site)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def fetched(node: NodeProcess, path: str) -> str:
    assert node.doors is not None
    host, port = node.doors
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_a_node_starts_its_pipeline_and_people_see_stop_and_resume_it(tmp_path: Path) -> None:
    site = shutil.copytree(CHECKS / "secure-building", tmp_path / "site")
    file = site / "site.toml"
    text = file.read_text(encoding="utf-8")
    text = text.replace("[policies]\n", '[policies]\non_spark = ["*"]\n')
    file.write_text(text + SETTINGS, encoding="utf-8")
    places = RunPlaces.of(site / ".rapport")

    def told() -> RunStatus | None:
        return read_status(places) if is_held(places.lock) else None

    def is_at_work() -> bool:
        found = told()
        return found is not None and any(one.job == "silver" and one.batches for one in found.jobs)

    with NodeProcess(site) as node:
        node.start()
        assert wait_until(is_at_work, PATIENCE_SECONDS), "".join(node.told[-30:])
        shown = json.loads(rapport(site, "status", "--json").stdout)
        assert (shown["state"], shown["runs"]) == ("running", True)
        assert shown["told"]["spark_ui"].startswith("http://127.0.0.1:")
        jobs = {one["job"] for one in shown["told"]["jobs"]}
        assert jobs == {"live", "export", "silver", "compact", "vacuum"}
        metrics = fetched(node, "/metrics")
        assert "rapport_pipeline_up 1.0" in metrics
        assert 'rapport_pipeline_behind_events{job="silver"}' in metrics
        second = rapport(site, "run", "--once", "--master", "local[1]")
        assert (second.returncode, "pipeline.running" in second.stderr) == (1, True)
        stopped = rapport(site, "stop")
        assert (stopped.returncode, stopped.stderr.splitlines()[-1]) == (0, "the pipeline is down")
        assert "rapport_pipeline_up 0.0" in fetched(node, "/metrics")
        resumed = rapport(site, "resume")
        assert (resumed.returncode, "is up" in resumed.stderr) == (0, True)
        node.stop()
        assert not is_held(places.lock), "it ends with its node"
