"""Segment files with any damage: what is read is a part of what was written, in order and each
once; the rest is reported; nothing runs for ever. [CH-13]
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.store.base import Block
from rapport.store.segment_store import SegmentLogReader, SegmentLogStore
from support.faults.disk import ForgetfulDisk

pytestmark = pytest.mark.slow

STORE = Path("/data/store")
LOG = STORE / "logs" / "c"
SEGMENT_BYTES = 700
APPENDS = [
    [(1 + n % 3, bytes([65 + number]) * (number * 29 % 90 + 1)) for n in range(1 + number % 2)]
    for number in range(16)
]


def open_on(disk: ForgetfulDisk) -> SegmentLogStore:
    return SegmentLogStore(STORE, files=disk, segment_bytes=SEGMENT_BYTES)


def write_log(*, close: bool) -> tuple[dict[str, bytes], list[Block]]:
    """The files of a log of several segments and its blocks."""
    disk = ForgetfulDisk()
    store = open_on(disk)
    for number, blocks in enumerate(APPENDS):
        store.append("c", blocks, number)
    if close:
        store.close()
        written = open_on(disk).read_after("c", 0)
    else:
        written = store.read_after("c", 0)
    return {name: disk.content(LOG / name) for name in disk.names(LOG)}, written


CLOSED, WRITTEN = write_log(close=True)
CRASHED, _ = write_log(close=False)
NAMES = sorted(CLOSED)


def disk_with(files: dict[str, bytes]) -> ForgetfulDisk:
    disk = ForgetfulDisk()
    for directory in (STORE, STORE / "logs", LOG):
        disk.make_directory(directory)
    for name, content in files.items():
        disk.open(LOG / name).write_at(0, content)
    return disk


def check_reading(files: dict[str, bytes]) -> tuple[list[Block], SegmentLogStore]:
    """Reads in one go, in small steps and as another process does; all must agree with what was
    written.
    """
    disk = disk_with(files)
    reader = SegmentLogReader(STORE, files=disk)
    check_blocks(reader.read_after("c", 0))
    store = open_on(disk)
    found = store.read_after("c", 0)
    check_blocks(found)
    position, steps, stepwise = 0, 0, []
    while batch := store.read_after("c", position, max_records=1):
        assert batch[-1].last > position, "reading does not move on"
        position, steps = batch[-1].last, steps + 1
        stepwise += batch
        assert steps < 1_000, "reading does not end"
    assert stepwise == found
    assert store.last_position("c") >= (found[-1].last if found else 0)
    return found, store


def check_blocks(found: list[Block]) -> None:
    """A part of what was written, in order, each block once."""
    places = [WRITTEN.index(block) for block in found]
    assert places == sorted(set(places))


def check_appending(store: SegmentLogStore, found: list[Block]) -> None:
    """What is appended after damage gets positions that nobody ever had, and is read."""
    last = store.last_position("c")
    store.append("c", [(1, b"after"), (2, b"the damage")], 99)
    read = store.read_after("c", 0)
    assert [block.body for block in read[-2:]] == [b"after", b"the damage"]
    assert read[-2].first == last + 1
    assert read[:-2] == found
    store.close()


@pytest.mark.parametrize("files", [CLOSED, CRASHED], ids=["closed", "crashed"])
def test_a_flipped_bit_anywhere_costs_one_group_at_most_and_is_reported(files):
    for name, content in files.items():
        for offset in range(0, len(content.rstrip(b"\0")), 3):
            raw = bytearray(content)
            raw[offset] ^= 1 << offset % 8
            found, store = check_reading({**files, name: bytes(raw)})
            lost = len(WRITTEN) - len(found)
            assert lost <= 2, (name, offset)
            if lost:
                assert store.problems(), f"{name} at {offset} was lost without a word"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cut_anywhere_gives_what_stands_before_and_behind(name):
    for length in range(0, len(CLOSED[name]), 7):
        found, store = check_reading({**CLOSED, name: CLOSED[name][:length]})
        if name.endswith(".index"):
            assert found == WRITTEN
        check_appending(store, found)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_gone_is_passed_over(name):
    files = {other: content for other, content in CLOSED.items() if other != name}
    found, store = check_reading(files)
    if name.endswith(".index"):
        assert found == WRITTEN
    elif name != NAMES[-1]:
        assert len(found) > 0
    store.close()


MUTATIONS = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 800), st.integers(0, 800)),
    st.tuples(st.just("flip"), st.integers(0, 800), st.integers(0, 7)),
    st.tuples(st.just("insert"), st.integers(0, 800), st.binary(max_size=40)),
    st.tuples(st.just("repeat"), st.integers(0, 800), st.integers(1, 300)),
    st.tuples(st.just("zero"), st.integers(0, 800), st.integers(1, 200)),
)


def mutated(content: bytes, kind: str, at: int, what: int | bytes) -> bytes:
    raw = bytearray(content)
    at = min(at, len(raw))
    if isinstance(what, bytes):
        raw[at:at] = what
    elif kind == "cut":
        del raw[at : at + what]
    elif kind == "flip" and at < len(raw):
        raw[at] ^= 1 << what
    elif kind == "repeat":
        raw[at:at] = raw[at : at + what]
    elif kind == "zero":
        raw[at : at + what] = bytes(len(raw[at : at + what]))
    return bytes(raw)


@given(
    files=st.sampled_from([CLOSED, CRASHED]),
    changes=st.lists(st.tuples(st.sampled_from(NAMES), MUTATIONS), min_size=1, max_size=4),
)
def test_segments_with_any_changes_give_a_part_of_what_was_written(files, changes):
    changed = dict(files)
    for name, (kind, at, what) in changes:
        if name in changed:
            changed[name] = mutated(changed[name], kind, at, what)
    found, store = check_reading(changed)
    check_appending(store, found)


@given(content=st.binary(max_size=500), index=st.binary(max_size=100))
def test_random_bytes_in_place_of_a_segment_are_no_events(content, index):
    name = NAMES[0]
    found, store = check_reading({name: content, name.replace(".log", ".index"): index})
    assert found == []
    check_appending(store, found)


@given(order=st.permutations([name for name in NAMES if name.endswith(".log")]))
def test_segments_under_each_others_names_give_nothing_wrong(order):
    names = [name for name in NAMES if name.endswith(".log")]
    files = {name: CLOSED[other] for name, other in zip(names, order, strict=True)}
    _found, store = check_reading(files)
    store.close()
