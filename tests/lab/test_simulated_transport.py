"""The simulated medium: delay, loss, repetition, disorder, range and partitions, from a seed."""

from __future__ import annotations

import pytest

from rapport.core.errors import DuplicateName, InvalidInput
from rapport.kernel.clock import Chance
from rapport_lab.scheduler import Scheduler
from rapport_lab.simulated_transport import SimulatedLink, SimulatedMedium


class Net:
    """A medium with endpoints that note when they heard what."""

    def __init__(self, link: SimulatedLink | None = None, *, seed: int = 7, **more) -> None:
        self.scheduler = Scheduler()
        self.medium = SimulatedMedium(self.scheduler, Chance(seed), link, **more)
        self.heard: dict[str, list[tuple[float, bytes]]] = {}

    def open(self, name: str):
        endpoint = self.medium.open((name, 0))
        self.heard[name] = []
        endpoint.receive(
            lambda datagram, _sender: self.heard[name].append((self.scheduler.time_ms, datagram))
        )
        return endpoint

    def words(self, name: str) -> list[bytes]:
        return [datagram for _time, datagram in self.heard[name]]


def send_many(net: Net, count: int = 2_000) -> None:
    a = net.open("a")
    net.open("b")
    for number in range(count):
        net.scheduler.at(number, a.send, b"%d" % number, ("b", 0))
    net.scheduler.run()


def test_a_datagram_takes_the_delay_of_its_link() -> None:
    net = Net(SimulatedLink(delay_ms=12))
    net.open("a").send(b"x", ("b", 0))
    net.open("b")
    net.scheduler.run()
    assert net.heard["b"] == [(12.0, b"x")]


def test_loss_and_duplication_come_as_often_as_their_chances_say() -> None:
    net = Net(SimulatedLink(loss=0.3, duplication=0.1))
    send_many(net, 5_000)
    counters = net.medium.counters
    assert counters.sent == 5_000
    assert abs(counters.lost - 1_500) < 150
    assert abs(counters.duplicated - 350) < 80
    assert counters.arrived == len(net.heard["b"]) == 5_000 - counters.lost + counters.duplicated


def test_jitter_puts_datagrams_out_of_order() -> None:
    net = Net(SimulatedLink(delay_ms=5, jitter_ms=30))
    send_many(net, 500)
    numbers = [int(word) for word in net.words("b")]
    assert numbers != sorted(numbers)
    assert sorted(numbers) == list(range(500))
    assert all(5 <= time - int(word) <= 35 for time, word in net.heard["b"])


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    link = SimulatedLink(delay_ms=1, jitter_ms=9, loss=0.2, duplication=0.2)
    runs = []
    for seed in (1, 1, 2):
        net = Net(link, seed=seed)
        send_many(net, 300)
        runs.append(net.heard["b"])
    assert runs[0] == runs[1] != runs[2]


def test_only_who_is_in_range_hears_and_range_follows_movement() -> None:
    places = {("a", 0): (0.0, 0.0), ("b", 0): (30.0, 40.0), ("c", 0): (30.1, 40.0)}
    net = Net(range_metres=50.0, positions=places)
    a = net.open("a")
    for name in ("b", "c", "nowhere"):
        net.open(name)
    a.broadcast(b"one")
    a.send(b"two", ("c", 0))
    net.scheduler.run()
    assert [net.words(name) for name in ("a", "b", "c", "nowhere")] == [[], [b"one"], [], []]
    assert net.medium.counters.out_of_range == 1
    places["c", 0] = (1.0, 1.0)
    a.broadcast(b"three")
    net.scheduler.run()
    assert (net.words("b"), net.words("c")) == ([b"one", b"three"], [b"three"])


def test_a_partition_holds_back_what_is_under_way_and_heals() -> None:
    net = Net(SimulatedLink(delay_ms=10))
    a = net.open("a")
    for name in ("b", "c", "d"):
        net.open(name)
    a.send(b"under way", ("c", 0))
    net.medium.cut([[("a", 0), ("b", 0)], [("c", 0)]])
    for name in ("b", "c", "d"):
        a.send(b"parted", (name, 0))
    net.scheduler.run()
    assert [net.words(name) for name in ("b", "c", "d")] == [[b"parted"], [], []]
    assert net.medium.counters.cut_off == 3
    net.medium.heal()
    a.send(b"healed", ("c", 0))
    net.scheduler.run()
    assert net.words("c") == [b"healed"]


def test_a_link_of_its_own_goes_before_what_all_have_in_one_direction_only() -> None:
    net = Net(SimulatedLink(delay_ms=1))
    a, b = net.open("a"), net.open("b")
    net.medium.set_link(("a", 0), ("b", 0), SimulatedLink(delay_ms=100))
    a.send(b"slow", ("b", 0))
    b.send(b"fast", ("a", 0))
    net.scheduler.run()
    assert (net.heard["b"], net.heard["a"]) == ([(100.0, b"slow")], [(1.0, b"fast")])
    net.medium.set_link(("a", 0), ("b", 0), None)
    a.send(b"again", ("b", 0))
    net.scheduler.run()
    assert net.heard["b"][-1] == (101.0, b"again")


def test_who_left_hears_nothing_and_its_address_is_free_again() -> None:
    net = Net(SimulatedLink(delay_ms=10))
    a, b = net.open("a"), net.open("b")
    a.send(b"too late", ("b", 0))
    b.leave()
    net.scheduler.run()
    assert (net.words("b"), net.medium.counters.nobody) == ([], 1)
    net.open("b")
    with pytest.raises(DuplicateName) as found:
        net.open("b")
    assert found.value.code == "transport.address_taken"


def test_a_handler_that_raises_ends_the_run() -> None:
    net = Net()
    a, b = net.open("a"), net.open("b")

    def fail(_datagram: bytes, _sender: object) -> None:
        raise RuntimeError("a fault of the simulated")

    b.receive(fail)
    a.send(b"x", ("b", 0))
    with pytest.raises(RuntimeError):
        net.scheduler.run()


@pytest.mark.parametrize("wrong", [{"loss": 1.1}, {"duplication": -0.1}, {"delay_ms": -1}])
def test_a_link_that_cannot_be_is_refused(wrong) -> None:
    with pytest.raises(InvalidInput):
        SimulatedLink(**wrong)
