"""Builds a node from a site: the only module that knows all packages.

Each builder takes the parts that exist already and returns the next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rapport.channel.access.identities import Admission, load_access, open_admission
from rapport.channel.access.signatures import OwnSigner, SignatureCheck, open_keys, open_node_key
from rapport.channel.backends.stores import open_channels
from rapport.channel.channel import AppendResult
from rapport.channel.config import ChannelsConfig, channels_from_site
from rapport.channel.dead_letters import append_dead_letter
from rapport.channel.federation import LinkReceiver, links_from_site, node_identity
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.mqtt.bridge import bridges_from_site
from rapport.communication.adapters.adapter_config import adapter_names
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.config import (
    CommunicationConfig,
    arrivals_from_site,
    communication_from_site,
    engines_from_site,
    services_from_site,
)
from rapport.communication.ledger import LEDGER_FILE, LedgerIndex
from rapport.communication.links import PublicAddress
from rapport.communication.message_query import with_log_index
from rapport.communication.open_situations import acknowledged_by
from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Chance, Clock, Ids
from rapport.kernel.files import make_private_directory
from rapport.kernel.node_identity import write_node_id
from rapport.kernel.plugins import Plugins
from rapport.kernel.settings import NodeSettings, read_secret
from rapport.kernel.signing_keys import SigningKey
from rapport.kernel.telemetry import DegradedConditions
from rapport.mediation.interpretations.repository import Repository
from rapport.mediation.interpretations.updater import InterpretationUpdater
from rapport.mediation.quarantine.release import ReleaseService
from rapport.mediation.reader import MediationReader
from rapport.mediation.source_bindings import SourceBinding
from rapport.node.context_broker import NodeContext
from rapport.node.history import History
from rapport.node.intake import EventIntake
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
from rapport.node.node import (
    ConnectionParts,
    MediationParts,
    Node,
    NodeParts,
    PolicyParts,
)
from rapport.node.pipeline_process import PipelineProcess, pipeline_command
from rapport.node.policies import Policies
from rapport.node.push import PushSubscriptions
from rapport.node.reload import SiteReload
from rapport.node.table_updates import TableUpdates
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.spark_policies import SparkPolicies
from rapport.policy.replay.reevaluation import ReevaluationService
from rapport.site.actions import OwnActions, TemplateFacts, TextNeeds
from rapport.site.context import context_from_site
from rapport.site.ensemble import ensemble_from_site
from rapport.site.parts import has_errors
from rapport.site.pipeline import BY_NODE, RunPlaces, pipeline_settings
from rapport.site.site import Site

if TYPE_CHECKING:
    from rapport.node.ensemble import NodeEnsemble


T = TypeVar("T")


def data_directory(site: Site, settings: NodeSettings) -> Path:
    """Where the node keeps its log, records and lake."""
    return site.directory / settings.data


def make_node(
    site: Site, settings: NodeSettings, clock: Clock, *, channels: LoggedChannels | None = None
) -> Node:
    """Opens the channels (blocking, seconds after a crash at most) and builds the node.

    Raises SiteError, StoreUnavailable when another process writes the data directory, or
    Unsupported when an adapter's driver is not installed.
    """
    # A data directory given by a flag stays in force when the node reads its site again.
    site = msgspec.structs.replace(site, data_directory=data_directory(site, settings))
    base = _make_base(site, settings, clock, channels)
    bindings, in_force = interpretations_of(site)
    mediation = _make_mediation(base, bindings, Repository(in_force))
    policy = _make_policy(base, mediation)
    intake = EventIntake(
        base.channels,
        clock,
        base.admission,
        mediation.reader,
        mediation.interpretations,
        signatures=_signature_check(base),
        channels_per_identity=base.declared.channels_per_identity,
        open_sources=site.open_sources,
    )
    address = PublicAddress(settings.public_url)
    own_actions = OwnActions(base.people, policy.policies.life.text_of)
    text_needs = TextNeeds(
        base.people, own_actions, policy.policies.life.compiled, lambda: policy.engine.ontology
    )
    policy.engine.use_texts(text_needs.of)
    policy.policies.life.situations.acknowledged_by = partial(
        acknowledged_by, base.channels.records
    )
    communication = _make_communication(base, policy.policies, intake, address, own_actions)
    lake = site.data_directory / "lake"
    return Node(
        NodeParts(
            site=site,
            settings=settings,
            clock=clock,
            conditions=base.conditions,
            channels=base.channels,
            admission=base.admission,
            intake=intake,
            address=address,
            mediation=mediation,
            policy=policy,
            communication=communication,
            reloading=SiteReload(
                site,
                base.people,
                meanings=mediation.interpretations,
                policies=policy.policies,
                communication=communication,
                own_actions=own_actions,
                text_needs=text_needs,
                plugins=base.plugins,
            ),
            maintenance=ChannelMaintenance(
                base.channels,
                base.declared,
                mediation.reader,
                clock,
                exporting=LakeExporter(base.channels, base.declared, lake, clock),
            ),
            history=History(base.channels, lake, clock),
            connections=_make_connections(base, bindings, mediation, policy, intake),
            ledger_index=(
                LedgerIndex(site.data_directory / "log" / LEDGER_FILE) if channels is None else None
            ),
        )
    )


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """What every builder needs."""

    site: Site
    settings: NodeSettings
    clock: Clock
    plugins: Plugins
    conditions: DegradedConditions
    people: CommunicationConfig
    admission: Admission
    declared: ChannelsConfig
    channels: LoggedChannels
    node_key: SigningKey | None
    signer: OwnSigner | None

    def node_id(self) -> str:
        return node_identity(self.channels.records, Chance.from_machine().randbytes(8).hex())


def _make_base(
    site: Site, settings: NodeSettings, clock: Clock, channels: LoggedChannels | None
) -> _Base:
    plugins = Plugins()
    people = _checked(
        communication_from_site(site.file, site.directory, adapters=adapter_names(plugins))
    )
    admission = open_admission(load_access(site.file), site.directory)
    declared = with_log_index(_checked(channels_from_site(site.file)))
    node_key = open_node_key(site.data_directory) if admission.access.sign else None
    signer = None
    if node_key is not None:
        signer = OwnSigner(node_key, open_keys(admission.access, site.directory, node_key))
    with suppress(OSError):  # opening the channels reports faults of the directory
        make_private_directory(site.data_directory)
    base = _Base(
        site=site,
        settings=settings,
        clock=clock,
        plugins=plugins,
        conditions=DegradedConditions(clock),
        people=people,
        admission=admission,
        declared=declared,
        channels=channels
        or open_channels(
            site.data_directory / "log",
            clock,
            declared,
            site=site.directory,
            segment_bytes=settings.segment_bytes,
        ),
        node_key=node_key,
        signer=signer,
    )
    if channels is None:
        write_node_id(site.data_directory, base.node_id())
    if signer is not None:
        base.channels.sign_with(signer)
    return base


def _signature_check(base: _Base) -> SignatureCheck:
    keys = open_keys(base.admission.access, base.site.directory, base.node_key)
    return SignatureCheck(keys, lambda channel: base.declared.rules_for(channel).signed)


def _make_mediation(
    base: _Base, bindings: dict[str, SourceBinding], repository: Repository
) -> MediationParts:
    """A faulty interpretation refuses only itself: its source is quarantined with the reason."""
    site, channels, clock = base.site, base.channels, base.clock
    sign = base.signer.changed if base.signer is not None else None
    reader = MediationReader(
        channels,
        bindings.values(),
        repository,
        clock,
        lookups=site.tables,
        import_paths=[str(site.directory.resolve())],
        sign=sign,
        records=channels.records,
    )
    outgoing = make_outgoing(site, repository, channels, clock, reader, base.admission.rights)
    serve_interpretations(channels, outgoing)
    updating = InterpretationUpdater(
        channels, repository, reader, clock, node=base.node_id(), records=channels.records
    )
    prepare_outgoing(updating, outgoing)
    return MediationParts(
        reader=reader,
        interpretations=NodeInterpretations(site, updating),
        outgoing=outgoing,
        releasing=ReleaseService(
            channels,
            reader.isolated_transformer,
            clock,
            new_id=Ids(clock, Chance.from_machine()).new,
            sign=sign,
        ),
    )


def _make_policy(base: _Base, mediation: MediationParts) -> PolicyParts:
    site, channels, clock = base.site, base.channels, base.clock
    engine = PolicyEngine(
        channels,
        clock,
        name=site.name,
        ontology=site.ontology,
        pull=site.tables,
        lateness_ms=site.lateness_ms,
        upstream_is_idle=mediation.reader.is_idle,
        on_spark=SparkPolicies(site.on_spark),
        act_within_ms=base.people.act_within_ms,
        conditions=base.conditions,
    )
    interpretations = mediation.interpretations
    tables = TableUpdates(site, engine, clock, Chance.from_machine(), channels)
    interpretations.reload_checks.append(tables.losses)
    interpretations.reloaded.append(tables.take_over)
    policies = Policies(site, base.people, channels, engine, interpretations, tables, clock)
    interpretations.streams_read = policies.streams_read
    interpretations.delivered = mediation.outgoing.statistics.events
    return PolicyParts(
        engine=engine,
        policies=policies,
        tables=tables,
        reevaluation=ReevaluationService(channels, engine, clock),
        load=LoadWatch(engine, clock, Ids(clock, Chance.from_machine())),
    )


def _make_communication(
    base: _Base,
    policies: Policies,
    intake: EventIntake,
    address: PublicAddress,
    own_actions: OwnActions,
) -> Assembly:
    site, life = base.site, policies.life

    async def append(name: str, events: Sequence[Event]) -> AppendResult:
        """The node signs what actions append, whatever the channel."""
        signed = events if base.signer is None else await base.signer.sign_all(events)
        return await intake.append(name, signed)

    return Assembly(
        base.channels,
        base.channels.records,
        base.clock,
        base.people,
        AssemblyOptions(
            phrases=life.phrases,
            address=address,
            plugins=base.plugins,
            facts=TemplateFacts(site.tables, life.compiled).find,
            own_actions=own_actions.of,
            end_phrases=life.end_phrases,
            site=site.directory,
            arrivals=_checked(arrivals_from_site(site.file)),
            engines=_checked(engines_from_site(site.file)),
            append=append,
            services=_checked(
                services_from_site(
                    site.file,
                    site.directory,
                    peers=base.people.peers,
                    collectives=base.people.collectives,
                )
            ),
        ),
    )


def _make_connections(
    base: _Base,
    bindings: dict[str, SourceBinding],
    mediation: MediationParts,
    policy: PolicyParts,
    intake: EventIntake,
) -> ConnectionParts:
    site, secret = base.site, base.declared.push_secret
    context = _make_context(base, policy.tables)
    return ConnectionParts(
        push=PushSubscriptions(
            base.channels,
            base.clock,
            base.admission.rights,
            allowed=base.declared.push_to,
            chance=Chance.from_machine(),
            secret=read_secret(secret, site.directory) if secret else "",
        ),
        links=_make_links(base, intake),
        bridges=_make_bridges(base, intake),
        pipeline=_make_pipeline(base),
        context=context,
        ensemble=_make_ensemble(base, bindings, mediation.interpretations, context, intake),
    )


def _make_links(base: _Base, intake: EventIntake) -> Links:
    own, channels = base.node_id(), base.channels

    async def bury_refused(channel: str, sender: str, event: Event, error: InvalidInput) -> None:
        stored = StoredEvent(0, 0, event)
        await append_dead_letter(channels, channel, f"link:{sender}", stored, error, attempts=1)

    parts = LinkParts(
        node=own,
        clock=base.clock,
        chance=Chance.from_machine(),
        channels=channels,
        receiver=LinkReceiver(own, channels, intake.append, bury_refused),
    )
    declared = _checked(links_from_site(base.site.file))
    return Links([(link, _secret(base.site, link.token)) for link in declared], parts)


def _make_bridges(base: _Base, intake: EventIntake) -> Bridges:
    site = base.site
    return Bridges(
        [
            RunningBridge(
                bridge,
                _secret(site, bridge.password),
                site.name,
                base.channels,
                intake.append,
                base.clock,
                intake.declared_id,
            )
            for bridge in _checked(bridges_from_site(site.file))
        ]
    )


def _make_pipeline(base: _Base) -> PipelineProcess | None:
    """Runs the pipeline's process, where the site turns that on."""
    if not _checked(pipeline_settings(base.site.file)).on:
        return None
    return PipelineProcess(
        RunPlaces.of(base.site.data_directory),
        base.clock,
        pipeline_command(str(base.site.directory)),
        # Flags of the node apply to the process, too.
        {"RAPPORT_DATA": base.settings.data, BY_NODE: "1"},
    )


def _make_context(base: _Base, tables: TableUpdates) -> NodeContext | None:
    site = base.site
    declared = _checked(context_from_site(site.file, site.directory))
    if declared is None:
        return None
    chance = Chance.from_machine()
    return NodeContext(declared, site, base.channels, tables.refreshing, base.clock, chance)


def _make_ensemble(
    base: _Base,
    bindings: dict[str, SourceBinding],
    interpretations: NodeInterpretations,
    context: NodeContext | None,
    intake: EventIntake,
) -> NodeEnsemble | None:
    site = base.site
    declared = _checked(ensemble_from_site(site.file, site.directory, bindings, site.name))
    if declared is None:
        return None
    # Most sites have no ensemble, and start without that package.
    from rapport.node.ensemble import NodeEnsemble

    return NodeEnsemble(
        declared,
        site,
        base.channels,
        intake.append,
        interpretations,
        context,
        base.clock,
        Chance.from_machine(),
        base.conditions,
    )


def _checked(declared: tuple[T, list[Problem]]) -> T:
    """The settings of a section; raises SiteError when one of its problems is an error."""
    settings, problems = declared
    if has_errors(problems):
        raise SiteError(problems)
    return settings


def _secret(site: Site, name: str) -> str:
    return read_secret(name, site.directory) if name else ""
