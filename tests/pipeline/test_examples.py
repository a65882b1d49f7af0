"""The examples of the pipeline do what they say. [LK-8]"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from rapport.lake.places import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipeline"
SITE = Path(__file__).parents[1] / "data" / "checks" / "small-policies"


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Lake:
    async def fill() -> None:
        channels = open_memory(clock)
        events = [
            make_event(
                source="positions",
                id=str(n),
                type="person.position",
                time=clock.now_ms() + n,
                data={"key": "2", "value": [n, 5]},
            )
            for n in range(20)
        ]
        await channels.channel("events").append(events)
        await export_channels(channels, tmp_path / "lake")

    asyncio.run(fill())
    monkeypatch.setenv("SITE", str(SITE))
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    return Lake.at(tmp_path / "lake")


def test_the_notebook_runs_cell_by_cell(
    spark: SparkSession, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = json.loads((EXAMPLES / "lake.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    out = capsys.readouterr().out
    assert "20 readings, 0 quarantined" in out
    assert "== Physical Plan ==" in out
    assert "events 20" in out
    assert names["spark"] is spark or spark.range(1).count() == 1, "the session goes on"
    assert lake.open("silver", "person.position").rows() == 20


@pytest.mark.long
def test_the_tasks_of_the_dag_run_in_their_order(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for Airflow's decorators that runs a task where the DAG names it."""
    ran: list[tuple[str, dict[str, Any]]] = []
    settings: dict[str, Any] = {}

    class Task:
        def __init__(self, work: Callable[[], dict[str, Any]]) -> None:
            ran.append((work.__name__, work()))

        def __rshift__(self, other: Task) -> Task:
            return other

    def dag(**given: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
        settings.update(given)
        return lambda define: define

    decorators = ModuleType("airflow.decorators")
    decorators.__dict__.update(dag=dag, task=lambda work: lambda: Task(work))
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.decorators", decorators)
    runpy.run_path(str(EXAMPLES / "lake_dag.py"))
    assert [name for name, _ in ran] == ["silver", "figures", "maintain"]
    assert ran[0][1] == {"readings": 20, "quarantined": 0, "positions": {"events": 20} | NONE}
    assert ran[1][1]["readings"] == 20
    assert settings["max_active_runs"] == 1
    assert spark.range(1).count() == 1


def test_the_dag_is_one_that_airflow_reads() -> None:
    pytest.importorskip("airflow")
    from airflow.models import DagBag

    bag = DagBag(str(EXAMPLES), include_examples=False)
    assert not bag.import_errors
    assert set(bag.dags) == {"rapport_lake"}


NONE = {"detections": 0, "quarantine": 0}
