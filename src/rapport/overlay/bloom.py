"""A small summary of many keys, sent with pings: answers "surely not" or "probably". [CX-5]"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from rapport.core.errors import Corrupt, InvalidInput

_HEADER = 1
_MOST_HASHES = 32


class BloomFilter:
    """A set of texts that answers `in` without ever denying a member; of others about
    `(1 - exp(-hashes*members/bits))**hashes` are taken for members.

    The same on every machine. `add` and `in` cost about a microsecond each; who asks many filters
    of one shape for the same text computes its `places` once.
    """

    __slots__ = ("_set", "bits", "hashes")

    def __init__(self, bits: int, hashes: int) -> None:
        if bits < 8 or bits % 8 or not 1 <= hashes <= _MOST_HASHES:
            raise InvalidInput(
                f"a filter cannot have {bits} bits and {hashes} hashes",
                code="overlay.bad_settings",
                hint=f"bits in whole bytes, hashes from 1 to {_MOST_HASHES}",
            )
        self.bits, self.hashes = bits, hashes
        self._set = bytearray(bits // 8)

    @staticmethod
    def of(texts: Iterable[str], bits: int, hashes: int) -> BloomFilter:
        made = BloomFilter(bits, hashes)
        for text in texts:
            made.add(text)
        return made

    def add(self, text: str) -> None:
        """From now on it is a member; nothing takes it out again but a new filter."""
        for place in bit_positions(text, self.bits, self.hashes):
            self._set[place >> 3] |= 1 << (place & 7)

    def __contains__(self, text: str) -> bool:
        return self.has(bit_positions(text, self.bits, self.hashes))

    def has(self, at: Iterable[int]) -> bool:
        """Whether all those places are set, as they are for a member."""
        kept = self._set
        for place in at:  # noqa: SIM110 - a loop that ends early is four times quicker than all()
            if not kept[place >> 3] >> (place & 7) & 1:
                return False
        return True

    def to_bytes(self) -> bytes:
        """One byte more than the bits need."""
        return bytes((self.hashes,)) + bytes(self._set)

    @staticmethod
    def from_bytes(data: bytes) -> BloomFilter:
        """What `to_bytes` wrote; raises Corrupt."""
        if len(data) <= _HEADER or not 1 <= data[0] <= _MOST_HASHES:
            raise Corrupt("these bytes are no filter", code="overlay.bad_filter")
        read = BloomFilter((len(data) - _HEADER) * 8, data[0])
        read._set[:] = data[_HEADER:]
        return read


def bit_positions(text: str, bits: int, hashes: int) -> list[int]:
    """The places of a text in filters of that shape (two hashes give all of them)."""
    drawn = int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "little")
    start, stride = drawn & 0xFFFFFFFFFFFFFFFF, drawn >> 64 | 1
    return [(start + turn * stride) % bits for turn in range(hashes)]
