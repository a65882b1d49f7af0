"""Channels read from a site's files, beside the node that writes them or without one. [PI-2]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import msgspec

from rapport.channel.backends.stores import is_embedded, open_reading
from rapport.channel.config import ChannelsConfig, channels_from_site
from rapport.core.codec import decode_bare_block, decode_block
from rapport.core.errors import Corrupt, InvalidInput, RapportError
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings, load_settings
from rapport.kernel.telemetry import get_logger
from rapport.kernel.toml import TomlFile
from rapport.pipeline.sources.filters import Condition, may_hold
from rapport.pipeline.sources.planning import Piece, Span
from rapport.pipeline.sources.reading import Chunk
from rapport.store.base import Block, LogReader
from rapport.store.segment_files import LOGS
from rapport.store.segment_store import SegmentLogReader

_log = get_logger(__name__)

SITE_FILE = "site.toml"
_FIRST_STEP, _LARGEST_STEP = 1_000, 20_000
_STEP_BYTES = 8 * 1024 * 1024


class SitePlace(msgspec.Struct, frozen=True):
    """A site's directory, or the directory of its log; to write, the file with our key for its
    node, where that is not the site's own.
    """

    directory: str
    key_file: str = ""

    @contextmanager
    def opened(self) -> Iterator[OpenedSite]:
        """See Place. Raises InvalidInput when there is no site or no log yet."""
        parts = site_parts(Path(self.directory))
        if parts.is_embedded:
            yield OpenedSite(_segments(str(parts.log)))
            return
        channels = open_reading(parts.log, SystemClock(), parts.declared, site=parts.site)
        try:
            yield OpenedSite(channels.log)
        finally:
            channels.log.close()


class SiteParts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a site concerns its channels."""

    site: Path
    log: Path
    settings: NodeSettings
    declared: ChannelsConfig

    @property
    def is_embedded(self) -> bool:
        """Whether all channels are files below `log`."""
        return is_embedded(self.log, self.declared)


def site_parts(directory: Path, *, writing: bool = False) -> SiteParts:
    """What a directory says of its channels; raises InvalidInput when it is no site, or has no log
    and none is to be written.
    """
    if (directory / SITE_FILE).is_file():
        settings, declared = _said_by(directory)
        log = directory / settings.data / "log"
    elif (directory / LOGS).is_dir():
        settings, declared, log = NodeSettings(), ChannelsConfig(), directory
    else:
        raise InvalidInput(
            f"{directory} is no site: it has no {SITE_FILE}",
            code="source.no_site",
            hint="name the directory of a site as Spark's workers see it",
        )
    if not writing and not log.is_dir():
        raise InvalidInput(
            f"the site {directory} has no log yet",
            code="channel.no_log",
            hint=f"run it first: rapport up --site {directory}",
        )
    return SiteParts(site=directory, log=log, settings=settings, declared=declared)


Said = tuple[NodeSettings, ChannelsConfig]
_well_formed: dict[Path, Said] = {}
"""What the sites that this process has to do with said when they could last be read."""
_told: dict[Path, str] = {}
"""Why they cannot be read now."""


def said_last(directory: str) -> Said | None:
    """What this process last read of a site; None when it has not."""
    return _well_formed.get(Path(directory).resolve())


def recall(directory: str, said: Said) -> None:
    """What another process read of a site, for one that finds it being edited at its first look."""
    _well_formed.setdefault(Path(directory).resolve(), said)


def _said_by(directory: Path) -> Said:
    """What a site says of its node and channels; what it said before while somebody edits it, so
    that a stream that runs goes on.
    """
    directory = directory.resolve()
    try:
        file = TomlFile.load(directory / SITE_FILE)
        settings = load_settings(file.section("node"), flags={})
        declared, _problems = channels_from_site(file)
    except RapportError as error:
        if directory not in _well_formed:
            raise
        if _told.get(directory) != error.message:
            _told[directory] = error.message
            _log.warning("the site cannot be read; it is taken as it was", reason=error.message)
    else:
        _well_formed[directory] = settings, declared
        _told.pop(directory, None)
    return _well_formed[directory]


@lru_cache(maxsize=8)
def _segments(log: str) -> SegmentLogReader:
    """One reader per log and process: what it learnt of the growing segment serves later tasks."""
    return SegmentLogReader(Path(log))


class OpenedSite:
    """See Opened."""

    def __init__(self, log: LogReader) -> None:
        self._log = log

    def names(self) -> list[str]:
        """See Opened."""
        return [name for name in self._log.logs() if self._log.last_position(name)]

    def span(self, channel: str) -> Span:
        """See Opened."""
        last = self._log.last_position(channel)
        return Span(self._log.first_position(channel) if last else 1, last)

    def chunks(
        self, piece: Piece, conditions: Sequence[Condition], *, bare: bool, passes_damage: bool
    ) -> Iterator[Chunk]:
        """See Opened."""
        received = [one for one in conditions if one.column == "received"]
        for block in self._blocks(piece, passes_damage):
            if received and not may_hold(received, block.received):
                continue
            try:
                yield _chunk_of(block, piece, bare=bare)
            except Corrupt as error:
                if not passes_damage:
                    raise
                _log.warning("damage passed over", events=block.count, why=error.message)

    def _blocks(self, piece: Piece, passes_damage: bool) -> Iterator[Block]:
        """The blocks that hold something of the piece, read in steps of bounded size."""
        position, step = piece.after, _FIRST_STEP
        while position < piece.through:
            limit = min(step, piece.through - position)
            blocks = self._log.read_after(piece.channel, position, max_records=limit)
            for block in blocks:
                self._look_at_gap(piece, position, block.first - 1, passes_damage)
                if block.first > piece.through:
                    return
                yield block
                position = block.last
            if not blocks:
                self._look_at_gap(piece, position, piece.through, passes_damage)
                return
            size = sum(len(block.body) for block in blocks)
            count = sum(block.count for block in blocks)
            step = max(1, min(_STEP_BYTES * count // max(size, 1), _LARGEST_STEP))

    def _look_at_gap(self, piece: Piece, position: int, last: int, passes_damage: bool) -> None:
        """Positions after `position` up to `last` are not there: let go, or damaged."""
        last = min(last, piece.through)
        if position >= last:
            return
        first_kept = self._log.first_position(piece.channel)
        gone = min(last, first_kept - 1) - position
        if gone > 0:
            _log.warning("not in the log any more", channel=piece.channel, events=gone)
        first_damaged = max(position + 1, first_kept)
        if first_damaged > last:
            return
        error = self._damage(piece.channel, first_damaged, last)
        if not passes_damage:
            raise error
        lost = last - first_damaged + 1
        _log.warning("damage passed over", channel=piece.channel, events=lost, why=error.message)

    def _damage(self, channel: str, first: int, last: int) -> Corrupt:
        """The damage that the log's reader met, or at least where it is."""
        problems: list[Corrupt] = getattr(self._log, "problems", list)()
        told = [one.message for one in problems if f"log {channel!r}" in one.message]
        why = told[-1] if told else "no file holds them"
        return Corrupt(
            f"positions {first} to {last} of channel {channel!r} cannot be read: {why}",
            code="log.damaged",
            hint="restore the file from a copy, or read what is left: .option('damaged', 'pass')",
        )


def _chunk_of(block: Block, piece: Piece, *, bare: bool) -> Chunk:
    try:
        events = decode_bare_block(block.body) if bare else decode_block(block.body)
    except Corrupt as error:
        where = f"positions {block.first} to {block.last} of channel {piece.channel!r}"
        raise Corrupt(f"{where}: {error.message}", code=error.code) from None
    first, last = max(block.first, piece.after + 1), min(block.last, piece.through)
    if last - first + 1 < block.count:
        events = events[first - block.first : last - block.first + 1]
    received = (block.received,) * len(events)
    return Chunk(range(first, last + 1), received, events, len(block.body))
