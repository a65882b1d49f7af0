"""What a replay runs over and with: files or the log, the site's policies and perhaps a changed
one. [PO-8, UX-3]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from rapport.cli.names import NO_POLICIES, unknown
from rapport.cli.terminal import stderr
from rapport.core.detection import Cause, Detection, Undecided
from rapport.core.errors import InvalidInput, SiteError
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.policy.explain.evidence import needs_last_values
from rapport.policy.plan import Plan
from rapport.policy.replay.replay import (
    Recording,
    ReplayComparison,
    ReplayResult,
    cause_readings,
    compare_plans,
    recordings_of,
    renamed_plan,
)
from rapport.policy.replay.replay import replay as replay_here
from rapport.site.interpretations import terms_of_policies
from rapport.site.policies import PolicyFile, compile_text, read_policy
from rapport.site.recordings import recordings_in_site, version_of_meanings
from rapport.site.site import Site

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.policy.explain.evidence import Reading
    from rapport.policy.table_history import TableHistory

Progress = Callable[[int], None]
Found = tuple[ReplayResult, dict[Cause, list["Reading"]]]
Wanted = Callable[[ReplayResult], set[Cause]]
"""Which causes are to be shown with their values; looking for some reads everything once more."""


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed, and how."""

    events: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    """Those that were named; empty: all."""
    from_log: bool = False
    since: int | None = None
    until: int | None = None
    strict: bool = False
    engine: str = "local"
    lateness_ms: int | None = None
    batch: int = 10_000
    stop_after: int | None = None
    resume: bool = False
    partitions: int | None = None
    master: str | None = None
    tables: Literal["now", "then"] | None = None
    """Which rows tables have; None: those of then where they are on record."""
    as_live: bool = False
    """As the node decided, instead of in event time."""

    def check(self, changed: Path | None = None) -> None:
        """Raises InvalidInput for what does not go together."""
        self._check_as_live(changed)
        files_only = {
            "--events": self.events,
            "--engine spark": self.engine != "local",
            "--stop-after": self.stop_after,
            "--resume": self.resume,
            "--strict": self.strict,
        }
        wrong = [name for name, given in files_only.items() if given] if self.from_log else []
        if wrong:
            raise InvalidInput(
                f"{wrong[0]} is about recorded files, not about the log",
                code="cli.wrong_use",
                hint=f"leave out {wrong[0]} or --from-log",
            )
        if not self.from_log and self.tables == "then":
            raise InvalidInput(
                "recorded files are read with the tables of now",
                code="cli.wrong_use",
                hint="import them and add --from-log, or leave out --tables then",
            )
        if not self.from_log and not (self.since is None and self.until is None):
            raise InvalidInput(
                "--since and --until are about the log, not about recorded files",
                code="cli.wrong_use",
                hint="add --from-log",
            )

    def shown(self, result: ReplayResult) -> ReplayResult:
        """What was asked for of a replay as live: policies by name, and the time of what they
        found.
        """

        def is_shown(one: Detection | Undecided) -> bool:
            is_in = (self.since is None or one.time >= self.since) and (
                self.until is None or one.time < self.until
            )
            return is_in and (not self.policies or one.policy in self.policies)

        return msgspec.structs.replace(
            result,
            detections=[one for one in result.detections if is_shown(one)],
            undecided=[one for one in result.undecided if is_shown(one)],
        )

    def _check_as_live(self, changed: Path | None) -> None:
        own = {
            "--lateness": self.lateness_ms is not None,
            "--tables now": self.tables == "now",
            "--changed": changed is not None,
        }
        wrong = [name for name, given in own.items() if given] if self.as_live else []
        if wrong:
            raise InvalidInput(
                f"{wrong[0]} would change what live decided",
                code="cli.wrong_use",
                hint=f"leave out {wrong[0]}, or replace --as-live by --from-log",
            )


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of a site that are replayed; `changed` beside the one that `plans` has."""

    site: Site
    plans: list[Plan]
    changed: Plan | None = None
    file: Path = Path()
    """Where the changed one was read from."""

    def all_plans(self) -> list[Plan]:
        """Everything that runs."""
        return self.plans if self.changed is None else [*self.plans, self.changed]

    def shown_plans(self) -> dict[str, Plan]:
        """By the names under which detections are shown; both versions share one."""
        return {plan.policy: plan for plan in self.plans}

    def counts(self, result: ReplayResult) -> str:
        """How many detections, of either version where there are two."""
        if self.changed is None:
            return f"{len(result.detections):,} detections"
        theirs = sum(one.policy == self.changed.policy for one in result.detections)
        return f"{len(result.detections) - theirs:,} detections, {theirs:,} by {self.file.name},"

    def compared(self, result: ReplayResult) -> ReplayComparison:
        """What only one of the two versions found."""
        assert self.changed is not None
        return compare_plans(self.plans[0], self.changed, result.detections)


def choose_policies(site: Site, names: Sequence[str], changed: Path | None) -> Chosen:
    """All that the site was loaded with, or the one that a changed file is to stand in for."""
    if not site.policies:
        raise InvalidInput("the site has no policies", code="replay.no_policies", hint=NO_POLICIES)
    if changed is None:
        return Chosen(site=site, plans=[one.plan for one in site.policies.values()])
    name = names[0] if len(names) == 1 else changed.stem
    if name not in site.policies:
        which = f"say which it stands in for: --policy NAME --changed {changed}"
        raise unknown("policy", name, site.policies, if_none=which, code="policy.unknown")
    plan = _compiled(site, PolicyFile(name, changed, str(changed)))
    return Chosen(
        site=site, plans=[site.policies[name].plan], changed=renamed_plan(plan), file=changed
    )


def run_over(chosen: Chosen, over: Over, progress: Progress, wanted: Wanted) -> Found:
    """Runs the policies; then finds the readings that are wanted with their values."""
    if over.as_live:
        return _run_as_live(chosen, over, progress, wanted)
    return (_run_log if over.from_log else _run_files)(chosen, over, progress, wanted)


def _compiled(site: Site, file: PolicyFile) -> Plan:
    """The plan of a policy's file that is not in the site; raises SiteError with its faults."""
    text, problems = read_policy(file)
    if text is not None:
        terms, faults = terms_of_policies(site.file, site.directory, site.ontology, [file.name])
        compiled, more = compile_text(
            file, text, site.ontology, site.window_ms, terms.terms.get(file.name)
        )
        problems += [*faults, *more]
        if compiled is not None:
            return compiled.plan
    raise SiteError([problem for problem in problems if problem.severity == "error"])


def _run_files(chosen: Chosen, over: Over, progress: Progress, wanted: Wanted) -> Found:
    site = chosen.site
    recordings, version = _recordings(site, over)
    with _engine(site, over) as run:
        result = run(
            site.ontology,
            site.tables,
            chosen.all_plans(),
            recordings,
            lateness_ms=site.lateness_ms if over.lateness_ms is None else over.lateness_ms,
            batch=over.batch,
            stop_after=over.stop_after,
            resume=over.resume,
            state_directory=site.data_directory / "replay",
            tables_version=version,
            progress=progress,
        )
    return result, cause_readings(recordings, site.ontology, wanted(result))


def _recordings(site: Site, over: Over) -> tuple[list[Recording], str]:
    """The files, and a version of all else that the result depends on."""
    found = recordings_of(site.ontology, site.directory, over.events)
    in_force = None
    if any(item.source.interpretation for item in found):
        from rapport.cli.meaning.in_force import in_force_at

        _bindings, in_force = in_force_at(site.directory, site)
    recordings = recordings_in_site(site, over.events, in_force=in_force, strict=over.strict)
    meanings = version_of_meanings(recordings, in_force)
    version = site.tables.version()
    return recordings, f"{version} {meanings}" if meanings else version


@contextmanager
def _engine(site: Site, over: Over) -> Iterator[Callable[..., ReplayResult]]:
    """What runs the replay: this process, or a Spark session that lives as long as the block."""
    if over.engine == "local":
        yield replay_here
        return
    from rapport.pipeline.history.replay import replay_recorded
    from rapport.pipeline.session import running_spark
    from rapport.pipeline.settings import load_spark_settings

    settings = load_spark_settings(
        site.file.section("spark").values, flags={"master": over.master}, environment=os.environ
    )
    with running_spark(settings) as spark:
        yield partial(replay_recorded, spark, partitions=over.partitions)


def _run_log(chosen: Chosen, over: Over, progress: Progress, wanted: Wanted) -> Found:
    from rapport.cli.local import read_channels
    from rapport.policy.engine.engine import ALLOWED_SKEW_MS
    from rapport.policy.replay.log_replay import LogReplay

    site, plans = chosen.site, chosen.all_plans()
    now_ms = SystemClock().now_ms()
    _tell_what_is_unknown(plans, over.since)

    async def work(channels: Channels) -> Found:
        log = LogReplay(
            channels,
            site.ontology,
            site.tables,
            tables=None if over.tables == "now" else site.tables,
            lateness_ms=site.lateness_ms if over.lateness_ms is None else over.lateness_ms,
            skew_ms=ALLOWED_SKEW_MS,
            since=over.since,
            until=now_ms if over.until is None else over.until,
            is_open=over.until is None,
        )
        result = await log.run(plans, progress)
        if log.tables_used is None and over.tables == "then":
            raise no_rows_on_record()
        tell_tables(log.tables_used, result.first)
        causes = wanted(result)
        return result, await log.cause_readings(causes) if causes else {}

    return read_channels(site.directory, work)


def _run_as_live(chosen: Chosen, over: Over, progress: Progress, wanted: Wanted) -> Found:
    """All policies on record run, since one may stop another; the named ones are shown."""
    from rapport.cli.local import read_channels
    from rapport.policy.engine.engine import ALLOWED_SKEW_MS
    from rapport.policy.replay.log_replay import LiveReplay
    from rapport.site.explain import compiled_of_text

    site = chosen.site

    async def work(channels: Channels) -> Found:
        live = LiveReplay(
            channels,
            site.ontology,
            site.tables,
            lambda name, text: compiled_of_text(site, name, text),
            name=site.name,
            lateness_ms=site.lateness_ms,
            skew_ms=ALLOWED_SKEW_MS,
            elsewhere=site.on_spark,
        )
        result = over.shown(await live.run(progress))
        tell_tables(live.tables_used, None)
        for line in live.notes:
            stderr().print(line, highlight=False, markup=False, soft_wrap=True)
        causes = wanted(result)
        return result, await live.cause_readings(causes) if causes else {}

    return read_channels(site.directory, work)


def tell_tables(then: TableHistory | None, first: int | None) -> None:
    """Says once which rows tables had, the first reading being of that time."""
    for line in then.notes(first) if then is not None else ():
        stderr().print(line, highlight=False, markup=False, soft_wrap=True)


def no_rows_on_record() -> InvalidInput:
    """The error for who wants rows of then where there are none."""
    return InvalidInput(
        "nothing is on record of the tables",
        code="replay.no_rows",
        hint="leave out --tables then; a node records the rows from its start on",
    )


def _tell_what_is_unknown(plans: Sequence[Plan], since: int | None) -> None:
    names = sorted({plan.policy for plan in plans if needs_last_values(plan)})
    if since is not None and names:
        told = (
            f"{', '.join(names)}: what was so long before {format_time(since)} is not known; "
            "without --since everything is read"
        )
        stderr().print(told, highlight=False, markup=False, soft_wrap=True)
