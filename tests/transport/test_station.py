"""Stations: messages of any size between those who hold keys; nobody else is heard or answered."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import TooLarge
from rapport.kernel.clock import Chance, ManualClock
from rapport.transport.base import Address, Sender
from rapport.transport.fragments import WHOLE, ReassemblyLimits
from rapport.transport.keys import DatagramKeys, make_key
from rapport.transport.sealed_datagrams import RUN_BYTES, Sealer, Unsealer, receiver_name
from rapport.transport.station import Station
from rapport_lab.memory_transport import MemoryMedium
from rapport_lab.scheduler import Scheduler, SimulatedClock
from rapport_lab.simulated_transport import SimulatedLink, SimulatedMedium

NOW = 1_772_442_000_000
HOUR = 3_600_000


class Net:
    """Stations on a simulated medium, and what each heard."""

    def __init__(self, link: SimulatedLink | None = None, *, seed: int = 1) -> None:
        self.scheduler = Scheduler(wall_ms=NOW)
        self.clock = SimulatedClock(self.scheduler)
        self.medium = SimulatedMedium(self.scheduler, Chance(seed), link)
        self.heard: dict[Station, list[tuple[bytes, Sender]]] = {}

    def station(self, keys: DatagramKeys | None = None, **more) -> Station:
        endpoint = self.medium.open()
        if keys is None:
            station = Station(endpoint, clock=self.clock, **more)
        else:
            station = Station.sealed(endpoint, keys, clock=self.clock, **more)
        self.heard[station] = []
        station.receive(lambda message, sender: self.heard[station].append((message, sender)))
        return station

    def words(self, station: Station) -> list[bytes]:
        return [message for message, _sender in self.heard[station]]


@pytest.mark.parametrize("size", [0, 1, 1_000, 1_370, 1_431, 1_432, 5_000, 200_000])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_messages_of_every_size_arrive(ring, size, is_sealed) -> None:
    net = Net(SimulatedLink(delay_ms=1, jitter_ms=50))
    one = net.station(ring.member() if is_sealed else None)
    other = net.station(ring.member() if is_sealed else None)
    message = os.urandom(size)
    one.send(message, other.address)
    net.scheduler.run()
    identity = "brokers" if is_sealed else ""
    assert net.heard[other] == [(message, Sender(one.address, identity, "network"))]


def test_a_message_beyond_the_limit_is_refused(ring) -> None:
    net = Net()
    one = net.station(ring.member(), limits=ReassemblyLimits(message_bytes=2_000))
    with pytest.raises(TooLarge):
        one.send(b"x" * 2_001, ("simulated", 9))


def test_a_client_needs_only_its_own_key_to_ask_and_be_answered(ring) -> None:
    net = Net()
    broker, other_broker = net.station(ring.member()), net.station(ring.member())
    ann, ben = net.station(ring.client("ann")), net.station(ring.client("ben"))
    ann.send(b"where is ben?", broker.address)
    net.scheduler.run()
    broker.send(b"near", ann.address)
    broker.send(b"pass it on" * 500, other_broker.address)
    net.scheduler.run()
    assert net.heard[broker] == [(b"where is ben?", Sender(ann.address, "ann", "client"))]
    assert net.heard[ann] == [(b"near", Sender(broker.address, "network", "network"))]
    assert net.words(other_broker) == [b"pass it on" * 500]
    ben.send(b"psst", ann.address)
    net.scheduler.run()
    assert net.words(ann) == [b"near"]


def test_a_client_whose_key_was_exchanged_is_answered_with_its_newest(ring) -> None:
    net = Net()
    old = make_key("cat", "client", until_ms=NOW + HOUR)
    new = make_key("cat", "client", from_ms=NOW + HOUR)
    broker = net.station(DatagramKeys([ring.network, old, new]))
    client = net.station(DatagramKeys([old, new]))
    client.send(b"watch it", broker.address)
    net.scheduler.run(HOUR + 60_000)
    broker.send(b"it changed", client.address)
    net.scheduler.run()
    assert net.words(client) == [b"it changed"]


def test_a_client_whose_key_was_taken_away_is_not_answered_any_more(ring) -> None:
    net = Net()
    keys = ring.member()
    broker, ann = net.station(keys), net.station(ring.client("ann"))
    ann.send(b"watch it", broker.address)
    net.scheduler.run()
    keys.replace_with(DatagramKeys([ring.network]))
    broker.send(b"it changed", ann.address)
    net.scheduler.run()
    assert net.words(ann) == []
    assert broker.counters.keyless == 1


def test_without_a_valid_key_nothing_is_sent_and_nothing_raised(clock) -> None:
    async def scenario() -> None:
        medium = MemoryMedium()
        keys = DatagramKeys([make_key("brokers", "network", until_ms=NOW)])
        station = Station.sealed(medium.open(), keys, clock=clock)
        for _ in range(3):
            station.send(b"hello", ("memory", 1))
        assert station.counters.keyless == 3
        await station.close()

    asyncio.run(scenario())


def test_clocks_that_differ_too_much_are_reported_in_the_log_and_not_for_each_datagram(
    ring, clock, capsys
) -> None:
    async def scenario() -> None:
        medium, heard = MemoryMedium(), []
        late = Station.sealed(medium.open(), ring.member(), clock=ManualClock(NOW - 31_000))
        other = Station.sealed(medium.open(), ring.member(), clock=clock)
        other.unseal._since_ms = 0  # it has been there for a while
        other.receive(lambda message, _sender: heard.append(message))
        for _ in range(5):
            late.send(b"hello", other.address)
        for _ in range(3):
            await asyncio.sleep(0)
        assert heard == []
        assert other.unseal.counters.stale == 5
        await late.close()
        await other.close()

    asyncio.run(scenario())
    assert capsys.readouterr().err.count("do the clocks") == 1


def test_a_broadcast_is_accepted_by_all_that_hold_the_key(ring) -> None:
    net = Net()
    one, other, third = (net.station(ring.member()) for _ in range(3))
    client = net.station(ring.client("ann"))
    one.broadcast(b"here I am")
    net.scheduler.run()
    assert [net.words(station) for station in (one, other, third, client)] == [
        [],
        [b"here I am"],
        [b"here I am"],
        [],
    ]


def test_duplicated_and_late_datagrams_give_each_message_once(ring) -> None:
    net = Net(SimulatedLink(delay_ms=1, jitter_ms=200, duplication=0.5))
    one, other = net.station(ring.member()), net.station(ring.member())
    sent = [bytes([number]) * (number * 97) for number in range(60)]
    for message in sent:
        one.send(message, other.address)
    net.scheduler.run()
    assert sorted(net.words(other)) == sorted(sent)
    assert other.unseal.counters.repeated > 20


def test_under_loss_a_message_is_whole_or_missing(ring) -> None:
    net = Net(SimulatedLink(delay_ms=1, jitter_ms=20, loss=0.1, duplication=0.1))
    one, other = net.station(ring.member()), net.station(ring.member())
    sent = [os.urandom(3_000) for _ in range(200)]
    for message in sent:
        one.send(message, other.address)
    net.scheduler.run()
    got = net.words(other)
    assert set(got) <= set(sent)
    assert len(got) == len(set(got))
    assert 100 < len(got) < 190  # three fragments each: 73 % and a little more for repetitions


def echo(station: Station) -> Station:
    """Answers everything it hears."""
    station.receive(lambda message, sender: station.send(message, sender.address))
    return station


@given(
    noise=st.lists(
        st.tuples(st.integers(0, 5), st.binary(max_size=120), st.randoms(use_true_random=False)),
        max_size=25,
    )
)
def test_random_and_mutated_datagrams_never_break_a_station_nor_make_it_answer(noise) -> None:
    """Wild bytes, and datagrams of a member changed, cut, lengthened, or repeated."""
    key = make_key("brokers", "network")
    net = Net()
    station = echo(net.station(DatagramKeys([key])))
    stranger, friend = net.medium.open(), net.station(DatagramKeys([key]))
    answers: list[bytes] = []
    stranger.receive(lambda datagram, _sender: answers.append(datagram))
    genuine: list[bytes] = []
    listening = net.medium.open()
    listening.receive(lambda datagram, _sender: genuine.append(datagram))
    friend.send(b"x" * 3_000, listening.address)
    friend.send(b"small", listening.address)
    net.scheduler.run()
    for kind, wild, chance in noise:
        stranger.send(_spoilt(kind, wild, chance.choice(genuine), chance), station.address)
    net.scheduler.run()
    assert answers == []
    friend.send(b"still there?", station.address)
    net.scheduler.run()
    assert net.words(friend) == [b"still there?"]


def _spoilt(kind: int, wild: bytes, datagram: bytes, chance) -> bytes:
    place = chance.randrange(len(datagram))
    changed = bytes([datagram[place] ^ chance.randrange(1, 256)])
    spoilt = {
        0: wild,
        1: datagram[:place],
        2: datagram + (wild or b"?"),
        3: datagram[:place] + changed + datagram[place + 1 :],
        4: datagram[:28] + wild + datagram[28 + len(wild) + 1 :],
        5: b"RP\x01\x00" + wild,
    }
    return spoilt[kind][:1_432]


@given(st.lists(st.binary(max_size=60), max_size=30))
def test_without_keys_random_datagrams_never_break_a_station(noise) -> None:
    net = Net()
    station, stranger = net.station(), net.medium.open()
    for wild in noise:
        stranger.send(wild, station.address)
    net.scheduler.run()
    assert net.words(station) == [wild[1:] for wild in noise if wild[:1] == b"\x00"]


def test_a_captured_datagram_sent_from_elsewhere_is_not_answered_twice(ring) -> None:
    net = Net()
    station, friend = echo(net.station(ring.member())), net.station(ring.member())
    captured: list[bytes] = []
    listening, thief = net.medium.open(), net.medium.open()
    listening.receive(lambda datagram, _sender: captured.append(datagram))
    answers: list[bytes] = []
    thief.receive(lambda datagram, _sender: answers.append(datagram))
    friend.send(b"tell me", listening.address)
    net.scheduler.run()
    listening.send(captured[0], station.address)  # the genuine one arrives
    net.scheduler.run()
    for _ in range(50):
        thief.send(captured[0], station.address)
    net.scheduler.run()
    assert answers == []


def test_a_client_that_forges_the_address_of_a_member_gets_nothing_of_what_members_say(
    ring,
) -> None:
    net = Net()
    broker, other_broker = net.station(ring.member()), net.station(ring.member())
    other_broker.send(b"here I am", broker.address)
    net.scheduler.run()
    ann = Sealer(ring.client("ann"), os.urandom(RUN_BYTES))
    forged = ann.seal(WHOLE + b"me too", NOW, to=receiver_name(broker.address))
    net.medium.carry(forged, other_broker.address, broker.address)
    net.scheduler.run()
    assert net.heard[broker][-1] == (b"me too", Sender(other_broker.address, "ann", "client"))
    captured: list[bytes] = []
    carry = net.medium.carry

    def tap(datagram: bytes, sender: Address, to: Address) -> None:
        captured.append(datagram)
        carry(datagram, sender, to)

    net.medium.carry = tap
    broker.send(b"among ourselves", other_broker.address)
    net.scheduler.run()
    assert net.words(other_broker) == [b"among ourselves"]
    assert Unsealer(ring.client("ann"), own=ann).open(captured[0], NOW) is None


def test_memory_of_those_accepted_is_bounded(ring, monkeypatch) -> None:
    monkeypatch.setattr("rapport.transport.station._MOST_SENDERS", 5)
    net = Net()
    broker = net.station(ring.member())
    clients = [net.station(ring.client("ann")) for _ in range(20)]
    for client in clients:
        client.send(b"hello", broker.address)
    net.scheduler.run()
    assert len(broker._heard) == 5
    broker.send(b"you were last", clients[-1].address)
    net.scheduler.run()
    assert net.words(clients[-1]) == [b"you were last"]


def test_a_manual_clock_serves_as_well(ring) -> None:
    async def scenario() -> None:
        medium, clock, heard = MemoryMedium(), ManualClock(NOW), []
        one = Station.sealed(medium.open(), ring.member(), clock=clock)
        other = Station.sealed(medium.open(), ring.member(), clock=clock)
        other.receive(lambda message, sender: heard.append((message, sender.identity)))
        one.send(b"hello", other.address)
        for _ in range(3):
            await asyncio.sleep(0)
        assert heard == [(b"hello", "brokers")]
        await one.close()
        await other.close()

    asyncio.run(scenario())
