"""The sweeper: carries out the retention of all channels, in bounded steps. [CH-14]

Order within a channel: prune the history index, save the publishers' marks, trim whole pieces of
the log, then takes and other indexes. A kill between any two steps leaves only what the next sweep
finds again: it looks at the stores, not at its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rapport.channel.export_schedule import READER as EXPORT
from rapport.channel.log.logged_channel import LoggedChannel, reader_positions
from rapport.channel.log.writer import between_appends
from rapport.channel.requests.taker import Taker
from rapport.channel.retention.limits import (
    RetentionLimits,
    TrimDecision,
    decide_trim,
    keep_of,
    split_at,
)
from rapport.core.errors import ChannelUnavailable, Corrupt
from rapport.kernel.telemetry import get_logger

if TYPE_CHECKING:
    from rapport.channel.log.channels import LoggedChannels

_log = get_logger(__name__)

SWEEP_EVERY_MS = 30_000
PIECES_AT_ONCE = 16
MOST_AWAY_MS = 24 * 3_600_000
"""After a longer time without events a start waits before anything is trimmed by age."""
T = TypeVar("T")


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    channel: str
    first: int
    """Oldest position still kept."""
    kept_bytes: int
    trimmed: int
    """Events that went in this sweep."""
    held_by: tuple[str, ...] = ()
    """Readers that hold back events past the limit; past twice the limit when `overdue`."""
    overdue: bool = False


class Sweeper:
    """Runs retention for all channels of a node; belongs to one event loop.

    A sweep reads the oldest pieces of each channel with a limit, whatever its length.
    """

    def __init__(self, channels: LoggedChannels, taker: Taker) -> None:
        self._channels, self._taker = channels, taker
        self._clock = channels.clock
        self._pruned: dict[str, int] = {}
        self._reported: set[str] = set()
        self.last: dict[str, SweepResult] = {}
        """The last result of each channel with a limit, for metrics."""

    async def run(self) -> None:
        """Sweeps now and then until cancelled."""
        while True:
            await self.sweep_all()
            await self._clock.sleep(SWEEP_EVERY_MS)

    async def sweep_all(self) -> list[SweepResult]:
        """Sweeps every channel with a limit; one that cannot be swept does not keep the others."""
        found = []
        for name in self._channels.names():
            try:
                swept = await self.sweep(name)
            except (ChannelUnavailable, Corrupt) as error:
                if error.code == "channel.closed":
                    raise
                _log.warning("channel not swept", channel=name, why=error.message)
                continue
            if swept is not None:
                found.append(swept)
        return found

    async def sweep(self, name: str) -> SweepResult | None:
        """Trims a channel by its rules; None without limits."""
        keep = keep_of(self._channels.rules_for(name))
        if not keep.has_limit:
            return None
        channel = self._channels.channel(name)
        began = await self._in_writer(name, channel.first_position)
        while True:
            verdict, kept_bytes, has_closed = await self._look(channel, keep)
            has_trimmed = bool(verdict.trim_before) and await self._trim(
                channel, verdict.trim_before
            )
            # A piece that was closed now may go at once: it need not wait for new events.
            if not has_closed and not has_trimmed:
                break
        first = await self._in_writer(name, channel.first_position)
        await self._forget_before(name, first)
        swept = SweepResult(
            channel=name,
            first=first,
            kept_bytes=kept_bytes,
            trimmed=first - began,
            held_by=verdict.held_by,
            overdue=verdict.overdue,
        )
        self._report(swept)
        return swept

    async def _look(
        self, channel: LoggedChannel, keep: RetentionLimits
    ) -> tuple[TrimDecision, int, bool]:
        """The verdict of now, the bytes kept, and whether the growing piece was closed for it."""
        name, log, records = channel.name, self._channels.log, self._channels.records
        readers = (
            {}
            if keep.hard
            else await self._channels.off_loop(lambda: reader_positions(records, name))
        )

        if self._channels.rules_for(name).export and not keep.hard:
            readers.setdefault(EXPORT, 0)  # the export is waited for before it has a cursor, too

        def look() -> tuple[TrimDecision, int, bool]:
            pieces, kept_bytes = log.pieces(name, PIECES_AT_ONCE), log.kept_bytes(name)
            last = log.last_position(name)
            now_ms = self._believed_now(name, last)
            if keep.shortest_ms:
                pieces = split_at(log, name, pieces, now_ms - keep.shortest_ms)
            is_open = log.trims_blocks(name) or log.closed_end(name) < last
            growing = pieces[-1] if pieces and is_open and pieces[-1].last == last else None
            verdict = decide_trim(pieces, kept_bytes, now_ms, keep, readers, growing=growing)
            # Where any block may go, only the last one needs to be closed, to go itself.
            closes = verdict.close and (verdict.trim_before > last or not log.trims_blocks(name))
            if closes:
                log.close_piece(name)
            return verdict, kept_bytes, closes and log.closed_end(name) == last

        return await self._in_writer(name, look)

    def _believed_now(self, name: str, last: int) -> int:
        """The time for ages. Shortly after a start a clock far ahead of the newest event is not
        believed: the node was off for long, or the clock is wrong.
        """
        time = self._channels.time
        now_ms = time.now_ms()
        if time.is_settled():
            return now_ms
        newest = self._channels.log.read_after(name, max(last - 1, 0), max_records=1)
        is_far = bool(newest) and now_ms - newest[-1].received > MOST_AWAY_MS
        return newest[-1].received if is_far else now_ms

    async def _trim(self, channel: LoggedChannel, before: int) -> bool:
        """Trims; False when nothing was removed: a store may have coarser pieces than reported."""
        first = await self._in_writer(channel.name, channel.first_position)
        feed = self._channels.feed
        await self._channels.off_loop(lambda: feed.prune(channel.name, first, before - 1))
        await self._in_writer(channel.name, lambda: channel.trim(before))
        return await self._in_writer(channel.name, channel.first_position) > first

    async def _forget_before(self, name: str, first: int) -> None:
        """Drops data about trimmed positions, including leftovers of an older, killed sweep."""
        if first <= self._pruned.get(name, 0):
            return
        await self._taker.forget_before(name, first)
        for forget in self._channels.after_trim:
            await self._channels.off_loop(partial(forget, name, first))
        self._pruned[name] = first

    async def _in_writer(self, name: str, work: Callable[[], T]) -> T:
        """Runs work between two groups of appends, in the thread that makes them."""
        return await between_appends(self._channels.parts.writer, name, work)

    def _report(self, swept: SweepResult) -> None:
        self.last[swept.channel] = swept
        if swept.trimmed:
            _log.info("channel trimmed", channel=swept.channel, events=swept.trimmed)
        if not swept.overdue:
            self._reported.discard(swept.channel)
        elif swept.channel not in self._reported:
            self._reported.add(swept.channel)  # once, until the reader has caught up
            _log.warning("readers hold back retention", channel=swept.channel, by=swept.held_by)
