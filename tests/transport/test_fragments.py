"""Fragments: the message or nothing, whatever the medium does; memory stays within its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, TooLarge
from rapport.transport.fragments import HEADER_BYTES, Reassembler, ReassemblyLimits, split_message

SMALL = ReassemblyLimits(message_bytes=2_000, sender_bytes=5_000, all_bytes=12_000, keep_ms=100)


def test_a_message_that_fits_is_one_fragment_with_one_byte_more() -> None:
    assert split_message(b"hello", 6, 1) == [b"\x00hello"]
    assert Reassembler().take(b"\x00hello", "a", 0) == b"hello"


def test_an_empty_message_arrives_as_one() -> None:
    assert Reassembler().take(split_message(b"", 20, 1)[0], "a", 0) == b""


@given(message=st.binary(max_size=5_000), limit=st.integers(HEADER_BYTES + 1, 700))
def test_fragments_keep_the_limit_and_give_the_message(message: bytes, limit: int) -> None:
    fragments = split_message(message, limit, 2**40 + 5)
    assembly = Reassembler()
    assert all(len(fragment) <= limit for fragment in fragments)
    assert [assembly.take(one, "a", 0) for one in fragments][-1] == message
    assert len(assembly) == 0
    assert assembly.cost_bytes == 0


@given(
    messages=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=6),
    limit=st.integers(HEADER_BYTES + 1, 60),
    data=st.data(),
)
def test_loss_order_and_repetition_give_a_message_once_or_not_at_all(
    messages: list[bytes], limit: int, data: st.DataObject
) -> None:
    sent = [
        (("s", number % 2), fragment)
        for number, message in enumerate(messages)
        for fragment in split_message(message, limit, number)
    ]
    several = [one for one in sent if one[1][0] == 1]  # a whole one is repeated as it comes
    arriving = data.draw(st.lists(st.sampled_from(sent), max_size=3 * len(sent)))
    assembly = Reassembler()
    got = [
        (sender, message)
        for sender, fragment in data.draw(st.permutations(arriving))
        if (message := assembly.take(fragment, sender, 0)) is not None
    ]
    assert all(message in messages for _sender, message in got)
    whole = {fragment[1:] for _sender, fragment in sent if fragment[0] == 0}
    once = [one for one in got if one[1] not in whole]
    expected = sum(1 for message in messages if message not in whole)
    assert len(once) <= expected
    complete = Reassembler()
    for sender, fragment in data.draw(st.permutations(several * 2)):
        complete.take(fragment, sender, 0)
    assert complete.counters.completed == len({message_key(one) for one in several})


def message_key(one: tuple[object, bytes]) -> tuple[object, bytes]:
    sender, fragment = one
    return sender, fragment[1:5] + fragment[7:13]


def test_senders_do_not_mix() -> None:
    first, second = split_message(b"a" * 40, 40, 7)
    assembly = Reassembler()
    assert assembly.take(first, "one", 0) is None
    assert assembly.take(second, "two", 0) is None
    assert assembly.take(second, "one", 0) == b"a" * 40


def test_a_restarted_sender_that_counts_anew_does_not_mix_its_messages() -> None:
    old, new = split_message(b"a" * 40, 40, 7), split_message(b"b" * 40, 40, 7)
    assembly = Reassembler()
    assert assembly.take(old[0], "one", 0) is None
    assert assembly.take(new[1], "one", 0) is None
    assert assembly.take(new[0], "one", 0) == b"b" * 40


def test_an_incomplete_message_is_given_up_after_its_time() -> None:
    first, second = split_message(b"a" * 40, 40, 7)
    assembly = Reassembler(SMALL)
    assembly.take(first, "one", 0)
    assembly.expire(99)
    assert len(assembly) == 1
    assert assembly.take(second, "one", 101) is None
    assert assembly.counters.timed_out == 1
    assert len(assembly) == 1  # the late part waits for its own time


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 30),
            st.integers(0, 40),
            st.integers(1, 41),
            st.binary(min_size=1, max_size=400),
        ),
        max_size=120,
    )
)
def test_whatever_arrives_memory_stays_within_the_limits(
    arriving: list[tuple[int, int, int, int, bytes]],
) -> None:
    assembly = Reassembler(SMALL)
    for number, (sender, message, index, count, part) in enumerate(arriving):
        header = b"\x01" + message.to_bytes(4) + index.to_bytes(2) + count.to_bytes(2)
        assembly.take(header + bytes(4) + part, sender, float(number))
        assert assembly.cost_bytes <= SMALL.all_bytes
    assembly.expire(10_000)
    assert (len(assembly), assembly.cost_bytes) == (0, 0)


def test_a_sender_that_never_finishes_pushes_out_nobody_else() -> None:
    assembly = Reassembler(SMALL)
    first, second = split_message(b"b" * 400, 300, 1)
    assembly.take(first, "honest", 0)
    for number in range(500):
        assembly.take(split_message(b"a" * 400, 300, number)[0], "greedy", 0)
    assert assembly.counters.pushed_out > 400
    assert assembly.take(second, "honest", 0) == b"b" * 400


def test_a_message_beyond_the_limit_is_dropped_on_the_way() -> None:
    assembly = Reassembler(SMALL)
    taken = [assembly.take(one, "a", 0) for one in split_message(b"x" * 2_001, 500, 1)]
    assert taken == [None] * len(taken)
    assert assembly.take(b"\x00" + b"x" * 2_001, "a", 0) is None
    assert assembly.counters.bad == 2


@given(st.binary(max_size=60))
def test_bytes_that_are_no_fragment_are_counted_and_dropped(noise: bytes) -> None:
    assembly = Reassembler()
    taken = assembly.take(noise, "a", 0)
    assert taken is None or noise == b"\x00" + taken


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(TooLarge) as found:
        split_message(b"x" * 70_000, HEADER_BYTES + 1, 0)
    assert found.value.code == "transport.too_large"
    with pytest.raises(InvalidInput):
        split_message(b"x" * 70, HEADER_BYTES, 0)
