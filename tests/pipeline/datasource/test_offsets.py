from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Conflict, InvalidInput
from rapport.pipeline.datasource.offsets import (
    LEAST_RANGE_ROWS,
    MOST_RANGES,
    ChannelSpan,
    check_offset,
    end_offset,
    limit_offset,
    split_ranges,
    start_offset,
)

POSITIONS = st.integers(0, 10**9)
OFFSETS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(POSITIONS, POSITIONS))


@given(OFFSETS)
def test_pieces_cover_every_position_once_and_are_bounded(pairs: dict) -> None:
    start = {name: min(pair) for name, pair in pairs.items()}
    end = {name: max(pair) for name, pair in pairs.items()}
    pieces = split_ranges(start, end)
    for name in pairs:
        reached, own = start[name], [piece for piece in pieces if piece.channel == name]
        for piece in own:
            assert piece.after == reached < piece.through
            reached = piece.through
        assert reached == end[name]
        assert len(own) <= MOST_RANGES
        assert all(piece.through - piece.after >= LEAST_RANGE_ROWS for piece in own[:-1])


def test_the_same_range_is_cut_in_the_same_way() -> None:
    assert split_ranges({"a": 5}, {"a": 200_000}) == split_ranges({"a": 5}, {"a": 200_000})


@given(OFFSETS, st.one_of(st.none(), st.integers(1, 10**6)))
def test_admission_never_goes_past_the_end_nor_over_the_limit(pairs: dict, most) -> None:
    start = {name: min(pair) for name, pair in pairs.items()}
    end = {name: max(pair) for name, pair in pairs.items()}
    reached = limit_offset(start, end, most)
    taken = sum(reached.values()) - sum(start.values())
    waiting = sum(end.values()) - sum(start.values())
    assert all(start[name] <= reached[name] <= end[name] for name in pairs)
    assert taken == (waiting if most is None else min(waiting, most))


def test_channels_are_admitted_by_their_share() -> None:
    assert limit_offset({"a": 0, "b": 10}, {"a": 900, "b": 110}, 100) == {"a": 90, "b": 20}


def test_in_turn_a_channel_waits_for_those_named_before_it() -> None:
    end = {"b": 110, "a": 900}
    assert limit_offset({"a": 0, "b": 10}, end, 80, in_turn=True) == {"b": 90, "a": 0}
    assert limit_offset({"a": 0, "b": 90}, end, 80, in_turn=True) == {"b": 110, "a": 60}
    assert limit_offset({"a": 890, "b": 110}, end, 80, in_turn=True) == end


def test_a_channel_that_the_checkpoint_does_not_know_begins_at_nothing() -> None:
    assert limit_offset({}, {"a": 3}, None) == {"a": 3}


SPANS = {"a": ChannelSpan(11, 40), "b": ChannelSpan(1, 0)}


def test_beginnings() -> None:
    assert start_offset("start", SPANS) == {"a": 10, "b": 0}
    assert start_offset("end", SPANS) == {"a": 40, "b": 0}
    assert start_offset({"a": 20}, SPANS) == {"a": 20, "b": 0}
    assert start_offset(20, {"a": ChannelSpan(1, 40)}) == {"a": 20}
    assert end_offset("end", SPANS) == {"a": 40, "b": 0}
    assert end_offset({"a": 25, "b": 9}, SPANS) == {"a": 25, "b": 0}


@pytest.mark.parametrize(
    ("start", "code"),
    [
        ({"a": 9}, "source.position_gone"),
        ({"a": 41}, "source.position_beyond_end"),
        ({"c": 1}, "source.bad_option"),
        ({"a": -1}, "source.bad_option"),
        ({"a": True}, "source.bad_option"),
        ({"a": "1"}, "source.bad_option"),
        (20, "source.bad_option"),
        ([1], "source.bad_option"),
    ],
)
def test_a_beginning_that_cannot_be_meant_is_refused(start: object, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        start_offset(start, SPANS)
    assert caught.value.code == code


def test_a_checkpoint_of_another_log_is_refused() -> None:
    check_offset({"a": 40}, SPANS)
    with pytest.raises(Conflict, match="ends at 40") as caught:
        check_offset({"a": 41}, SPANS)
    assert caught.value.code == "source.other_log"
