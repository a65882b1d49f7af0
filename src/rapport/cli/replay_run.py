"""How a replay selects policies and history, runs, and shows its detections to people.
[PO-8, PO-11, UX-3]
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from rich.text import Text

from rapport.cli.hints import NO_POLICIES, unknown, wrong_use
from rapport.cli.output import print_note
from rapport.core.detection import Cause, Detection, Undecided, detection_order
from rapport.core.errors import InvalidInput, SiteError
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.policy.explain.evidence import needs_last_values
from rapport.policy.explain.wording import Wording, bindings_text, duration, relative
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan, PolicyPlan, conditions_plan
from rapport.policy.replay.replay import (
    Recording,
    ReplayComparison,
    ReplayResult,
    cause_readings,
    cause_streams,
    cause_values,
    compare_plans,
    recordings_of,
    renamed_plan,
    situation_id,
)
from rapport.policy.replay.replay import replay as replay_here
from rapport.policy.situation_plan import SituationPlan
from rapport.site.interpretations import terms_of_policies
from rapport.site.policies import PolicyFile, compile_text, read_policy
from rapport.site.recordings import recordings_in_site, version_of_meanings
from rapport.site.site import Site

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.policy.explain.evidence import Reading
    from rapport.policy.replay.replay import ReplayDifference, ReplayResult
    from rapport.policy.table_history import TableHistory

Progress = Callable[[int], None]
Found = tuple[ReplayResult, dict[Cause, list["Reading"]]]
Wanted = Callable[[ReplayResult], set[Cause]]
"""Which causes are to be shown with their values; looking for some reads everything once more."""


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
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
            raise wrong_use(
                f"{wrong[0]} is about recorded files, not about the log",
                f"leave out {wrong[0]} or --from-log",
            )
        if not self.from_log and self.tables == "then":
            raise wrong_use(
                "recorded files are read with the tables of now",
                "import them and add --from-log, or leave out --tables then",
            )
        if not self.from_log and self.since is not None:
            raise wrong_use("--since is about the log, not about recorded files", "add --from-log")

    def shown(self, result: ReplayResult) -> ReplayResult:
        """The requested part of a replay as live: by policy and by time."""

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
            raise wrong_use(
                f"{wrong[0]} would change what live decided",
                f"leave out {wrong[0]}, or replace --as-live by --from-log",
            )


class ReplayPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of a site that are replayed; `changed` beside the one that `plans` has."""

    site: Site
    plans: list[PolicyPlan]
    changed: PolicyPlan | None = None
    file: Path = Path()
    """Where the changed one was read from."""

    def all_plans(self) -> list[PolicyPlan]:
        return self.plans if self.changed is None else [*self.plans, self.changed]

    def plans_for(self, runner: str) -> list[Plan]:
        """Everything that runs; raises Unsupported for situations."""
        return [conditions_plan(plan, runner) for plan in self.all_plans()]

    def shown_plans(self) -> dict[str, PolicyPlan]:
        """By the names under which detections are shown; both versions share one."""
        return {plan.policy: plan for plan in self.plans}

    def counts(self, result: ReplayResult) -> str:
        """How many detections, of either version where there are two."""
        if self.changed is None:
            return self._counts_of_kinds(result.detections)
        begins = [one for one in result.detections if one.began is None]
        theirs = sum(one.policy == self.changed.policy for one in begins)
        noun = "situations" if isinstance(self.plans[0], SituationPlan) else "detections"
        return f"{len(begins) - theirs:,} {noun}, {theirs:,} by {self.file.name},"

    def _counts_of_kinds(self, found: Sequence[Detection]) -> str:
        states = {plan.policy for plan in self.plans if isinstance(plan, SituationPlan)}
        changes = [one for one in found if one.policy in states]
        ends = sum(one.began is not None for one in changes)
        parts = []
        if len(states) < len(self.plans):
            parts.append(f"{len(found) - len(changes):,} detections")
        if states:
            begins = _counted(len(changes) - ends, "situation")
            parts.append(f"{begins} began, {ends:,} ended")
        return ", ".join(parts)

    def compared(self, result: ReplayResult) -> ReplayComparison:
        assert self.changed is not None
        return compare_plans(self.plans[0], self.changed, result.detections)


def choose_policies(site: Site, names: Sequence[str], changed: Path | None) -> ReplayPolicies:
    """All that the site was loaded with, or the one that a changed file is to stand in for."""
    if not site.policies:
        raise InvalidInput("the site has no policies", code="replay.no_policies", hint=NO_POLICIES)
    if changed is None:
        plans = [one.plan for one in site.policies.values()]
        return ReplayPolicies(site=site, plans=plans)
    name = names[0] if len(names) == 1 else changed.stem
    if name not in site.policies:
        which = f"say which it stands in for: --policy NAME --changed {changed}"
        raise unknown("policy", name, site.policies, if_none=which, code="policy.unknown")
    plan = _compiled(site, PolicyFile(name, changed, str(changed)))
    return ReplayPolicies(
        site=site,
        plans=[site.policies[name].plan],
        changed=renamed_plan(plan),
        file=changed,
    )


def run_over(
    chosen: ReplayPolicies, over: ReplayRequest, progress: Progress, wanted: Wanted
) -> Found:
    """Runs the policies; then finds the readings that are wanted with their values."""
    if over.as_live:
        return _run_as_live(chosen, over, progress, wanted)
    return (_run_log if over.from_log else _run_files)(chosen, over, progress, wanted)


def _compiled(site: Site, file: PolicyFile) -> PolicyPlan:
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


def _run_files(
    chosen: ReplayPolicies, over: ReplayRequest, progress: Progress, wanted: Wanted
) -> Found:
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
            until_ms=over.until,
        )
    return result, cause_readings(recordings, site.ontology, wanted(result))


def _recordings(site: Site, over: ReplayRequest) -> tuple[list[Recording], str]:
    """The files, and a version of all else that the result depends on."""
    found = recordings_of(site.ontology, site.directory, over.events)
    in_force = None
    if any(item.source.interpretation for item in found):
        from rapport.cli.local_site import in_force_at

        _bindings, in_force = in_force_at(site.directory, site)
    recordings = recordings_in_site(site, over.events, in_force=in_force, strict=over.strict)
    meanings = version_of_meanings(recordings, in_force)
    version = site.tables.version()
    return recordings, f"{version} {meanings}" if meanings else version


@contextmanager
def _engine(site: Site, over: ReplayRequest) -> Iterator[Callable[..., ReplayResult]]:
    """What runs the replay: this process, or a Spark session that lives as long as the block."""
    if over.engine == "local":
        yield replay_here
        return
    from rapport.pipeline.history.replay import replay_recorded
    from rapport.pipeline.session import load_spark_settings, running_spark

    settings = load_spark_settings(
        site.file.section("spark").values, flags={"master": over.master}, environment=os.environ
    )
    with running_spark(settings) as spark:
        yield partial(replay_recorded, spark, partitions=over.partitions)


def _run_log(
    chosen: ReplayPolicies, over: ReplayRequest, progress: Progress, wanted: Wanted
) -> Found:
    from rapport.cli.local_site import read_channels
    from rapport.policy.engine.engine import ALLOWED_SKEW_MS
    from rapport.policy.replay.log_replay import LogReplay

    site, plans = chosen.site, chosen.plans_for("a replay of the log")
    now_ms = SystemClock().now_ms()
    _warn_of_unknown_past(plans, over.since)

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
        report_tables(log.tables_used, result.first)
        causes = wanted(result)
        return result, await log.cause_readings(causes) if causes else {}

    return read_channels(site.directory, work)


def _run_as_live(
    chosen: ReplayPolicies, over: ReplayRequest, progress: Progress, wanted: Wanted
) -> Found:
    """All policies on record run, since one may stop another; the named ones are shown."""
    from rapport.cli.local_site import read_channels
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
        report_tables(live.tables_used, None)
        for line in live.notes:
            print_note(line)
        causes = wanted(result)
        return result, await live.cause_readings(causes) if causes else {}

    return read_channels(site.directory, work)


def report_tables(then: TableHistory | None, first: int | None) -> None:
    """Prints which rows tables had; `first` is the time of the first reading."""
    for line in then.notes(first) if then is not None else ():
        print_note(line)


def no_rows_on_record() -> InvalidInput:
    """The error for past rows that were not recorded."""
    return InvalidInput(
        "nothing is on record of the tables",
        code="replay.no_rows",
        hint="leave out --tables then; a node records the rows from its start on",
    )


def _warn_of_unknown_past(plans: Sequence[Plan], since: int | None) -> None:
    names = sorted({plan.policy for plan in plans if needs_last_values(plan)})
    if since is not None and names:
        print_note(
            f"{', '.join(names)}: what was so long before {format_time(since)} is not known; "
            "without --since everything is read"
        )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BARS = "▁▂▃▄▅▆▇█"
_NOTHING = "·"
_MOST_BARS = 62
_MOST_VALUES = 4
_MARKS = {"site": ("-", "red"), "changed": ("+", "green")}

Readings = Mapping[Cause, list["Reading"]]
Bucket = Callable[[datetime], int]


def time_zone(name: str) -> tzinfo | None:
    """The zone of that name, None for the machine's own; raises InvalidInput."""
    if name.lower() == "local":
        return None
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"there is no time zone {name[:60]!r}",
            code="cli.bad_zone",
            hint="UTC, local, or a name such as America/Sao_Paulo",
        ) from None


class ReplayText:
    """Shows results in the names and units of a site, at most `most` of each policy."""

    def __init__(
        self, ontology: Ontology, plans: Mapping[str, PolicyPlan], zone: str, most: int
    ) -> None:
        self._words, self._plans, self._most = Wording(ontology), plans, max(most, 0)
        self._zone, self._zone_name = time_zone(zone), zone

    def causes(self, result: ReplayResult, chosen: ReplayPolicies) -> set[Cause]:
        """Of what will be shown, what it rests on."""
        shown = [one.detection for one in self._differences(result, chosen)]
        if chosen.changed is None:
            shown = [one for found in self._by_policy(result) for one in found[: self._most]]
        return {cause for one in shown for cause in one.causes}

    def text(self, result: ReplayResult, readings: Readings, chosen: ReplayPolicies) -> list[Text]:
        """All lines, without what belongs to stderr."""
        lines = [self._headline(result)]
        if chosen.changed is not None:
            return [*lines, *self._compared(result, readings, chosen)]
        for policy, found in zip(self._plans, self._by_policy(result), strict=True):
            lines += self._policy(policy, found, result, readings)
        return lines

    def _by_policy(self, result: ReplayResult) -> list[list[Detection]]:
        return [
            [one for one in result.detections if one.policy == policy] for policy in self._plans
        ]

    def _differences(
        self, result: ReplayResult, chosen: ReplayPolicies
    ) -> Sequence[ReplayDifference]:
        if chosen.changed is None:
            return ()
        return chosen.compared(result).differences[: self._most]

    def _headline(self, result: ReplayResult) -> Text:
        if result.first is None or result.last is None:
            return Text("no events")
        span = f"{self._time(result.first)} to {self._time(result.last)}"
        return Text(f"{result.events:,} events, {span} ({self._zone_name})")

    def _policy(
        self, policy: str, found: list[Detection], result: ReplayResult, readings: Readings
    ) -> list[Text]:
        if isinstance(self._plans[policy], SituationPlan):
            return self._situation(policy, found, result, readings)
        lines = [Text.assemble("\n", (policy, "bold"), f"  {_counted(len(found), 'detection')}")]
        lines += [self._detection("  ", one, readings) for one in found[: self._most]]
        if len(found) > self._most:
            lines.append(Text(f"  and {len(found) - self._most:,} more, see --show", "dim"))
        if found:
            lines.append(self._how_often(found, result))
        return [*lines, *self._besides(policy, result)]

    def _situation(
        self, policy: str, found: list[Detection], result: ReplayResult, readings: Readings
    ) -> list[Text]:
        """A line for each situation, with how long it lasted."""
        begins = [one for one in found if one.began is None]
        known = {situation_id(one) for one in begins}
        # Of a part of the log the beginning may lie before it.
        begins += [
            msgspec.structs.replace(one, time=one.began, began=None, causes=())
            for one in found
            if one.began is not None and situation_id(one) not in known
        ]
        begins.sort(key=detection_order)
        lengths = _lengths(found)
        head = _counted(len(begins), "situation")
        if lengths:
            head += f", {duration(sum(lengths.values()))} in all"
        lines = [Text.assemble("\n", (policy, "bold"), f"  {head}")]
        for one in begins[: self._most]:
            lines.append(self._detection("  ", one, readings, _lasted(one, lengths)))
        if len(begins) > self._most:
            lines.append(Text(f"  and {len(begins) - self._most:,} more, see --show", "dim"))
        if begins:
            lines.append(self._how_often(begins, result))
        return [*lines, *self._besides(policy, result)]

    def _detection(self, mark: str, one: Detection, readings: Readings, lasted: str = "") -> Text:
        """One line; `lasted` stands behind what it is about."""
        streams = cause_streams(self._plans[one.policy])
        because = self._because(one, cause_values(one.causes, readings, streams))
        about = bindings_text(one.bindings) or "nobody in particular"
        time = (self._time(one.time), "cyan")
        return Text.assemble(mark, time, "  ", (about, "bold"), lasted, because)

    def _because(self, one: Detection, values: Sequence[Reading]) -> str:
        """The first values, each with how long before that was; once where it is the same."""
        shown = values[:_MOST_VALUES]
        if not shown:
            return ""
        ages = [f" ({relative(each.time - one.time)})" for each in shown]
        ages = ["" if age == f" ({relative(0)})" else age for age in ages]
        if len(set(ages)) == 1:
            ages[:-1] = [""] * (len(ages) - 1)
        texts = [
            f"{self._words.reading(each).text}{age}" for each, age in zip(shown, ages, strict=True)
        ]
        more = [f"and {len(values) - len(shown)} more"] if len(values) > len(shown) else []
        return f"  {', '.join([*texts, *more])}"

    def _how_often(self, found: list[Detection], result: ReplayResult) -> Text:
        times = [one.time for one in found]
        first = min(times + ([] if result.first is None else [result.first]))
        last = max(times + ([] if result.last is None else [result.last]))
        name, bucket = _buckets(self._moment(first), self._moment(last))
        counts = Counter(bucket(self._moment(time)) for time in times)
        every = range(bucket(self._moment(first)), bucket(self._moment(last)) + 1)
        most = max(counts.values())
        bars = "".join(_bar(counts[place], most) for place in every)
        return Text.assemble((f"  per {name}  ", "dim"), bars, (f"  at most {most:,}", "dim"))

    def _besides(self, policy: str, result: ReplayResult) -> list[Text]:
        """What it did not report, and why."""
        parts = []
        undecided = [one for one in result.undecided if one.policy == policy]
        if undecided:
            silent = sorted({name for one in undecided for name in one.silent})
            names = ", ".join(silent)
            parts.append(f"{len(undecided):,} undecided, since nothing came from {names}")
        left_out = result.suppressed.get(policy, 0)
        if left_out:
            period = duration(self._plans[policy].once_per_ms or 0)
            parts.append(f"{left_out:,} left out, at most once per {period}")
        return [Text(f"  {part}", "yellow") for part in parts]

    def _compared(
        self, result: ReplayResult, readings: Readings, chosen: ReplayPolicies
    ) -> list[Text]:
        compared = chosen.compared(result)
        ours, theirs = len(compared.only("site")), len(compared.only("changed"))
        counts = f"{compared.both:,} found by both, {ours:,} by the site's version alone (-), "
        counts += f"{theirs:,} by {chosen.file.name} alone (+)"
        lines = [Text.assemble("\n", (compared.policy, "bold"), f"  {counts}")]
        site, changed = chosen.all_plans()
        plans = {"site": site, "changed": changed}
        for one in compared.differences[: self._most]:
            mark, style = _MARKS[one.found_by]
            plan, lasted = plans[one.found_by], ""
            if isinstance(plan, SituationPlan):
                own = (each for each in result.detections if each.policy == plan.policy)
                lasted = _lasted(one.detection, _lengths(own))
            line = self._detection(f"  {mark} ", one.detection, readings, lasted)
            line.stylize(style, 0, 4)
            lines.append(line)
        if len(compared.differences) > self._most:
            left = len(compared.differences) - self._most
            lines.append(Text(f"  and {left:,} more, see --show", "dim"))
        return lines

    def _time(self, time_ms: int) -> str:
        try:
            moment = self._moment(time_ms)
        except OverflowError:
            return str(time_ms)
        text = moment.strftime("%Y-%m-%d %H:%M:%S")
        return f"{text}.{time_ms % 1_000:03}" if time_ms % 1_000 else text

    def _moment(self, time_ms: int) -> datetime:
        return (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(self._zone)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


_Lengths = Mapping[tuple[tuple[tuple[str, str], ...], int], int]


def _lengths(found: Iterable[Detection]) -> _Lengths:
    """How long the situations of one policy lasted that have ended."""
    return {situation_id(one): one.time - one.began for one in found if one.began is not None}


def _lasted(begin: Detection, lengths: _Lengths) -> str:
    length = lengths.get(situation_id(begin))
    return "  still open" if length is None else f"  for {duration(length)}"


def _buckets(first: datetime, last: datetime) -> tuple[str, Bucket]:
    """As fine as fits into a line: hours, days, weeks, months or years."""
    choices: tuple[tuple[str, Bucket], ...] = (
        ("hour", lambda moment: moment.toordinal() * 24 + moment.hour),
        ("day", lambda moment: moment.toordinal()),
        ("week", lambda moment: (moment.toordinal() - 1) // 7),
        ("month", lambda moment: moment.year * 12 + moment.month),
        ("year", lambda moment: moment.year),
    )
    for name, bucket in choices:
        if bucket(last) - bucket(first) < _MOST_BARS:
            return name, bucket
    return choices[-1]


def _bar(count: int, most: int) -> str:
    return _BARS[(count * len(_BARS) - 1) // most] if count else _NOTHING
