"""Ten v0 brokers: what is there is found, and every request ends once, whatever is lost.
[CX-2, CX-5]
"""

from __future__ import annotations

from typing import Any

import pytest

from rapport.context.broker.broker_settings import ReplicationSettings
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.kernel.clock import Chance
from rapport.transport.base import Address
from rapport_lab.topology import Topology, mesh, ring, waxman

T = 1516060800000
NUMBERS = range(1, 11)
KINDS = ("ring", "mesh", "waxman")


def topology(kind: str) -> Topology[int]:
    if kind == "ring":
        return ring(NUMBERS)
    return mesh(NUMBERS) if kind == "mesh" else waxman(NUMBERS, Chance(3), alpha=0.5, beta=0.5)


def record(number: int, until: int = T + 600_000) -> ContextRecord:
    return ContextRecord(
        f"p{number}", EntityRef("room", str(number)), "status", T, until, {"n": "1"}
    )


def build(world: Any, kind: str, **settings: Any) -> None:
    neighbours = topology(kind).neighbours
    for number in NUMBERS:
        world.broker(number, neighbours[number], **settings)
        world.put(number, record(number))


def request(number: int) -> bytes:
    return f"3|{T}|room|{number}|status".encode()


@pytest.mark.parametrize("kind", KINDS)
def test_every_broker_finds_what_any_other_has(world: Any, kind: str) -> None:
    build(world, kind, replication=ReplicationSettings(kind="none"))
    for entry in NUMBERS:
        for wanted in NUMBERS:
            _received, answer = world.send(request(wanted), entry)
            assert answer.startswith(b"4|"), f"{entry} did not find what {wanted} has"


def test_replication_saves_messages(world: Any) -> None:
    """The difference that copies make: the same requests a second time cost nothing."""
    build(world, "ring", replication=ReplicationSettings(kind="random"))
    for entry in NUMBERS:
        world.send(request(1), entry)
    first = len(world.wire)
    for entry in NUMBERS:
        world.send(request(1), entry)
    assert first > 0
    assert len(world.wire) == first


@pytest.mark.parametrize("lost", [0.1, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_request_ends_once_and_in_time_whatever_is_lost(
    world: Any, kind: str, lost: float
) -> None:
    build(world, kind)
    chance = Chance(5)
    world.lose = lambda _sender, _to: chance.random() < lost
    ended: dict[Address, list[bytes]] = {}
    for number in range(100):
        consumer = ("10.0.9.9", 50_000 + number)
        told = world.send(request(chance.choice(NUMBERS)), chance.choice(NUMBERS), consumer)
        ended[consumer] = [answer for answer in told if answer[:1] != b"5"]
    world.wait(2_100)
    for answer, consumer in world.told:
        ended[consumer].append(answer)
    assert {len(answers) for answers in ended.values()} == {1}
    found = sum(answers[0][:1] == b"4" for answers in ended.values())
    assert found > 0
    assert all(broker.searches == 0 for broker in world.brokers.values())


def test_no_record_past_its_validity_is_sent(world: Any) -> None:
    build(world, "ring")
    for number in NUMBERS:
        soon = ContextRecord("q", EntityRef("car", str(number)), "place", T, T + 8_000, {"x": "1"})
        world.put(number, soon)
    wanted = f"3|{T}|car|7|place".encode()
    for entry in NUMBERS:
        assert world.send(wanted, entry)[1][:1] == b"4"
    world.wait(8_000)
    for entry in NUMBERS:
        assert world.send(wanted, entry)[1].startswith(b"6|")
