"""Retention decisions: which pieces of a log may be trimmed, without disk or clock. [CH-14]

Whole pieces are trimmed, oldest first. Events that a named reader has not committed stay, unless
the rules are hard; expired events are delivered to nobody and do not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from rapport.channel.config import ChannelRules
from rapport.channel.validation import KEEP_AS_LONG_AS_POSSIBLE
from rapport.store.base import LogPiece, LogStore

FINENESS = 8
"""A piece is closed when it spans an eighth of the limit: events stay at most an eighth longer than
configured, also in a quiet channel.
"""
_FOREVER = 2**62
_CUT_RECORDS = 500


class RetentionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a channel; 0 = none, and no time to live is -1."""

    for_ms: int = 0
    size: int = 0
    ttl_ms: int = -1
    hard: bool = False

    @property
    def has_limit(self) -> bool:
        return bool(self.for_ms or self.size or self.ttl_ms > 0)

    @property
    def shortest_ms(self) -> int:
        """The shortest limit of time; 0 = none."""
        return min((limit for limit in (self.for_ms, self.ttl_ms) if limit > 0), default=0)


def keep_of(rules: ChannelRules) -> RetentionLimits:
    return RetentionLimits(
        for_ms=rules.keep_for_ms or 0,
        size=rules.keep_bytes or 0,
        ttl_ms=KEEP_AS_LONG_AS_POSSIBLE if rules.ttl_ms is None else rules.ttl_ms,
        hard=bool(rules.keep_hard),
    )


class TrimDecision(msgspec.Struct, frozen=True, kw_only=True):
    trim_before: int = 0
    """Everything before this position may go; 0 = nothing may."""
    close: bool = False
    """The growing piece is to be closed first, so that it can go in its turn."""
    held_by: tuple[str, ...] = ()
    """Readers that hold back events past the limit."""
    overdue: bool = False
    """The held events are past twice the limit."""


def decide_trim(
    pieces: Sequence[LogPiece],
    kept_bytes: int,
    now_ms: int,
    keep: RetentionLimits,
    readers: Mapping[str, int],
    *,
    growing: LogPiece | None = None,
) -> TrimDecision:
    """Decides about the oldest pieces of a log of so many bytes; `readers` are their positions.

    The last piece may be the growing one (`growing`): size alone never removes it.
    """
    unread = _FOREVER if keep.hard else min(readers.values(), default=_FOREVER)
    before, left, is_held, overdue = 0, kept_bytes, False, False
    for piece, newest in zip(pieces, newest_arrivals(pieces, now_ms), strict=True):
        expired = 0 < keep.ttl_ms < now_ms - newest
        aged = 0 < keep.for_ms < now_ms - newest
        large = 0 < keep.size < left and piece is not growing
        if not (expired or aged or large):
            break
        if not expired and piece.last > unread:
            is_held = True
            overdue = _is_overdue(newest, left, now_ms, keep)
            break
        before, left = piece.last + 1, left - piece.size
    return TrimDecision(
        trim_before=before,
        close=growing is not None and _should_close(growing, now_ms, keep),
        held_by=_holders(readers) if is_held else (),
        overdue=overdue,
    )


def newest_arrivals(pieces: Sequence[LogPiece], now_ms: int) -> list[int]:
    """The arrival of the newest record of each piece, corrected for clock errors.

    A piece from the future arrived no later than the one behind it, and none before the one in
    front of it: so an hour with a wrong clock neither keeps a log for years nor empties it.
    """
    found: list[int] = []
    following = now_ms
    for piece in reversed(pieces):
        following = piece.newest if piece.newest <= now_ms else following
        found.append(following)
    return list(accumulate(reversed(found), max))


def _is_overdue(newest: int, left: int, now_ms: int, keep: RetentionLimits) -> bool:
    return (0 < 2 * keep.for_ms < now_ms - newest) or 0 < 2 * keep.size < left


def _should_close(growing: LogPiece, now_ms: int, keep: RetentionLimits) -> bool:
    span_ms = keep.shortest_ms
    is_old = bool(span_ms) and now_ms - growing.oldest >= max(span_ms // FINENESS, 1)
    # The age of one that began in the future is unknown; a new piece has one.
    is_old = is_old or (bool(span_ms) and growing.oldest > now_ms + max(keep.for_ms, keep.ttl_ms))
    return is_old or 0 < keep.size // FINENESS <= growing.size


def _holders(readers: Mapping[str, int]) -> tuple[str, ...]:
    furthest = min(readers.values())
    return tuple(sorted(name for name, position in readers.items() if position == furthest))


def split_at(log: LogStore, name: str, pieces: list[LogPiece], cutoff_ms: int) -> list[LogPiece]:
    """The pieces, with the partly expired one split, when the log can trim at any block: so a large
    piece does not keep its old beginning. Reads that beginning.
    """
    if not log.trims_blocks(name):
        return pieces
    for number, piece in enumerate(pieces):
        if piece.oldest < cutoff_ms <= piece.newest:
            return [*pieces[:number], *_cut(log, name, piece, cutoff_ms), *pieces[number + 1 :]]
    return pieces


def _cut(log: LogStore, name: str, piece: LogPiece, cutoff_ms: int) -> list[LogPiece]:
    position, newest, size = piece.first - 1, piece.oldest, 0
    while position < piece.last:
        blocks = log.read_after(name, position, max_records=_CUT_RECORDS)
        if not blocks:
            break  # the rest of it is unreadable
        for block in blocks:
            if block.received >= cutoff_ms or block.last > piece.last:
                if position < piece.first:
                    return [piece]
                old = LogPiece(piece.first, position, size, piece.oldest, newest)
                rest = max(piece.size - size, 0)
                return [old, LogPiece(position + 1, piece.last, rest, cutoff_ms, piece.newest)]
            position, newest = block.last, max(newest, block.received)
            size += len(block.body)
    return [piece]
