"""Writes what an experiment found: a CSV of all rows, a plot for each figure, a page with its
tables; and shows it. [EN-12]
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from rapport.cli.terminal import stderr, write_table
from rapport.core.errors import StoreUnavailable
from rapport_lab.box_plot import BoxValues, boxes_plot
from rapport_lab.curve_plot import Axis, curves_plot
from rapport_lab.ensemble.experiments.experiment import Experiment
from rapport_lab.ensemble.experiments.report import Boxes, Curves, Report, Statement, Table

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
        stderr().print(f"{'holds' if one.holds else 'does NOT hold'}: {one.says}", markup=False)


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
