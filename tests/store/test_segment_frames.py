"""The frame codec and the walk over damaged files: no crash and no hang on any bytes."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from rapport.store.base import MAX_BODY_BYTES
from rapport.store.segment_files import (
    HEADER_BYTES,
    MAGIC,
    Damage,
    Frame,
    body_is_sound,
    decode_header,
    scan,
)
from support.segment_frames import encode_frame

POSITION = st.integers(1, 2**62)


def read_from(content: bytes):
    return lambda offset, length: content[offset : offset + length]


def walk(content: bytes, **options) -> list[Frame | Damage]:
    return list(scan(read_from(content), 0, len(content), **options))


def frames(*bodies: bytes) -> bytes:
    return b"".join(
        encode_frame(body, first=number, count=1, received=7)
        for number, body in enumerate(bodies, start=1)
    )


@given(
    body=st.binary(max_size=300),
    first=POSITION,
    count=st.integers(1, 2**31),
    received=st.integers(-(2**63), 2**63 - 1),
    index=st.integers(0, 2**32 - 1),
    remaining=st.integers(0, 2**32 - 1),
)
def test_a_frame_is_read_as_it_was_written(body, first, count, received, index, remaining):
    raw = encode_frame(
        body, first=first, count=count, received=received, index=index, remaining=remaining
    )
    header = decode_header(raw)
    assert header is not None
    assert (header.first, header.count, header.received) == (first, count, received)
    assert (header.index, header.remaining) == (index, remaining)
    assert header.frame_bytes == len(raw)
    assert body_is_sound(header, raw[HEADER_BYTES:])


@given(body=st.binary(min_size=1, max_size=100), data=st.data())
def test_a_changed_bit_anywhere_is_noticed(body, data):
    raw = bytearray(encode_frame(body, first=1, count=1, received=0))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    header = decode_header(bytes(raw))
    assert header is None or not body_is_sound(header, bytes(raw[HEADER_BYTES:]))


@given(st.binary(max_size=400))
def test_any_bytes_are_walked_to_their_end(content):
    offset = 0
    for item in walk(content):
        assert item.offset == offset
        assert item.end > item.offset
        offset = item.end
    assert not content[offset:].strip(b"\0")


@given(st.lists(st.one_of(st.just(MAGIC), st.binary(max_size=60), st.just(frames(b"xyz")))))
def test_pieces_of_frames_in_any_order_are_walked_to_their_end(pieces):
    content = b"".join(pieces)
    found = walk(content)
    assert sum(item.end - item.offset for item in found) <= len(content)


@given(
    bodies=st.lists(st.binary(max_size=50), min_size=2, max_size=8),
    rot=st.binary(min_size=1, max_size=30),
    data=st.data(),
)
def test_damage_costs_only_the_frames_it_touches(bodies, rot, data):
    content = bytearray(frames(*bodies))
    at = data.draw(st.integers(0, len(content) - len(rot))) if len(rot) < len(content) else 0
    content[at : at + len(rot)] = rot
    touched, end = set(), 0
    for number, body in enumerate(bodies, start=1):
        start, end = end, end + HEADER_BYTES + len(body)
        if start < at + len(rot) and at < end:
            touched.add(number)
    sound = {item.header.first for item in walk(bytes(content)) if isinstance(item, Frame)}
    assert sound >= set(range(1, len(bodies) + 1)) - touched


def test_unused_room_ends_the_walk_and_is_no_damage():
    assert len(walk(frames(b"a", b"b") + bytes(5000))) == 2
    assert walk(bytes(5000)) == []


def test_an_absurd_length_costs_no_memory():
    raw = encode_frame(b"", first=1, count=1, received=0)
    absurd = bytearray(raw)
    absurd[16:20] = (MAX_BODY_BYTES + 1).to_bytes(4, "little")
    tracemalloc.start()
    found = walk(bytes(absurd))
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [type(item) for item in found] == [Damage]
    assert peak < 1_000_000


def test_a_body_longer_than_a_window_is_walked():
    content = frames(b"x" * 3_000_000, b"y", b"z" * 1_500_000)
    assert [type(item) for item in walk(content)] == [Frame] * 3
    damaged = bytearray(content)
    damaged[1_000_000] ^= 1
    assert [type(item) for item in walk(bytes(damaged))] == [Damage, Frame, Frame]
    assert [type(item) for item in walk(bytes(damaged), bodies=False)] == [Frame] * 3
