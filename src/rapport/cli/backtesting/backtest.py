"""`rapport backtest POLICY --history PATH`: what a policy would have found in history, how often,
when, about whom, and what a changed one would have found instead. [PI-9, UX-3]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rapport.cli.files import cannot_write
from rapport.cli.moments import moment
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import show_problem, stderr, stdout, write_json
from rapport.core.times import parse_duration

if TYPE_CHECKING:
    from rapport.cli.backtesting.run import Asked
    from rapport.pipeline.backtest.making import Made
    from rapport.pipeline.drawing.calendar import Calendar

_EXPLAINED = 3
_SHOWN_PROBLEMS = 20


def backtest(
    policy: Annotated[str, Parameter(help="A policy's name, NAME@version, or a .dpl file.")],
    *,
    history: Annotated[
        str | None, Parameter(help="Recorded files, a folder, SOURCE=PATH, or a lake.")
    ] = None,
    compare: Annotated[
        str | None, Parameter(help="Another policy, version or file over the same.")
    ] = None,
    explain: Annotated[bool, Parameter(help="Say why, for the first few.", negative="")] = False,
    site: SiteOption = None,
    from_: Annotated[str | None, Parameter(name="--from", help="From this time on.")] = None,
    to: Annotated[str | None, Parameter(help="Before this time.")] = None,
    engine: Annotated[Literal["local", "spark"], Parameter(help="Where to run.")] = "local",
    master: Annotated[str | None, Parameter(help="Spark: where it runs.")] = None,
    partitions: Annotated[int | None, Parameter(help="Spark: in how many parts.")] = None,
    lateness: Annotated[str | None, Parameter(help="How long to wait for stragglers.")] = None,
    tables: Annotated[
        Literal["now", "then"] | None,
        Parameter(help="Of a lake: rows of now, or of then; else of then where on record."),
    ] = None,
    zone: Annotated[str, Parameter(help="Days and hours: UTC, local, Europe/Lisbon.")] = "UTC",
    show: Annotated[int, Parameter(help="So many findings.")] = 10,
    report: Annotated[Path | None, Parameter(help="Write a page: FILE.html.")] = None,
    out: Annotated[Path | None, Parameter(help="Write all findings: FILE.jsonl.")] = None,
    json: Annotated[bool, Parameter(help="The result as JSON.", negative="")] = False,
    dry_run: Annotated[
        bool, Parameter(help="Say what would be done; start nothing.", negative="")
    ] = False,
) -> int:
    """Run a policy over history: what would have fired, when, how often, about whom; with --compare
    also what only one of two versions finds. Nobody is told anything.

    Without --history the site's own lake is read, or the recorded files of its sources. Exits with
    1 when rows could not be read.
    """
    from rapport.cli.backtesting.run import Asked, prepare

    asked = Asked(
        directory=site_directory(site),
        policy=policy,
        history=history,
        compare=compare,
        begin=moment(from_),
        end=moment(to),
        engine=engine,
        master=master,
        partitions=partitions,
        lateness_ms=None if lateness is None else parse_duration(lateness),
        zone=zone,
        show=max(show, 0),
        explain=_EXPLAINED if explain else 0,
        tables=tables,
    )
    asked.check()
    prepared = prepare(asked)
    if dry_run:
        from rapport.cli.backtesting.plan import planned, show_plan

        plan = planned(prepared)
        write_json(plan) if json else show_plan(stdout(), plan)
        return 0
    for problem in prepared.problems:
        show_problem(problem)
    made = prepared.run()
    prepared.tell_tables(made.told.span[0] if made.told.span is not None else None)
    _write_files(made, prepared.calendar, report, out)
    if json:
        write_json(made.told)
    else:
        from rapport.cli.backtesting.text import Shown

        Shown(made.told, prepared.calendar, stdout()).show()
    return _tell(made, asked)


def _write_files(made: Made, calendar: Calendar, report: Path | None, out: Path | None) -> None:
    try:
        if report is not None:
            from rapport.pipeline.backtest.report import report_page

            report.write_text(report_page(made.told, calendar), encoding="utf-8")
            stderr().print(f"report: {report}", highlight=False, markup=False, soft_wrap=True)
        if out is not None:
            from rapport.pipeline.backtest.lines import write_lines

            with out.open("wb") as file:
                write_lines(made, file)
    except OSError as error:
        raise cannot_write(Path(error.filename or out or ""), error) from None


def _tell(made: Made, asked: Asked) -> int:
    told = made.told
    for problem in told.problems[:_SHOWN_PROBLEMS]:
        show_problem(problem)
    rate = told.events / told.seconds if told.seconds else 0.0
    stderr().print(
        f"{told.events:,} readings in {told.seconds:.1f} s ({rate:,.0f}/s, {asked.engine})",
        highlight=False,
    )
    return int(any(problem.severity == "error" for problem in told.problems))
