"""Blocks read as columns: the same events as one by one, or none at all, whatever the bytes are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.codec import decode_bare_block, encode_block
from rapport.core.errors import Corrupt
from rapport.core.event import BareEvent, Event
from rapport.core.event_columns import (
    BlockEvents,
    EventColumns,
    decode_block_events,
    decode_columns,
)

NAMES = st.text(max_size=40) | st.sampled_from(["e1", "é" * 20, "x" * 200, "x" * 300, ""])
TIMES = st.sampled_from([1_000_000, 1_800_000_000_000, 0, -5, 2**63 - 1, -(2**63)])
HEADERS = st.dictionaries(NAMES, NAMES, max_size=3)
EVENTS = st.builds(
    Event,
    source=st.sampled_from(["s", "s", "s", "é" * 20]),
    id=NAMES,
    type=st.sampled_from(["t", "t", "t", "person.position"]),
    subject=NAMES,
    time=TIMES | st.integers(2**32, 2**40),
    data=st.binary(max_size=60) | st.just(b"x" * 300),
    headers=HEADERS,
)


def usual(number: int, **changes: Any) -> Event:
    event = Event(
        source="positions",
        id=f"e{number}",
        type="person.position",
        subject=f"person/{number}",
        time=1_800_000_000_000 + number,
        data=b'{"key":"%d","value":[1,2]}' % number,
        headers={"cause": f"c{number}"},
    )
    return msgspec.structs.replace(event, **changes)


def as_bare(columns: EventColumns) -> list[tuple[Any, ...]]:
    """What the columns say of each event, without the subject, which they leave in the frame."""
    return [
        (columns.source, id, columns.type, time, data)
        for id, time, data in zip(
            columns.ids.to_pylist(), columns.times.tolist(), columns.data.to_pylist(), strict=True
        )
    ]


def expected(blocks: list[bytes]) -> list[BareEvent]:
    return [event for block in blocks for event in decode_bare_block(block)]


def without_subject(events: list[BareEvent]) -> list[tuple[Any, ...]]:
    return [(event.source, event.id, event.type, event.time, event.data) for event in events]


def assert_same_or_none(blocks: list[bytes]) -> bool:
    """Whether there were columns; then they say what the decoder says, which must not raise."""
    columns = decode_columns(blocks)
    if columns is None:
        return False
    events = expected(blocks)
    assert as_bare(columns) == without_subject(events)
    read = msgspec.msgpack.Decoder(BareEvent).decode
    assert [read(frame) for frame in columns.frames] == events
    return True


@pytest.mark.parametrize("sizes", [(1,), (16,), (3, 1, 70_000), (5, 0, 5)])
def test_events_of_one_source_and_type_are_read_as_columns(sizes: tuple[int, ...]) -> None:
    blocks = [encode_block([usual(number) for number in range(size)]) for size in sizes]
    assert assert_same_or_none(blocks)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "é"},
        {"id": "x" * 36, "subject": "y" * 200},
        {"headers": {}},
        {"headers": {"note": "\u25e9positions", "many": "z" * 70_000}},
        {"data": b"\x97\xa9positions"},
        {"data": b""},
        {"subject": ""},
    ],
    ids=["accent", "long", "bare", "lookalike", "lookalike_data", "no_data", "no_subject"],
)
def test_an_event_may_differ_in_what_is_its_own(changes: dict[str, Any]) -> None:
    events = [usual(number) for number in range(9)]
    events[4] = usual(4, **changes)
    assert assert_same_or_none([encode_block(events)])


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "position5"},
        {"source": "other"},
        {"type": "person.positiox"},
        {"time": -1},
        {"time": 7},
        {"data": b"x" * 300},
        {"id": "x" * 300},
    ],
    ids=["source", "short_source", "type", "past", "small", "large", "long"],
)
@pytest.mark.parametrize("place", [0, 4, 8])
def test_unusual_events_are_left_to_the_decoder(changes: dict[str, Any], place: int) -> None:
    events = [usual(number) for number in range(9)]
    events[place] = usual(place, **changes)
    assert not assert_same_or_none([encode_block(events)])


def test_a_block_does_not_borrow_from_its_neighbour() -> None:
    one, two = msgspec.msgpack.encode(usual(1)), msgspec.msgpack.encode(usual(2))
    for blocks in (
        [b"\x92" + one, b"\x90" + two],
        [b"\x91" + one + two, b"\x91"],
        [b"\x91" + one + two, b"\x92" + one],
        [b"\x92" + one, b"\x91" + one + two],
    ):
        assert decode_columns(blocks) is None
        with pytest.raises(Corrupt):
            expected(blocks)


def test_half_a_character_is_not_completed_by_the_next_event() -> None:
    block = encode_block([usual(0, id="aé"), usual(1, id="éb")])
    broken = block.replace("\xa3aé".encode("latin-1")[:1] + "aé".encode(), b"\xa3aa\xc3")
    broken = broken.replace("\xa3".encode("latin-1") + "éb".encode(), b"\xa3\xa9bb")
    assert broken != block
    assert decode_columns([broken]) is None
    with pytest.raises(Corrupt):
        decode_bare_block(broken)


@pytest.mark.parametrize("blocks", [[], [b""], [b"\x90"], [b"\xc1"], [b"\xdd\x00"], [b"\x91"]])
def test_what_holds_no_event_gives_no_columns(blocks: list[bytes]) -> None:
    assert decode_columns(blocks) is None


@given(st.lists(st.lists(EVENTS, max_size=4), max_size=3))
def test_columns_say_what_the_decoder_says(groups: list[list[Event]]) -> None:
    assert_same_or_none([encode_block(group) for group in groups])


@pytest.mark.slow
@given(st.lists(EVENTS, min_size=1, max_size=3), st.data())
def test_damaged_blocks_give_no_events_that_are_not_there(
    events: list[Event], data: st.DataObject
) -> None:
    alike = [msgspec.structs.replace(event, source="s", type="t") for event in events]
    block = bytearray(encode_block(alike))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(block) - 1))
        block[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    assert_same_or_none([bytes(block[: len(block) - cut])])


def blocks_of(*sizes: int) -> BlockEvents:
    """Blocks of so many events, with a gap of ten positions before each."""
    placed, position = [], 1
    for size in sizes:
        position += 10
        placed.append((position, 100 * position, encode_block([usual(n) for n in range(size)])))
        position += size
    found = decode_block_events(placed)
    assert found is not None
    return found


def test_events_of_blocks_have_their_places() -> None:
    events = blocks_of(3, 2)
    assert [item.position for item in events] == [11, 12, 13, 24, 25]
    assert [item.received for item in events] == [1100, 1100, 1100, 2400, 2400]
    assert [item.event.id for item in events] == ["e0", "e1", "e2", "e0", "e1"]
    assert events[-1].event.subject == "person/1"
    with pytest.raises(IndexError):
        events[5]


@pytest.mark.parametrize("part", [slice(2, 4), slice(None, -1), slice(4, 2), slice(9, None)])
def test_a_part_of_the_events_has_the_same_columns(part: slice) -> None:
    events = blocks_of(3, 2)
    cut = events[part]
    assert list(cut) == list(events)[part]
    assert as_bare(cut.columns) == as_bare(events.columns)[part]
    assert cut.positions.tolist() == events.positions.tolist()[part]
    with pytest.raises(ValueError, match="step 1"):
        events[::2]
