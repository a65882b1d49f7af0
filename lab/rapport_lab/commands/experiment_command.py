"""`rapport ensemble experiment NAME`: the source's experiments, as tables and plots beside its
figures. [EN-12, PI-8]

Each experiment writes a CSV of all rows, a plot for each figure, and a page with its tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
from cyclopts import Parameter

from rapport.cli.arguments import JsonOption
from rapport.cli.output import print_note, stderr, write_json, write_table
from rapport.core.errors import InvalidInput, StoreUnavailable, UnknownName
from rapport_lab.box_plot import BoxValues, boxes_plot
from rapport_lab.curve_plot import Axis, curves_plot
from rapport_lab.ensemble.experiments.catalogue import EXPERIMENTS
from rapport_lab.ensemble.experiments.experiment import Experiment, read_grid, with_grid
from rapport_lab.ensemble.experiments.report import Boxes, Curves, Report, Statement, Table
from rapport_lab.grids import count_made, run_grid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAID = ("nodes", "minutes", "seed")


def write_report(out: Path, experiment: Experiment, rows: pa.Table, report: Report) -> list[str]:
    """Writes all files of an experiment; their names, without the folder."""
    name = experiment.name
    texts = {f"{name}-{plot.name}.svg": drawn(plot) for plot in report.plots}
    texts[f"{name}.md"] = page(experiment, rows, report)
    try:
        out.mkdir(parents=True, exist_ok=True)
        pa_csv.write_csv(rows, out / f"{name}.csv")
        for file, text in texts.items():
            (out / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write to {out}: {error.strerror or error}",
            code="ensemble.results_unwritable",
            hint="name a folder that can be written with --out",
        ) from None
    return [f"{name}.csv", *texts]


def drawn(plot: Curves | Boxes) -> str:
    """A plot as SVG."""
    if isinstance(plot, Boxes):
        boxes = [BoxValues(one.label, one.first, one.median, one.third) for one in plot.boxes]
        return boxes_plot(plot.title, plot.up, boxes)
    up = Axis(plot.up, in_tens=plot.in_tens)
    return curves_plot(plot.title, Axis(plot.across), up, plot.series)


def page(experiment: Experiment, rows: pa.Table, report: Report) -> str:
    """Tables, plots and statements as Markdown."""
    parts = [f"# {experiment.name}: {experiment.repeats}", _set_up(experiment, rows)]
    parts += [_statements(report.statements)] if report.statements else []
    parts += [f"## {table.title}\n\n{_markdown(table)}" for table in report.tables]
    parts += [f"![{plot.title}]({experiment.name}-{plot.name}.svg)" for plot in report.plots]
    return "\n\n".join(parts) + "\n"


def show_report(experiment: Experiment, report: Report) -> None:
    """Tables on stdout, statements on stderr."""
    for table in report.tables:
        write_table(f"{experiment.name}: {table.title}", table.columns, table.rows)
    for one in report.statements:
        print_note(f"{'holds' if one.holds else 'does NOT hold'}: {one.says}")


def _set_up(experiment: Experiment, rows: pa.Table) -> str:
    """What the rows are of: a quick run looks like a full one."""
    said = [f"Made by `rapport ensemble experiment {experiment.name}`: {rows.num_rows} rows"]
    for name in _SAID:
        if name in rows.column_names:
            values = sorted(set(rows[name].to_pylist()))
            said.append(f"{name} {', '.join(f'{value:,.10g}' for value in values)}")
    return "; ".join(said) + "."


def _markdown(table: Table) -> str:
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _statements(statements: Iterable[Statement]) -> str:
    return "\n".join(
        f"- {'holds' if one.holds else '**does not hold**'}: {one.says}" for one in statements
    )


_ALL = "all"
_LAKE = "lake"
"""Where versions before kept what was finished, below OUT."""


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
    out: Annotated[Path, Parameter(help="Folder for CSV, plots and pages.")] = Path(
        "ensemble-experiments"
    ),
    lake: Annotated[
        Path | None,
        Parameter(help="Lake for the rows, finished points included; otherwise OUT/lake."),
    ] = None,
    site: Annotated[
        Path | None, Parameter(help="Site whose lake it is, instead of --lake.")
    ] = None,
    quick: Annotated[bool, Parameter(help="Smaller amounts, for a first look.")] = False,
    json: JsonOption = False,
) -> None:
    """Run experiments; what is finished is not run again, so one that was ended goes on."""
    _check(engine, master, processes)
    planned = _plan(name, grid or [], quick, seed)
    kept = _lake_of(lake, site) or out / _LAKE
    told = []
    with _spark(engine, master) as spark:
        for one in planned:
            rows = _run(one, spark, kept, processes or os.cpu_count() or 1)
            report = one.experiment.report(rows.to_pylist())
            files = write_report(out, one.experiment, rows, report)
            table = {"lake": str(kept), "table": f"gold/{one.experiment.grid_name}"}
            told.append({"name": one.experiment.name, "report": report, "files": files, **table})
            if not json:
                show_report(one.experiment, report)
                rows_are = f"rows are the table gold/{one.experiment.grid_name} of {kept}"
                print_note(f"{len(files)} files in {out}; {rows_are}")
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


def _lake_of(lake: Path | None, site: Path | None) -> Path | None:
    if lake is not None and site is not None:
        raise InvalidInput(
            "--lake and --site both say where the lake is",
            code="cli.wrong_use",
            hint="leave one of them out",
        )
    if site is None:
        return lake
    from rapport.cli.pipeline import lake_directory

    return lake_directory(site)


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
        return run_grid(spark, points, experiment.run, lake=kept, name=name, processes=processes)


@contextmanager
def _spark(engine: str, master: str | None) -> Iterator[SparkSession | None]:
    if engine != "spark":
        yield None
        return
    from rapport.pipeline.session import SparkSettings, running_spark

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
