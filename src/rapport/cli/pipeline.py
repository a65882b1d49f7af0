"""`rapport pipeline`: export to the lake, jobs on Spark, mediation of raw history, SQL queries and
reports. [PI-3, PI-4, PI-6, PI-12, ME-14, CH-16, CO-18]
"""

from __future__ import annotations

import csv
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption, SiteOption, site_directory
from rapport.cli.hints import unknown, wrong_use
from rapport.cli.local_site import data_directory, read_channels
from rapport.cli.output import (
    print_line,
    print_note,
    show_problem,
    show_problems,
    stderr,
    write_bytes,
    write_json,
    write_table,
)
from rapport.core.errors import InvalidInput, SiteError
from rapport.core.times import format_time, rough_duration
from rapport.kernel.clock import SystemClock
from rapport.kernel.telemetry import configure_logs
from rapport.kernel.toml import TomlFile
from rapport.site.pipeline import (
    BY_NODE,
    JobStatus,
    RunPlaces,
    RunStatus,
    is_held,
    pipeline_settings,
    read_status,
    run_state,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from rapport.lake.bronze import ExportResult
    from rapport.lake.catalogue import TableInfo
    from rapport.pipeline.figures.reports import Report
    from rapport.pipeline.mediation.meanings import Meanings
    from rapport.pipeline.mediation.mediated_files import MediatedHistory
    from rapport.pipeline.running.plan import RunPlan
    from rapport.pipeline.running.run import RunWanted

MasterOption = Annotated[str | None, Parameter(help="Where Spark runs, such as local[2].")]
DryRunOption = Annotated[bool, Parameter(help="Only tell what would be done.")]

app = App(name="pipeline", help="History on Spark: export, lake, questions, report.")


@app.command
def export(
    *,
    site: SiteOption = None,
    engine: Annotated[
        Literal["local", "spark"], Parameter(help="spark: a task for each range of a channel.")
    ] = "local",
    master: MasterOption = None,
) -> None:
    """Append what the channels hold beyond the last export to the lake's tables."""
    directory = site_directory(site)
    if engine == "local":
        write_json(export_site(directory))
        return
    from rapport.pipeline.lake.bronze_job import export_by_spark

    lake = lake_directory(directory)
    with spark_for(directory, master) as spark:
        write_json(_exported(lake, export_by_spark(spark, directory, lake)))


def export_site(site: Path) -> dict[str, object]:
    """Exports a site's channels into its lake; returns what was done."""
    from rapport.lake.bronze import export_channels

    lake = data_directory(site) / "lake"
    return _exported(lake, read_channels(site, lambda channels: export_channels(channels, lake)))


def _exported(lake: Path, done: ExportResult) -> dict[str, object]:
    return {"lake": str(lake), "rows": done.rows, "files": done.files, "positions": done.positions}


@app.command
def convert(
    *,
    site: SiteOption = None,
    lake: Annotated[Path | None, Parameter(help="A lake without a site.")] = None,
    json: JsonOption = False,
) -> None:
    """Convert a lake of an earlier version into Delta tables.

    Bronze is rewritten table by table, silver and gold are made anew from it by their jobs. The
    former files stay in `former/` of the lake until you delete them.
    """
    from rapport.lake.conversion import convert_lake

    done = convert_lake(_chosen(lake, site))
    _report_export(done, json=json)


@app.command
def silver(
    *,
    site: SiteOption = None,
    master: MasterOption = None,
    rebuild: Annotated[bool, Parameter(help="Make silver anew from bronze.")] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> int:
    """Load new events of the lake into silver and gold.

    Take what the lake's bronze has beyond the last run into silver: typed readings, each once,
    with what became of them; and detections into gold.
    """
    from rapport.pipeline.lake.silver import silver_due, update_silver
    from rapport.site.site import load_site

    directory = site_directory(site)
    lake = lake_directory(directory)
    if dry_run:
        _report_export(silver_due(lake), json=json)
        return 0
    ontology = load_site(directory).ontology
    with spark_for(directory, master) as spark, progress_bar("silver") as progress:
        done = update_silver(spark, lake, ontology, rebuild=rebuild, progress=progress)
    _report_export(done, json=json)
    show_problems(done.problems)
    return int(bool(done.problems))


@app.command
def explain(
    job: Annotated[
        Literal["export", "silver", "figures", "history", "live", "expire", "compact", "vacuum"],
        Parameter(help="Which job; history: the site's policies over silver."),
    ] = "silver",
    /,
    *,
    site: SiteOption = None,
    master: MasterOption = None,
) -> None:
    """Print the physical plan of a job, and which steps are Python and why."""
    from rapport.lake.places import Lake
    from rapport.pipeline.explain import WITHOUT_SPARK, explain_job
    from rapport.site.site import load_site

    if job in WITHOUT_SPARK:
        print(f"Not a job of Spark. {WITHOUT_SPARK[job]}")
        return
    directory = site_directory(site)
    with spark_for(directory, master) as spark:
        lake = Lake.at(lake_directory(directory))
        print(explain_job(spark, load_site(directory), lake, job))


@app.command
def package(
    into: Annotated[Path, Parameter(help="Folder to write to.")] = Path("rapport-submit"),
    /,
    *,
    json: JsonOption = False,
) -> None:
    """Make what spark-submit needs: an archive and an entry point."""
    from rapport.pipeline.package import build_package

    made = build_package(into)
    if json:
        write_json(made)
        return
    print(f"{made.archive}\n{made.entry}\n{made.requirements}\n\n{made.command}")


@app.command
def compact(
    *,
    site: SiteOption = None,
    fewest: Annotated[int, Parameter(help="Leave days with fewer small files.")] = 4,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Merge small files of the lake into large ones.

    Readers see the old or the new files; the old ones are deleted after a week.
    """
    from rapport.lake.maintenance import compact as compact_lake

    done = compact_lake(lake_directory(site_directory(site)), fewest=fewest, dry_run=dry_run)
    _report_export(done, json=json)


@app.command
def expire(
    *,
    site: SiteOption = None,
    keep: Annotated[
        list[str] | None,
        Parameter(
            help="Table or layer and days, such as bronze/raw.*=30; may be given often. Otherwise "
            "what [pipeline.keep] of the site says."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Delete old days of the lake.

    Let go of days of the lake that are older than said; never of what silver has not taken.
    """
    from rapport.lake.maintenance import expire as expire_lake
    from rapport.lake.maintenance import read_rules
    from rapport.pipeline.lake.silver import silver_positions

    directory = site_directory(site)
    rules = read_rules(keep) if keep else _kept_by_site(directory)
    lake = lake_directory(directory)
    done = expire_lake(lake, rules, taken=silver_positions(lake), dry_run=dry_run)
    _report_export(done, json=json)
    for table, why in done.waiting.items():
        print_note(f"{table} stays: {why}")


def _kept_by_site(directory: Path) -> dict[str, int]:
    from rapport.site.site import load_site

    rules = pipeline_settings(load_site(directory).file)[0].keep
    if not rules:
        raise InvalidInput(
            "nothing says how long to keep what",
            code="lake.no_rules",
            hint="add --keep bronze/raw.*=30, or [pipeline.keep] to the site file",
        )
    return rules


def lake_directory(site: Path) -> Path:
    return data_directory(site) / "lake"


@contextmanager
def spark_for(site: Path | None, master: str | None) -> Iterator[SparkSession]:
    """A session with the site's settings, if there is one."""
    from rapport.pipeline.session import load_spark_settings, running_spark

    declared = {} if site is None else TomlFile.load(site / "site.toml").section("spark").values
    settings = load_spark_settings(declared, flags={"master": master}, environment=os.environ)
    print_note("starting Spark …")
    with running_spark(settings) as spark:
        yield spark


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where somebody can see it; otherwise nothing."""
    from rich.progress import Progress

    console = stderr()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def _report_export(done: Any, *, json: bool) -> None:
    """What was done: a line for each figure, or JSON."""
    if json:
        write_json(done)
        return
    status = msgspec.structs.asdict(done)
    rows = [(name.replace("_", " "), _shown(value)) for name, value in status.items()]
    write_table("lake", ("what", "how much"), [row for row in rows if row[1]])


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    if isinstance(value, tuple):
        return str(len(value)) if value else ""
    return str(value)


@app.command
def mediate(
    *what: Annotated[
        str, Parameter(help="SOURCE=FILE or SOURCE=FOLDER of recorded raw events, or SOURCE.")
    ],
    into: Annotated[Path | None, Parameter(help="Folder to write to; must not be there.")] = None,
    explain: Annotated[
        bool, Parameter(help="Only show which steps are columns of Spark, which Python, and why.")
    ] = False,
    site: SiteOption = None,
    master: MasterOption = None,
    json: JsonOption = False,
) -> int:
    """Mediate raw history with the present interpretations.

    Give raw history its meaning by the site's interpretations of now: files that were recorded,
    or the raw events of the site's lake. The same readings and reasons as in the node.
    """
    from rapport.pipeline.mediation.meanings import meanings_of_site
    from rapport.site.raw_files import naming_of
    from rapport.site.site import load_site

    directory = site_directory(site)
    loaded = load_site(directory)
    meanings = meanings_of_site(loaded)
    files, sources = _files_or_sources(meanings, what)
    if explain:
        _explain(meanings, [*files, *sources] or None, json=json)
        return 0
    if into is None:
        raise wrong_use(
            "nothing says where the readings go",
            "add --into FOLDER, or --explain to see how it would be done",
        )
    with spark_for(directory, master) as spark:
        from rapport.pipeline.mediation.mediated_files import mediate_files, mediate_lake

        if files:
            named = {naming_of(loaded.file, name): paths for name, paths in files.items()}
            done = mediate_files(spark, meanings, named, into)
        else:
            lake = lake_directory(directory)
            done = mediate_lake(spark, meanings, lake, into, sources=sources or None)
    _report_mediation(done, json=json)
    return 1 if done.rejected else 0


def _files_or_sources(
    meanings: Meanings, what: tuple[str, ...]
) -> tuple[dict[str, list[Path]], list[str]]:
    """Files by source, or names of sources; raises InvalidInput for a mixture or an unknown one."""
    from rapport.policy.recordings.files import READERS

    files: dict[str, list[Path]] = {}
    names: list[str] = []
    for each in what:
        name, equals, rest = each.partition("=")
        if name not in meanings.bindings:
            raise unknown(
                "source",
                name,
                meanings.bindings,
                if_none="declare it in site.toml: [sources.NAME]",
                code="source.unbound",
            )
        if not equals:
            names.append(name)
            continue
        path = Path(rest)
        found = sorted(path.iterdir()) if path.is_dir() else [path]
        files.setdefault(name, []).extend(
            one for one in found if not path.is_dir() or one.suffix in READERS
        )
        if not files[name] or not path.exists():
            raise InvalidInput(
                f"there are no recorded files at {path}",
                code="cli.no_file",
                hint=f"{name}=FILE or {name}=FOLDER, files that end in {', '.join(READERS)}",
            )
    if files and names:
        raise wrong_use(
            "files and sources of the lake cannot be mixed",
            f"write {names[0]}=FILE, or leave the files out",
        )
    return files, names


def _explain(meanings: Meanings, sources: list[str] | None, *, json: bool) -> None:
    from rapport.pipeline.mediation.source_plans import explain_mediation

    found = explain_mediation(meanings, sources)
    if json:
        write_json(found)
        return
    for each in found:
        for line in each.lines():
            print_line(line)


def _report_mediation(done: MediatedHistory, *, json: bool) -> None:
    if json:
        write_json(done)
        return
    whole = sum(done.readings.values())
    share = f"{done.by_columns / whole:.0%}" if whole else "none"
    rows = [(f"readings of {name}", f"{count:,}") for name, count in done.readings.items()]
    rows += [(f"no meaning, {why}", f"{count:,}") for why, count in done.rejected.items()]
    rows += [("decided by Spark's columns alone", share), ("written to", done.into)]
    write_table("mediated", ("what", "how much"), rows)


LakeOption = Annotated[
    Path | None,
    Parameter(help="A lake without a site, such as that of experiments."),
]


@app.command
def tables(
    name: str | None = None,
    /,
    *,
    site: SiteOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
) -> int:
    """List the tables of the lake, or the columns of one."""
    from rapport.lake.catalogue import describe, lake_tables, table_named

    lake = _chosen(lake, site)
    chosen = lake_tables(lake) if name is None else [table_named(lake, name)]
    found = [describe(lake, table) for table in chosen]
    if json:
        write_json(found)
    elif name is None:
        _write_tables(found)
    else:
        _write_columns(found[0])
    problems = [problem for table in found for problem in table.problems]
    show_problems(problems)
    return int(bool(problems))


@app.command
def query(
    sql: str,
    /,
    *,
    site: SiteOption = None,
    engine: Annotated[Literal["duckdb", "spark"], Parameter(help="Who answers.")] = "duckdb",
    format: Annotated[Literal["table", "csv", "json"], Parameter(help="How.")] = "table",
    master: MasterOption = None,
    lake: LakeOption = None,
) -> None:
    """Ask the lake a question in SQL; `rapport pipeline tables` lists what can be named."""
    chosen = _chosen(lake, site)
    directory = site_directory(site) if lake is None else None
    _write_answer(_ask(sql, engine, chosen, directory, master), format)


def _chosen(lake: Path | None, site: Path | None) -> Path:
    if lake is None:
        return lake_directory(site_directory(site))
    if not lake.is_dir():
        raise wrong_use(
            f"{lake} is no lake", "name the folder that has bronze, silver or gold in it"
        )
    return lake


def _ask(sql: str, engine: str, lake: Path, site: Path | None, master: str | None) -> pa.Table:
    if engine == "duckdb":
        from rapport.lake.query import ask_duckdb

        return ask_duckdb(lake, sql)
    from rapport.pipeline.lake.query_spark import ask_spark

    with spark_for(site, master) as spark:
        return ask_spark(spark, lake, sql)


def _write_tables(found: Sequence[TableInfo]) -> None:
    rows = [
        (
            table.name,
            table.view,
            str(table.rows),
            str(table.files),
            _size(table.bytes),
            table.first_day,
            table.last_day,
        )
        for table in found
    ]
    write_table("lake", ("table", "in SQL", "rows", "files", "size", "from", "to"), rows)


def _write_columns(table: TableInfo) -> None:
    rows = [(one.name, one.type, one.unit, one.meaning) for one in table.columns]
    title = f"{table.name} ({table.view} in SQL): {table.rows} rows, {table.files} files, "
    title += f"{_size(table.bytes)}, {table.first_day} to {table.last_day}, version {table.version}"
    write_table(title, ("column", "type", "unit", "meaning"), rows)


def _write_answer(table: pa.Table, format: str) -> None:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    if format == "json":
        write_json([dict(zip(table.column_names, map(_plain, row), strict=True)) for row in rows])
        return
    texts = [[_text(value) for value in row] for row in rows]
    if format == "csv":
        # On a terminal and in a file alike: a question may give cells with anything in them.
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(texts)
        write_bytes(out.getvalue().encode())
        return
    flat = [[cell.replace("\t", " ").replace("\n", " ") for cell in row] for row in texts]
    write_table("answer", table.column_names, flat)
    sys.stdout.flush()


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        pairs = all(isinstance(one, tuple) and len(one) == 2 for one in value)
        if value and pairs:
            return {str(key): _plain(one) for key, one in value}
        return [_plain(one) for one in value]
    return value


def _text(value: object) -> str:

    if value is None:
        return ""
    if isinstance(value, list | dict | tuple):
        return msgspec.json.encode(_plain(value)).decode()
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "")
    return str(_plain(value))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


@app.command
def report(
    *,
    site: SiteOption = None,
    master: MasterOption = None,
    html: Annotated[
        Path | None,
        Parameter(help="File of the page; otherwise report.html in the data directory."),
    ] = None,
    export: Annotated[bool, Parameter(help="First export what the channels hold.")] = True,
    json: JsonOption = False,
) -> None:
    """Report what happened: headline figures, and a page with tables and plots.

    Export, then take what is new into the figures on Spark (without anything new no Spark is
    started): detections, deliveries, who answered how fast, quarantined and late readings, how the
    channels were used, and where messages came from.
    """
    from rapport.pipeline.figures.reports import current_report, make_report

    directory = site_directory(site)
    if html is not None:
        _refuse_unwritable(html)
    if export:
        print_note(f"exported {export_site(directory)['rows']} rows")
    lake = lake_directory(directory)
    made = current_report(lake)
    if made is None:
        with spark_for(directory, master) as spark, progress_bar("report") as progress:
            made = make_report(spark, lake, progress=progress)
    if html is None and not json:
        html = lake.parent / "report.html"
    if html is not None:
        _write_page(made, html, directory, lake)
    if json:
        write_json(made)
        return
    from rapport.pipeline.figures.text import headline_text

    print(f"{headline_text(made)}\n\nTables and plots: {html}")


def _write_page(made: Report, path: Path, site: Path, lake: Path) -> None:
    from rapport.lake.parquet_files import replaced_file
    from rapport.pipeline.figures.page import report_page

    name = TomlFile.load(site / "site.toml").section("site").values.get("name", site.name)
    page = report_page(made, site=str(name), lake_files=f"{lake / 'gold'}")
    with replaced_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _refuse_unwritable(path: Path) -> None:
    """Said before the work, not after it."""
    if path.is_dir():
        raise InvalidInput(
            f"{path} is a directory",
            code="report.bad_file",
            hint="name the file to write, such as report.html",
        )


_STOP_SECONDS, _START_SECONDS = 120, 120
_UI_PORT = 4040
OnceOption = Annotated[bool, Parameter(help="Do what is there now, then end.")]
LiveOption = Annotated[
    bool | None, Parameter(help="Run the policies that the site lets run there.")
]


@app.command
def run(
    *,
    site: SiteOption = None,
    once: OnceOption = False,
    live: LiveOption = None,
    master: MasterOption = None,
    dry_run: DryRunOption = False,
    log_json: Annotated[bool, Parameter(help="Logs as JSON lines.")] = False,
    json: JsonOption = False,
) -> int:
    """Run a site's jobs: live policies, history into the lake.

    Run a site's jobs: live policies, and history into the lake at intervals, until stopped.
    """
    from rapport.pipeline.running.plan import plan_run
    from rapport.pipeline.running.run import run_pipeline
    from rapport.site.site import load_site

    directory = site_directory(site)
    wanted = wanted_run(directory, once=once, live=live, master=master)
    if dry_run:
        _show_plan(plan_run(load_site(directory), wanted, SystemClock()), json=json)
        return 0
    os.umask(0o077)  # as a node does: tables and state are their owner's
    configure_logs(json=log_json)
    stop = threading.Event()

    def take_signals() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: stop.set())

    take_signals()
    status = run_pipeline(directory, wanted, stop=stop, started=take_signals)
    if json:
        write_json(status)
    elif once:
        _show_jobs(status.jobs)
    problems = [one.problem for one in status.jobs if one.problem is not None]
    show_problems(problems)
    # The status of a run that is ended by hand has shown its problems.
    return 1 if problems and once else 0


@app.command
def status(*, site: SiteOption = None, json: JsonOption = False) -> int:
    """Show what runs where, and how far each job is behind; 1 when nothing runs."""
    places = run_places(site_directory(site))
    status, runs = read_status(places), is_held(places.lock)
    state = run_state(status, runs=runs, now_ms=SystemClock().now_ms())
    if json:
        stopped = places.stop.exists()
        write_json({"state": state, "runs": runs, "stopped_by_hand": stopped, "told": status})
    else:
        _show_state(state, status, places)
        if status is not None:
            _show_jobs(status.jobs)
    if status is not None and status.problem is not None:
        show_problem(status.problem)
    return 0 if runs else 1


@app.command
def stop(
    *,
    site: SiteOption = None,
    wait: Annotated[int, Parameter(help="Seconds to wait for it.")] = _STOP_SECONDS,
) -> int:
    """Stop the process after its present batch.

    Ask the process to end after what it is doing, and wait. A node does not start it again
    before `rapport pipeline resume`.
    """
    from rapport.pipeline.running.run_state import ask_to_stop, wait_until

    places = run_places(site_directory(site))
    if not ask_to_stop(places):
        print_note("the pipeline does not run; it stays down until: rapport pipeline resume")
        return 0
    print_note("asked to end after what it is doing …")
    if wait_until(lambda: not is_held(places.lock), wait):
        print_note("the pipeline is down")
        return 0
    print_note(f"it has not ended within {wait} s; it will after its batch")
    return 1


@app.command
def resume(
    *,
    site: SiteOption = None,
    live: LiveOption = None,
    master: MasterOption = None,
    log_json: Annotated[bool, Parameter(help="Logs as JSON lines.")] = False,
) -> int:
    """Resume a stopped pipeline.

    Let a stopped pipeline go on from where it was: started by the site's node when that does
    it, here otherwise.
    """
    from rapport.pipeline.running.run_state import allow_start, wait_until

    places = run_places(site_directory(site))
    allow_start(places)
    if not is_held(places.watched):
        return run(site=site, live=live, master=master, log_json=log_json)
    print_note("the node starts it …")
    if wait_until(lambda: is_held(places.lock), _START_SECONDS):
        print_note("the pipeline is up")
        return 0
    print_note("it did not come up; the node's log says why")
    return 1


def wanted_run(directory: Path, *, once: bool, live: bool | None, master: str | None) -> RunWanted:
    """The run by the site and the flags."""
    from rapport.pipeline.running.run import RunWanted
    from rapport.pipeline.session import load_spark_settings

    file = TomlFile.load(directory / "site.toml")
    pipeline, problems = pipeline_settings(file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    # A process that stays has a page to look at, unless the site says otherwise.
    values = {} if once else {"ui_port": _UI_PORT}
    spark = load_spark_settings(
        values | dict(file.section("spark").values),
        flags={"master": master},
        environment=os.environ,
    )
    return RunWanted(
        pipeline=pipeline,
        spark=spark,
        once=once,
        live=pipeline.live if live is None else live,
        must_live=bool(live),
        by_hand=BY_NODE not in os.environ,
    )


def run_places(directory: Path) -> RunPlaces:
    """Where the site's process keeps what it knows of itself."""
    return RunPlaces.of(data_directory(directory))


def _show_state(state: str, status: RunStatus | None, places: RunPlaces) -> None:
    rows = [("state", state)]
    if places.stop.exists():
        rows.append(("stopped by hand", "until: rapport pipeline resume"))
    if status is not None:
        rows += [("process", str(status.pid)), ("Spark", status.master)]
        rows += [("Spark's page", status.spark_ui)] if status.spark_ui else []
        rows += [
            ("started", format_time(status.started)),
            ("last word", format_time(status.updated)),
        ]
    write_table("pipeline", ("what", "how"), rows)


def _show_jobs(jobs: list[JobStatus]) -> None:
    columns = ("job", "state", "behind", "for", "last batch", "rows", "rows/s", "busy", "into")
    rows = [
        (
            one.job,
            one.state if not one.failures else f"{one.state} ({one.failures} times)",
            str(one.behind_events),
            f"{one.behind_ms / 1_000:.1f} s",
            format_time(one.ended) if one.ended else "",
            str(one.rows),
            f"{one.rows_per_s:.0f}",
            rough_duration(one.busy_ms),
            one.checkpoint,
        )
        for one in jobs
    ]
    write_table("jobs", columns, rows)


def _show_plan(plan: RunPlan, *, json: bool) -> None:
    if json:
        write_json(plan)
        return
    print_note(f"{plan.site} on {plan.master}; nothing is started")
    rows = [(one.job, one.every, str(one.events), ", ".join(one.into)) for one in plan.jobs]
    write_table("jobs", ("job", "every", "events to do", "into"), rows)
    if plan.policies:
        write_table("live policies", ("how they are parted",), [(one,) for one in plan.policies])
    if plan.tables:
        write_table("tables of the lake", ("table",), [(one,) for one in plan.tables])
