"""How a site's sources speak: read when a node starts, and again while it runs. [ME-5, ME-6]"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.core.errors import Problem, SiteError
from rapport.mediation.binding import SourceBinding
from rapport.mediation.declare import interpretations_from_site
from rapport.mediation.in_force import InForce
from rapport.mediation.reader import MediationReader
from rapport.mediation.repository import Repository
from rapport.site.bindings import source_bindings
from rapport.site.site import Site, load_site


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload changed, by name."""

    interpretations: list[str]
    sources: list[str]


def meanings_of(site: Site) -> tuple[dict[str, SourceBinding], InForce]:
    """The bindings of the sources and the interpretations; a faulty interpretation refuses only
    itself: its source is held back with the reason.
    """
    found, _problems = interpretations_from_site(site.file, site.directory, site.tables.columns())
    return source_bindings(site.ontology), InForce(found)


class Meanings:
    """What gives a running node's events their meaning, and how it is taken from the files anew."""

    def __init__(self, site: Site, mediation: MediationReader, repository: Repository) -> None:
        self._site, self._mediation, self._repository = site, mediation, repository
        self._bindings = source_bindings(site.ontology)

    async def reload(self) -> Reloaded:
        """Takes over interpretations, bindings of sources and tables for look-ups from the site's
        files; policies keep their tables.

        Raises SiteError with every fault; then everything stays as it was.
        """
        site = await asyncio.to_thread(load_site, self._site.directory, policies=[])
        problems = [*self._other_streams(site)]
        if problems:
            raise SiteError(problems)
        bindings, now = meanings_of(site)
        before = self._repository.in_force.fields
        changed = [
            name
            for name in before.keys() | now.fields.keys()
            if name not in before
            or name not in now.fields
            or before[name].version() != now.fields[name].version()
        ]
        names = self._bindings.keys() | bindings.keys()
        sources = [name for name in names if self._bindings.get(name) != bindings.get(name)]
        self._repository.replace(now.fields)
        self._mediation.use_tables(site.tables)
        self._mediation.use_bindings(bindings.values())
        self._bindings = bindings
        return Reloaded(sorted(changed), sorted(sources))

    def _other_streams(self, site: Site) -> list[Problem]:
        """What policies would have to know of before it can be given."""
        known = self._site.ontology.streams()
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
