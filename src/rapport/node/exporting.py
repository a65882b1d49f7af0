"""Closed segments of a node's channels go to the lake while it runs. [CH-16]

The lake's manifest is the one truth of what is there; the named reader `export` follows it in the
channel's records, so that retention waits. `rapport pipeline export` writes by the same manifest.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from rapport.channel.config import ChannelsConfig
from rapport.channel.export.export_schedule import (
    LAKE_MARK,
    READER,
    ExportBacklog,
    ExportDecision,
    decide_export,
    position_change,
)
from rapport.channel.export.lake_export import (
    EXPORT_RUNNING,
    export_channels,
    other_log,
    read_manifest,
)
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.writer import between_appends
from rapport.channel.retention.limits import pieces_of
from rapport.channel.subscriptions import CURSORS, Cursor, cursor_key, load_cursor
from rapport.core.errors import RapportError
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Delete

_log = get_logger(__name__)

LOOK_EVERY_MS = 10_000


class Exporting:
    """What exports the channels whose rules say `export = true`; belongs to one event loop.

    A look at a channel costs one short read, and nothing when it has not grown.
    """

    def __init__(
        self, channels: LoggedChannels, declared: ChannelsConfig, lake: Path, clock: Clock
    ) -> None:
        self._channels, self._declared, self._lake, self._clock = channels, declared, lake, clock
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
        """Looks at every channel that is exported, and exports what is due. One that cannot be
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
                if error.code != EXPORT_RUNNING:
                    self._tell(name, error)
            else:
                self.troubles.pop(name, None)

    async def _export(self, name: str) -> None:
        manifest = await asyncio.to_thread(read_manifest, self._lake)
        progress = manifest.progress(name)
        # What was exported without our knowing: by hand, or just before a crash.
        await self._follow(name, progress.exported)
        due = await self._look(name, progress.exported)
        is_unfinished = progress.pending > progress.exported
        if due.until > progress.exported or is_unfinished:
            done = await export_channels(self._channels, self._lake, until={name: due.until})
            await self._follow(name, done.positions[name])

    async def _look(self, name: str, exported: int) -> ExportDecision:
        """What is due now; a piece that is to be closed is closed by then."""
        log, now_ms = self._channels.parts.log, self._clock.now_ms()
        pieced = pieces_of(log)

        def look() -> ExportDecision:
            last = log.last_position(name)
            following = log.read_after(name, exported, max_records=1) if last > exported else []
            waiting = ExportBacklog(
                exported=exported,
                last=last,
                closed=pieced.closed_end(name),
                is_fluid=pieced.trims_blocks(name),
                oldest_ms=following[0].received if following else now_ms,
            )
            due = decide_export(waiting, now_ms)
            if due.close:
                pieced.close_piece(name)
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

    def _tell(self, name: str, error: RapportError) -> None:
        if self.troubles.get(name) != error.code:  # once, until it is something else
            self.troubles[name] = error.code
            _log.warning("channel not exported", channel=name, why=error.message, code=error.code)
