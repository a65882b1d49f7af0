"""The order in which peers are told, against a model of processes that die at any step. [CO-17]

Everything around the pure machine is modelled here: the logs drop what they know, a share's engine
commits before it appends, processes hear of each other late, and whoever dies loses all but that.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.cluster_order import Crossings, HandoffQueue, ShareProgress
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Chance

SHARES, PEERS = 4, 8


class Sent(msgspec.Struct, frozen=True):
    """A message: to one peer, or to some, decided in a share."""

    position: int
    share: int
    peers: tuple[int, ...]

    @property
    def crosses(self):
        return any(share_of(peer) != self.share for peer in self.peers)


class Log:
    """Positions from 1; what it knows it drops, and says where that stands."""

    def __init__(self):
        self.entries = []
        self.known = {}

    def append(self, key, *more):
        if key not in self.known:
            self.entries.append((key, *more))
            self.known[key] = len(self.entries)
        return self.known[key]


class Kept(msgspec.Struct):
    """What of a share survives its process."""

    position: int = 0
    outbox: list[Sent] = []
    settled: int = 0
    reached: ShareProgress = ShareProgress()


class Process:
    def __init__(self, world):
        self.crossings = Crossings()
        self.shares = {}
        self.world = world

    def look(self):
        for share, kept in enumerate(self.world.kept):
            self.crossings.advance(share, kept.reached)

    def cover(self, position):
        if self.crossings.covered < 0:
            self.look()
            self.crossings.cover(min(kept.reached.position for kept in self.world.kept))
        for message in self.world.input[self.crossings.covered : position]:
            if message.crosses:
                self.crossings.see(message.position, message.share)
        self.crossings.cover(position)


class Share:
    """A share at work: its engine, and its queue."""

    def __init__(self, number, process, world):
        self.number, self.process, self.world = number, process, world
        self.kept = world.kept[number]
        self.through = world.handed.append(("begun", number, world.step))
        self.queue, self.read_until = HandoffQueue(), self.kept.settled
        self.settled = -1
        self.unsaid = list(self.kept.outbox)
        """What is committed and not appended: the next thing the engine does."""

    def decide(self, most):
        """The engine: appends what it committed, or says how far it is and commits some more."""
        if self.unsaid:
            self.append()
            return
        self.say_reached()
        after = self.world.input[self.kept.position :]
        ours = [message for message in after if message.share == self.number][:most]
        if ours:
            self.kept.position, self.kept.outbox = ours[-1].position, ours
            self.unsaid = list(ours)

    def say_reached(self):
        after = self.world.input[self.kept.position :]
        ours = [message.position for message in after if message.share == self.number]
        position = ours[0] - 1 if ours else len(self.world.input)
        self.process.cover(position)
        self.process.crossings.advance(self.number, ShareProgress(position, self.through))

    def append(self):
        last = self.unsaid[-1].position
        self.process.cover(last - 1)
        is_clear = self.process.crossings.is_clear(
            self.number, last, settled=self.settled, handed=self.through
        )
        for message in self.unsaid:
            for peer in message.peers:
                key = (message.position, peer)
                if is_clear and share_of(peer) == self.number:
                    self.world.output.append(key)
                else:
                    self.through = max(self.through, self.world.handed.append(key, message))
        self.unsaid = []

    def hand_on(self, *, dies):
        self.process.cover(self.process.crossings.reached(self.number).position)
        bound = self.process.crossings.bound(self.number)
        for number, entry in enumerate(self.world.handed.entries[self.read_until :]):
            key, message = entry if len(entry) == 2 else (entry[0], None)
            if message is not None and share_of(key[1]) == self.number:
                position = self.read_until + number + 1
                event = Event("s", repr(key), "t", "", 0)
                stored = StoredEvent(position, 0, event)
                self.queue.put(stored, message.position)
                self.world.keys[position] = key
        self.read_until = len(self.world.handed.entries)
        taken = self.queue.take(bound)
        for stored in taken[: len(taken) // 2] if dies else taken:
            self.world.output.append(self.world.keys[stored.position])
        if not dies:
            self.settled = self.queue.settled(self.read_until)

    def commit(self):
        self.kept.settled = max(self.settled, 0)

    def write_down(self):
        self.kept.reached = self.process.crossings.reached(self.number)


def share_of(peer):
    return peer % SHARES


class World:
    """Some processes over what they share."""

    def __init__(self, chance, count):
        self.chance, self.step = chance, 0
        self.input, self.handed, self.output = [], Log(), Log()
        self.kept = [Kept() for _ in range(SHARES)]
        self.keys = {}
        self.processes = [Process(self) for _ in range(count)]
        for number in range(SHARES):
            self.give(number, chance.choice(self.processes))

    def give(self, number, process):
        self.step += 1
        process.shares[number] = Share(number, process, self)

    def send(self):
        position, few = len(self.input) + 1, self.chance.random() < 0.3
        peers = [self.chance.randrange(PEERS) for _ in range(3 if few else 1)]
        share = self.chance.randrange(SHARES) if few else share_of(peers[0])
        self.input.append(Sent(position, share, tuple(dict.fromkeys(peers))))

    def kill(self, process):
        """Its shares are others' now; another process begins, knowing what is written down."""
        self.processes.remove(process)
        self.processes.append(Process(self))
        for number in process.shares:
            self.give(number, self.chance.choice(self.processes))

    def anything(self):
        self.step += 1
        process = self.chance.choice(self.processes)
        if self.chance.random() < 0.2:
            self.send()
        if self.chance.random() < 0.02:
            if process.shares and self.chance.random() < 0.5:
                self.chance.choice(list(process.shares.values())).hand_on(dies=True)
            self.kill(process)
            return
        if self.chance.random() < 0.3:
            process.look()
        if process.shares:
            self.work(self.chance.choice(list(process.shares.values())))

    def work(self, share):
        doing = self.chance.randrange(4)
        if doing == 0:
            share.decide(self.chance.randrange(1, 4))
        elif doing == 1:
            share.hand_on(dies=False)
        elif doing == 2:
            share.write_down()
        else:
            share.commit()

    def settle(self):
        """Everybody works until nothing moves any more."""
        for _ in range(3 * len(self.input) + 20):
            for process in self.processes:
                process.look()
                for share in process.shares.values():
                    share.decide(3)
                    share.hand_on(dies=False)
                    share.write_down()


@pytest.mark.slow
@given(seed=st.integers(0, 10**9), count=st.integers(1, 4), steps=st.integers(0, 300))
def test_every_peer_gets_each_message_once_in_the_order_of_input_whichever_process_dies(
    seed, count, steps
):
    world = World(Chance(seed), count)
    for _ in range(steps):
        world.anything()
    world.settle()
    told = [key for (key,) in world.output.entries]
    expected = {(message.position, peer) for message in world.input for peer in message.peers}
    assert set(told) == expected
    assert len(told) == len(expected)
    for peer in range(PEERS):
        positions = [position for position, to in told if to == peer]
        assert positions == sorted(positions)


def test_a_share_alone_waits_for_nobody():
    crossings = Crossings()
    crossings.cover(49)
    crossings.advance(2, ShareProgress(40, 0))
    assert crossings.bound(2) == 41
    assert crossings.is_clear(2, 50, settled=0, handed=0)


def test_what_crosses_holds_up_the_others_until_it_is_handled():
    crossings = Crossings()
    crossings.see(7, 1)
    crossings.see(9, 3)
    crossings.cover(40)
    crossings.advance(2, ShareProgress(40, 0))
    assert crossings.bound(2) == 7
    assert crossings.advance(1, ShareProgress(8, 25)) is True
    assert crossings.bound(2) == 9
    assert crossings.advance(3, ShareProgress(8, 0)) is False
    crossings.advance(3, ShareProgress(12, 30))
    assert crossings.bound(2) == 41
    assert crossings.through == 30
    assert not crossings.is_clear(2, 41, settled=29, handed=0)
    assert not crossings.is_clear(2, 41, settled=30, handed=31)
    assert crossings.is_clear(2, 41, settled=30, handed=30)


def test_what_nobody_has_looked_at_is_waited_for():
    crossings = Crossings()
    crossings.advance(2, ShareProgress(40, 0))
    assert crossings.bound(2) == 0
    crossings.cover(12)
    assert crossings.bound(2) == 13
    assert crossings.is_clear(2, 13, settled=0, handed=0)
    assert not crossings.is_clear(2, 14, settled=0, handed=0)
    crossings.cover(5)
    assert crossings.covered == 12


def test_what_was_handled_before_it_was_seen_holds_up_nobody():
    crossings = Crossings()
    crossings.advance(1, ShareProgress(8, 0))
    crossings.see(7, 1)
    assert crossings.first_open(2) == 0
    assert crossings.has_crossed(1, since=6)
    assert not crossings.has_crossed(1, since=7)


def test_old_news_changes_nothing():
    crossings = Crossings()
    crossings.see(7, 1)
    crossings.advance(1, ShareProgress(9, 4))
    assert crossings.advance(1, ShareProgress(5, 2)) is False
    assert crossings.reached(1) == ShareProgress(9, 4)


def test_a_queue_gives_by_place_and_tells_how_far_it_is_done():
    queue = HandoffQueue()
    for position, place in ((3, 20), (5, 10), (6, 30)):
        queue.put(StoredEvent(position, 0, Event("s", str(position), "t", "", 0)), place)
    assert (queue.settled(8), queue.last(), len(queue)) == (2, 30, 3)
    assert [stored.position for stored in queue.take(20)] == [5, 3]
    assert queue.settled(8) == 5
    assert [stored.position for stored in queue.take(99)] == [6]
    assert (queue.settled(8), queue.last(), len(queue)) == (8, 0, 0)
