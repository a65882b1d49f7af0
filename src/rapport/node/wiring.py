"""The only file that knows all subsystems: from a site to a node that is ready to start. [design
2.4]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rapport.channel.backends.embedded import open_embedded
from rapport.channel.logged import LoggedChannels
from rapport.communication.adapters.base import OutputAdapter
from rapport.communication.adapters.build import adapter_names, make_adapters
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.answers import answer_link, answer_secret
from rapport.communication.declare import Communication, communication_from_site
from rapport.communication.engine import CommunicationEngine
from rapport.communication.peers import SiteDirectory
from rapport.core.errors import SiteError
from rapport.kernel.clock import Clock
from rapport.kernel.plugins import Plugins
from rapport.kernel.settings import NodeSettings
from rapport.mediation.declare import interpretations_from_site
from rapport.mediation.reader import MediationReader
from rapport.mediation.repository import Repository
from rapport.node.node import Node, NodeParts, Worker
from rapport.policy.engine import PolicyEngine
from rapport.site.bindings import source_bindings
from rapport.site.site import Site


def data_directory(site: Site, settings: NodeSettings) -> Path:
    """Where the node keeps its log, records and lake."""
    return site.directory / settings.data


def make_node(
    site: Site, settings: NodeSettings, clock: Clock, *, channels: LoggedChannels | None = None
) -> Node:
    """Opens the channels (blocking, seconds after a crash at most) and puts the rooms together.

    Raises SiteError, StoreUnavailable when another process writes the data directory, or
    Unsupported when an
    adapter's driver is not installed.
    """
    plugins = Plugins()
    people = _people(site, plugins)
    interpretations, problems = interpretations_from_site(
        site.file, site.directory, site.tables.columns()
    )
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    opened = channels or open_embedded(
        data_directory(site, settings) / "log", clock, segment_bytes=settings.segment_bytes
    )
    secret = answer_secret(opened.records)
    node: list[Node] = []
    adapters = make_adapters(people, _links(node, secret), plugins)
    bindings = source_bindings(site.ontology)
    mediation = MediationReader(
        opened,
        bindings.values(),
        Repository(interpretations),
        clock,
        lookups=site.tables,
        import_paths=[str(site.directory.resolve())],
    )
    policy = PolicyEngine(
        opened,
        clock,
        name=site.name,
        ontology=site.ontology,
        pull=site.tables,
        plans=[compiled.plan for compiled in site.policies.values()],
        lateness_ms=site.lateness_ms,
        upstream_is_idle=mediation.is_idle,
    )
    parts = NodeParts(
        site=site,
        settings=settings,
        clock=clock,
        channels=opened,
        bindings=bindings,
        mediation=mediation,
        policy=policy,
        workers=_workers(site, people, opened, clock, adapters, policy),
        closers=tuple(adapter.close for adapter in adapters.values()),
        answer_secret=secret,
    )
    node.append(Node(parts))
    return node[0]


def _people(site: Site, plugins: Plugins) -> Communication:
    people, problems = communication_from_site(
        site.file, site.directory, adapters=adapter_names(plugins)
    )
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return people


def _links(node: list[Node], secret: bytes) -> Callable[[str, str], str]:
    """Answer links need the node's address, which is known only once its doors are open."""

    def link_for(message: str, peer: str) -> str:
        url = node[0].public_url if node else ""
        return answer_link(url, secret, message, peer) if url else ""

    return link_for


def _workers(
    site: Site,
    people: Communication,
    channels: LoggedChannels,
    clock: Clock,
    adapters: dict[str, OutputAdapter],
    policy: PolicyEngine,
) -> tuple[Worker, ...]:
    engine = CommunicationEngine(
        channels,
        channels.records,
        clock,
        directory=SiteDirectory(people.peers, people.collectives),
        actions=people.actions,
        phrases={name: compiled.plan.actions for name, compiled in site.policies.items()},
        adapters=adapters,
    )
    dispatches = [
        Worker(f"adapter.{name}", Dispatch(adapter, channels, channels.records, clock).run)
        for name, adapter in adapters.items()
    ]
    return (*dispatches, Worker("communication", engine.run), Worker("policy", policy.run))
