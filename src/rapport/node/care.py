"""Care of a node's channels: retention and export in the background, interceptors, dead letters.
[CH-10, CH-14, CH-16]
"""

from __future__ import annotations

import msgspec

from rapport.channel.config import ChannelsConfig
from rapport.channel.dead_letters import DeadLetterAdmin
from rapport.channel.interceptors.builtin import InterceptorContext, Mediate, site_interceptors
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.subscriptions import CURSORS, cursor_key, reader_positions
from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, close_all
from rapport.mediation.lane import RejectingTransformer
from rapport.mediation.reader import MediationReader
from rapport.node.exporting import Exporting
from rapport.store.base import Delete


class ReaderPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A named reader of a channel."""

    reader: str
    position: int
    behind: int
    skipped: int


class ChannelState(msgspec.Struct, frozen=True, kw_only=True):
    """What a channel holds and who reads it."""

    channel: str
    first: int
    last: int
    keep_for_ms: int
    keep_bytes: int
    ttl_ms: int
    readers: list[ReaderPlace]


class ChannelCare:
    """What looks after the channels while the node runs."""

    def __init__(
        self,
        channels: LoggedChannels,
        declared: ChannelsConfig,
        mediation: MediationReader,
        clock: Clock,
        *,
        exporting: Exporting | None = None,
    ) -> None:
        channels.use_rules(declared)
        channels.interceptors.workshop = InterceptorContext(
            channels=channels,
            clock=clock,
            addresses=declared.push_to,
            mediator=lambda source: mediator_of(mediation, source),
        )
        self._channels, self._declared = channels, declared
        self._exporting = exporting
        self._tasks = Tasks(clock)
        self.dead_letters = DeadLetterAdmin(channels, clock)

    async def start(self) -> None:
        """Begins; raises InvalidInput when the site declares an interceptor that cannot be made."""
        await self._channels.interceptors.start(site_interceptors(self._declared))
        self._tasks.start("retention", self._channels.sweeper.run)
        if self._exporting is not None:
            self._tasks.start("export", self._exporting.run)

    async def stop(self) -> None:
        """Ends; places of following interceptors are kept."""
        interceptors = self._channels.interceptors
        await close_all([("care.tasks", self._tasks.stop), ("interceptors", interceptors.stop)])

    def export_faults(self) -> dict[str, str]:
        """Channels that cannot be exported, with the code of the reason."""
        return dict(self._exporting.troubles) if self._exporting is not None else {}

    def unwell(self) -> list[str]:
        """Tasks that keep failing."""
        return self._tasks.unwell()

    async def state(self, name: str) -> ChannelState:
        """What a channel holds now; raises UnknownName."""
        if name not in self._channels.names():
            raise UnknownName("channel", name, self._channels.names())
        channel = self._channels.channel(name)
        rules, last = self._declared.rules_for(name), channel.last_position()
        positions = await self._channels.look(lambda records: reader_positions(records, name))
        return ChannelState(
            channel=name,
            first=channel.first_position(),
            last=last,
            keep_for_ms=rules.keep_for_ms or 0,
            keep_bytes=rules.keep_bytes or 0,
            ttl_ms=self._channels.ttl_of(name),
            readers=[
                ReaderPlace(
                    reader=reader,
                    position=position,
                    behind=last - position,
                    skipped=self._channels.skipped.get((name, reader), 0),
                )
                for reader, position in sorted(positions.items())
            ],
        )

    async def forget_reader(self, name: str, reader: str) -> None:
        """Forgets the place of a reader that will not come back, so that retention need not wait
        for it; raises UnknownName. A reader at work saves its place again with its next commit.
        """
        positions = await self._channels.look(lambda records: reader_positions(records, name))
        if reader not in positions:
            raise UnknownName("reader", reader, list(positions))
        await self._channels.apply([Delete(CURSORS, cursor_key(name, reader))])


def mediator_of(mediation: MediationReader, source: str) -> Mediate:
    """Gives events the meaning that events of a push source have; an event that has none raises
    InvalidInput, so that it goes on as it is.

    Raises UnknownName for a source without a meaning, Unsupported for one whose conversions run in
    a process of their own: an append must not wait for that.
    """
    now = mediation.transformer(source)
    if isinstance(now, RejectingTransformer):
        raise UnknownName("source with an interpretation", source)
    if now.may_block:
        raise Unsupported(f"mediating {source!r} in a chain", hint="its conversions are plug-ins")

    def mediate(event: Event) -> list[Event]:
        meant, rejected = mediation.transformer(source).apply_many([StoredEvent(0, 0, event)])
        if rejected:
            raise InvalidInput(rejected[0].message, code=rejected[0].code, hint=rejected[0].hint)
        return meant

    return mediate
