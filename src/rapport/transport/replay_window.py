"""Which numbers of one sender were taken already, in bounded memory. [CX-9]"""

from __future__ import annotations

KEPT_BLOCKS = 32
"""Blocks of 64 numbers that are always told apart: a sender whose numbers all come here may be
2,048 out of order, one that spreads them over many receivers still 32 of those that come.
"""
_MOST_BLOCKS = 2 * KEPT_BLOCKS


class ReplayWindow:
    """Bits of the numbers taken, by blocks; what lies below the oldest block counts as taken.

    At most about 7 kB; mostly far less.
    """

    __slots__ = ("_blocks", "_floor")

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        self._floor = 0

    def is_new(self, number: int) -> bool:
        """Whether the number was not taken, as far as can be told."""
        bits = self._blocks.get(number >> 6)
        if bits is None:
            return number >= self._floor
        return not bits >> (number & 63) & 1

    def take(self, number: int) -> None:
        """A new number is taken from now on."""
        block = number >> 6
        bits = self._blocks.get(block)
        if bits is None:
            if len(self._blocks) >= _MOST_BLOCKS:
                self._forget_oldest()
            bits = 0
        self._blocks[block] = bits | 1 << (number & 63)

    def _forget_oldest(self) -> None:
        in_order = sorted(self._blocks)
        self._floor = in_order[-KEPT_BLOCKS] << 6
        self._blocks = {block: self._blocks[block] for block in in_order[-KEPT_BLOCKS:]}
