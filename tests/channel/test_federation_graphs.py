"""Any graph of nodes, links cut and healed at any moment: each event is stored once per node, goes
over each link once, and comes to rest. [CH-11]
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.federation import (
    LinkPosition,
    LinkReceiver,
    NeighbourBatch,
    arrived_from,
    has_passed,
    hops_of,
    neighbour_condition,
    position_after,
    request_at,
)
from rapport.channel.requests.request import Request
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock

CHANNEL = "shared"


class Place:
    """One node in memory, with the links by which it asks its neighbours."""

    def __init__(self, number: int) -> None:
        self.id = f"node{number:04d}"
        self.channels = open_memory(ManualClock(0), dedupe_window=8)
        self.buried: list[tuple[str, str]] = []
        self.receiver = LinkReceiver(self.id, self.channels, self._append, self._bury)

    async def _append(self, name, events):
        return await self.channels.channel(name).append(events)

    async def _bury(self, channel, sender, event, error):
        self.buried.append((event.id, error.code))

    async def publish(self, *ids: str) -> None:
        events = [Event(f"from-{self.id}", one, "t", "", 0) for one in ids]
        await self.channels.channel(CHANNEL).append(events)

    async def stored(self) -> list[Event]:
        kept = await self.channels.channel(CHANNEL).read_after(0, limit=10_000)
        return [one.event for one in kept]


class Asking:
    """A directed link: `to` asks `source`. `lost` answers are those that break on the way back."""

    def __init__(self, source: Place, to: Place) -> None:
        self.source, self.to = source, to
        self.place = LinkPosition(neighbour_condition(to.id, ""))
        self.carried: Counter[str] = Counter()

    async def step(self, *, lost: bool = False, forget: bool = False) -> bool:
        """Asks once; True when something moved. `forget`: the node ends before the place is
        saved.
        """
        asked = Request(**request_at(self.place, most=3, wait_ms=0))
        batch = await self.source.channels.source.request(CHANNEL, asked, identity=self.to.id)
        if lost:
            return True
        events = [one.event for one in batch.events]
        self.carried.update(event.id for event in events)
        if events:
            await self.to.receiver.take_in(CHANNEL, self.source.id, events)
        if forget:
            return True
        reached = position_after(
            self.place, NeighbourBatch(batch.current_token, batch.next_token, batch.gone)
        )
        moved, self.place = reached != self.place, reached
        return moved or bool(events)


@st.composite
def graphs(draw):
    count = draw(st.integers(2, 6))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    return count, draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))


def reachable(count: int, edges: list[tuple[int, int]], start: int) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        for a, b in edges:
            if a == here and b not in found:
                found.add(b)
                waiting.append(b)
    return found


@pytest.mark.slow
@given(graph=graphs(), data=st.data())
def test_each_event_is_stored_once_wherever_a_way_leads(graph, data) -> None:
    count, edges = graph
    faults = data.draw(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=20))
    published = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))

    async def scenario() -> None:
        nodes = [Place(number) for number in range(count)]
        links = [Asking(nodes[a], nodes[b]) for a, b in edges]
        origin: dict[str, int] = {}
        for number, where in enumerate(published):
            await nodes[where].publish(f"e{number}")
            origin[f"e{number}"] = where
            if number < len(faults):
                which, forget = faults[number]
                await links[which % len(links)].step(lost=not forget, forget=forget)
        steps = 0
        while any([await link.step() for link in links]):
            steps += 1
            assert steps < 20 * (len(published) + count), "it never comes to rest"
        for number, node in enumerate(nodes):
            stored = await node.stored()
            wanted = {
                event for event, start in origin.items() if number in reachable(count, edges, start)
            }
            assert Counter(event.id for event in stored) == Counter(dict.fromkeys(wanted, 1))
            for event in stored:
                assert node.id not in hops_of(event)
        if not faults:
            for link in links:
                assert set(link.carried.values()) <= {1}

    asyncio.run(scenario())


def test_a_repetition_long_after_the_window_of_the_latest_is_recognised() -> None:
    async def scenario() -> None:
        ring = [Place(number) for number in range(3)]
        links = [Asking(a, b) for a, b in pairwise([*ring, ring[0]])]
        back = Asking(ring[1], ring[0])
        await ring[0].publish("first")
        while any([await link.step() for link in links]):
            continue
        for number in range(100):  # far more than the window of 8
            await ring[2].publish(f"later{number}")
        while any([await link.step() for link in (*links, back)]):
            continue
        for node in ring:
            counts = Counter(event.id for event in await node.stored())
            assert len(counts) == 101
            assert set(counts.values()) == {1}

    asyncio.run(scenario())


def test_a_copy_names_its_way_and_keeps_everything_else() -> None:
    event = Event("s", "1", "t", "x", 5, b'{"a": 1}', {"cause": "c", "sequencedin": "raw.s"})
    copy = arrived_from(arrived_from(event, "aaaaaaaa"), "bbbbbbbb")
    assert hops_of(copy) == ("aaaaaaaa", "bbbbbbbb")
    assert has_passed(copy, "aaaaaaaa")
    assert not has_passed(copy, "aaaa")
    assert (copy.source, copy.id, copy.data, copy.headers["cause"]) == ("s", "1", event.data, "c")
    assert "sequencedin" not in copy.headers


def test_an_event_the_channel_will_never_take_is_buried_and_holds_up_nobody() -> None:
    async def scenario() -> None:
        place = Place(1)
        fine = [Event("s", str(number), "t", "", 0) for number in range(20)]
        bad = Event("s", "bad", "t", "", 0, b"7" * 2_000_000)
        came = await place.receiver.take_in(CHANNEL, "aaaaaaaa", [*fine[:7], bad, *fine[7:]])
        assert (came.stored, came.known, came.passed, came.refused) == (20, 0, 0, 1)
        assert place.buried == [("bad", "event.too_large")]
        assert [event.id for event in await place.stored()] == [event.id for event in fine]

    asyncio.run(scenario())
