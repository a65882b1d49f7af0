"""How a back-test is prepared, planned (`--dry-run`), run and shown on a terminal. [PI-9, UX-3]

Calendars use signs as well as colours, so that nothing depends on seeing colours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from rich.text import Text

from rapport.cli.backtest import progress_bar
from rapport.cli.explain import candidate_tree
from rapport.cli.hints import wrong_use
from rapport.cli.output import print_note
from rapport.cli.replay_run import no_rows_on_record, report_tables, time_zone
from rapport.core.errors import Corrupt, InvalidInput, Problem
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.progress import Progress, wants_progress_lines, write_progress
from rapport.pipeline.backtest.contenders import (
    Contender,
    choose,
    opponents,
    version_of,
    with_text,
)
from rapport.pipeline.backtest.contest import BackTestRequest, BackTestRun, make
from rapport.pipeline.backtest.execution import (
    BackTestFound,
    BackTestWork,
    run_here,
    run_on_spark,
    streams_of,
    total_rows,
)
from rapport.pipeline.backtest.find_history import check_history, find_history
from rapport.pipeline.backtest.findings import (
    BackTest,
    Comparison,
    Example,
    Tally,
    episodes_text,
    lasted_text,
)
from rapport.pipeline.backtest.pieces import BEGIN_OF_TIME, Window
from rapport.pipeline.backtest.sweep import Sweep, SweepResult, run_sweep, swept
from rapport.pipeline.drawing.calendar import WEEKDAYS, Calendar, level, months, shades
from rapport.pipeline.history.runner import explain_run
from rapport.policy.explain.answer import WhyNotAnswer
from rapport.policy.explain.situation_evidence import SituationEvidence
from rapport.policy.explain.situation_wording import evidence_lines
from rapport.policy.explain.wording import bindings_text, duration
from rapport.policy.operators.base import END_OF_TIME

if TYPE_CHECKING:
    from rich.console import Console

    from rapport.channel.channel import Channels
    from rapport.mediation.interpretations.repository import ActiveInterpretations
    from rapport.pipeline.session import SparkSettings
    from rapport.policy.lifecycle.registry import RecordedChange
    from rapport.site.site import Site
    from rapport.tables.row_history import RowsVersion


class BacktestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command as it was given."""

    directory: Path
    policy: str
    history: str | None = None
    compare: str | None = None
    sweep: str | None = None
    writes_lines: bool = False
    """With --out."""
    since: int | None = None
    until: int | None = None
    engine: Literal["local", "spark"] = "local"
    master: str | None = None
    partitions: int | None = None
    lateness_ms: int | None = None
    zone: str = "UTC"
    show: int = 10
    explain: int = 0
    tables: Literal["now", "then"] | None = None
    """Which rows tables have; None: those of then where they are on record."""

    def check(self) -> None:
        """Raises InvalidInput for what does not go together."""
        time_zone(self.zone)
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidInput(
                f"--from {format_time(self.since)} is not before --to {format_time(self.until)}",
                code="backtest.bad_period",
                hint="--from is the earlier of the two; --to itself is left out",
            )
        about_one = {
            "--compare": self.compare is not None,
            "--explain": self.explain > 0,
            "--out": self.writes_lines,
        }
        other = [name for name, is_given in about_one.items() if is_given]
        if self.sweep is not None and other:
            raise wrong_use(
                f"{other[0]} is about one policy, not about the values of --sweep",
                f"leave out {other[0]} or --sweep",
            )
        given = {"--master": self.master, "--partitions": self.partitions}
        wrong = [name for name, value in given.items() if value is not None]
        if wrong and self.engine == "local":
            raise wrong_use(f"{wrong[0]} is about Spark", "add --engine spark")

    def period(self) -> Window | None:
        """The times asked for; None: all."""
        if self.since is None and self.until is None:
            return None
        begin = BEGIN_OF_TIME if self.since is None else self.since
        return Window(begin, END_OF_TIME if self.until is None else self.until)

    def command(self) -> tuple[str, ...]:
        """What to type for the same about another period."""
        parts = ["rapport", "backtest", self.policy]
        options = {
            "--site": None if str(self.directory) == "." else str(self.directory),
            "--history": self.history,
            "--compare": self.compare,
        }
        for name, value in options.items():
            parts += [] if value is None else [name, value]
        return tuple(parts)


class PreparedBacktest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to run, checked; nothing was read yet but headings and footers."""

    asked: BacktestRequest
    site: Site
    contenders: list[Contender]
    by: list[str]
    work: BackTestWork
    calendar: Calendar
    problems: list[Problem]
    sweep: Sweep | None = None
    """The contenders are the policy with each of its values."""
    policy: Contender
    """The one that was asked for."""

    def report_tables(self, first: int | None) -> None:
        """Prints which rows tables had, `first` being the time of the first reading."""
        report_tables(self.work.then, first)

    def spark_settings(self) -> SparkSettings:
        """How Spark would be started."""
        from rapport.pipeline.session import load_spark_settings

        return load_spark_settings(
            self.site.file.section("spark").values,
            flags={"master": self.asked.master},
            environment=os.environ,
        )

    def run(self) -> BackTestRun:
        """Carries it out, with a bar on stderr."""
        wish = BackTestRequest(
            show=self.asked.show,
            explain=self.asked.explain,
            zone=self.asked.zone,
            engine=self.asked.engine,
            command=self.asked.command(),
        )
        timed = _RunTimer()
        with self._engine() as run:
            made = make(self.work, self.contenders, self.by, timed.of(run), self.calendar, wish)
        result = msgspec.structs.replace(made.told, seconds=timed.seconds)
        return msgspec.structs.replace(made, told=result)

    def run_sweep(self) -> SweepResult:
        """All values of the sweep in one scan."""
        assert self.sweep is not None
        timed = _RunTimer()
        with self._engine() as run:
            made = run_sweep(
                self.work,
                self.sweep,
                self.policy,
                self.contenders,
                timed.of(run),
                engine=self.asked.engine,
                zone=self.asked.zone,
            )
        return msgspec.structs.replace(made, seconds=timed.seconds)

    @contextmanager
    def _engine(self) -> Iterator[Callable[[BackTestWork], BackTestFound]]:
        total = total_rows(self.work)

        def here(work: BackTestWork) -> BackTestFound:
            with progress_bar("back-test", total) as progress:
                return run_here(work, progress)

        if self.asked.engine == "local":
            yield here
            return
        from rapport.pipeline.session import running_spark

        settings = self.spark_settings()
        with running_spark(settings) as spark:
            page = spark.sparkContext.uiWebUrl if settings.ui_port else None
            if page:
                print_note(f"Spark's own page: {page}")
                if wants_progress_lines():
                    write_progress(Progress(spark_ui=page))

            def there(work: BackTestWork) -> BackTestFound:
                with progress_bar("back-test on Spark", total) as progress:
                    return run_on_spark(
                        spark, work, partitions=self.asked.partitions, progress=progress
                    )

            yield there


class _RunTimer:
    """How long the run took: from the first reading to the last finding, without Spark's start."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def of(
        self, run: Callable[[BackTestWork], BackTestFound]
    ) -> Callable[[BackTestWork], BackTestFound]:
        def timed(work: BackTestWork) -> BackTestFound:
            clock = SystemClock()
            begin = clock.steady_ns()
            found = run(work)
            self.seconds = (clock.steady_ns() - begin) / 1e9
            return found

        return timed


def prepare(request: BacktestRequest) -> PreparedBacktest:
    """Finds policies and history; raises their faults."""
    from rapport.policy.table_history import check_context_on_record
    from rapport.site.site import load_site

    site = load_site(request.directory, policies=[], refusing_policies=False)
    contenders, by = _contenders(request, site)
    policy, sweep = contenders[0], None
    if request.sweep is not None:
        sweep = Sweep.parse(request.sweep)
        contenders = swept(
            policy, sweep, site.ontology.concepts, lambda text: with_text(site, policy, text)
        )
    history = find_history(site, request.history, _in_force(request, site))
    plans = [one.plan for one in contenders]
    checked = plans if sweep is None else [policy.plan]
    problems = check_history(history, checked, request.period())
    work = BackTestWork.of(
        site, plans, history, lateness_ms=request.lateness_ms, period=request.period()
    )
    versions = _rows_on_record(request, site, work)
    check_context_on_record(site.tables, plans, versions, "a back-test")
    if request.tables == "then" and not versions:
        raise no_rows_on_record()
    if versions:
        from rapport.policy.table_history import TableHistory

        work = msgspec.structs.replace(work, then=TableHistory(site.tables, versions))
    return PreparedBacktest(
        asked=request,
        site=site,
        contenders=contenders,
        by=by,
        work=work,
        calendar=Calendar(time_zone(request.zone)),
        problems=problems,
        sweep=sweep,
        policy=policy,
    )


def _rows_on_record(
    request: BacktestRequest, site: Site, work: BackTestWork
) -> Sequence[RowsVersion]:
    """The rows that tables had while the lake was filled; recorded files do not hold them."""
    from rapport.cli.explain import read_history
    from rapport.policy.table_history import versions_on_record

    lake, window = work.history.lake, work.window()
    if lake is None or request.tables == "now":
        return []

    async def read(channels: Channels) -> Sequence[RowsVersion]:
        since = None if window is None or window.begin <= BEGIN_OF_TIME else window.begin
        return await versions_on_record(channels, since=since)

    places = [str(lake)]
    if lake.resolve() == (site.data_directory / "lake").resolve():
        places = ["", *places]  # its log says what was not exported yet
    for place in places:
        try:
            return read_history(request.directory, place or None, read)[0]
        except (InvalidInput, Corrupt):
            continue
    return []


def _contenders(request: BacktestRequest, site: Site) -> tuple[list[Contender], list[str]]:
    def on_record() -> Sequence[RecordedChange]:
        return _changes(request.directory)

    found, by = [choose(site, request.policy, on_record)], list[str]()
    if request.compare is not None:
        first, second, by = opponents(found[0], choose(site, request.compare, on_record))
        found = [first, second]
    return found, by


def _changes(directory: Path) -> Sequence[RecordedChange]:
    """What the site's log has about policies; nothing where there is no log."""
    from rapport.cli.local_site import read_channels
    from rapport.policy.explain.policy_versions import changes_on_record

    try:
        return read_channels(directory, changes_on_record)
    except InvalidInput as error:
        if error.code != "channel.no_log":
            raise
        return []


def _in_force(request: BacktestRequest, site: Site) -> ActiveInterpretations | None:
    """The interpretations that the node has on record, where some file can need one."""
    raw = any(source.interpretation for source in site.ontology.sources.values())
    if request.history is None or not raw:
        return None
    from rapport.cli.local_site import in_force_at

    return in_force_at(request.directory, site)[1]


_MOST_FILES = 10


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that would be read."""

    path: str
    feed: str
    bytes: int
    rows: int | None
    first: str | None
    last: str | None


class BacktestPlan(msgspec.Struct, frozen=True, kw_only=True):
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


def planned(prepared: PreparedBacktest) -> BacktestPlan:
    """Nothing is read but headings and footers."""
    request, work = prepared.asked, prepared.work
    on_spark = request.engine == "spark"
    return BacktestPlan(
        policies={one.label: version_of(one) for one in prepared.contenders},
        history=work.history.label,
        kind=work.history.kind,
        engine=request.engine,
        master=prepared.spark_settings().master if on_spark else None,
        partitions=request.partitions,
        streams=streams_of(work.plans),
        rows=work.history.rows(),
        rows_read=total_rows(work),
        spreading=[
            line
            for one in prepared.contenders
            for line in explain_run(
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


def show_plan(console: Console, plan: BacktestPlan) -> None:
    for line in _lines(plan):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _lines(plan: BacktestPlan) -> list[str]:
    where = f"Spark at {plan.master}" if plan.master else "this process"
    versions = ", ".join(f"{label} (version {name})" for label, name in plan.policies.items())
    lines = [
        f"policies   {versions}",
        f"reading    {', '.join(plan.streams)}",
        f"history    {plan.history}: {plan.kind}, {len(plan.files):,} files, "
        f"{sum(file.bytes for file in plan.files) / 1e6:,.1f} MB, {_rows(plan)}",
        f"where      {where}" + (f", {plan.partitions} parts" if plan.partitions else ""),
    ]
    lines += [f"spread     {line}" for line in plan.spreading]
    for file in plan.files[:_MOST_FILES]:
        span = "" if file.first is None else f", {file.first[:19]} to {(file.last or '')[:19]}"
        rows = "rows unknown" if file.rows is None else f"{file.rows:,} rows"
        lines.append(f"  {file.path}  {file.feed}, {rows}{span}")
    if len(plan.files) > _MOST_FILES:
        lines.append(f"  and {len(plan.files) - _MOST_FILES:,} more files")
    return lines


def _rows(plan: BacktestPlan) -> str:
    if plan.rows is None:
        return "rows not known before they are read"
    if plan.rows_read is None or plan.rows_read == plan.rows:
        return f"{plan.rows:,} rows"
    return f"{plan.rows_read:,} of {plan.rows:,} rows"


_SIGNS = ("·", "░", "▒", "▓", "█")
_COLOURS = ("bright_black", "#7d9fc9", "#a8a86b", "#d9b53f", "#ffe945")
"""The order of cividis: brightness shows the same as the hue, for every kind of eye."""
_MARKS = {"first": ("-", "red"), "second": ("+", "green")}
_MOST_DAYS = 15


class BacktestText:
    """Shows a back-test as lines of text."""

    def __init__(self, result: BackTest, calendar: Calendar, console: Console) -> None:
        self._told, self._calendar, self._console = result, calendar, console

    def show(self) -> None:
        self._print(self._headline())
        for tally in self._told.tallies:
            self._tally(tally)
        if self._told.comparison is None:
            self._list(self._told.examples, self._told.tallies[0].detections)
        else:
            self._comparison(self._told.comparison)

    def _print(self, text: Text | str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _headline(self) -> Text:
        result = self._told
        parts = [f"{result.events:,} readings"]
        if result.span is not None:
            first, last = (self._calendar.clock(time)[:19] for time in result.span)
            parts.append(f"{first} to {last} ({result.zone})")
        if result.late:
            parts.append(f"{result.late:,} came too late to count")
        return Text(", ".join(parts))

    def _tally(self, tally: Tally) -> None:
        days = len(tally.days)
        on = f" on {days:,} day{'s' * (days != 1)}" if days else ""
        count = f"{tally.detections:,} {_noun(tally)}{'s' * (tally.detections != 1)}"
        self._print(Text.assemble("\n", (tally.label, "bold"), f"  {count}{on}"))
        for line in self._besides(tally):
            self._print(Text(f"  {line}", "yellow"))
        if tally.detections:
            self._print("")
            for row in self._calendar_rows(tally.days):
                self._print(row)
            self._print("")
            for row in _hour_rows(tally.hours):
                self._print(row)
            self._print("")
            for one in tally.who:
                top = ", ".join(f"{identity} {count:,}" for identity, count in one.top)
                more = f", and {one.others:,} more" if one.others else ""
                self._print(Text.assemble("  ", (one.alias, "bold"), f"  {top}{more}"))

    def _besides(self, tally: Tally) -> list[str]:
        lines = []
        if tally.episodes is not None and tally.episodes.episodes:
            lines.append(episodes_text(tally.episodes))
        if tally.undecided:
            silent = f", since nothing came from {', '.join(tally.silent)}" if tally.silent else ""
            lines.append(f"{tally.undecided:,} undecided{silent}")
        if tally.suppressed:
            period = duration(tally.once_per_ms or 0)
            lines.append(f"{tally.suppressed:,} left out, at most once per {period}")
        return lines

    def _calendar_rows(self, days: dict[str, int]) -> list[Text]:
        span = self._told.span
        if span is None:
            return []
        first, last = self._calendar.day_of(span[0]), self._calendar.day_of(span[1])
        first, last = min([first, *days]), max([last, *days])
        most = max(days.values(), default=0)
        marks = {1: "1", 5: "5", **{day: str(day) for day in range(10, 31, 5)}}
        heading = "".join(f"{marks.get(day, ''):<2}" for day in range(1, 32))
        rows = [Text(f"  {'':7}  {heading}", "dim")]
        for month in months(days, first, last):
            cells = [_cell(count, most) for count in month.days]
            cells += [("  ", "")] * (31 - len(cells))
            rows.append(Text.assemble(f"  {month.name}  ", *cells, f"  {month.total:>7,}"))
        return [*rows, _legend(most)]

    def _list(self, examples: Sequence[Example], count: int) -> None:
        if not examples:
            return
        self._print("")
        for one in examples:
            self._example("  ", one)
        if count > len(examples):
            left = count - len(examples)
            self._print(Text(f"  and {left:,} more; --show N, or all with --out FILE", "dim"))
        self._explained(examples)

    def _example(self, mark: str, one: Example, style: str = "") -> None:
        about = bindings_text(one.detection.bindings) or "nobody in particular"
        when = self._calendar.clock(one.detection.time)
        lasted = lasted_text(one)
        self._print(Text.assemble((mark, style), (when, "cyan"), "  ", (about, "bold"), lasted))

    def _explained(self, examples: Sequence[Example]) -> None:
        """Those that are explained, else the command that explains the first."""
        for one in examples:
            if one.why is None:
                continue
            self._print(Text(f"\nWhy {one.why.policy} fired", "bold"))
            if one.why.situation is not None:
                self._evidence(one.why.situation)
            elif one.why.held is None:
                self._print(Text("  the readings around it do not tell", "yellow"))
            else:
                self._console.print(candidate_tree(one.why.held))
            if one.why_not is not None:
                self._why_not(one.why_not)
        if examples[0].command and all(one.why is None for one in examples):
            self._print(Text(f"\nwhy: {examples[0].command}", "dim"))

    def _evidence(self, evidence: SituationEvidence) -> None:
        for line in evidence_lines(evidence):
            self._print(Text(f"  {line}"))

    def _why_not(self, answer: WhyNotAnswer) -> None:
        if answer.situation is not None:
            head = f"\n{answer.policy} at the time: the situation is {answer.situation.truth}"
            self._print(Text(head, "bold"))
            self._evidence(answer.situation)
            return
        did = "fired, too" if answer.fired else "did not"
        self._print(Text(f"\nWhy {answer.policy} {did}", "bold"))
        shown = answer.fired or answer.candidates
        if shown:
            self._console.print(candidate_tree(shown[0]))
        else:
            self._print(Text("  nobody came near", "yellow"))
        if answer.nearest is not None and not answer.fired:
            self._print(f"Nearest miss: {answer.nearest.text}, and it would have fired")

    def _comparison(self, found: Comparison) -> None:
        first, second = (tally.label for tally in self._told.tallies)
        what = "episodes that overlap" if found.of_episodes else "found by both"
        counts = f"{found.both:,} {what}, {found.only_first:,} only by {first} (-), "
        counts += f"{found.only_second:,} only by {second} (+)"
        self._print(Text.assemble("\n", ("compared", "bold"), f"  {counts}"))
        differing = [(day, counts) for day, counts in found.days.items() if any(counts[1:])]
        for day, (both, ours, theirs) in differing[:_MOST_DAYS]:
            line = f"  {day}  {both:>7,} both"
            self._print(Text.assemble(line, (f"  -{ours:<7,}", "red"), (f"  +{theirs:,}", "green")))
        if len(differing) > _MOST_DAYS:
            left = len(differing) - _MOST_DAYS
            self._print(Text(f"  and {left:,} more days on which they differ", "dim"))
        if found.examples:
            self._print("")
        for one in found.examples:
            mark, style = _MARKS[one.found_by]
            self._example(f"  {mark} ", one, style)
        left = found.only_first + found.only_second - len(found.examples)
        if left:
            self._print(Text(f"  and {left:,} more; --show N, or all with --out FILE", "dim"))
        if found.examples:
            self._explained(found.examples)


def _noun(tally: Tally) -> str:
    return "detection" if tally.episodes is None else "episode"


def show_sweep(console: Console, result: SweepResult, calendar: Calendar) -> None:
    span = ""
    if result.first is not None and result.last is not None:
        first, last = (calendar.clock(time)[:19] for time in (result.first, result.last))
        span = f", {first} to {last} ({result.zone})"
    lasting = any(one.figures is not None for one in result.rows)
    heads = ["value", "episodes", "hours", "longest", "still open"]
    table = [heads if lasting else ["value", "detections"]]
    for one in result.rows:
        figures = one.figures
        row = [one.value, f"{one.detections:,}"]
        if figures is not None:
            row += [
                f"{figures.total_ms / 3_600_000:,.1f}",
                duration(figures.longest_ms),
                f"{figures.open:,}",
            ]
        table.append(row)
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    lines = [
        Text(f"{result.events:,} readings{span}"),
        Text.assemble("\n", (result.policy, "bold"), f"  with other values of {result.constant}"),
        Text(""),
    ]
    for number, row in enumerate(table):
        cells = [row[0].rjust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        text = f"  {'   '.join(cells)}"
        lines.append(Text(text, "dim" if number == 0 else ""))
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _cell(count: int | None, most: int) -> tuple[str, str]:
    """Two signs for a day or an hour: how much by their darkness."""
    if count is None:
        return "  ", ""
    shade = level(count, most)
    return _SIGNS[shade] * (2 if shade else 1) + " " * (not shade), _COLOURS[shade]


def _legend(most: int) -> Text:
    parts: list[tuple[str, str] | str] = ["           ", (_SIGNS[0], _COLOURS[0]), " none"]
    for low, high in shades(most):
        shade = level(high, most)
        parts += ["   ", (_SIGNS[shade] * 2, _COLOURS[shade]), f" {low:,}"]
        parts += [f"-{high:,}"] if high > low else []
    return Text.assemble(*parts)


def _hour_rows(hours: Sequence[Sequence[int]]) -> list[Text]:
    most = max(max(row) for row in hours)
    heading = "".join(f"{hour if hour % 6 == 0 else '':<2}" for hour in range(24))
    rows = [Text(f"  {'':7}  {heading}", "dim")]
    for name, row in zip(WEEKDAYS, hours, strict=True):
        cells = [_cell(count, most) for count in row]
        rows.append(Text.assemble(f"  {name:7}  ", *cells, f"  {sum(row):>7,}"))
    return rows
