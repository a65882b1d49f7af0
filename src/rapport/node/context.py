"""The context broker of a node: opened, joined to its network, and put to use for tables and
actions. [CX-3, CX-4, CX-8]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import msgspec

from rapport.channel.logged.channels import LoggedChannels
from rapport.context.broker_server import ContextBroker
from rapport.context.broker_status import BrokerStatus
from rapport.context.v0_endpoint import V0Endpoint
from rapport.core.errors import RapportError, Unavailable
from rapport.core.event import Event
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import ClosableComponent, close_all
from rapport.kernel.telemetry import get_logger
from rapport.node.context_answers import ContextAnswers
from rapport.node.context_source import BrokerSource
from rapport.node.context_tables import ContextTables
from rapport.node.context_wishes import Wishes
from rapport.node.summaries import Summaries
from rapport.site.context import ContextDeclared
from rapport.site.site import Site
from rapport.tables.refreshing import Refreshing
from rapport.transport.keys import KeyFileWatch

_FIRST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 60_000
_LOOK_AT_KEYS_MS = 5_000

_log = get_logger(__name__)


class ContextStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the node's broker is, and what the tables know by it."""

    broker: BrokerStatus
    joined: bool
    """Whether the network that the site names was joined; True where it names none."""
    known: int
    """Entities of which tables know something now."""


class NodeContext:
    """The node's part in a context network. All calls belong to one event loop."""

    def __init__(
        self,
        declared: ContextDeclared,
        site: Site,
        channels: LoggedChannels,
        refreshing: Refreshing,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._declared, self._site = declared, site
        self._channels, self._refreshing = channels, refreshing
        self._clock, self._chance = clock, chance
        self._answers = ContextAnswers()
        self._broker: ContextBroker | None = None
        self._v0: V0Endpoint | None = None
        self._summaries = Summaries(channels, clock, self._summary)
        self._joined = not declared.join

    @property
    def broker(self) -> ContextBroker:
        """The broker; raises Unavailable while the node does not run."""
        if self._broker is None:
            raise Unavailable("the node's context broker is not open", code="context.not_open")
        return self._broker

    async def open(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Opens the broker with what is still valid of before; returns the work to be done from
        then on, by name. Raises Unavailable when its address is taken, InvalidInput for bad keys.
        """
        declared, clock = self._declared, self._clock
        watch = KeyFileWatch(declared.keys) if declared.keys is not None else None
        broker = self._broker = await ContextBroker.open(
            declared.listen,
            clock=clock,
            chance=self._chance,
            settings=declared.broker,
            keys=watch.keys if watch is not None else None,
            channels=self._channels,
            rights=declared.own_rights(),
        )
        await self._open_v0(broker)
        answers, tables, name = self._answers, self._site.tables, self._site.name
        tables.use_context(BrokerSource(broker, answers, self._channels, clock, source=name))
        kept_true = ContextTables(tables, self._refreshing, answers, clock)
        kept_true.ask_again()
        wishes = Wishes(broker, self._channels, clock, provider=name)
        return {
            "context.tables": kept_true.run,
            "context.wishes": wishes.run,
            "context.joining": lambda: self._join(broker, kept_true),
            "context.keys": lambda: self._look_at_keys(watch),
            "context.summaries": self._summaries.run,
        }

    async def close(self) -> None:
        """Leaves the network and lets the address go."""
        await close_all(self._endings())

    def _endings(self) -> Iterator[ClosableComponent]:
        door, self._v0 = self._v0, None
        if door is not None:
            yield "context.v0", door.close
        if self._broker is not None:
            yield "context.summaries", self._summaries.finish
        broker, self._broker = self._broker, None
        if broker is not None:
            yield "context.broker", broker.close

    def status(self) -> ContextStatus:
        """For people and metrics; raises Unavailable while the node does not run."""
        return ContextStatus(
            broker=self.broker.status(),
            joined=self._joined,
            known=self._answers.known(self._clock.now_ms()),
        )

    def _summary(self) -> Event | None:
        told = self.broker.take_summary()
        return told.to_event(source=self._site.name) if told is not None else None

    async def _open_v0(self, broker: ContextBroker) -> None:
        """The door for strangers, where the site wants one: they have the rights of `v0`."""
        declared = self._declared
        if declared.v0 is None:
            return
        self._v0 = await V0Endpoint.open(
            declared.v0,
            broker,
            clock=self._clock,
            chance=self._chance,
            allows=broker.rights.allows,
            settings=declared.v0_settings,
            audit=broker.note,
        )

    async def _look_at_keys(self, watch: KeyFileWatch | None) -> None:
        """Takes up keys that were added to the file or retired; ends at once without keys."""
        while watch is not None:
            await self._clock.sleep(_LOOK_AT_KEYS_MS)
            if watch.refresh():
                _log.info("context keys changed")

    async def _join(self, broker: ContextBroker, tables: ContextTables) -> None:
        """Tries until the network is joined, or the broker is told to leave; then the broker keeps
        its neighbours itself.
        """
        pause_ms = _FIRST_PAUSE_MS
        while not (self._joined or broker.has_left):
            try:
                await broker.join(self._declared.join)
                self._joined = True
            except RapportError as error:
                _log.warning(
                    "context network not joined",
                    code=error.code,
                    reason=error.message,
                    again_in_ms=pause_ms,
                )
                if not broker.has_left:
                    await self._clock.sleep(pause_ms)
                pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)
        tables.ask_again()
