"""`rapport backtest POLICY --history PATH`: runs a policy over history, counts its detections and
compares versions; `rapport demo year DIR` writes a site with history to try it on. [PI-9, UX-3,
UX-7]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rapport.cli.arguments import ALL_HISTORY, HistoryOptions, SiteOption, site_directory
from rapport.cli.hints import cannot_write
from rapport.cli.output import (
    print_line,
    print_note,
    show_problems,
    stderr,
    stdout,
    write_json,
)
from rapport.kernel.progress import Progress, wants_progress_lines, write_progress

if TYPE_CHECKING:
    from rapport.cli.backtest_run import BacktestRequest, PreparedBacktest
    from rapport.pipeline.backtest.contest import BackTestRun
    from rapport.pipeline.backtest.findings import BackTest
    from rapport.pipeline.backtest.sweep import SweepResult
    from rapport.pipeline.drawing.calendar import Calendar

_EXPLAINED = 3
_STEP = 10_000
"""Readings between two lines of progress when nobody knows how many there are."""
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
    sweep: Annotated[
        str | None,
        Parameter(
            help="Try values of a constant: '50 ug/m3=30..80 by 5'.", allow_leading_hyphen=True
        ),
    ] = None,
    explain: Annotated[bool, Parameter(help="Say why, for the first few.", negative="")] = False,
    site: SiteOption = None,
    options: HistoryOptions = ALL_HISTORY,
    show: Annotated[int, Parameter(help="So many findings.")] = 10,
    report: Annotated[Path | None, Parameter(help="Write a page: FILE.html.")] = None,
    out: Annotated[Path | None, Parameter(help="Write all findings: FILE.jsonl.")] = None,
    json: Annotated[bool, Parameter(help="The result as JSON.", negative="")] = False,
    dry_run: Annotated[
        bool, Parameter(help="Say what would be done; start nothing.", negative="")
    ] = False,
) -> int:
    """Run a policy over history: what would have fired, when, how often, for which identities; with
    --compare also what only one of two versions finds. Of a situation: its episodes and how long
    they lasted. With --sweep a table of what other values of a constant give. Nobody is notified.

    Without --history the site's own lake is read, or the recorded files of its sources. Exits with
    1 when rows could not be read.
    """
    from rapport.cli.backtest_run import BacktestRequest, prepare

    request = BacktestRequest(
        directory=site_directory(site),
        policy=policy,
        history=history,
        compare=compare,
        sweep=sweep,
        writes_lines=out is not None,
        zone=options.zone,
        show=max(show, 0),
        explain=_EXPLAINED if explain else 0,
        **options.as_request(),
    )
    request.check()
    prepared = prepare(request)
    if dry_run:
        from rapport.cli.backtest_run import planned, show_plan

        plan = planned(prepared)
        write_json(plan) if json else show_plan(stdout(), plan)
        return 0
    show_problems(prepared.problems)
    if prepared.sweep is not None:
        return _sweep(prepared, report, json=json)
    made = prepared.run()
    prepared.report_tables(made.told.span[0] if made.told.span is not None else None)
    _write_files(made, prepared.calendar, report, out)
    if json:
        write_json(made.told)
    else:
        from rapport.cli.backtest_run import BacktestText

        BacktestText(made.told, prepared.calendar, stdout()).show()
    return _print_summary(made.told, request)


def _sweep(prepared: PreparedBacktest, report: Path | None, *, json: bool) -> int:
    result = prepared.run_sweep()
    prepared.report_tables(result.first)
    if report is not None:
        from rapport.pipeline.backtest.backtest_page import sweep_page

        _write(report, sweep_page(result, prepared.calendar))
    if json:
        write_json(result)
    else:
        from rapport.cli.backtest_run import show_sweep

        show_sweep(stdout(), result, prepared.calendar)
    return _print_summary(result, prepared.asked)


def _write(report: Path, page: str) -> None:
    try:
        report.write_text(page, encoding="utf-8")
    except OSError as error:
        raise cannot_write(report, error) from None
    print_note(f"report: {report}")


def _write_files(
    made: BackTestRun, calendar: Calendar, report: Path | None, out: Path | None
) -> None:
    if report is not None:
        from rapport.pipeline.backtest.backtest_page import report_page

        _write(report, report_page(made.told, calendar))
    try:
        if out is not None:
            from rapport.pipeline.backtest.contest import write_lines

            with out.open("wb") as file:
                write_lines(made, file)
    except OSError as error:
        raise cannot_write(Path(error.filename or out or ""), error) from None


def _print_summary(result: BackTest | SweepResult, request: BacktestRequest) -> int:
    show_problems(result.problems[:_SHOWN_PROBLEMS])
    rate = result.events / result.seconds if result.seconds else 0.0
    print_note(
        f"{result.events:,} readings in {result.seconds:.1f} s ({rate:,.0f}/s, {request.engine})"
    )
    return int(any(problem.severity == "error" for problem in result.problems))


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, or lines for a parent process that reads them; `total` None: nobody
    knows how much there is.
    """
    if wants_progress_lines():
        yield _ProgressLines(total).update
        return
    console = stderr()
    if not console.is_terminal:
        yield lambda _done: None
        return
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Readings so far and per second."""

        def render(self, task: Task) -> Text:
            """Rounded, so that it can be read while it moves."""
            speed = task.finished_speed or task.speed
            rate = "" if not speed else f"  {_short(speed)}/s"
            return Text(f"{_short(task.completed)} readings{rate}")

    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


class _ProgressLines:
    """Writes a line for each hundredth of the work."""

    def __init__(self, total: int | None) -> None:
        self._total, self._next = total, 0
        self._step = max(1, (total or _STEP * 100) // 100)

    def update(self, done: int) -> None:
        """Notes how much is done."""
        if done >= self._next:
            write_progress(Progress(done=done, total=self._total))
            self._next = done + self._step


def _short(number: float) -> str:
    """`1.3 M`, `850 k`, `12`.

    >>> _short(1_300_000), _short(850_000), _short(12)
    ('1.3 M', '850 k', '12')
    """
    if number >= 999_500:
        return f"{number / 1e6:.1f} M"
    return f"{number / 1e3:.0f} k" if number >= 1_000 else f"{number:.0f}"


def year(
    directory: Annotated[Path, Parameter(help="Where to write the site; new, or to go on with.")],
    *,
    readings: Annotated[int, Parameter(help="About how many positions in all.")] = 1_300_000,
    days: Annotated[int, Parameter(help="How many days.")] = 31,
    first: Annotated[str, Parameter(help="The first day.")] = "2025-01-01",
    seed: Annotated[int, Parameter(help="Another number, another history.")] = 1,
    json: Annotated[bool, Parameter(help="What was written, as JSON.", negative="")] = False,
) -> None:
    """Make up the history of a building: guests and their escorts by day and night, one Parquet
    file per day. The same numbers give the same files; a run that was interrupted goes on.

    A year as of 250 sensors that report every minute: --readings 131000000 --days 365.
    """
    from rapport.scenarios.year import Year, write_year
    from rapport.scenarios.year_site import FOLDER, POLICY

    made_up = Year(readings=readings, days=days, first=first, seed=seed)
    with progress_bar("making it up", readings) as progress:
        written = write_year(directory, made_up, lambda rows, _days: progress(rows))
    if json:
        write_json(written)
        return
    there = f", {written.kept_files} were there" if written.kept_files else ""
    lines = [
        f"{written.rows:,} readings in {written.files} files{there}: {directory / FOLDER}",
        f"try: cd {directory} && rapport backtest {POLICY} --history {FOLDER}",
    ]
    for line in lines if sys.stdout.isatty() else lines[:1]:
        print_line(line)
