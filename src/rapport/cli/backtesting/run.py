"""What a back-test is asked, and how it is carried out for a site. [PI-9, UX-3]"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from rapport.cli.backtesting.progress import watched
from rapport.cli.replaying.run import no_rows_on_record, tell_tables
from rapport.cli.replaying.text import time_zone
from rapport.cli.terminal import stderr
from rapport.core.errors import Corrupt, InvalidInput, Problem
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.pipeline.backtest.finding import check_history, find_history
from rapport.pipeline.backtest.history import BEGIN_OF_TIME, Window
from rapport.pipeline.backtest.making import Made, Wish, make
from rapport.pipeline.backtest.policies import Contender, choose, opponents
from rapport.pipeline.backtest.run import Found, Work, run_here, run_on_spark, total_rows
from rapport.pipeline.drawing.calendar import Calendar
from rapport.policy.operators.base import END_OF_TIME

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.mediation.interpretations.repository import ActiveInterpretations
    from rapport.pipeline.settings import SparkSettings
    from rapport.policy.lifecycle.registry import RecordedChange
    from rapport.site.site import Site
    from rapport.tables.row_history import RowsVersion


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The command as it was given."""

    directory: Path
    policy: str
    history: str | None = None
    compare: str | None = None
    begin: int | None = None
    end: int | None = None
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
        if self.begin is not None and self.end is not None and self.begin >= self.end:
            raise InvalidInput(
                f"--from {format_time(self.begin)} is not before --to {format_time(self.end)}",
                code="backtest.bad_period",
                hint="--from is the earlier of the two; --to itself is left out",
            )
        given = {"--master": self.master, "--partitions": self.partitions}
        wrong = [name for name, value in given.items() if value is not None]
        if wrong and self.engine == "local":
            raise InvalidInput(
                f"{wrong[0]} is about Spark", code="cli.wrong_use", hint="add --engine spark"
            )

    def period(self) -> Window | None:
        """The times asked for; None: all."""
        if self.begin is None and self.end is None:
            return None
        begin = BEGIN_OF_TIME if self.begin is None else self.begin
        return Window(begin, END_OF_TIME if self.end is None else self.end)

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


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to run, checked; nothing was read yet but headings and footers."""

    asked: Asked
    site: Site
    contenders: list[Contender]
    by: list[str]
    work: Work
    calendar: Calendar
    problems: list[Problem]

    def tell_tables(self, first: int | None) -> None:
        """Says once which rows tables had, `first` being the time of the first reading."""
        tell_tables(self.work.then, first)

    def spark_settings(self) -> SparkSettings:
        """How Spark would be started."""
        from rapport.pipeline.settings import load_spark_settings

        return load_spark_settings(
            self.site.file.section("spark").values,
            flags={"master": self.asked.master},
            environment=os.environ,
        )

    def run(self) -> Made:
        """Carries it out, with a bar on stderr."""
        wish = Wish(
            show=self.asked.show,
            explain=self.asked.explain,
            zone=self.asked.zone,
            engine=self.asked.engine,
            command=self.asked.command(),
        )
        timed = _Timed()
        with self._engine() as run:
            made = make(self.work, self.contenders, self.by, timed.of(run), self.calendar, wish)
        told = msgspec.structs.replace(made.told, seconds=timed.seconds)
        return msgspec.structs.replace(made, told=told)

    @contextmanager
    def _engine(self) -> Iterator[Callable[[Work], Found]]:
        total = total_rows(self.work)

        def here(work: Work) -> Found:
            with watched("back-test", total) as progress:
                return run_here(work, progress)

        if self.asked.engine == "local":
            yield here
            return
        from rapport.pipeline.session import running_spark

        settings = self.spark_settings()
        with running_spark(settings) as spark:
            page = spark.sparkContext.uiWebUrl if settings.ui_port else None
            if page:
                stderr().print(f"Spark's own page: {page}", highlight=False, soft_wrap=True)

            def there(work: Work) -> Found:
                with watched("back-test on Spark", total) as progress:
                    return run_on_spark(
                        spark, work, partitions=self.asked.partitions, progress=progress
                    )

            yield there


class _Timed:
    """How long the run took: from the first reading to the last finding, without Spark's start."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def of(self, run: Callable[[Work], Found]) -> Callable[[Work], Found]:
        def timed(work: Work) -> Found:
            clock = SystemClock()
            begin = clock.steady_ns()
            found = run(work)
            self.seconds = (clock.steady_ns() - begin) / 1e9
            return found

        return timed


def prepare(asked: Asked) -> Prepared:
    """Finds policies and history; raises what is wrong with them."""
    from rapport.policy.table_history import check_context_on_record
    from rapport.site.site import load_site

    site = load_site(asked.directory, policies=[], refusing_policies=False)
    contenders, by = _contenders(asked, site)
    history = find_history(site, asked.history, _in_force(asked, site))
    plans = [one.plan for one in contenders]
    problems = check_history(history, plans, asked.period())
    work = Work.of(site, plans, history, lateness_ms=asked.lateness_ms, period=asked.period())
    versions = _rows_on_record(asked, site, work)
    check_context_on_record(site.tables, plans, versions, "a back-test")
    if asked.tables == "then" and not versions:
        raise no_rows_on_record()
    if versions:
        from rapport.policy.table_history import TableHistory

        work = msgspec.structs.replace(work, then=TableHistory(site.tables, versions))
    return Prepared(
        asked=asked,
        site=site,
        contenders=contenders,
        by=by,
        work=work,
        calendar=Calendar(time_zone(asked.zone)),
        problems=problems,
    )


def _rows_on_record(asked: Asked, site: Site, work: Work) -> Sequence[RowsVersion]:
    """The rows that tables had while the lake was filled; recorded files say nothing of that."""
    from rapport.cli.explaining.reading import read_history
    from rapport.policy.table_history import versions_on_record

    lake, window = work.history.lake, work.window()
    if lake is None or asked.tables == "now":
        return []

    async def read(channels: Channels) -> Sequence[RowsVersion]:
        since = None if window is None or window.begin <= BEGIN_OF_TIME else window.begin
        return await versions_on_record(channels, since=since)

    places = [str(lake)]
    if lake.resolve() == (site.data_directory / "lake").resolve():
        places = ["", *places]  # its log says what was not exported yet
    for place in places:
        try:
            return read_history(asked.directory, place or None, read)[0]
        except (InvalidInput, Corrupt):
            continue
    return []


def _contenders(asked: Asked, site: Site) -> tuple[list[Contender], list[str]]:
    def on_record() -> Sequence[RecordedChange]:
        return _changes(asked.directory)

    first = choose(site, asked.policy, on_record)
    if asked.compare is None:
        return [first], []
    first, second, by = opponents(first, choose(site, asked.compare, on_record))
    return [first, second], by


def _changes(directory: Path) -> Sequence[RecordedChange]:
    """What the site's log has about policies; nothing where there is no log."""
    from rapport.cli.local import read_channels
    from rapport.policy.explain.policy_versions import changes_on_record

    try:
        return read_channels(directory, changes_on_record)
    except InvalidInput as error:
        if error.code != "channel.no_log":
            raise
        return []


def _in_force(asked: Asked, site: Site) -> ActiveInterpretations | None:
    """The interpretations that the node has on record, where some file can need one."""
    raw = any(source.interpretation for source in site.ontology.sources.values())
    if asked.history is None or not raw:
        return None
    from rapport.cli.meaning.in_force import in_force_at

    return in_force_at(asked.directory, site)[1]
