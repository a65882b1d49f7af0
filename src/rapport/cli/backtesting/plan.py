"""`rapport backtest --dry-run`: what would be read and how it would be spread, without reading a
row or starting Spark. [PI-9]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rapport.core.times import format_time
from rapport.pipeline.backtest.making import version_of
from rapport.pipeline.backtest.run import streams_of, total_rows
from rapport.pipeline.history.explaining import explain_run

if TYPE_CHECKING:
    from rich.console import Console

    from rapport.cli.backtesting.run import Prepared

_MOST_FILES = 10


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that would be read."""

    path: str
    feed: str
    bytes: int
    rows: int | None
    first: str | None
    last: str | None


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done."""

    policies: dict[str, str]
    """Versions by label."""
    history: str
    kind: str
    engine: str
    master: str | None
    partitions: int | None
    streams: list[str]
    rows: int | None
    """In the files, by their footers; None: some have none."""
    rows_read: int | None
    """Of these, in the parts that can matter for the period."""
    spreading: list[str]
    """How each policy is run on Spark, and why; several sentences for each."""
    files: list[PlannedFile]


def planned(prepared: Prepared) -> Planned:
    """Nothing is read but headings and footers."""
    asked, work = prepared.asked, prepared.work
    on_spark = asked.engine == "spark"
    return Planned(
        policies={one.label: version_of(one) for one in prepared.contenders},
        history=work.history.label,
        kind=work.history.kind,
        engine=asked.engine,
        master=prepared.spark_settings().master if on_spark else None,
        partitions=asked.partitions,
        streams=streams_of(work.plans),
        rows=work.history.rows(),
        rows_read=total_rows(work),
        spreading=[
            said
            for one in prepared.contenders
            for said in explain_run(
                msgspec.structs.replace(one.plan, policy=one.label),
                work.pull,
                work.ontology.sources,
            )
        ],
        files=[
            PlannedFile(
                path=str(file.path),
                feed=file.feed,
                bytes=file.bytes,
                rows=file.rows,
                first=None if file.first is None else format_time(file.first),
                last=None if file.last is None else format_time(file.last),
            )
            for file in work.history.files()
        ],
    )


def show_plan(console: Console, plan: Planned) -> None:
    """For people."""
    for line in _lines(plan):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _lines(plan: Planned) -> list[str]:
    where = f"Spark at {plan.master}" if plan.master else "this process"
    versions = ", ".join(f"{label} (version {name})" for label, name in plan.policies.items())
    lines = [
        f"policies   {versions}",
        f"reading    {', '.join(plan.streams)}",
        f"history    {plan.history}: {plan.kind}, {len(plan.files):,} files, "
        f"{sum(file.bytes for file in plan.files) / 1e6:,.1f} MB, {_rows(plan)}",
        f"where      {where}" + (f", {plan.partitions} parts" if plan.partitions else ""),
    ]
    lines += [f"spread     {said}" for said in plan.spreading]
    for file in plan.files[:_MOST_FILES]:
        span = "" if file.first is None else f", {file.first[:19]} to {(file.last or '')[:19]}"
        rows = "rows unknown" if file.rows is None else f"{file.rows:,} rows"
        lines.append(f"  {file.path}  {file.feed}, {rows}{span}")
    if len(plan.files) > _MOST_FILES:
        lines.append(f"  and {len(plan.files) - _MOST_FILES:,} more files")
    return lines


def _rows(plan: Planned) -> str:
    if plan.rows is None:
        return "rows not known before they are read"
    if plan.rows_read is None or plan.rows_read == plan.rows:
        return f"{plan.rows:,} rows"
    return f"{plan.rows_read:,} of {plan.rows:,} rows"
