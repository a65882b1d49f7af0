"""Background jobs of a node: retention, interceptors, dead letters, export to the lake, and
summaries of traffic. [CH-16, CH-10, CH-14, PI-6, EN-14, CX-12]

The table in the lake is the single source of truth of what was exported; the named reader `export`
follows it in the channel's records, so that retention waits. `rapport pipeline export` writes the
same tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.config import ChannelsConfig
from rapport.channel.dead_letters import DeadLetterAdmin
from rapport.channel.export_schedule import (
    LAKE_MARK,
    READER,
    ExportBacklog,
    ExportDecision,
    decide_export,
    position_change,
)
from rapport.channel.interceptors.builtin import InterceptorContext, Mediate, site_interceptors
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.logged_channel import (
    CURSORS,
    Cursor,
    cursor_key,
    load_cursor,
    reader_positions,
)
from rapport.channel.log.writer import between_appends
from rapport.channel.validation import SUMMARIES
from rapport.core.errors import InvalidInput, RapportError, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, close_all
from rapport.kernel.telemetry import get_logger
from rapport.lake.bronze import export_channels, exported_position, other_log
from rapport.lake.places import BRONZE, Lake
from rapport.mediation.reader import MediationReader, RejectingTransformer
from rapport.store.base import Delete

_log = get_logger(__name__)

LOOK_EVERY_MS = 10_000


class LakeExporter:
    """Exports the channels whose rules have `export = true`; belongs to one event loop.

    A look at a channel costs one short read, and nothing when it has not grown.
    """

    def __init__(
        self, channels: LoggedChannels, declared: ChannelsConfig, lake: Path, clock: Clock
    ) -> None:
        self._channels, self._declared, self._clock = channels, declared, clock
        self._lake = Lake.at(lake)
        self._is_wanted = any(rule.export for rule in (declared.common, *declared.rules))
        self._places: dict[str, int] = {}
        self.troubles: dict[str, str] = {}
        """Channels that could not be exported at the last look, and why."""

    async def run(self) -> None:
        """Exports now and then until cancelled; returns at once when no channel is exported."""
        await self.forget_unwanted()
        while self._is_wanted:
            await self.export_due()
            await self._clock.sleep(LOOK_EVERY_MS)

    async def forget_unwanted(self) -> None:
        """Lets retention no longer wait for the lake where the site does not export any more."""
        for name in self._channels.names():
            if self._declared.rules_for(name).export:
                continue
            kept = await self._place(name)
            if kept is not None and kept.state == LAKE_MARK:
                await self._channels.apply([Delete(CURSORS, cursor_key(name, READER))])

    async def export_due(self) -> None:
        """Looks at every channel that is exported, and exports due ones. One that cannot be
        exported now does not keep the others; it is tried again at the next look.
        """
        for name in self._channels.names():
            if not self._declared.rules_for(name).export:
                continue
            try:
                await self._export(name)
            except RapportError as error:
                if error.code == "channel.closed":
                    raise
                self._report_failure(name, error)
            else:
                self.troubles.pop(name, None)

    async def _export(self, name: str) -> None:
        is_done = self._channels.channel(name).last_position() == self._places.get(name)
        if is_done and await asyncio.to_thread(self._lake.has, BRONZE, name):
            return
        # What was exported without our knowing: by hand, or just before a crash.
        exported = await asyncio.to_thread(exported_position, self._lake, name)
        await self._follow(name, exported)
        due = await self._look(name, exported)
        if due.until > exported:
            done = await export_channels(self._channels, self._lake, until={name: due.until})
            await self._follow(name, done.positions[name])

    async def _look(self, name: str, exported: int) -> ExportDecision:
        """What is due now; a piece that is to be closed is closed by then."""
        log, now_ms = self._channels.parts.log, self._clock.now_ms()

        def look() -> ExportDecision:
            last = log.last_position(name)
            following = log.read_after(name, exported, max_records=1) if last > exported else []
            waiting = ExportBacklog(
                exported=exported,
                last=last,
                closed=log.closed_end(name),
                is_fluid=log.trims_blocks(name),
                oldest_ms=following[0].received if following else now_ms,
            )
            due = decide_export(waiting, now_ms)
            if due.close:
                log.close_piece(name)
            return due

        if self._channels.channel(name).last_position() <= exported:
            return ExportDecision(exported)
        return await between_appends(self._channels.parts.writer, name, look)

    async def _follow(self, name: str, exported: int) -> None:
        """The reader's place becomes what the lake has; back, too, when the lake was begun anew."""
        if name not in self._places:
            kept = await self._place(name)
            self._places[name] = -1 if kept is None else kept.position
        if exported > self._channels.channel(name).last_position():
            raise other_log(name)
        if self._places[name] != exported:
            await self._channels.apply([position_change(name, exported)])
            self._places[name] = exported

    async def _place(self, name: str) -> Cursor | None:
        return await self._channels.look(partial(load_cursor, channel=name, reader=READER))

    def _report_failure(self, name: str, error: RapportError) -> None:
        if self.troubles.get(name) != error.code:  # once, until it is something else
            self.troubles[name] = error.code
            _log.warning("channel not exported", channel=name, why=error.message, code=error.code)


class ReaderPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A named reader of a channel."""

    reader: str
    position: int
    behind: int
    skipped: int


class ChannelState(msgspec.Struct, frozen=True, kw_only=True):
    """Positions, limits and readers of a channel."""

    channel: str
    first: int
    last: int
    keep_for_ms: int
    keep_bytes: int
    ttl_ms: int
    readers: list[ReaderPosition]


class ChannelMaintenance:
    """What looks after the channels while the node runs."""

    def __init__(
        self,
        channels: LoggedChannels,
        declared: ChannelsConfig,
        mediation: MediationReader,
        clock: Clock,
        *,
        exporting: LakeExporter | None = None,
    ) -> None:
        channels.use_rules(declared)
        channels.interceptors.context = InterceptorContext(
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
                ReaderPosition(
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


SUMMARY_EVERY_MS = 60_000
_MOST_UNWRITTEN = 60


class TrafficSummaries:
    """Appends a summary of the broker's or ensemble node's traffic to `overlay.summaries` once a
    minute: the log has figures of the traffic instead of the traffic. A killed node loses the
    counts of its last minute.
    """

    def __init__(self, channels: Channels, clock: Clock, take: Callable[[], Event | None]) -> None:
        """`take` returns the counts since its last call, None when there are none."""
        self._channel, self._clock, self._take = channels.channel(SUMMARIES), clock, take
        self._unwritten: list[Event] = []

    async def run(self) -> None:
        """Works until cancelled; after a failed write the task is restarted."""
        while True:
            await self._clock.sleep(SUMMARY_EVERY_MS)
            await self.step()

    async def step(self) -> None:
        """Appends the present summary, and those of the last hour that could not be appended."""
        if (event := self._take()) is not None:
            self._unwritten = [*self._unwritten, event][-_MOST_UNWRITTEN:]
        if self._unwritten:
            await self._channel.append(self._unwritten)
            self._unwritten = []

    async def finish(self) -> None:
        """Appends the rest before closing; a failure is only logged."""
        try:
            await self.step()
        except RapportError as error:
            _log.warning("the last summary is lost", code=error.code, reason=error.message)
