"""A running node: starts and stops its parts in order and serves the calls of endpoints. [UX-5]

Start order: channels, endpoints (by the caller), then readers from the last stage to the first, so
that no stage appends for a stage that does not run yet. Stopping is the reverse: first the inputs,
then the readers finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rapport.channel.access.identities import Admission
from rapport.channel.federation import IntakeResult
from rapport.channel.log.channels import LoggedChannels
from rapport.communication.adapters.webhook import WebhookInput
from rapport.communication.answers import AnswerData, record_answer
from rapport.communication.api import Communication
from rapport.communication.assembly import Assembly
from rapport.communication.ledger import Ledger, LedgerIndex
from rapport.communication.ledger_rows import LedgerRow, MessageRow
from rapport.communication.links import PublicAddress, is_answer_token
from rapport.communication.texts import TextReader
from rapport.core.errors import NotAllowed, UnknownName
from rapport.core.event import Event
from rapport.kernel.clock import Chance, Clock, Ids
from rapport.kernel.node_identity import NodeIdentity, directory_digest
from rapport.kernel.settings import NodeSettings
from rapport.kernel.tasks import ClosableComponent, Tasks, close_all, run_blocking
from rapport.kernel.telemetry import DegradedConditions, get_logger
from rapport.mediation.outgoing.service import OutgoingMediation
from rapport.mediation.quarantine.release import ReleaseService
from rapport.mediation.reader import MediationReader
from rapport.node.context_broker import NodeContext
from rapport.node.health import watch_node
from rapport.node.history import History
from rapport.node.history_runs import HistoryRuns
from rapport.node.intake import EventIntake
from rapport.node.interpretations import NodeInterpretations
from rapport.node.links import Links
from rapport.node.load import LoadWatch
from rapport.node.maintenance import ChannelMaintenance
from rapport.node.mqtt import Bridges
from rapport.node.pipeline_process import PipelineProcess
from rapport.node.policies import Policies, SparkWatch
from rapport.node.push import PushSubscriptions
from rapport.node.rates import Rates
from rapport.node.reload import SiteReload, SiteReloaded
from rapport.node.site_changes import SiteChanges
from rapport.node.table_updates import TableUpdates
from rapport.node.things import Things
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.replay.reevaluation import ReevaluationService
from rapport.site.site import Site

if TYPE_CHECKING:
    # A node without [ensemble] starts without that package.
    from rapport.node.ensemble import NodeEnsemble

_log = get_logger(__name__)


class MediationParts(msgspec.Struct, frozen=True, kw_only=True):
    """Readings in, events out in the interpretations of consumers."""

    reader: MediationReader
    interpretations: NodeInterpretations
    outgoing: OutgoingMediation
    releasing: ReleaseService


class PolicyParts(msgspec.Struct, frozen=True, kw_only=True):
    """The policy engine and what it depends on."""

    engine: PolicyEngine
    policies: Policies
    tables: TableUpdates
    reevaluation: ReevaluationService
    load: LoadWatch


class ConnectionParts(msgspec.Struct, frozen=True, kw_only=True):
    """Connections to other nodes, brokers, subscribers and processes."""

    push: PushSubscriptions
    links: Links
    bridges: Bridges
    pipeline: PipelineProcess | None
    context: NodeContext | None
    ensemble: NodeEnsemble | None


class NodeParts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the wiring builds."""

    site: Site
    settings: NodeSettings
    clock: Clock
    conditions: DegradedConditions
    channels: LoggedChannels
    admission: Admission
    intake: EventIntake
    address: PublicAddress
    mediation: MediationParts
    policy: PolicyParts
    communication: Assembly
    reloading: SiteReload
    maintenance: ChannelMaintenance
    history: History
    connections: ConnectionParts
    ledger_index: LedgerIndex | None
    """None = the ledger is folded anew at each start."""


class Node:
    """A running site. All calls belong to one event loop."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self.settings, self.clock = parts.settings, parts.clock
        self.conditions = parts.conditions
        """Faults with which the node still works."""
        self.channels = parts.channels
        self.admission, self.rights = parts.admission, parts.admission.rights
        self.ids = Ids(parts.clock, Chance.from_machine())
        """Ids for events that arrive without one."""
        self._intake = parts.intake
        self.append = parts.intake.append
        self.reading_of, self.declared_id = parts.intake.reading_of, parts.intake.declared_id
        self.maintenance, self.history = parts.maintenance, parts.history
        self.meanings, self.releasing = parts.mediation.interpretations, parts.mediation.releasing
        self.mediation, self.outgoing = parts.mediation.reader, parts.mediation.outgoing
        self.policy, self.policies = parts.policy.engine, parts.policy.policies
        self.fresh_tables, self.load = parts.policy.tables, parts.policy.load
        self.links, self.bridges = parts.connections.links, parts.connections.bridges
        self.pushing, self.pipeline = parts.connections.push, parts.connections.pipeline
        self.context = parts.connections.context
        """The node's context broker; None where the site has none."""
        self.ensemble = parts.connections.ensemble
        """The node's part in ensembles; None where the site has none."""
        self.ledger = Ledger(parts.channels, parts.ledger_index)
        self.things, self.rates = Things(parts.channels, parts.clock), Rates(parts.channels)
        self.history_runs = HistoryRuns(
            parts.site.data_directory / "history",
            parts.site.directory,
            parts.clock,
            check_policy=self.policies.life.policy,
            recordings=self._recordings,
            environment={"RAPPORT_DATA": str(parts.site.data_directory.resolve())},
        )
        """Back-tests and reports that people start."""
        self.site_changes = SiteChanges(
            parts.site.directory,
            parts.site.data_directory,
            parts.channels,
            parts.clock,
            lambda by: self.reload(by=by),
        )
        """Changes of the site's files that people make."""
        parts.communication.follow_reloads(partial(self.reload, by="another engine"))
        self.communication = Communication(parts.communication, self.ledger)
        """The public API of communication, for programs that run a node in their process."""
        self.directory = parts.communication.directory
        self.people = parts.communication.people
        self.pages = parts.communication.pages
        self.outputs, self.inputs = parts.communication.outputs, parts.communication.inputs
        self.lookups = parts.communication.lookups
        self.arrivals = parts.communication.arrivals
        self.services = parts.communication.services
        self.authenticating = parts.communication.authenticating
        self.logins = parts.communication.logins
        self._tasks = Tasks(parts.clock)
        self._begun = self._started = False
        self.closing = asyncio.Event()
        """Set when the endpoints begin to close: waiting requests are answered with what there
        is.
        """

    async def start(self) -> None:
        """Starts the readers; events that wait from before are taken up at once."""
        await self.meanings.begin()
        await self.fresh_tables.begin()
        await self.policies.begin()
        await self.fresh_tables.settle()
        self._begun = True
        await self.maintenance.start()
        # Opened first, as it may be refused; received knowledge waits until all others work.
        ensemble = await self.ensemble.open() if self.ensemble is not None else {}
        if self.context is not None:
            for name, run in (await self.context.open()).items():
                self._tasks.start(name, run)
        await self.people.open()
        await self.services.open()
        await self.history_runs.open()
        await self.site_changes.open()
        self._tasks.start("history.runs", self.history_runs.run)
        for name, run in self._parts.communication.work().items():
            self._tasks.start(name, run)
        self._tasks.start("policy", self.policy.run)
        self._tasks.start("policy.words", self.policies.run)
        if self.policy.on_spark:
            watch = SparkWatch(
                self.channels, self.policy.on_spark, self.clock, self.policies.life.versions
            )
            self._tasks.start("policy.on_spark", watch.run)
        self._tasks.start("policy.load", self.load.run)
        self._tasks.start("policy.reevaluation", self._parts.policy.reevaluation.run)
        self._tasks.start("mediation.release", self.releasing.run)
        self._tasks.start("mediation.interpretations", self.meanings.updating.run)
        self._tasks.start("mediation.tables", self.fresh_tables.run)
        self._started = self._intake.is_mediating = True
        await self.mediation.start()
        self.links.start()
        self.bridges.start()
        await self.pushing.start()
        if self.pipeline is not None:
            self._tasks.start("pipeline", self.pipeline.run)
        for name, run in ensemble.items():
            self._tasks.start(name, run)
        self._tasks.start("health", watch_node(self, self.site.data_directory).run)
        _log.info("node started", site=self.site.name, policies=sorted(self.policy.policies()))

    async def stop(self) -> None:
        """Stops the readers, first stage first, and closes the channels: all of them, also when one
        fails. Raises the first failure afterwards; each is in the log with its part.
        """
        await close_all(self._endings())
        _log.info("node stopped", site=self.site.name)

    def _endings(self) -> Iterator[ClosableComponent]:
        """What is to be stopped, in order."""
        if self._started:
            self._started = self._intake.is_mediating = False
            yield "bridges", self.bridges.stop
            yield "links", self.links.stop
            yield "pushing", self.pushing.stop
            yield "mediation", self.mediation.stop
        if self._begun:  # also when starting failed half-way
            self._begun = False
            yield "tasks", self._tasks.stop
            yield "maintenance", self.maintenance.stop
        if self.ensemble is not None:
            yield "ensemble", self.ensemble.close
        if self.context is not None:
            yield "context", self.context.close
        yield "communication", self._parts.communication.close
        yield "ledger", self.ledger.close
        yield "outgoing", self.outgoing.close
        yield "channels", self.channels.close

    @property
    def public_url(self) -> str:
        """The base URL for links in messages."""
        return self._parts.address.url

    @public_url.setter
    def public_url(self, url: str) -> None:
        self._parts.address.url = url

    @property
    def site(self) -> Site:
        """As its files were at the start, or at the last reload of all."""
        return self._parts.reloading.site

    @property
    def identity(self) -> NodeIdentity:
        """Which node of which site this is, for commands that look for their own."""
        site = self.site
        return NodeIdentity(
            site=site.name, node=self.links.node, directory=directory_digest(site.directory)
        )

    def _recordings(self) -> dict[str, str]:
        sources = self.policy.ontology.sources.values()
        return {one.name: one.events for one in sources if one.events}

    async def reload(self, *, by: str = "") -> SiteReloaded:
        """Reloads the site's files, all or nothing; see SiteReload."""
        return await self._parts.reloading.reload(self.ledger, by=by)

    # --- calls of endpoints ---

    async def take_in(
        self, channel: str, sender: str, events: Sequence[Event], *, identity: str
    ) -> IntakeResult:
        """Takes in another node's events, each once; durable when it returns. Raises as `append`
        does.
        """
        self.admission.rates.charge(identity, len(events), self.clock.now_ms())
        if self.channels.holds(channel):
            return await self.links.receiver.take_in(channel, sender, events)
        async with self._intake.quota.begin(identity, channel):
            return await self.links.receiver.take_in(channel, sender, events)

    def web_input(self, name: str) -> WebhookInput:
        """The input by HTTP of that name; raises UnknownName."""
        inputs = self._parts.communication.web_inputs
        if name not in inputs:
            raise UnknownName("input", name, list(inputs), code="input.unknown")
        return inputs[name]

    def not_ready(self) -> list[str]:
        """Why the node should get no work now; empty when it should."""
        if not self._started:
            return ["the readers have not been started"]
        unwell = [*self._tasks.unwell(), *self.mediation.unwell(), *self.maintenance.unwell()]
        return [f"{name} keeps failing; the log says why" for name in unwell]

    def check_answer_token(self, message: str, peer: str, token: str) -> None:
        """Raises NotAllowed unless the link was made by this node for this person."""
        if not is_answer_token(self._parts.communication.secret, message, peer, token):
            raise NotAllowed("this link is not valid", code="answer.bad_token")

    async def linked_message(self, message: str, peer: str, token: str) -> MessageRow:
        """The message behind an answer link; raises NotAllowed for a link that this node did not
        make for this person, and for one whose message was closed too long ago.
        """
        self.check_answer_token(message, peer, token)
        lifetime_ms = self._parts.communication.arrivals.settings.answer_links_ms
        over = await self.ledger.closed_before([message], self.clock.now_ms() - lifetime_ms)
        row = await run_blocking(partial(self.ledger.message, message))
        if row is None or message in over:
            raise NotAllowed(
                "this link is too old", code="answer.link_over", hint="ask who sent the message"
            )
        return row

    async def reader_of(self, peer: str) -> TextReader:
        """The zone and language in which a person reads."""
        return await self._parts.communication.reader_of(peer)

    async def answer_of(self, message: str, peer: str) -> LedgerRow | None:
        """What a person answered last, as the ledger knows it; None when they did not."""
        await self.ledger.refresh()
        rows = await run_blocking(partial(self.ledger.rows, message=message, peer=peer))
        answered = (row for row in rows if not row.address and row.state == "answered")
        return next(answered, None)

    async def answer(
        self, message: str, peer: str, token: str, text: str, *, declined: bool = False
    ) -> bool:
        """Records a person's answer, durably; False for what they had answered already. Raises
        NotAllowed when the token is wrong.
        """
        self.check_answer_token(message, peer, token)
        before = await self.answer_of(message, peer)
        if before is not None and before.answer == text:
            return False
        # The page's button says so in any site, whatever its own words are.
        data = AnswerData(
            message=message, peer=peer, text=text, declined=declined or text == "no", token=token
        )
        secret, now_ms = self._parts.communication.secret, self.clock.now_ms()
        after_ms = before.time if before is not None else 0
        await record_answer(self.channels, secret, data, now_ms=now_ms, after_ms=after_ms)
        return True

    async def finish_releases(self) -> None:
        """Carries out pending releases and re-evaluations; for a node that is not started."""
        while await self.releasing.step(timeout_ms=0):
            pass
        while await self.policy.step(timeout_ms=0):
            pass
        while await self._parts.policy.reevaluation.step(timeout_ms=0):
            pass
