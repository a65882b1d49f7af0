"""Interpretations of a running node: loaded from the site's files, changed while it runs, and used
for consumers. [ME-5, ME-6, ME-12, ME-9]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from rapport.channel.access.identities import Rights
from rapport.channel.channel import Channels
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.query.query_kinds import InterpretationViews
from rapport.core.errors import Problem, SiteError
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.mediation.conversion.lookups import SiteTables
from rapport.mediation.interpretations.change_state import LoggedState, read_logged_state
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.interpretations.updater import InterpretationUpdater, PreviousConfiguration
from rapport.mediation.outgoing.service import OutgoingMediation
from rapport.mediation.reader import MediationReader
from rapport.mediation.site_functions import site_functions
from rapport.mediation.source_bindings import SourceBinding
from rapport.policy.ontology import Ontology
from rapport.site.interpretations import (
    SiteInterpretations,
    interpretation_problems,
    interpretations_in_site,
    source_bindings,
)
from rapport.site.site import Site, load_site
from rapport.tables.tables import Tables

_log = get_logger(__name__)


class InterpretationsReloaded(msgspec.Struct, frozen=True):
    """What a reload changed, by name."""

    interpretations: list[str]
    sources: list[str]
    warnings: list[str] = []
    """Removed interpretations and their users."""


class FormerInterpretations(msgspec.Struct, frozen=True):
    """The former interpretations, for a rollback."""

    spoken: PreviousConfiguration
    bindings: dict[str, SourceBinding]
    site: Site
    """With the tables as they were."""


def interpretations_of(site: Site) -> tuple[dict[str, SourceBinding], ActiveInterpretations]:
    """The bindings of the sources and the interpretations of the files; a faulty interpretation
    refuses only itself: its source is quarantined with the reason.
    """
    return source_bindings(site.ontology, site.file), declared_interpretations(
        site
    ).files.activate()[0]


async def interpretations_on_record(
    site: Site, channels: Channels, node: str
) -> tuple[dict[str, SourceBinding], LoggedState]:
    """The bindings of the sources and all that is in force by files and log; `node` is the id of
    the site's node. For who looks, beside the running node or without it.
    """
    found = await asyncio.to_thread(declared_interpretations, site)
    bindings = source_bindings(site.ontology, site.file)
    return bindings, await read_logged_state(channels, found.files, node)


def declared_interpretations(site: Site) -> SiteInterpretations:
    return interpretations_in_site(site.file, site.directory, site.ontology, site.tables.columns())


class NodeInterpretations:
    """What gives a running node's events their meaning: files, then changes.

    `updating` takes changes once `begin` was called.
    """

    def __init__(self, site: Site, updating: InterpretationUpdater) -> None:
        self._site, self.updating = site, updating
        self.bindings = source_bindings(site.ontology, site.file)
        """What each source declares; replaced as a whole."""
        self._taken = site
        """That of the last `take_over`."""
        self._begun = False
        self.reload_checks: list[Callable[[Site], list[Problem]]] = []
        """Checks of other packages on the reloaded site."""
        self.reloaded: list[Callable[[Site], None]] = []
        """Called with the reloaded site once it is in force."""
        self.streams_read: Callable[[], Mapping[str, Collection[str]]] = dict
        """By policy that runs the streams that it reads."""
        self.delivered: Callable[[], Mapping[str, int]] = dict
        """By interpretation how many events consumers were given in it."""

    async def begin(self, *, record: bool = True) -> None:
        """Takes in the site's files and all changes on record. Once; later calls do nothing."""
        if self._begun:
            return
        found = await asyncio.to_thread(declared_interpretations, self._site)
        checks = await self.updating.start(found.files, record=record)
        self._begun = True
        for problem in interpretation_problems(found, checks, self._site.file):
            if problem.severity == "error":
                _log.warning(
                    "interpretation refused",
                    reason=problem.message,
                    file=problem.file,
                    line=problem.line,
                    hint=problem.hint,
                )

    async def reload(self) -> InterpretationsReloaded:
        """Takes over interpretations, bindings of sources and tables from the site's files. A file
        that was changed wins over earlier changes of what it declares.

        Raises SiteError with every fault; then everything stays as it was.
        """
        before = self._site
        site = await asyncio.to_thread(
            load_site, before.directory, policies=[], data_directory=before.data_directory
        )
        if problems := self.problems_with(site):
            raise SiteError(problems)
        return await self.take_over(site)

    def problems_with(self, site: Site) -> list[Problem]:
        """Why a site read anew cannot be taken over while the node runs."""
        problems = [*site.faults, *other_streams(site, self._site.ontology)]
        return problems + [problem for check in self.reload_checks for problem in check(site)]

    async def take_over(self, site: Site) -> InterpretationsReloaded:
        """The same with a site that is read and checked already."""
        await asyncio.to_thread(site.tables.keep_context, self._site.tables)
        found = await asyncio.to_thread(declared_interpretations, site)
        bindings = source_bindings(site.ontology, site.file)
        names = self.bindings.keys() | bindings.keys()
        sources = [name for name in names if self.bindings.get(name) != bindings.get(name)]
        reading, delivered = self.streams_read(), self.delivered()
        changed = await self.updating.load_files(found.files, bindings, site.tables)
        gone = {name for name, stamp in changed.items() if not stamp}
        warnings = gone_interpretations(self.bindings, bindings, gone, reading, delivered)
        self.bindings, self._taken = bindings, site
        for take_over in self.reloaded:
            take_over(site)
        return InterpretationsReloaded(sorted(changed), sorted(sources), warnings)

    def former(self) -> FormerInterpretations:
        """What `take_back` takes; costs nothing."""
        tables = self._site.tables.share()
        site = msgspec.structs.replace(self._taken, tables=tables)
        return FormerInterpretations(self.updating.previous(), self.bindings, site)

    async def take_back(self, former: FormerInterpretations) -> None:
        """Restores the interpretations of `former`."""
        await self.updating.roll_back(former.spoken)
        self.bindings, self._taken = former.bindings, former.site
        for take_over in self.reloaded:
            take_over(former.site)


OTHER_STREAMS = "reload.other_streams"


def other_streams(site: Site, running: Ontology) -> list[Problem]:
    """What a site read anew gives that the running node does not know, or knows as something
    else.
    """
    known = running.streams()
    return [
        Problem(
            code=OTHER_STREAMS,
            message=f"the running node does not know {stream!r}, or as something else",
            file=site.file.name,
            hint="start the node again; readings received meanwhile are kept",
        )
        for stream, kind in sorted(site.ontology.streams().items())
        if known.get(stream) != kind
    ]


def make_outgoing(
    site: Site,
    repository: Repository,
    channels: Channels,
    clock: Clock,
    mediation: MediationReader,
    rights: Rights | None = None,
) -> OutgoingMediation:
    """Presents events of these channels in the interpretations of the repository."""
    paths = [str(site.directory.resolve())]
    return OutgoingMediation(
        repository,
        channels,
        clock=clock,
        rights=rights,
        sources=mediation,
        tables=lambda: tables_of(mediation.lookups),
        functions=partial(site_functions, clock=clock, import_paths=paths),
    )


def tables_of(lookups: SiteTables) -> Tables | None:
    """The tables of the site, if lookups use them."""
    return lookups if isinstance(lookups, Tables) else None


def prepare_outgoing(updating: InterpretationUpdater, outgoing: OutgoingMediation) -> None:
    """From now on a change of interpretations finds ready what consumers need of it."""
    updating.prepares.append(
        lambda in_force, lookups: outgoing.prepare(in_force, tables_of(lookups))
    )


def serve_interpretations(channels: LoggedChannels, outgoing: OutgoingMediation) -> None:
    """From now on requests may name an interpretation, and conditions are understood in its
    words.
    """

    async def present(
        channel: str, stored: Sequence[StoredEvent], interpretation: str, identity: str
    ) -> list[StoredEvent]:
        return await outgoing.view(channel, stored, interpretation, identity=identity)

    outgoing.hides = channels.may_hide
    channels.source.present = present
    channels.source.views = InterpretationViews()
    channels.source.views.use(outgoing.query_view)


def outgoing_of_site(
    site: Site, channels: Channels, clock: Clock, in_force: ActiveInterpretations
) -> OutgoingMediation:
    """The same for readers of a site's channels outside its node; close it."""
    bindings = source_bindings(site.ontology, site.file)
    repository = Repository(in_force)
    mediation = MediationReader(
        channels,
        bindings.values(),
        repository,
        clock,
        lookups=site.tables,
        import_paths=[str(site.directory.resolve())],
    )
    return make_outgoing(site, repository, channels, clock, mediation)


def gone_interpretations(
    before: Mapping[str, SourceBinding],
    after: Mapping[str, SourceBinding],
    gone: Collection[str],
    reading: Mapping[str, Collection[str]],
    delivered: Mapping[str, int],
) -> list[str]:
    """Warnings of interpretations that are `gone` and gave meaning to what policies read, or in
    that consumers used. `reading` are the streams of each policy that runs, `delivered` the number
    of events in each interpretation.
    """
    warnings: list[str] = []
    for source, old in sorted(before.items()):
        name, new = old.interpretation, after.get(source)
        if name not in gone:
            continue
        streams = {f"{old.concept}.{attribute}" for attribute in old.attributes}
        policies = sorted(policy for policy, used in reading.items() if streams & set(used))
        if policies:
            now = "is gone, too" if new is None else "is read otherwise from now on"
            warnings.append(
                f"the interpretation {name!r} is gone, its source {source!r} {now}: "
                f"{', '.join(policies)} read {', '.join(sorted(streams))} by it"
            )
    warnings += [
        f"the interpretation {name!r} is gone: consumers got {_events(delivered[name])} in it "
        "since the node started, and requests for it are refused from now on"
        for name in sorted(delivered.keys() & gone)
        if delivered[name]
    ]
    return warnings


def _events(count: int) -> str:
    return "an event" if count == 1 else f"{count:,} events"
