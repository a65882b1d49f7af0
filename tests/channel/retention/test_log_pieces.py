"""Pieces that retention cuts at a time. [CH-14]"""

from __future__ import annotations

from rapport.channel.retention.limits import split_at
from rapport.store.base import LogPiece
from rapport.store.memory import MemoryLogStore


class AnyBlock(MemoryLogStore):
    """Lets go of any block, as PostgreSQL and NATS do."""

    def trims_blocks(self, log: str) -> bool:
        return True


def test_a_piece_whose_end_cannot_be_read_stays_whole() -> None:
    store = AnyBlock()
    store.append("a", [(1, b"old")], 10)
    piece = LogPiece(1, 5, 100, 10, 90)  # four records that were there once
    assert split_at(store, "a", [piece], 50) == [piece]


def test_a_piece_is_cut_before_the_first_block_that_is_young_enough() -> None:
    store = AnyBlock()
    store.append("a", [(2, b"old")], 10)
    store.append("a", [(3, b"young")], 90)
    cut = split_at(store, "a", [LogPiece(1, 5, 100, 10, 90)], 50)
    assert [(piece.first, piece.last) for piece in cut] == [(1, 2), (3, 5)]
