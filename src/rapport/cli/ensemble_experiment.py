"""`rapport ensemble experiment NAME`: the source's experiments, as tables and plots beside what it
published. [EN-12, PI-8]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import pyarrow as pa
from cyclopts import Parameter

from rapport.cli.context_options import JsonOption
from rapport.cli.ensemble_report import show_report, write_report
from rapport.cli.terminal import stderr, write_json
from rapport.core.errors import InvalidInput, UnknownName
from rapport.ensemble.experiments.catalogue import EXPERIMENTS
from rapport.ensemble.experiments.experiment import Experiment, read_grid, with_grid
from rapport.pipeline.grids import count_made, run_grid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ALL = "all"
_PARTS = "parts"


class _Planned(msgspec.Struct, frozen=True):
    experiment: Experiment
    points: list[msgspec.Struct]


def experiment(
    name: Annotated[str, Parameter(help=f"One of {', '.join(EXPERIMENTS)}, or all.")],
    *,
    grid: Annotated[
        list[str] | None,
        Parameter(help="Other values of a field: probability=0.1,0.5", consume_multiple=True),
    ] = None,
    engine: Annotated[Literal["local", "spark"], Parameter(help="Where to run.")] = "local",
    master: Annotated[
        str | None, Parameter(help="Of Spark, otherwise all cores of this machine.")
    ] = None,
    processes: Annotated[
        int | None, Parameter(help="Of the local engine, otherwise one for each core.")
    ] = None,
    seed: Annotated[int, Parameter(help="The same seed gives the same figures.")] = 1,
    out: Annotated[
        Path, Parameter(help="Folder for CSV, plots and pages; finished points are kept in it.")
    ] = Path("ensemble-experiments"),
    parts: Annotated[
        Path | None, Parameter(help="Keep finished points here, otherwise in OUT/parts.")
    ] = None,
    quick: Annotated[bool, Parameter(help="Smaller amounts, for a first look.")] = False,
    json: JsonOption = False,
) -> None:
    """Run experiments; what is finished is not run again, so one that was ended goes on."""
    _check(engine, master, processes)
    planned = _plan(name, grid or [], quick, seed)
    kept = parts or out / _PARTS
    told = []
    with _spark(engine, master) as spark:
        for one in planned:
            rows = _run(one, spark, kept, processes or os.cpu_count() or 1)
            report = one.experiment.report(rows.to_pylist())
            files = write_report(out, one.experiment, rows, report)
            told.append({"name": one.experiment.name, "report": report, "files": files})
            if not json:
                show_report(one.experiment, report)
                stderr().print(f"{len(files)} files in {out}")
    if json:
        write_json({"experiments": told})


def _check(engine: str, master: str | None, processes: int | None) -> None:
    wrong = "--master" if master and engine != "spark" else ""
    wrong = "--processes" if processes is not None and engine != "local" else wrong
    if wrong:
        raise InvalidInput(
            f"{wrong} is about the other engine", code="cli.wrong_use", hint="see --engine"
        )
    if processes is not None and processes < 1:
        raise InvalidInput(
            f"nothing runs in {processes} processes", code="cli.wrong_use", hint="1 or more"
        )


def _plan(name: str, grid: Sequence[str], quick: bool, seed: int) -> list[_Planned]:
    """All points before anything is run: a grid that fits none of them costs no time."""
    if name != _ALL and name not in EXPERIMENTS:
        raise UnknownName("experiment", name, [*EXPERIMENTS, _ALL])
    values = read_grid(grid)
    chosen = EXPERIMENTS.values() if name == _ALL else [EXPERIMENTS[name]]
    return [_Planned(one, with_grid(one.points(quick, seed), values)) for one in chosen]


def _run(one: _Planned, spark: SparkSession | None, kept: Path, processes: int) -> pa.Table:
    experiment, points = one.experiment, one.points
    name = experiment.grid_name
    with _watched(experiment.name, points, lambda: count_made(kept, name, points)):
        return run_grid(spark, points, experiment.run, folder=kept, name=name, processes=processes)


@contextmanager
def _spark(engine: str, master: str | None) -> Iterator[SparkSession | None]:
    if engine != "spark":
        yield None
        return
    from rapport.pipeline.session import running_spark
    from rapport.pipeline.settings import SparkSettings

    with running_spark(SparkSettings(master=master) if master else SparkSettings()) as spark:
        yield spark


@contextmanager
def _watched(
    what: str, points: Sequence[msgspec.Struct], count: Callable[[], int]
) -> Iterator[None]:
    """A bar on a terminal while points are made, wherever that is; else one line before."""
    console = stderr()
    if not console.is_terminal:
        console.print(f"{what}: {len(points)} points, {count()} of them finished before")
        yield
        return
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Made(TextColumn):
        """Counts, whenever the bar is drawn."""

        def render(self, task: Task) -> Text:
            """So many of so many."""
            task.completed = count()
            return Text(f"{what} {task.completed:.0f} of {len(points)}")

    columns = (Made(""), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        progress.add_task(what, total=len(points))
        yield
