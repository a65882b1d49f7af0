"""The NATS store against the one in memory: any order of doings, with groups cut into many parts.
[CH-13]
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rapport.store import nats_stream as nats_log
from rapport.store.memory import MemoryLogStore
from rapport.store.nats_groups import GROUP_HEADER, GroupMark
from rapport.store.nats_store import NatsLogStore
from support.examples import examples
from support.servers.nats import _shared_server

pytestmark = pytest.mark.slow

_prefixes = itertools.count(1)


class NatsModel(RuleBasedStateMachine):
    """Two stores of the same prefix, whichever is asked, do what one in memory does."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"model{next(_prefixes)}"
        self.stores = [self._open(), self._open()]
        self.model = MemoryLogStore()
        self.writes = itertools.count(1)

    def _open(self) -> NatsLogStore:
        return NatsLogStore([_shared_server().url], prefix=self.prefix)

    @initialize()
    def cut_small(self) -> None:
        """Messages hold 60 bytes, so that most groups have several parts."""
        self.whole = nats_log._LARGEST_PART
        nats_log._LARGEST_PART = nats_log._HEADER_ROOM + 60

    def teardown(self) -> None:
        nats_log._LARGEST_PART = self.whole
        for store in self.stores:
            store.close()

    @rule(
        which=st.integers(0, 1),
        blocks=st.lists(
            st.tuples(st.integers(1, 4), st.binary(max_size=90)), min_size=1, max_size=4
        ),
    )
    def append(self, which: int, blocks: list[tuple[int, bytes]]) -> None:
        received = next(self.writes)
        expected = self.model.append("a", blocks, received)
        assert self.stores[which].append("a", blocks, received) == expected

    @rule(which=st.integers(0, 1), part=st.integers(0, 2))
    def die_half_way(self, which: int, part: int) -> None:
        """A writer that ends after some parts of a group."""
        store = self.stores[which]
        last = store.last_position("a")
        if last == 0:
            return
        write = f"dead-{next(self.writes)}"
        for number in range(part + 1):
            mark = GroupMark(last + 1, 5, 0, number, 4, write)
            subject = f"{self.prefix}.log.a"
            store._connection.run(
                store._connection.request(subject, b"x", {GROUP_HEADER: mark.header()})
            )

    @rule(which=st.integers(0, 1), share=st.floats(0, 1.1))
    def trim(self, which: int, share: float) -> None:
        """Groups go whole, so NATS may keep more than memory; never less."""
        before = int(self.model.last_position("a") * share)
        kept = self.stores[which].first_position("a")
        self.stores[which].trim("a", before)
        self.model.trim("a", before)
        first = self.stores[which].first_position("a")
        assert kept <= first <= max(before, kept, 1)

    @rule(which=st.integers(0, 1))
    def open_again(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = self._open()

    @rule(which=st.integers(0, 1), share=st.floats(0, 1), count=st.integers(1, 12))
    def read(self, which: int, share: float, count: int) -> None:
        position = int(self.model.last_position("a") * share)
        if position + 1 < self.model.first_position("a"):
            return
        found = self.stores[which].read_after("a", position, max_records=count)
        assert found == self.model.read_after("a", position, max_records=count)

    @invariant()
    def ends_where_memory_does(self) -> None:
        for store in self.stores:
            assert store.last_position("a") == self.model.last_position("a")


NatsModel.TestCase.settings = settings(
    max_examples=examples(15), stateful_step_count=25, deadline=None
)
TestNatsModel = NatsModel.TestCase
