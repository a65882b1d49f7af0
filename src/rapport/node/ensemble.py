"""The ensemble node of a node: runs the site's components and ties them to channels, context and
interpretations. [EN-10, EN-14]

Versions of components are reserved in the records ahead of their use, so that they continue above
the last ones after a restart, whatever the clock says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from rapport.channel.federation import Append
from rapport.channel.log.channels import LoggedChannels
from rapport.context.broker_server import ContextBroker
from rapport.core.errors import RapportError, Unavailable, UnknownName
from rapport.core.event import Event
from rapport.core.knowledge import Knowledge
from rapport.ensemble.device_readings import Collector, Confirming, Receipt
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.faults import fault_of
from rapport.ensemble.model.snapshots import WithheldKnowledge
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import NodeStatus
from rapport.ensemble.runtime.program import load_program
from rapport.ensemble.text_sharing import Shelf, Wishing, capacities_in
from rapport.kernel.clock import Chance, Clock, Now
from rapport.kernel.tasks import ClosableComponent, close_all
from rapport.kernel.telemetry import DegradedConditions, get_logger
from rapport.mediation.declarations.files import fields_tables
from rapport.node.context_broker import NodeContext, follow_keys
from rapport.node.ensemble_interpretations import (
    SharedInterpretation,
    SharedInterpretations,
    shelf_id,
)
from rapport.node.ensemble_readings import (
    CarriedCounts,
    CarriedReadings,
    LateReadingReplay,
    collector_id,
)
from rapport.node.ensemble_ties import ContextPoller, ContextPublisher, Feed, KnowledgeRecord
from rapport.node.interpretations import NodeInterpretations
from rapport.node.maintenance import TrafficSummaries
from rapport.site.ensemble import EnsembleDeclared
from rapport.site.site import Site
from rapport.store.base import Put
from rapport.transport.keys import KeyFileWatch

AHEAD_MS = 60_000
"""Versions are reserved so far ahead while they follow the clock: one write in half of it."""
COUNTED = 1_000
"""So many while they count on above a clock that is behind. Fewer: a node that is restarted again
and again, and leaves most of them unused each time, is not to run away from the clock.
"""
_TABLE = "ensemble.versions"


class VersionReservation:
    """The greatest version that may have been given, on disk before it is. Belongs to one loop.

    A version is never held up: if the disk fails for longer than the reserve lasts, a
    node that is killed just then learns its last version from the others.
    """

    def __init__(self, channels: LoggedChannels, clock: Clock, node: str) -> None:
        self._channels, self._clock, self._node = channels, clock, node
        self._reserved = self._given = 0
        self._came = asyncio.Event()

    async def begin(self) -> int:
        """The version to begin above; more are reserved when this returns."""
        kept = await self._channels.look(lambda records: records.get(_TABLE, self._node))
        before: int = msgspec.msgpack.decode(kept, type=int) if kept is not None else 0
        self._given = 0
        await self._keep(reserved(before, self._clock.now_ms()))
        return before

    def gave(self, version: int) -> None:
        """A version was given; costs a comparison unless it is time to set more aside."""
        self._given = version
        if is_short(self._reserved, version, self._clock.now_ms()):
            self._came.set()

    async def run(self) -> None:
        """Works until cancelled; after a failed write the task is restarted."""
        while True:
            await self._came.wait()
            self._came.clear()
            await self._keep(reserved(self._given, self._clock.now_ms()))

    async def finish(self) -> None:
        """Ends; reserved versions that were not used are free again."""
        if not self._given:
            return
        try:
            await self._keep(self._given)
        except RapportError as error:
            _log.warning("last version not kept", code=error.code, reason=error.message)

    async def _keep(self, version: int) -> None:
        value = msgspec.msgpack.encode(version)
        await self._channels.apply([Put(_TABLE, self._node, value)])
        self._reserved = version


def reserved(given: int, now_ms: int) -> int:
    """The last version that is reserved once one was given; pure."""
    return given + COUNTED if given > now_ms else now_ms + AHEAD_MS


def is_short(reserved_up_to: int, given: int, now_ms: int) -> bool:
    """Whether half of them are used up; or they are from a time when the clock was far ahead, which
    versions have come back from. Pure.
    """
    left = reserved_up_to - given
    return left < (reserved(given, now_ms) - given) / 2 or left > 2 * AHEAD_MS


_log = get_logger(__name__)


class EnsembleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the node's ensemble node is, and what came of its ties."""

    node: NodeStatus
    recorded: int
    """Versions of knowledge on record since the start."""
    refused: int
    """Versions that no channel takes."""
    waiting: int
    """Versions that wait to be written down."""
    skipped: int
    """Versions that a newer one overtook before they were written down."""
    carried: CarriedCounts
    second_looks: int
    """How often policies looked again because of readings that came too late for them."""
    interpretations: tuple[SharedInterpretation, ...] = ()


class NodeEnsemble:
    """The node's part in ensembles. All calls belong to one event loop."""

    def __init__(
        self,
        declared: EnsembleDeclared,
        site: Site,
        channels: LoggedChannels,
        append: Append,
        meanings: NodeInterpretations,
        context: NodeContext | None,
        clock: Clock,
        chance: Chance,
        conditions: DegradedConditions,
    ) -> None:
        self._declared, self._site, self._channels = declared, site, channels
        self._clock, self._chance, self._conditions = clock, chance, conditions
        self._context = context
        self._running: EnsembleNode | None = None
        ties = declared.ties
        self._collector = Collector(id=collector_id(declared.node))
        self._rooms = capacities_in(declared.settings.host.most_bytes)
        self._shelf = Shelf(id=shelf_id(declared.node), room=self._rooms.texts)
        self._record = KnowledgeRecord(
            channels,
            append,
            clock,
            source=site.name,
            record_ms=declared.record_ms,
            readings=ties.readings,
        )
        self._carried = CarriedReadings(
            ties.carried,
            channels,
            append,
            collector=self._collector.id,
            confirm=self._confirm,
            most_bytes=declared.settings.host.most_bytes,
        )
        self._late = LateReadingReplay(channels, clock, self._carried.sources)
        self._publishing = ContextPublisher(ties.published, self._broker, clock, self._note)
        self._shared = self._sharing(meanings)
        self._summaries = TrafficSummaries(channels, clock, self._summary)
        self._versions = VersionReservation(channels, clock, declared.node)

    @property
    def running(self) -> EnsembleNode:
        """The ensemble node; raises Unavailable while the node does not run."""
        if self._running is None:
            raise Unavailable("the node's ensemble node is not open", code="ensemble.not_open")
        return self._running

    async def open(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Opens the ensemble node with the components of the site's files; returns the work to be
        done from then on, by name. Raises Unavailable when its address is taken, InvalidInput for
        bad keys, files that cannot be run, and feeds of components that there are not.
        """
        declared = self._declared
        watch = KeyFileWatch(declared.keys) if declared.keys is not None else None
        components, ensembles = await asyncio.to_thread(self._programs)
        _check_fed(declared, components)
        given_before = await self._versions.begin()
        self._running = await EnsembleNode.open(
            declared.node,
            [*components, *self._own_components()],
            [*dict.fromkeys((*ensembles, Confirming, Wishing))],
            listen=declared.listen,
            clock=self._clock,
            chance=self._chance,
            group=declared.group,
            join=declared.join,
            ip=declared.has_ip,
            keys=watch.keys if watch is not None else None,
            settings=declared.settings,
            groupers=declared.groupers,
            is_grouper=declared.is_grouper,
            on_changed=self._received,
            on_published=self._published,
            on_withheld=self._report_withheld,
            given_before=given_before,
        )
        return {
            "ensemble.keys": lambda: follow_keys(watch, self._clock, "ensemble"),
            **self._work(),
        }

    async def close(self) -> None:
        """Leaves the other nodes and closes the address."""
        await close_all(self._endings())

    def _endings(self) -> Iterator[ClosableComponent]:
        if self._running is not None:
            yield "ensemble.summaries", self._summaries.finish
        running, self._running = self._running, None
        if running is not None:
            yield "ensemble.node", running.close
            yield "ensemble.versions", self._versions.finish

    def status(self) -> EnsembleStatus:
        """For people and metrics; raises Unavailable while the node does not run."""
        shared = self._shared
        return EnsembleStatus(
            node=self.running.status(),
            recorded=self._record.recorded,
            refused=self._record.refused,
            waiting=len(self._record.inbox),
            skipped=self._record.inbox.skipped,
            carried=self._carried.counts,
            second_looks=self._late.looks,
            interpretations=tuple(shared.listed()) if shared is not None else (),
        )

    def assign(self, component: str, values: Mapping[str, Any]) -> None:
        """Sets fields of a component of this node; raises InvalidInput, UnknownName."""
        running = self.running
        running.machine.host.assign(component, values, self._now())
        running.look()

    # --- making ---

    def _programs(self) -> tuple[list[Component], list[type[Ensemble]]]:
        programs = [load_program(path, self._declared.node) for path in self._declared.components]
        components = [one for program in programs for one in program.components]
        return components, [one for program in programs for one in program.ensembles]

    def _own_components(self) -> list[Component]:
        own: list[Component] = []
        if self._declared.ties.carried:
            own.append(self._collector)
        if self._shared is not None:
            own.append(self._shelf)
        return own

    def _sharing(self, meanings: NodeInterpretations) -> SharedInterpretations | None:
        declared = self._declared
        if declared.meanings is None:
            return None
        meanings.reloaded.append(self._take_over)
        return SharedInterpretations(
            declared.meanings,
            declared.node,
            meanings.updating,
            self._channels,
            self._clock,
            lambda values: self.assign(self._shelf.id, values),
            self._tables,
            self._rooms,
        )

    def _take_over(self, site: Site) -> None:
        """Uses the interpretations of the reloaded site from now on."""
        self._site = site

    def _tables(self) -> dict[str, dict[str, Any]]:
        found = fields_tables(self._site.file)
        return {name: section.values for name, section in found.items()}

    def _work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        ties = self._declared.ties
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "ensemble.record": self._record.run,
            "ensemble.summaries": self._summaries.run,
            "ensemble.versions": self._versions.run,
        }
        if ties.carried:
            work |= {"ensemble.carried": self._carried.run, "ensemble.late": self._late.run}
        if ties.published:
            work["ensemble.context"] = self._publishing.run
        if self._shared is not None:
            work["ensemble.interpretations"] = self._shared.run
        for number, feed in enumerate(self._feeds()):
            work[f"ensemble.feed {number}"] = feed.run
        for number, read in enumerate(ties.read):
            reading = ContextPoller(read, self._broker, self._clock, self.assign, self._note)
            work[f"ensemble.context {number}"] = reading.run
        return work

    def _feeds(self) -> list[Feed]:
        """Each is known by what it feeds, not by its place in the site's file, so that it goes on
        when others come or go.
        """
        feeds: list[Feed] = []
        alike: Counter[tuple[str, str, str]] = Counter()
        for tie in self._declared.ties.feeds:
            into = (tie.channel, tie.component, tie.field)
            number, alike[into] = alike[into], alike[into] + 1
            feeds.append(Feed(tie, self._channels, self.assign, self._note, number=number))
        return feeds

    # --- what happens ---

    def _received(self, knowledge: Knowledge) -> None:
        """Of another node's component."""
        if self._shared is not None:
            self._shared.put(knowledge)
        self._distribute(knowledge)

    def _published(self, knowledge: Knowledge) -> None:
        """Of a component of this node."""
        self._versions.gave(knowledge.version)
        self._distribute(knowledge)

    def _report_withheld(self, component: str, withheld: WithheldKnowledge | None) -> None:
        """Others see what they know of the component grow old: the node is degraded."""
        name = f"ensemble.withheld.{component}"
        if withheld is None:
            self._conditions.end(name)
        else:
            self._conditions.begin(
                name,
                f"the knowledge of the component {component!r} is withheld: {withheld.message}",
            )

    def _distribute(self, knowledge: Knowledge) -> None:
        """Of any component, this node's included. Those that only make nodes part of the whole are
        not on record.
        """
        if knowledge.component not in (collector_id(knowledge.node), shelf_id(knowledge.node)):
            self._record.inbox.put(knowledge)
            self._carried.put(knowledge)
            self._publishing.put(knowledge)

    def _confirm(self, receipts: dict[str, Receipt]) -> None:
        self.assign(self._collector.id, {"receipts": receipts})
        self.running.publish_now(self._collector.id)

    def _broker(self) -> ContextBroker:
        if self._context is None:
            raise Unavailable("the site has no context broker", code="context.no_broker_here")
        return self._context.broker

    def _summary(self) -> Event | None:
        summary = self.running.take_summary()
        return summary.to_event(source=self._site.name) if summary is not None else None

    def _note(self, component: str, error: RapportError) -> None:
        fault = fault_of(error, error.code, component=component)
        self.running.machine.host.faults.add(fault, self._clock.now_ms())

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.steady_ns() / 1e6)


def _check_fed(declared: EnsembleDeclared, components: list[Component]) -> None:
    """Raises UnknownName for a feed of a component that the files do not have."""
    known = [component.id for component in components]
    for name in declared.ties.fed():
        if name not in known:
            raise UnknownName("component", name, known, code="ensemble.unknown_component")
