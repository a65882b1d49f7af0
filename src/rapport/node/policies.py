"""The policies of a running node: loaded from its files at start and reload, changed in between;
and a watch on policies that run on Spark. [PO-9, UX-2, PO-8, PI-5]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.config import CommunicationConfig
from rapport.communication.config import check_actions as check_action_texts
from rapport.core.errors import InvalidInput, PolicyError, Problem, SiteError
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.mediation.interpretations.change_state import InterpretationState
from rapport.node.interpretations import (
    NodeInterpretations,
    declared_interpretations,
    other_streams,
)
from rapport.node.table_updates import TableUpdates
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy
from rapport.policy.compiler.interpretation import PolicyTerms
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.spark_policies import CHANNEL, REPORT_TYPE, LiveReport, SparkPolicies
from rapport.policy.engine.value_record import NeededBy
from rapport.policy.explain.evidence import TimeSpan
from rapport.policy.lifecycle.lifecycle import ChangeResult, PolicyLifecycle
from rapport.policy.replay.trial import PolicyTrials, TrialResult
from rapport.site.actions import TemplateFacts
from rapport.site.check import (
    check_actions,
    check_data,
    check_instances,
    check_own_actions,
    check_runnable,
)
from rapport.site.interpretations import (
    InterpretationTerms,
    names_interpretations,
    terms_among,
    terms_spoken,
)
from rapport.site.parts import SiteParts, has_errors
from rapport.site.policies import check_on_spark, policy_files, read_policy
from rapport.site.site import Site, load_site
from rapport.site.situation_checks import check_days, check_kept

_log = get_logger(__name__)


class PolicyTexts(msgspec.Struct, frozen=True):
    """The policy texts of a site; `unread` are policies whose file cannot be read."""

    texts: dict[str, str]
    unread: frozenset[str]
    problems: tuple[Problem, ...] = ()


def texts_in_site(site: Site) -> PolicyTexts:
    """Reads the policies of a site; blocks on the disk."""
    files, _window, _problems = policy_files(site.file, site.directory)
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    for name, file in files.items():
        text, faults = read_policy(file)
        problems += faults
        if text is not None:
            texts[name] = text
    return PolicyTexts(texts, frozenset(files.keys() - texts.keys()), tuple(problems))


class SiteCompiler:
    """What a text means at a site, with the checks that a whole site makes of its policies."""

    def __init__(
        self, site: Site, people: CommunicationConfig, spoken: InterpretationTerms
    ) -> None:
        """`spoken`: the terms of the interpretations in force."""
        self._site, self._people = site, people
        self.spoken = spoken

    def compile(self, name: str, text: str) -> CompiledPolicy:
        """Raises PolicyError with every fault."""
        site = self._site
        compiled = compile_policy(
            text,
            name=name,
            ontology=site.ontology,
            window_ms=site.window_ms,
            terms=self._terms(name),
        )
        problems = self._checked(name, text, compiled)
        if has_errors(problems):
            raise PolicyError([*problems, *compiled.problems])
        return msgspec.structs.replace(compiled, problems=(*compiled.problems, *problems))

    def _terms(self, name: str) -> PolicyTerms | None:
        found, problems = terms_among(self.spoken, self._site.file, [name])
        if name in found.unknown:
            raise PolicyError(problems)
        return found.terms.get(name)

    def _checked(self, name: str, text: str, compiled: CompiledPolicy) -> list[Problem]:
        site = self._site
        parts = SiteParts(
            file=site.file,
            directory=site.directory,
            ontology=site.ontology,
            tables=site.tables,
            policies={name: compiled},
            texts={name: text},
        )
        fields = TemplateFacts(site.tables, parts.policies, site.ontology).fields(name)
        return [
            *check_actions(parts),
            *check_data(parts),
            *check_days(parts),
            *check_kept(parts),
            *check_instances(parts),
            *check_runnable(parts),
            *check_on_spark(parts),
            *check_own_actions(parts, self._people, {name: fields}),
            *check_action_texts(
                site.file, self._people, {name: compiled.plan.actions}, {name: fields}
            ),
        ]


class Policies:
    """The policies of a node; changes go to `life`, once `begin` was called.

    Holds the site as its policies know it: that of the start, or of the last `reload`.
    """

    def __init__(
        self,
        site: Site,
        people: CommunicationConfig,
        channels: Channels,
        engine: PolicyEngine,
        meanings: NodeInterpretations,
        tables: TableUpdates,
        clock: Clock,
    ) -> None:
        self._site, self._people, self._engine = site, people, engine
        self._meanings, self._tables = meanings, tables
        self._compiler = SiteCompiler(site, people, InterpretationTerms())
        self.life = PolicyLifecycle(
            channels,
            engine,
            clock,
            self._compiler.compile,
            act_within_ms=people.act_within_ms,
        )
        self._trials = PolicyTrials(channels, engine, site.lateness_ms)
        self._begun = False
        self._reloading = asyncio.Lock()
        self._other_words = asyncio.Event()
        meanings.updating.on_activated.append(self._other_words.set)

    async def begin(self, *, record: bool = True) -> None:
        """Takes in the site's files and all changes on record; interpretations come before. Once;
        later calls do nothing.
        """
        if self._begun:
            return
        found = await asyncio.to_thread(texts_in_site, self._site)
        self._compiler.spoken = await self._spoken(self._site)
        self._other_words.clear()
        if not self._site.faults:  # else it is not known which of them passed their checks
            self._know_compiled(found.texts)
        done = await self.life.begin(found.texts, found.unread, record=record)
        self._begun = True
        for problem in found.problems:
            _log.warning("policy not read", reason=problem.message, file=problem.file)
        self._warn_of_broken(policy.name for policy in self.life.policies())
        if done:
            _log.info("policies changed", changes=[f"{one.name} {one.what}" for one in done])

    def _know_compiled(self, texts: Mapping[str, str]) -> None:
        """What was compiled when the site was loaded, unless changes on record give words another
        meaning than the files.
        """
        if names_interpretations(self._site.file):
            return
        for name, compiled in self._site.policies.items():
            if name in texts:
                self.life.texts.know(name, texts[name], compiled)

    async def run(self) -> None:
        """Builds policies anew when an interpretation changes in whose terms some are written;
        until cancelled. Restarted after a failure it resumes.
        """
        while True:
            await self._other_words.wait()
            async with self._reloading:
                self._other_words.clear()
                try:
                    await self._take_words()
                except BaseException:
                    self._other_words.set()
                    raise

    async def _take_words(self) -> None:
        spoken = await self._spoken(self._site)
        if spoken == self._compiler.spoken:
            return
        compiler = SiteCompiler(self._site, self._people, spoken)
        done = await self.life.take_ontology(compiler.compile)
        self._compiler = compiler
        if done:
            _log.info("interpretation changed", policies=[f"{one.name} {one.what}" for one in done])
        self._warn_of_broken(one.name for one in done)

    async def _spoken(self, site: Site, *, ahead: bool = False) -> InterpretationTerms:
        """What the interpretations in force say, changes on record among them; `ahead`: those that
        would be, were the site's files taken over now.
        """
        if not names_interpretations(site.file):
            return InterpretationTerms()

        def find(standing: InterpretationState) -> InterpretationTerms:
            return terms_spoken(site.file, site.ontology, standing.in_force.typed)

        updating = self._meanings.updating
        if not ahead:
            return await updating.inspect(find)
        files = (await asyncio.to_thread(declared_interpretations, site)).files
        return await updating.inspect_with(files, find)

    def _warn_of_broken(self, names: Iterable[str]) -> None:
        wanted = set(names)
        for policy in self.life.policies():
            for problem in policy.problems if policy.name in wanted else ():
                _log.warning("policy broken", policy=policy.name, reason=problem.message)

    async def reload(self) -> list[ChangeResult]:
        """Takes over ontology, tables and policies from the site's files, at one place of the
        stream; policies that this breaks are marked with the reasons.

        Raises SiteError or PolicyError with every fault; then everything stays as it was.
        """
        before = self._site
        site = await asyncio.to_thread(
            load_site, before.directory, policies=[], data_directory=before.data_directory
        )
        if problems := self.problems_with(site):
            raise SiteError(problems)
        return await self.take_over(site, self._people)

    def problems_with(self, site: Site) -> list[Problem]:
        """Why a site read anew cannot be taken over while the node runs."""
        problems = [*site.faults, *other_streams(site, self._engine.ontology)]
        return problems + _other_on_spark(self._site, site)

    async def broken_by(self, site: Site, people: CommunicationConfig) -> list[Problem]:
        """What is wrong with policies of files that changed, and with those that run, are in none
        of the site's files, and would not compile any more: by the site as it is read anew and the
        interpretations that would be in force then, changes on record among them.
        """
        found = await asyncio.to_thread(texts_in_site, site)
        compiler = SiteCompiler(site, people, await self._spoken(site, ahead=True))
        refused = await self.life.faults_of_files(found.texts, found.unread, compiler.compile)
        others = {
            one.name: self.life.policy(one.name).text
            for one in self.life.policies()
            if one.name not in found.texts and one.state != "broken"
        }

        def compile_all() -> list[Problem]:
            problems: list[Problem] = []
            for name, text in others.items():
                try:
                    compiler.compile(name, text)
                except PolicyError as error:
                    problems += error.problems
            return problems

        return refused + await asyncio.to_thread(compile_all)

    def use_texts(self, needed: NeededBy) -> None:
        self._engine.use_texts(needed)

    def phrases(self) -> list[str]:
        """The actions that policies may name."""
        return list(self._people.actions)

    async def try_text(self, name: str, text: str, span: TimeSpan) -> TrialResult:
        """What a text would have found in a time, and how that differs from the version in force;
        raises PolicyError with every fault.
        """
        compiled = await self.life.compile(name, text)
        in_force = None
        for policy in self.life.policies():
            if policy.name == name:
                in_force = self.life.compiled(name, policy.version)
        return await self._trials.run(
            compiled.plan,
            None if in_force is None else in_force.plan,
            span,
            problems=compiled.problems,
        )

    def streams_read(self) -> dict[str, Collection[str]]:
        """By policy that runs here the streams that it reads."""
        running = self._engine.policies().items()
        compiled = {name: self.life.compiled(name, version) for name, version in running}
        return {name: one.plan.streams() for name, one in compiled.items() if one is not None}

    async def take_over(self, site: Site, people: CommunicationConfig) -> list[ChangeResult]:
        """The same with a site that is read and checked already, and its people."""
        async with self._reloading:
            found = await asyncio.to_thread(texts_in_site, site)
            if found.problems:
                raise SiteError(found.problems)
            compiler = SiteCompiler(site, people, await self._spoken(site))

            await self._tables.keep_context(site)

            async def renew() -> None:
                self._tables.take_over(site)
                await self._tables.hand_over(site.ontology)

            done = await self.life.take_files(
                found.texts, found.unread, compiler.compile, renew=renew
            )
            self._site, self._people, self._compiler = site, people, compiler
            self._warn_of_broken(one.name for one in done)
            return done


def _other_on_spark(before: Site, after: Site) -> list[Problem]:
    """Where a policy runs is settled when a node starts: what it knows stays where it is."""
    if before.on_spark == after.on_spark:
        return []
    message = "which policies run on Spark has changed"
    hint = "start the node anew"
    return [Problem(file="site.toml", code="site.other_on_spark", message=message, hint=hint)]


_LOOK_BACK = 100
_LOOK_EVERY_MS = 5_000


class SparkWatch:
    """Follows the reports in the channel `pipeline`."""

    def __init__(
        self,
        channels: Channels,
        on_spark: SparkPolicies,
        clock: Clock,
        running: Callable[[], Mapping[str, str]],
    ) -> None:
        """`running`: names and versions of all policies that should run."""
        self._channels, self._on_spark, self._clock = channels, on_spark, clock
        self._running = running
        self._told: set[str] = set()
        self._position = 0

    async def run(self) -> None:
        """Until cancelled."""
        self._on_spark.begin(self._clock.now_ms())
        channel = self._channels.channel(CHANNEL)
        self._position = max(channel.last_position() - _LOOK_BACK, 0)
        while True:
            await self.look()
            await channel.wait_after(self._position, timeout_ms=_LOOK_EVERY_MS)

    async def look(self) -> None:
        """Reads the reports since the last time; warns once of each policy that nobody
        watches.
        """
        channel = self._channels.channel(CHANNEL)
        while batch := await channel.read_after(self._position):
            self._position = batch[-1].position
            for stored in batch:
                self._receive(stored)
        unwatched = self._on_spark.problems(self._running(), self._clock.now_ms())
        for name in sorted(unwatched.keys() - self._told):
            _log.warning("policy on Spark", policy=name, reason=unwatched[name].message)
        back = sorted(self._told - unwatched.keys())
        if back:
            _log.info("watched again on Spark", policies=back)
        self._told = set(unwatched)

    def _receive(self, stored: StoredEvent) -> None:
        if stored.event.type != REPORT_TYPE:
            return
        try:
            report: LiveReport = stored.event.payload_as(LiveReport)
        except InvalidInput as error:
            _log.warning("report not understood", id=stored.event.id, reason=error.message)
            return
        self._on_spark.note_report(report, stored.received)
