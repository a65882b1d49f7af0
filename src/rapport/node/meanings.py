"""How a site's sources speak: taken from its files when a node starts and again while it runs, and
changed in between. [ME-5, ME-6, ME-12]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import Problem, SiteError
from rapport.kernel.telemetry import get_logger
from rapport.mediation.interpretations.change_state import LoggedState, read_logged_state
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.interpretations.updater import InterpretationUpdater, PreviousConfiguration
from rapport.mediation.source_bindings import SourceBinding
from rapport.node.reload_checks import gone_interpretations
from rapport.policy.ontology import Ontology
from rapport.site.bindings import source_bindings
from rapport.site.interpreting import SiteMeanings, meanings_in_site, problems_of_meanings
from rapport.site.site import Site, load_site

_log = get_logger(__name__)


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload changed, by name."""

    interpretations: list[str]
    sources: list[str]
    warnings: list[str] = []
    """Of interpretations that are gone, with who used them."""


class FormerMeanings(msgspec.Struct, frozen=True):
    """What was in force, for who may want to go back to it."""

    spoken: PreviousConfiguration
    bindings: dict[str, SourceBinding]
    site: Site
    """With the tables as they were."""


def meanings_of(site: Site) -> tuple[dict[str, SourceBinding], ActiveInterpretations]:
    """The bindings of the sources and the interpretations of the files; a faulty interpretation
    refuses only itself: its source is held back with the reason.
    """
    return source_bindings(site.ontology, site.file), in_site(site).files.activate()[0]


async def meanings_on_record(
    site: Site, channels: Channels, node: str
) -> tuple[dict[str, SourceBinding], LoggedState]:
    """The bindings of the sources and all that is in force by files and log; `node` is the id of
    the site's node. For who looks, beside the running node or without it.
    """
    found = await asyncio.to_thread(in_site, site)
    bindings = source_bindings(site.ontology, site.file)
    return bindings, await read_logged_state(channels, found.files, node)


def in_site(site: Site) -> SiteMeanings:
    """What the files of a site say of interpretations."""
    return meanings_in_site(site.file, site.directory, site.ontology, site.tables.columns())


class Meanings:
    """What gives a running node's events their meaning: files, then changes.

    `updating` takes changes once `begin` was called.
    """

    def __init__(self, site: Site, updating: InterpretationUpdater) -> None:
        self._site, self.updating = site, updating
        self._bindings = source_bindings(site.ontology, site.file)
        self._taken = site
        """That of the last `take_over`."""
        self._begun = False
        self.reload_checks: list[Callable[[Site], list[Problem]]] = []
        """What other rooms have against the site as it is now in its files."""
        self.reloaded: list[Callable[[Site], None]] = []
        """Who else takes something over from it, once it is in force."""
        self.streams_read: Callable[[], Mapping[str, Collection[str]]] = dict
        """By policy that runs the streams that it reads."""
        self.told: Callable[[], Mapping[str, int]] = dict
        """By interpretation how many events consumers were given in it."""

    async def begin(self, *, record: bool = True) -> None:
        """Takes in the site's files and all changes on record. Once; later calls do nothing."""
        if self._begun:
            return
        found = await asyncio.to_thread(in_site, self._site)
        checks = await self.updating.start(found.files, record=record)
        self._begun = True
        for problem in problems_of_meanings(found, checks, self._site.file):
            if problem.severity == "error":
                _log.warning(
                    "interpretation refused",
                    reason=problem.message,
                    file=problem.file,
                    line=problem.line,
                    hint=problem.hint,
                )

    async def run(self) -> None:
        """Puts in force what other nodes change, until cancelled."""
        await self.updating.run()

    async def reload(self) -> Reloaded:
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

    @property
    def bindings(self) -> Mapping[str, SourceBinding]:
        """How each source speaks now."""
        return self._bindings

    def problems_with(self, site: Site) -> list[Problem]:
        """Why a site read anew cannot be taken over while the node runs."""
        problems = [*site.faults, *other_streams(site, self._site.ontology)]
        return problems + [problem for check in self.reload_checks for problem in check(site)]

    async def take_over(self, site: Site) -> Reloaded:
        """The same with a site that is read and checked already."""
        await asyncio.to_thread(site.tables.keep_context, self._site.tables)
        found = await asyncio.to_thread(in_site, site)
        bindings = source_bindings(site.ontology, site.file)
        names = self._bindings.keys() | bindings.keys()
        sources = [name for name in names if self._bindings.get(name) != bindings.get(name)]
        reading, told = self.streams_read(), self.told()
        changed = await self.updating.load_files(found.files, bindings, site.tables)
        gone = {name for name, stamp in changed.items() if not stamp}
        warnings = gone_interpretations(self._bindings, bindings, gone, reading, told)
        self._bindings, self._taken = bindings, site
        for take_over in self.reloaded:
            take_over(site)
        return Reloaded(sorted(changed), sorted(sources), warnings)

    def former(self) -> FormerMeanings:
        """What `take_back` takes; costs nothing."""
        tables = self._site.tables.share()
        site = msgspec.structs.replace(self._taken, tables=tables)
        return FormerMeanings(self.updating.previous(), self._bindings, site)

    async def take_back(self, former: FormerMeanings) -> None:
        """Gives up what was taken over since `former`, whatever came of it."""
        await self.updating.roll_back(former.spoken)
        self._bindings, self._taken = former.bindings, former.site
        for take_over in self.reloaded:
            take_over(former.site)


def other_streams(site: Site, running: Ontology) -> list[Problem]:
    """What a site read anew gives that the running node does not know, or knows as something
    else.
    """
    known = running.streams()
    return [
        Problem(
            code="reload.other_streams",
            message=f"the running node does not know {stream!r}, or as something else",
            file=site.file.name,
            hint="start the node again; what is received meanwhile is kept",
        )
        for stream, kind in sorted(site.ontology.streams().items())
        if known.get(stream) != kind
    ]
