"""The only file that knows all subsystems: from a site to a node that is ready to start."""

from __future__ import annotations

from pathlib import Path

from rapport.channel.backends.choosing import open_channels
from rapport.channel.declared import ChannelsDeclared, channels_from_site
from rapport.channel.logged import LoggedChannels
from rapport.channel.rights import EVERYTHING, LOCAL, Rights
from rapport.communication.adapters.build import adapter_names
from rapport.communication.assembly import Assembly
from rapport.communication.declare import Communication, communication_from_site
from rapport.core.errors import SiteError
from rapport.kernel.clock import Clock
from rapport.kernel.plugins import Plugins
from rapport.kernel.settings import NodeSettings
from rapport.mediation.declare import interpretations_from_site
from rapport.mediation.reader import MediationReader
from rapport.mediation.repository import Repository
from rapport.node.node import Node, NodeParts
from rapport.policy.engine import PolicyEngine
from rapport.site.bindings import source_bindings
from rapport.site.facts import SiteFacts
from rapport.site.site import Site


def data_directory(site: Site, settings: NodeSettings) -> Path:
    """Where the node keeps its log, records and lake."""
    return site.directory / settings.data


def make_node(
    site: Site, settings: NodeSettings, clock: Clock, *, channels: LoggedChannels | None = None
) -> Node:
    """Opens the channels (blocking, seconds after a crash at most) and puts the rooms together.

    Raises SiteError, StoreUnavailable when another process writes the data directory, or
    Unsupported when an adapter's driver is not installed.
    """
    plugins = Plugins()
    people = _people(site, plugins)
    opened = channels or open_channels(
        data_directory(site, settings) / "log",
        clock,
        _channels(site),
        site=site.directory,
        segment_bytes=settings.segment_bytes,
    )
    # Links in messages need the node's address, which is known only once its doors are open.
    node: list[Node] = []
    mediation = _mediation(site, opened, clock)
    parts = NodeParts(
        site=site,
        settings=settings,
        clock=clock,
        channels=opened,
        rights=Rights({LOCAL: EVERYTHING}),
        bindings=source_bindings(site.ontology),
        mediation=mediation,
        policy=_policy(site, opened, clock, mediation),
        communication=Assembly(
            opened,
            opened.records,
            clock,
            people,
            phrases={name: compiled.plan.actions for name, compiled in site.policies.items()},
            public_url=lambda: node[0].public_url if node else "",
            plugins=plugins,
            facts=SiteFacts(site.file, site.tables, site.policies).find,
        ),
    )
    node.append(Node(parts))
    return node[0]


def _channels(site: Site) -> ChannelsDeclared:
    declared, problems = channels_from_site(site.file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return declared


def _people(site: Site, plugins: Plugins) -> Communication:
    people, problems = communication_from_site(
        site.file, site.directory, adapters=adapter_names(plugins)
    )
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return people


def _mediation(site: Site, channels: LoggedChannels, clock: Clock) -> MediationReader:
    """A faulty interpretation refuses only itself: its source is held back with the reason."""
    interpretations, _problems = interpretations_from_site(
        site.file, site.directory, site.tables.columns()
    )
    return MediationReader(
        channels,
        source_bindings(site.ontology).values(),
        Repository(interpretations),
        clock,
        lookups=site.tables,
        import_paths=[str(site.directory.resolve())],
    )


def _policy(
    site: Site, channels: LoggedChannels, clock: Clock, mediation: MediationReader
) -> PolicyEngine:
    return PolicyEngine(
        channels,
        clock,
        name=site.name,
        ontology=site.ontology,
        pull=site.tables,
        plans=[compiled.plan for compiled in site.policies.values()],
        lateness_ms=site.lateness_ms,
        upstream_is_idle=mediation.is_idle,
    )
