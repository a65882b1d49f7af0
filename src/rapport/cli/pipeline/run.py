"""`rapport pipeline run|status|stop|resume`: a site's jobs on Spark in one process. [PI-12]"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rapport.cli.pipeline.lake import DryRunOption, JsonOption, MasterOption
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import show_problem, stderr, write_json, write_table
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.pipeline.running.plan import RunPlan
    from rapport.pipeline.running.run import RunWanted
    from rapport.site.pipeline import JobStatus, RunPlaces, RunStatus

_STOP_SECONDS, _START_SECONDS = 120, 120
_UI_PORT = 4040
OnceOption = Annotated[bool, Parameter(help="Do what is there now, then end.")]
LiveOption = Annotated[
    bool | None, Parameter(help="Run the policies that the site lets run there.")
]


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
    """Run a site's jobs: live policies, and history into the lake at intervals, until stopped."""
    from rapport.kernel.clock import SystemClock
    from rapport.kernel.telemetry import configure_logs
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
    told = run_pipeline(directory, wanted, stop=stop, started=take_signals)
    if json:
        write_json(told)
    elif once:
        _show_jobs(told.jobs)
    problems = [one.problem for one in told.jobs if one.problem is not None]
    for problem in problems:
        show_problem(problem)
    # Whoever ends it that runs on and on has seen what was wrong in its status.
    return 1 if problems and once else 0


def status(*, site: SiteOption = None, json: JsonOption = False) -> int:
    """Show what runs where, and how far each job is behind; 1 when nothing runs."""
    from rapport.kernel.clock import SystemClock
    from rapport.site.pipeline import how_it_is, is_held, read_status

    places = run_places(site_directory(site))
    told, runs = read_status(places), is_held(places.lock)
    state = how_it_is(told, runs=runs, now_ms=SystemClock().now_ms())
    if json:
        stopped = places.stop.exists()
        write_json({"state": state, "runs": runs, "stopped_by_hand": stopped, "told": told})
    else:
        _show_state(state, told, places)
        if told is not None:
            _show_jobs(told.jobs)
    if told is not None and told.problem is not None:
        show_problem(told.problem)
    return 0 if runs else 1


def stop(
    *,
    site: SiteOption = None,
    wait: Annotated[int, Parameter(help="Seconds to wait for it.")] = _STOP_SECONDS,
) -> int:
    """Ask the process to end after what it is doing, and wait. A node does not start it again
    before `rapport pipeline resume`.
    """
    from rapport.pipeline.running.holding import ask_to_stop, wait_until
    from rapport.site.pipeline import is_held

    places = run_places(site_directory(site))
    if not ask_to_stop(places):
        stderr().print("the pipeline does not run; it stays down until: rapport pipeline resume")
        return 0
    stderr().print("asked to end after what it is doing …")
    if wait_until(lambda: not is_held(places.lock), wait):
        stderr().print("the pipeline is down")
        return 0
    stderr().print(f"it has not ended within {wait} s; it will after its batch")
    return 1


def resume(
    *,
    site: SiteOption = None,
    live: LiveOption = None,
    master: MasterOption = None,
    log_json: Annotated[bool, Parameter(help="Logs as JSON lines.")] = False,
) -> int:
    """Let a stopped pipeline go on from where it was: started by the site's node when that does
    it, here otherwise.
    """
    from rapport.pipeline.running.holding import let_go_on, wait_until
    from rapport.site.pipeline import is_held

    places = run_places(site_directory(site))
    let_go_on(places)
    if not is_held(places.watched):
        return run(site=site, live=live, master=master, log_json=log_json)
    stderr().print("the node starts it …")
    if wait_until(lambda: is_held(places.lock), _START_SECONDS):
        stderr().print("the pipeline is up")
        return 0
    stderr().print("it did not come up; the node's log says why")
    return 1


def wanted_run(directory: Path, *, once: bool, live: bool | None, master: str | None) -> RunWanted:
    """What the site and the flags say together."""
    from rapport.core.errors import SiteError
    from rapport.kernel.toml import TomlFile
    from rapport.pipeline.running.run import RunWanted
    from rapport.pipeline.settings import load_spark_settings
    from rapport.site.pipeline import BY_NODE, pipeline_settings

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
    from rapport.cli.local import data_directory
    from rapport.site.pipeline import RunPlaces

    return RunPlaces.of(data_directory(directory))


def _show_state(state: str, told: RunStatus | None, places: RunPlaces) -> None:
    rows = [("state", state)]
    if places.stop.exists():
        rows.append(("stopped by hand", "until: rapport pipeline resume"))
    if told is not None:
        rows += [("process", str(told.pid)), ("Spark", told.master)]
        rows += [("Spark's page", told.spark_ui)] if told.spark_ui else []
        rows += [("started", format_time(told.started)), ("last word", format_time(told.updated))]
    write_table("pipeline", ("what", "how"), rows)


def _show_jobs(jobs: list[JobStatus]) -> None:
    columns = ("job", "state", "behind", "for", "last batch", "rows", "rows/s", "checkpoint")
    rows = [
        (
            one.job,
            one.state if not one.failures else f"{one.state} ({one.failures} times)",
            str(one.behind_events),
            f"{one.behind_ms / 1_000:.1f} s",
            format_time(one.ended) if one.ended else "",
            str(one.rows),
            f"{one.rows_per_s:.0f}",
            one.checkpoint,
        )
        for one in jobs
    ]
    write_table("jobs", columns, rows)


def _show_plan(plan: RunPlan, *, json: bool) -> None:
    if json:
        write_json(plan)
        return
    stderr().print(f"{plan.site} on {plan.master}; nothing is started")
    rows = [(one.job, one.every, str(one.events), ", ".join(one.into)) for one in plan.jobs]
    write_table("jobs", ("job", "every", "events to do", "into"), rows)
    if plan.policies:
        write_table("live policies", ("how they are parted",), [(one,) for one in plan.policies])
    if plan.tables:
        write_table("tables of the lake", ("table",), [(one,) for one in plan.tables])
