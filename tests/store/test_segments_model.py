"""Segment files against a plain list, through any order of appends, power cuts, trims and rot.
[CH-13]
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rapport.core.errors import StoreUnavailable
from rapport.kernel.clock import Chance
from rapport.store.segment_store import SegmentLogReader, SegmentLogStore
from support.examples import examples
from support.faults.disk import ForgetfulDisk

ROOT = Path("/store")
LOG = "raw.readers"
SIZES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 900)), min_size=1, max_size=4)


class SegmentsAgainstAList(RuleBasedStateMachine):
    """The model is a list of (first, count, body) of all that is acknowledged and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = ForgetfulDisk()
        self.model: list[tuple[int, int, bytes]] = []
        self.last = 0
        self.counter = 0
        self.rotten: set[int] = set()
        self.store = self.open()

    def open(self) -> SegmentLogStore:
        return SegmentLogStore(ROOT, files=self.disk, segment_bytes=2000)

    def make_blocks(self, sizes) -> list[tuple[int, bytes]]:
        blocks = []
        for count, size in sizes:
            self.counter += 1
            blocks.append((count, b"<%d>" % self.counter + b"." * size))
        return blocks

    def acknowledge(self, placed) -> None:
        for block in placed:
            assert block.first == self.last + 1
            self.model.append((block.first, block.count, block.body))
            self.last = block.last

    @rule(sizes=SIZES)
    def append(self, sizes) -> None:
        self.acknowledge(self.store.append(LOG, self.make_blocks(sizes), 5))

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule(seed=st.integers(0, 10_000))
    def cut_power_while_idle(self, seed) -> None:
        self.disk.cut_power(Chance(seed))
        self.store = self.open()

    @rule(sizes=SIZES, steps=st.integers(0, 12), seed=st.integers(0, 10_000))
    def cut_power_while_appending(self, sizes, steps, seed) -> None:
        blocks = self.make_blocks(sizes)
        self.disk.steps_left = steps
        acknowledged = []
        with suppress(StoreUnavailable):
            acknowledged = self.store.append(LOG, blocks, 5)
        self.acknowledge(acknowledged)
        self.disk.cut_power(Chance(seed))
        self.store = self.open()
        if not acknowledged:
            self.take_in_what_survived(blocks)

    def take_in_what_survived(self, blocks) -> None:
        """An append cut short may be there after all, but then all of it."""
        survived = self.store.read_after(LOG, self.last, max_records=10**6)
        assert [(block.count, block.body) for block in survived] in ([], blocks)
        self.acknowledge(survived)

    @rule(sizes=SIZES, room=st.integers(0, 3000))
    def append_on_a_full_disk(self, sizes, room) -> None:
        self.disk.full_after_bytes = room
        try:
            self.acknowledge(self.store.append(LOG, self.make_blocks(sizes), 5))
        except StoreUnavailable:
            assert self.store.last_position(LOG) == self.last
        self.disk.full_after_bytes = None

    @rule(before=st.integers(0, 60))
    def trim(self, before) -> None:
        self.store.trim(LOG, before)
        first = self.store.first_position(LOG)
        oldest = self.model[0][0] if self.model else self.last + 1
        assert oldest <= first <= max(before, oldest)
        self.model = [item for item in self.model if item[0] >= first]

    @precondition(lambda self: len(self.model) > 2)
    @rule(data=st.data())
    def let_a_body_rot(self, data) -> None:
        self.store.close()
        first, _count, body = data.draw(st.sampled_from(self.model[:-1]))
        for name in self.disk.names(ROOT / "logs" / LOG):
            path = ROOT / "logs" / LOG / name
            at = self.disk.content(path).find(body) if name.endswith(".log") else -1
            if at >= 0:
                self.disk.damage(path, at, b"?")
                self.rotten.add(first)
        self.store = self.open()

    @invariant()
    def the_store_holds_what_the_list_holds(self) -> None:
        expected = [item for item in self.model if item[0] not in self.rotten]
        found = self.store.read_after(LOG, 0, max_records=10**6)
        assert [(block.first, block.count, block.body) for block in found] == expected
        assert self.store.last_position(LOG) == self.last

    @invariant()
    def reading_from_the_middle_gives_the_rest(self) -> None:
        position = self.last // 2
        expected = [
            item
            for item in self.model
            if item[0] + item[1] - 1 > position and item[0] not in self.rotten
        ]
        found = self.store.read_after(LOG, position, max_records=3)
        assert [(block.first, block.count, block.body) for block in found] == expected[: len(found)]
        assert bool(found) == bool(expected)

    @invariant()
    def another_process_reads_the_same(self) -> None:
        reader = SegmentLogReader(ROOT, files=self.disk)
        assert reader.read_after(LOG, 0, max_records=10**6) == self.store.read_after(
            LOG, 0, max_records=10**6
        )

    @invariant()
    def rot_is_reported(self) -> None:
        kept = {item[0] for item in self.model}
        assert bool(self.rotten & kept) <= bool(self.store.problems())


TestSegmentsAgainstAList = pytest.mark.slow(SegmentsAgainstAList.TestCase)
TestSegmentsAgainstAList.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None
)
