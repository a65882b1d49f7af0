"""The only file that knows all subsystems: from a site to a node that is ready to start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.channel.access.admission import Admission, load_access, open_admission
from rapport.channel.access.keys import open_keys, open_node_key
from rapport.channel.access.signatures import SignatureCheck
from rapport.channel.access.signing import OwnSigner
from rapport.channel.backends.choosing import open_channels
from rapport.channel.channel import Appended
from rapport.channel.dead.letters import bury
from rapport.channel.declared import ChannelsDeclared, channels_from_site
from rapport.channel.federation.declare import Link, links_from_site
from rapport.channel.federation.identity import node_identity
from rapport.channel.federation.intake import Append, Receiver
from rapport.channel.logged.channels import LoggedChannels
from rapport.channel.mqtt.declare import bridges_from_site
from rapport.communication.adapters.build import adapter_names
from rapport.communication.assembly import Assembly
from rapport.communication.declare import Communication, communication_from_site
from rapport.communication.declaring.engines import engines_from_site
from rapport.communication.declaring.sessions import Entrance, entrance_from_site
from rapport.communication.history.index import LEDGER_FILE, LedgerIndex
from rapport.communication.services.query_criteria import with_log_index
from rapport.communication.services.services import ServicesDeclared, services_from_site
from rapport.communication.sharing.shares import ShareSettings
from rapport.core.errors import InvalidInput, SiteError
from rapport.core.event import Event, StoredEvent
from rapport.kernel.chance import Chance, Ids
from rapport.kernel.clock import Clock
from rapport.kernel.files import make_private_directory
from rapport.kernel.node_identity import write_node_id
from rapport.kernel.plugins import Plugins
from rapport.kernel.settings import NodeSettings, read_secret
from rapport.kernel.telemetry import DegradedConditions
from rapport.mediation.binding import SourceBinding
from rapport.mediation.changing.updating import Updating
from rapport.mediation.holding.release import Releasing
from rapport.mediation.lane import SignReading
from rapport.mediation.outgoing.outgoing import Outgoing
from rapport.mediation.reader import MediationReader
from rapport.mediation.repository import Repository
from rapport.node.context_broker import NodeContext
from rapport.node.history import History
from rapport.node.interpretations import (
    NodeInterpretations,
    interpretations_of,
    make_outgoing,
    prepare_outgoing,
    serve_interpretations,
)
from rapport.node.links import LinkParts, Links
from rapport.node.load import LoadWatch
from rapport.node.maintenance import ChannelMaintenance, LakeExporter
from rapport.node.mqtt import Bridges, RunningBridge
from rapport.node.node import Node, NodeParts
from rapport.node.pipeline_process import PipelineProcess, pipeline_command
from rapport.node.policies import Policies
from rapport.node.push import PushSubscriptions
from rapport.node.reload import SiteReload
from rapport.node.table_updates import TableUpdates
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.on_spark import OnSpark
from rapport.policy.replaying.second_looker import SecondLooker
from rapport.site.actions import OwnActions, TemplateFacts
from rapport.site.context import context_from_site
from rapport.site.ensemble import ensemble_from_site
from rapport.site.pipeline import BY_NODE, RunPlaces, pipeline_settings
from rapport.site.site import Site

if TYPE_CHECKING:
    from rapport.node.ensemble import NodeEnsemble


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
    # What a flag said counts for all that the node keeps, also when it reads its site again.
    site = msgspec.structs.replace(site, data_directory=data_directory(site, settings))
    plugins = Plugins()
    conditions = DegradedConditions(clock)
    people = _people(site, plugins)
    admission = open_admission(load_access(site.file), site.directory)
    signatures, signer = _signatures(site, settings, admission)
    sign = signer.changed if signer is not None else None
    with suppress(OSError):  # what is wrong with the directory, opening the channels reports
        make_private_directory(site.data_directory)
    opened = channels or open_channels(
        data_directory(site, settings) / "log",
        clock,
        _channels(site),
        site=site.directory,
        segment_bytes=settings.segment_bytes,
    )
    if channels is None:
        own = node_identity(opened.records, Chance.from_machine().randbytes(8).hex())
        write_node_id(data_directory(site, settings), own)
    if signer is not None:
        opened.sign_with(signer)
    # Links in messages need the node's address, which is known only once its doors are open.
    node: list[Node] = []
    bindings, in_force = interpretations_of(site)
    repository = Repository(in_force)
    mediation = _mediation(site, bindings, repository, opened, clock, sign)
    outgoing = make_outgoing(site, repository, opened, clock, mediation, admission.rights)
    serve_interpretations(opened, outgoing)
    policy = _policy(site, people, opened, clock, mediation, conditions)
    meanings = NodeInterpretations(site, _updating(opened, repository, mediation, outgoing, clock))
    fresh_tables = TableUpdates(site, policy, clock, Chance.from_machine(), opened)
    meanings.reload_checks.append(fresh_tables.losses)
    meanings.reloaded.append(fresh_tables.take_over)
    policies = Policies(site, people, opened, policy, meanings, fresh_tables, clock)
    meanings.streams_read, meanings.told = policies.streams_read, outgoing.told.events
    life = policies.life
    own_actions = OwnActions(people, life.text_of)
    lake = data_directory(site, settings) / "lake"
    exporting = LakeExporter(opened, _channels(site), lake, clock)
    context = _context(site, opened, fresh_tables, clock)
    communication = Assembly(
        opened,
        opened.records,
        clock,
        people,
        phrases=life.phrases,
        public_url=lambda: node[0].public_url if node else "",
        plugins=plugins,
        facts=TemplateFacts(site.tables, life.compiled).find,
        own_action=own_actions.find,
        site=site.directory,
        entrance=_entrance(site),
        engines=_engines(site),
        append=lambda name, events: _append_action(node[0], signer, name, events),
        services=_services(site, people),
    )
    parts = NodeParts(
        site=site,
        settings=settings,
        clock=clock,
        conditions=conditions,
        channels=opened,
        rights=admission.rights,
        admission=admission,
        channels_per_identity=_channels(site).channels_per_identity,
        signatures=signatures,
        bindings=bindings,
        mediation=mediation,
        meanings=meanings,
        fresh_tables=fresh_tables,
        outgoing=outgoing,
        releasing=Releasing(
            opened,
            mediation.meaning_apart,
            clock,
            new_id=Ids(clock, Chance.from_machine()).new,
            sign=sign,
        ),
        policy=policy,
        policies=policies,
        second_looker=SecondLooker(opened, policy, clock),
        load=LoadWatch(policy, clock, Ids(clock, Chance.from_machine())),
        communication=communication,
        reloading=SiteReload(
            site,
            people,
            meanings=meanings,
            policies=policies,
            communication=communication,
            own_actions=own_actions,
            plugins=plugins,
        ),
        care=ChannelMaintenance(opened, _channels(site), mediation, clock, exporting=exporting),
        history=History(opened, lake, clock),
        pushing=PushSubscriptions(
            opened,
            clock,
            admission.rights,
            allowed=_channels(site).push_to,
            chance=Chance.from_machine(),
            secret=_push_secret(site),
        ),
        links=_links(site, opened, clock, lambda name, events: node[0].append(name, events)),
        bridges=_bridges(
            site,
            opened,
            clock,
            lambda name, events: node[0].append(name, events),
            lambda event: node[0].declared_id(event),
        ),
        pipeline=_pipeline(site, settings, clock),
        context=context,
        ensemble=_ensemble(
            site,
            opened,
            bindings,
            meanings,
            context,
            clock,
            lambda name, events: node[0].append(name, events),
            conditions,
        ),
        ledger_index=(
            LedgerIndex(data_directory(site, settings) / "log" / LEDGER_FILE)
            if channels is None
            else None
        ),
    )
    node.append(Node(parts))
    return node[0]


def _pipeline(site: Site, settings: NodeSettings, clock: Clock) -> PipelineProcess | None:
    """What watches over the pipeline's process, where the site wants that."""
    declared, problems = pipeline_settings(site.file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    if not declared.on:
        return None
    return PipelineProcess(
        RunPlaces.of(data_directory(site, settings)),
        clock,
        pipeline_command(str(site.directory)),
        # What flags said counts for the process, too.
        {"RAPPORT_DATA": settings.data, BY_NODE: "1"},
    )


def _context(
    site: Site, channels: LoggedChannels, fresh_tables: TableUpdates, clock: Clock
) -> NodeContext | None:
    """The node's context broker, where the site has one."""
    declared, problems = context_from_site(site.file, site.directory)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    if declared is None:
        return None
    chance = Chance.from_machine()
    return NodeContext(declared, site, channels, fresh_tables.refreshing, clock, chance)


def _ensemble(
    site: Site,
    channels: LoggedChannels,
    bindings: dict[str, SourceBinding],
    meanings: NodeInterpretations,
    context: NodeContext | None,
    clock: Clock,
    append: Append,
    conditions: DegradedConditions,
) -> NodeEnsemble | None:
    """The node's part in ensembles, where the site has one."""
    declared, problems = ensemble_from_site(site.file, site.directory, bindings, site.name)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    if declared is None:
        return None
    # Most sites have none, and start without that room.
    from rapport.node.ensemble import NodeEnsemble

    chance = Chance.from_machine()
    return NodeEnsemble(
        declared, site, channels, append, meanings, context, clock, chance, conditions
    )


def _channels(site: Site) -> ChannelsDeclared:
    declared, problems = channels_from_site(site.file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return with_log_index(declared)


def _entrance(site: Site) -> Entrance:
    entrance, problems = entrance_from_site(site.file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return entrance


def _engines(site: Site) -> ShareSettings | None:
    engines, problems = engines_from_site(site.file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return engines


def _push_secret(site: Site) -> str:
    named = _channels(site).push_secret
    return read_secret(named, site.directory) if named else ""


def _links(site: Site, channels: LoggedChannels, clock: Clock, append: Append) -> Links:
    declared, problems = links_from_site(site.file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    chance = Chance.from_machine()
    own = node_identity(channels.records, chance.randbytes(8).hex())
    parts = LinkParts(
        node=own,
        clock=clock,
        chance=chance,
        channels=channels,
        receiver=Receiver(own, channels, append, partial(_bury_refused, channels)),
    )

    def shown(link: Link) -> str:
        return read_secret(link.token, site.directory) if link.token else ""

    return Links([(link, shown(link)) for link in declared], parts)


async def _bury_refused(
    channels: LoggedChannels, channel: str, sender: str, event: Event, error: InvalidInput
) -> None:
    await bury(channels, channel, f"link:{sender}", StoredEvent(0, 0, event), error, attempts=1)


def _bridges(
    site: Site,
    channels: LoggedChannels,
    clock: Clock,
    append: Append,
    declared_id: Callable[[Event], str],
) -> Bridges:
    declared, problems = bridges_from_site(site.file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    running = []
    for bridge in declared:
        password = read_secret(bridge.password, site.directory) if bridge.password else ""
        running.append(
            RunningBridge(bridge, password, site.name, channels, append, clock, declared_id)
        )
    return Bridges(running)


def _people(site: Site, plugins: Plugins) -> Communication:
    people, problems = communication_from_site(
        site.file, site.directory, adapters=adapter_names(plugins)
    )
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return people


def _services(site: Site, people: Communication) -> ServicesDeclared:
    declared, problems = services_from_site(
        site.file, site.directory, peers=people.peers, collectives=people.collectives
    )
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return declared


def _signatures(
    site: Site, settings: NodeSettings, admission: Admission
) -> tuple[SignatureCheck, OwnSigner | None]:
    """What checks signatures at the doors, and what signs where the site wants that."""
    access = admission.access
    own = open_node_key(data_directory(site, settings)) if access.sign else None
    keys = open_keys(access, site.directory, own)
    declared = _channels(site)
    check = SignatureCheck(keys, lambda channel: declared.rules_for(channel).signed)
    return check, OwnSigner(own, keys) if own is not None else None


async def _append_action(
    node: Node, signer: OwnSigner | None, name: str, events: Sequence[Event]
) -> Appended:
    """What an action appends: made by the node, whatever channel it goes to."""
    return await node.append(name, events if signer is None else await signer.sign_all(events))


def _mediation(
    site: Site,
    bindings: dict[str, SourceBinding],
    repository: Repository,
    channels: LoggedChannels,
    clock: Clock,
    sign: SignReading | None,
) -> MediationReader:
    """A faulty interpretation refuses only itself: its source is held back with the reason."""
    return MediationReader(
        channels,
        bindings.values(),
        repository,
        clock,
        lookups=site.tables,
        import_paths=[str(site.directory.resolve())],
        sign=sign,
        records=channels.records,
    )


def _updating(
    channels: LoggedChannels,
    repository: Repository,
    mediation: MediationReader,
    outgoing: Outgoing,
    clock: Clock,
) -> Updating:
    own = node_identity(channels.records, Chance.from_machine().randbytes(8).hex())
    records = channels.records
    updating = Updating(channels, repository, mediation, clock, node=own, records=records)
    prepare_outgoing(updating, outgoing)
    return updating


def _policy(
    site: Site,
    people: Communication,
    channels: LoggedChannels,
    clock: Clock,
    mediation: MediationReader,
    conditions: DegradedConditions,
) -> PolicyEngine:
    return PolicyEngine(
        channels,
        clock,
        name=site.name,
        ontology=site.ontology,
        pull=site.tables,
        lateness_ms=site.lateness_ms,
        upstream_is_idle=mediation.is_idle,
        on_spark=OnSpark(site.on_spark),
        act_within_ms=people.act_within_ms,
        conditions=conditions,
    )
