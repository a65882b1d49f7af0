"""Groups in parts and the index of positions, without a server. [CH-13]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Corrupt, InvalidInput
from rapport.store.base import place_blocks
from rapport.store.nats_groups import (
    GROUP_HEADER,
    GroupAssembler,
    GroupMark,
    check_prefix,
    decode_token,
    encode_group,
    encode_token,
    read_mark,
)
from rapport.store.nats_stream import PositionIndex, guess

pytestmark = pytest.mark.slow

BLOCKS = st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=60)), min_size=1, max_size=6)


def messages(blocks, first=1, write="w-1", part_bytes=50):
    placed = place_blocks(blocks, first, 7)
    mark = GroupMark(first, placed[-1].last - first + 1, 7, 0, 1, write)
    return placed, encode_group(placed, mark, part_bytes)


@given(st.text(min_size=1, max_size=30))
def test_every_name_of_a_log_becomes_a_token_and_comes_back(name):
    try:
        token = encode_token(name)
    except InvalidInput:
        return
    assert not set(token) & set(" .*>/\\\t\n")
    if name.isprintable():
        assert decode_token(token) == name


def test_names_that_no_stream_can_have_are_refused():
    for name in ("", "x" * 300, "é" * 60):
        with pytest.raises(InvalidInput):
            encode_token(name)
    for prefix in ("", "a_b", "a.b", "a" * 41):
        with pytest.raises(InvalidInput):
            check_prefix(prefix)


@given(BLOCKS, st.integers(1, 200))
def test_a_group_comes_out_of_its_parts_as_it_went_in(blocks, part_bytes):
    placed, parts = messages(blocks, 5, part_bytes=part_bytes)
    assembler, found = GroupAssembler(), []
    for sequence, (mark, piece) in enumerate(parts, start=11):
        assert read_mark({GROUP_HEADER: mark.header()}) == mark
        taken = assembler.add(sequence, mark, piece)
        assert (taken is not None) == mark.is_final
        found += taken or []
    assert found == placed
    assert assembler.began == 11


@given(st.lists(st.tuples(BLOCKS, st.integers(0, 5)), min_size=1, max_size=5))
def test_groups_that_were_never_finished_are_passed_over(tries):
    """Writers that end after some parts, and others that go on behind them."""
    assembler, sequence, position = GroupAssembler(), 0, 1
    found, expected = [], []
    for number, (blocks, published) in enumerate(tries):
        placed, parts = messages(blocks, position, f"w-{number}", part_bytes=20)
        for mark, piece in parts[: published or len(parts)]:
            sequence += 1
            found += assembler.add(sequence, mark, piece) or []
        if not published or published >= len(parts):
            expected += placed
            position = placed[-1].last + 1
    assert found == expected


def test_a_part_without_its_beginning_gives_nothing():
    _placed, parts = messages([(1, b"x" * 200)])
    assembler = GroupAssembler()
    assert all(assembler.add(at, *part) is None for at, part in enumerate(parts[1:], start=2))


def test_what_others_published_and_damaged_bodies_are_reported():
    for value in ("", "1 2 3", "0 1 0 0 1 w", "1 1 0 3 2 w", "a b c d e f"):
        with pytest.raises(Corrupt):
            read_mark({GROUP_HEADER: value})
    with pytest.raises(Corrupt):
        read_mark(None)
    with pytest.raises(Corrupt):
        GroupAssembler().add(1, GroupMark(1, 1, 0, 0, 1, "w"), b"\xc1")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=80), st.integers(4, 20), st.data())
def test_the_index_never_leads_past_a_position(counts, most, data):
    index, first, begins = PositionIndex(most), 1, []
    for sequence, count in enumerate(counts, start=1):
        begins.append((first, sequence))
        index.add(first, sequence)
        first += count
    assert len(index) <= most
    position = data.draw(st.integers(1, first - 1))
    true = max(sequence for begin, sequence in begins if begin <= position)
    low, high = index.around(position)
    assert low is None or low[1] <= true
    assert high is None or high[1] > true
    if low and high and high[1] - low[1] > 1:
        for halve in (True, False):
            assert low[1] < guess(position, low, high, halve=halve) < high[1]
    index.forget_before(true)
    low, _high = index.around(position)
    assert low is None or low[1] == true
