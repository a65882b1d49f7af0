"""The pieces of any log: its own where it has them, else stretches of blocks. [CH-14]"""

from __future__ import annotations

from typing import Any, cast

from rapport.core.errors import Unsupported
from rapport.store.base import LogPiece, LogStore, PiecedLogStore

_PIECE_RECORDS = 10_000
_CUT_RECORDS = 500


def pieces_of(log: LogStore) -> PiecedLogStore:
    """The log as one that knows its pieces."""
    known = cast(Any, log)
    if all(hasattr(known, name) for name in ("pieces", "kept_bytes", "close_piece", "closed_end")):
        return cast(PiecedLogStore, known)
    return cast(PiecedLogStore, _Stretches(log))


def split_at(log: LogStore, name: str, pieces: list[LogPiece], cutoff_ms: int) -> list[LogPiece]:
    """The pieces, with the one that time has partly passed cut where it stands, when the log can
    let go of any block: so a large piece does not keep its old beginning. Reads that beginning.
    """
    if not pieces_of(log).trims_blocks(name):
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
            break  # what is left of it cannot be read
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


class _Stretches:
    """A log that lets go of any number of records: pieces are what one reading gives."""

    def __init__(self, log: LogStore) -> None:
        self._log = log

    def trims_blocks(self, log: str) -> bool:
        """See PiecedLogStore."""
        return True

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        """See PiecedLogStore; reads the records, so few pieces at a time."""
        found: list[LogPiece] = []
        position = self._log.first_position(log) - 1
        while len(found) < limit:
            blocks = self._log.read_after(log, position, max_records=_PIECE_RECORDS)
            if not blocks:
                break
            times = [block.received for block in blocks]
            size = sum(len(block.body) for block in blocks)
            position = blocks[-1].last
            found.append(LogPiece(blocks[0].first, position, size, min(times), max(times)))
        return found

    def kept_bytes(self, log: str) -> int:
        """Refused: it would mean to read everything."""
        raise Unsupported("keep_bytes", type(self._log).__name__, hint="use keep_for")

    def close_piece(self, log: str) -> None:
        """Nothing to do: any record may go."""

    def closed_end(self, log: str) -> int:
        """See PiecedLogStore."""
        return self._log.last_position(log)
