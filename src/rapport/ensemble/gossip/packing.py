"""Many headers, or many wishes, in few packets. [EN-8]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rapport.ensemble.codec import MAX_ENTRIES
from rapport.ensemble.messages import Header

Entry = TypeVar("Entry")

_PACKET_BYTES = 32
"""Tag, version and address of a packet."""
_NUMBER_BYTES = 12
"""A time or version and the frame of an entry, in msgpack."""


def packed_headers(headers: Sequence[Header], most_bytes: int) -> list[tuple[Header, ...]]:
    """The headers in portions that fit into a packet each; none for none."""
    return _packed(headers, most_bytes, _bytes_of_header)


def packed_wishes(
    wishes: Sequence[tuple[str, int]], most_bytes: int
) -> list[tuple[tuple[str, int], ...]]:
    """Components with versions in portions that fit into a packet each; none for none."""
    return _packed(wishes, most_bytes, _bytes_of_wish)


def _bytes_of_header(header: Header) -> int:
    address = header.address
    return (
        len(header.component.encode())
        + _NUMBER_BYTES
        + (len(address[0].encode()) + 6 if address is not None else 1)
    )


def _bytes_of_wish(wish: tuple[str, int]) -> int:
    return len(wish[0].encode()) + _NUMBER_BYTES


def _packed(
    entries: Sequence[Entry], most_bytes: int, bytes_of: Callable[[Entry], int]
) -> list[tuple[Entry, ...]]:
    """In order, each portion as large as fits; an entry that is too large for any goes alone."""
    portions: list[tuple[Entry, ...]] = []
    portion: list[Entry] = []
    taken = _PACKET_BYTES
    for entry in entries:
        size = bytes_of(entry)
        if portion and (taken + size > most_bytes or len(portion) >= MAX_ENTRIES):
            portions.append(tuple(portion))
            portion, taken = [], _PACKET_BYTES
        portion.append(entry)
        taken += size
    if portion:
        portions.append(tuple(portion))
    return portions
