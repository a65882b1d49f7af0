"""Packed events are the events they stand for: as bytes, singly, in pieces and joined. [CH-12]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.codec import decode_block, encode_block
from rapport.core.encoded_batch import (
    EncodedBatch,
    LoggedBatch,
    array_header,
    bytes_header,
    encode_value,
    payload_slice,
    text_header,
)
from rapport.core.event import Event
from support.packed import Numbers, pack

names = st.text(min_size=1, max_size=40)
events = st.builds(
    Event,
    st.just("source"),
    names,
    names,
    st.text(max_size=40),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=300),
    st.dictionaries(names, names, max_size=20),
)


@given(st.lists(events, max_size=20))
def test_their_block_is_that_of_the_events(made):
    block = pack(made).block()
    assert block == encode_block(made)
    assert decode_block(block) == made
    assert list(pack(made)) == made
    held = LoggedBatch(pack(made), block)
    assert (len(held), list(held), held[1:3]) == (len(made), made, made[1:3])


@given(st.lists(events, max_size=20), st.integers(1, 7))
def test_pieces_are_all_of_them_with_what_is_carried(made, most):
    numbers = Numbers(range(len(made)))
    pieces = pack(made, numbers).pieces(most)
    assert [event for piece in pieces for event in piece] == made
    assert [decode_block(piece.block()) for piece in pieces] == [list(piece) for piece in pieces]
    assert all(len(piece) <= most for piece in pieces)
    carried = [value for piece in pieces for one in piece.carried for value in one.values]
    assert carried == list(range(len(made)))
    assert all(sum(map(len, piece.carried)) == len(piece) for piece in pieces)


@given(st.lists(st.lists(events, min_size=1, max_size=5), min_size=1, max_size=5))
def test_joined_they_are_one(lists):
    packs = [pack(made, Numbers([place] * len(made))) for place, made in enumerate(lists)]
    joined = EncodedBatch.joined(packs)
    assert list(joined) == [event for made in lists for event in made]
    assert joined.data_bytes == sum(len(event.data) for event in joined)
    carried = [value for piece in joined.carried for value in piece.values]
    assert carried == [place for place, made in enumerate(lists) for _ in made]


def test_joined_with_one_that_carries_nothing_nothing_is_carried():
    one = Event("source", "1", "t", "", 0)
    assert not EncodedBatch.joined([pack([one], Numbers([1])), pack([one])]).carried


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 25), st.integers(0, 25))
def test_a_part_of_what_is_carried_is_that_of_the_events(sizes, first, end):
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    pieces = [Numbers(range(at, at + size)) for at, size in zip(starts, sizes, strict=True)]
    found = [value for piece in payload_slice(pieces, first, end) for value in piece.values]
    assert found == list(range(sum(sizes)))[first:end]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 4095, 4096, 65_535, 65_536])
def test_heads_are_those_of_the_encoder(size):
    assert text_header(size) + b"x" * size == encode_value("x" * size)
    assert bytes_header(size) + bytes(size) == encode_value(bytes(size))
    assert array_header(size) + encode_value(0) * size == encode_value([0] * size)
