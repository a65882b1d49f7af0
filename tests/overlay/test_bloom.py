"""Bloom filters: no member is ever denied. [CX-5]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Corrupt, InvalidInput
from rapport.overlay.bloom import BloomFilter, bit_positions


@given(st.sets(st.text(max_size=8)), st.sampled_from([8, 64, 1024]), st.integers(1, 8))
def test_members_are_members_also_after_the_wire(texts: set[str], bits: int, hashes: int) -> None:
    made = BloomFilter.of(texts, bits, hashes)
    read = BloomFilter.from_bytes(made.to_bytes())
    assert all(text in made and text in read for text in texts)
    assert len(made.to_bytes()) == bits // 8 + 1


def test_few_others_are_taken_for_members() -> None:
    made = BloomFilter(9_592, 7)
    for number in range(1_000):
        made.add(f"room/r{number} status")
    wrong = sum(f"car/c{number} position" in made for number in range(10_000))
    assert wrong < 200


def test_places_are_computed_once_for_many_filters() -> None:
    filters = [BloomFilter.of([str(number)], 256, 4) for number in range(10)]
    at = bit_positions("7", 256, 4)
    assert filters[7].has(at)
    assert sum(one.has(at) for one in filters) == 1


def test_the_form_on_the_wire_is_fixed() -> None:
    """Other machines, later versions: the same bytes for the same texts."""
    assert BloomFilter.of(["room/r3 status"], 64, 4).to_bytes().hex() == "044000800002000010"


def test_what_is_no_filter_is_refused() -> None:
    for data in (b"", b"\x04", b"\x00\x01", b"\xff\x01"):
        with pytest.raises(Corrupt):
            BloomFilter.from_bytes(data)
    for bits, hashes in ((0, 1), (12, 1), (8, 0), (8, 99)):
        with pytest.raises(InvalidInput):
            BloomFilter(bits, hashes)
