"""How a node says things in the interpretations of its consumers; doors, requests and queries share
it. [ME-9]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rapport.channel.access.rights import Rights
from rapport.channel.channel import Channels
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.query.query_kinds import InterpretationViews
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.mediation.conversion.lookups import Lookups
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.interpretations.updater import InterpretationUpdater
from rapport.mediation.outgoing.service import OutgoingMediation
from rapport.mediation.reader import MediationReader
from rapport.mediation.site_functions import site_functions
from rapport.site.bindings import source_bindings
from rapport.site.site import Site
from rapport.tables.tables import Tables


def make_outgoing(
    site: Site,
    repository: Repository,
    channels: Channels,
    clock: Clock,
    mediation: MediationReader,
    rights: Rights | None = None,
) -> OutgoingMediation:
    """What says events of these channels in the interpretations of the repository."""
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


def tables_of(lookups: Lookups) -> Tables | None:
    """The tables of the site, if that is what is looked up in."""
    return lookups if isinstance(lookups, Tables) else None


def prepare_words(updating: InterpretationUpdater, outgoing: OutgoingMediation) -> None:
    """From now on a change of interpretations finds ready what consumers need of it."""
    updating.prepares.append(
        lambda in_force, lookups: outgoing.prepare(in_force, tables_of(lookups))
    )


def serve_own_terms(channels: LoggedChannels, outgoing: OutgoingMediation) -> None:
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


def reading_in_words(
    site: Site, channels: Channels, clock: Clock, in_force: ActiveInterpretations
) -> OutgoingMediation:
    """The same for who reads a site's channels without being its node; close it."""
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
