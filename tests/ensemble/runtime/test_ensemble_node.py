"""Nodes on real sockets: they meet, hear of the dead, and bear what components and strangers do.
[EN-10]
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from rapport.cli.main import run as rapport
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.role import Role
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import SWIM_BYTE, RuntimeSettings, fetch_status
from rapport.kernel.clock import Chance, Now, SystemClock
from rapport.overlay.swim_protocol import Ping, encode
from rapport.transport.addresses import format_address
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys, make_key
from rapport.transport.station import open_station
from rapport.transport.udp import MulticastGroup

Opened = Callable[[], Any]


def ring() -> DatagramKeys:
    return DatagramKeys([make_key("cars", "network")])


@pytest.mark.parametrize("is_sealed", [False, True], ids=["plain", "sealed"])
def test_nodes_that_know_one_of_them_meet_and_their_components_exchange(
    opened: Opened, is_sealed: bool
) -> None:
    async def scenario() -> None:
        keys = ring() if is_sealed else None
        async with opened() as world:
            first = await world.person("a", keys=keys)
            for name in "bc":
                await world.person(name, keys=keys, join=[first.address])
            people = world.people
            await world.until(
                lambda: all(set(one.met) >= set("abc") - {one.id} for one in people.values())
            )
            await world.until(lambda: people["a"].greeted >= 2)
            await world.until(lambda: all(len(node.members) == 2 for node in world.nodes))
            status = first.status()
            assert {one.component for one in status.replicas} == {"b", "c"}
            assert {one.name for one in status.members} == {"node-b", "node-c"}
            assert status.faults == ()

    asyncio.run(scenario())


def test_nodes_of_one_multicast_group_meet_without_knowing_addresses(
    opened: Opened, group: MulticastGroup
) -> None:
    async def scenario() -> None:
        keys = ring()
        async with opened() as world:
            for name in "ab":
                await world.person(name, group=group, keys=keys)
            await world.until(lambda: world.people["a"].met == ["b"])
            await world.until(lambda: world.people["b"].met == ["a"])
            assert world.nodes[0].members == ()

    asyncio.run(scenario())


def test_a_node_on_radio_and_ip_joins_both_worlds(opened: Opened, group: MulticastGroup) -> None:
    async def scenario() -> None:
        async with opened() as world:
            on_ip = await world.person("ip")
            await world.person("both", group=group, join=[on_ip.address])
            await world.person("radio", group=group)
            await world.until(lambda: "radio" in world.people["ip"].met)
            await world.until(lambda: "ip" in world.people["radio"].met)

    asyncio.run(scenario())


@pytest.mark.slow
def test_who_leaves_is_forgotten_at_once_and_who_falls_silent_soon(opened: Opened) -> None:
    async def scenario() -> None:
        async with opened() as world:
            first = await world.person("a")
            leaving = await world.person("b", join=[first.address])
            silent = await world.person("c", join=[first.address])
            await world.until(lambda: {"b", "c"} <= set(first.machine.host.replicas))
            await leaving.close()
            await world.until(lambda: "b" not in first.machine.host.replicas, seconds=3)
            await silent._shell.tasks.stop()
            await silent._shell.station.close()
            await world.until(lambda: "c" not in first.machine.host.replicas)
            counters = first.status().counters
            assert (counters["members_left"], counters["members_failed"]) == (1, 1)

    asyncio.run(scenario())


def test_changes_are_told_with_their_values_and_a_listener_that_fails_harms_nothing(
    opened: Opened,
) -> None:
    async def scenario() -> None:
        told: list[Knowledge] = []
        published: list[Knowledge] = []

        def listener(knowledge: Knowledge) -> None:
            told.append(knowledge)
            raise RuntimeError("does not care")

        async with opened() as world:
            first = await world.person("a", on_changed=listener, on_published=published.append)
            await world.person("b", join=[first.address])
            await world.until(lambda: len(told) >= 3 and len(published) >= 3)
            assert {one.component for one in told} == {"b"}
            assert told[0].values["name"] == "b"
            assert [one.version for one in told] == sorted({one.version for one in told})
            assert [one.version for one in published] == sorted({one.version for one in published})
            assert first.status().counters["not_told"] >= 3

    asyncio.run(scenario())


@pytest.mark.parametrize("letters", [10, 5_000], ids=["whole", "in parts"])
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with another"])
def test_own_versions_are_told_whether_sent_whole_or_in_parts_or_to_nobody(
    opened: Opened, letters: int, others: int
) -> None:
    async def scenario() -> None:
        published: list[Knowledge] = []
        async with opened() as world:
            first = await world.person("a", on_published=published.append)
            world.people["a"].name = "x" * letters
            for number in range(others):
                await world.person(f"b{number}", join=[first.address])
            await world.until(lambda: len(published) >= 3)
            assert published[-1].values["name"] == "x" * letters
            versions = [one.version for one in published]
            assert versions == sorted(set(versions))

    asyncio.run(scenario())


def test_components_that_raise_and_hang_are_faults_and_the_rest_goes_on(
    opened: Opened, broken: type[Component], gate: threading.Event
) -> None:
    async def scenario() -> None:
        async with opened() as world:
            first = await world.person("a")
            second = await world.person("b", join=[first.address])
            first.add(broken(id="broken"))
            await world.until(lambda: "broken" in world.people["b"].met)
            await world.until(
                lambda: (
                    {"ensemble.raised", "ensemble.hangs"}
                    <= {fault.code for fault in first.machine.host.faults}
                )
            )
            await world.until(lambda: "b" in world.people["a"].met)
            first.remove("broken")
            assert second.status().faults == ()
            counts = first.status().fault_counts
            assert counts.keys() >= {"ensemble.raised", "ensemble.hangs"}
            gate.set()

    with capture_logs() as logs:
        asyncio.run(scenario())
    logged = [one for one in logs if one["event"] == "ensemble fault"]
    firsts = [(one["code"], one["name"]) for one in logged if "count" not in one]
    assert {("ensemble.hangs", "hangs"), ("ensemble.raised", "raises")} <= set(firsts)
    assert len(firsts) == len(set(firsts))
    assert all(one["component"] == "broken" for one in logged)


def test_two_nodes_with_the_same_component_and_name_are_told_and_keep_their_own(
    opened: Opened,
) -> None:
    async def scenario() -> None:
        async with opened() as world:
            first = await world.person("a")
            second = await world.person("a", join=[first.address])
            await world.until(lambda: bool(first.status().namesakes))
            await world.until(
                lambda: "ensemble.equal_ids" in {fault.code for fault in first.status().faults}
            )
            assert "a" not in first.machine.host.replicas
            assert second.status().namesakes == (first.status().address,)
            codes = {fault.code for fault in second.status().faults}
            assert "ensemble.equal_nodes" in codes

    with capture_logs() as logs:
        asyncio.run(scenario())
    logged = {one["code"] for one in logs if one["event"] == "ensemble fault"}
    assert logged >= {"ensemble.equal_ids", "ensemble.equal_nodes"}


class Warm(Role):
    degrees: float


class Sensor(Component, Warm):
    degrees: float = 28.0


def test_knowledge_that_cannot_be_published_is_withheld_logged_once_and_shown(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with opened() as world:
            first = await world.person("a")
            second = await world.person("b", join=[first.address])
            sensor = Sensor(id="sensor")
            first.add(sensor)
            known = second.machine.host.replicas
            await world.until(lambda: "sensor" in known)
            first.machine.host.assign("sensor", {"degrees": math.nan}, Now(0, 0.0))
            # The second time, so that what was on its way has arrived.
            await world.until(lambda: first.machine.host.faults.total >= 2)
            last = known["sensor"].version
            count = first.machine.host.faults.total
            await world.until(lambda: first.machine.host.faults.total >= count + 5)
            assert known["sensor"].version == last
            (withheld,) = first.status().withheld
            assert (withheld.component, withheld.code) == ("sensor", "ensemble.knowledge_not_plain")
            where = format_address(first.address)
            assert await asyncio.to_thread(rapport, ["ensemble", "status", where]) == 0
            assert first.status().fault_counts["ensemble.knowledge_not_plain"] >= 5
            first.machine.host.assign("sensor", {"degrees": 3.5}, Now(0, 0.0))
            await world.until(lambda: known["sensor"].version > last)
            assert first.status().withheld == ()

    with capture_logs() as logs:
        asyncio.run(scenario())
    events = [one["event"] for one in logs if one.get("component") == "sensor"]
    assert events == ["knowledge is withheld", "knowledge is published again"]
    assert "WITHHELD since" in " ".join(capsys.readouterr().out.split())


@contextmanager
def stranger_at(to: Address) -> Iterator[Callable[[bytes], object]]:
    """Sends what it likes, and what it overheard."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        yield lambda datagram: opened.sendto(datagram, to)


@pytest.mark.slow
def test_strangers_at_a_sealed_node_are_not_heard_and_harm_nothing(opened: Opened) -> None:
    async def scenario() -> None:
        keys, overheard = ring(), []

        class Tapped:
            """An endpoint whose datagrams somebody else sees."""

            def __init__(self, inner: Any) -> None:
                self._inner = inner

            def __getattr__(self, name: str) -> Any:
                return getattr(self._inner, name)

            def send(self, datagram: bytes, to: Address) -> None:
                overheard.append(datagram)
                self._inner.send(datagram, to)

        async with opened() as world:
            first = await world.person("a", keys=keys)
            await world.person("b", keys=keys, join=[first.address], link=Tapped)
            await world.until(lambda: world.people["a"].met == ["b"] and len(overheard) > 20)
            chance, said = Chance(4), list(overheard)
            with stranger_at(first.address) as send:
                for datagram in said:
                    forged = bytearray(datagram)
                    forged[-1 - chance.randrange(len(forged) - 40)] ^= 1
                    for bad in (datagram, datagram[:-1], datagram[:20], bytes(forged)):
                        send(bad)
                for size in (0, 1, 56, 500, 1_400):
                    send(secrets.token_bytes(size))
            await asyncio.sleep(0.1)
            counters = first.status().counters
            assert counters["datagrams_repeated"] >= len(said)
            assert counters["datagrams_foreign"] >= len(said)
            assert counters.get("not_understood", 0) == 0
            assert counters["messages_received"] <= len(overheard)
            assert len(first.members) == 1

    asyncio.run(scenario())


def test_nonsense_at_a_node_without_keys_is_counted_and_harms_nothing(opened: Opened) -> None:
    async def scenario() -> None:
        async with opened() as world:
            first = await world.person("a")
            chance = Chance(9)
            with stranger_at(first.address) as send:
                for kind in (0, 1, 16, 17, 18, 255) * 30:
                    body = chance.randbytes(chance.randrange(200))
                    send(b"\x00" + bytes([kind]) + body)
                    send(bytes([kind]) + body)
            await world.person("b", join=[first.address])
            await world.until(lambda: world.people["a"].met == ["b"])
            assert first.status().counters["not_understood"] > 100

    asyncio.run(scenario())


def test_a_client_key_asks_how_a_node_is_and_takes_no_part(opened: Opened) -> None:
    async def scenario() -> None:
        network, client = make_key("cars", "network"), make_key("ana", "client")
        members = DatagramKeys([network, client], own="cars")
        async with opened() as world:
            first = await world.person("a", keys=members)
            ana = DatagramKeys([client])
            clock = SystemClock()
            status = await fetch_status(first.address, clock=clock, chance=Chance(), keys=ana)
            assert status.node == "node-a"
            assert status.components == ("a",)
            with pytest.raises(InvalidInput) as raised:
                await world.person("b", keys=ana, join=[first.address])
            assert raised.value.code == "ensemble.client_keys"
            station = await open_station(("127.0.0.1", 0), ana, clock)
            station.send(SWIM_BYTE + encode(Ping(1)), first.address)
            await world.until(lambda: first.status().counters.get("not_a_member", 0) == 1)
            await station.close()
            assert first.members == ()

    asyncio.run(scenario())


def test_groupers_bring_those_of_one_group_together(
    opened: Opened, neighbours: type[Ensemble]
) -> None:
    async def scenario() -> None:
        async with opened() as world:
            grouper = await world.person("g", is_grouper=True)
            for name in "ab":
                await world.person(name, groupers=[grouper.address], ensembles=[neighbours])
            await world.until(lambda: world.people["a"].met == ["b"])
            await world.until(lambda: world.people["b"].met == ["a"])

    asyncio.run(scenario())


def test_a_group_stays_whole_when_no_configured_grouper_survives(
    opened: Opened, neighbours: type[Ensemble]
) -> None:
    async def scenario() -> None:
        async with opened() as world:
            configured = await world.person("g", is_grouper=True)
            known = [configured.address]
            first = await world.person("a", groupers=known, ensembles=[neighbours])
            await world.until(lambda: len(first.members) == 1)
            await configured.close()
            join = [first.address]
            # Each knows the dead grouper and a node that is none: who is a grouper, the membership
            # says.
            await world.person("h", is_grouper=True, groupers=known, join=join)
            await world.person("b", groupers=known, join=join, ensembles=[neighbours])
            await world.until(lambda: "b" in world.people["a"].met)
            await world.until(lambda: "a" in world.people["b"].met)

    asyncio.run(scenario())


def test_nobody_there_is_said_clearly() -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable) as raised:
            await fetch_status(("127.0.0.1", 9), clock=SystemClock(), chance=Chance(), within_ms=40)
        assert raised.value.code == "ensemble.no_node"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"listen": ("192.0.2.1", 7)}, "ensemble.no_keys"),
        ({"join": [("192.0.2.1", 7)]}, "ensemble.no_keys"),
        ({"listen": ("0.0.0.0", 7)}, "ensemble.bad_address"),
        ({"node": ""}, "ensemble.bad_node_name"),
        ({"node": "a\nb"}, "ensemble.bad_node_name"),
    ],
    ids=["listen", "join", "everywhere", "no name", "odd name"],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], code: str) -> None:
    async def scenario() -> None:
        given = {"node": "n", "listen": ("127.0.0.1", 0)} | options
        with pytest.raises(InvalidInput) as raised:
            await EnsembleNode.open(clock=SystemClock(), chance=Chance(), **given)
        assert raised.value.code == code

    asyncio.run(scenario())


def test_closing_twice_is_no_error(opened: Opened, quick: RuntimeSettings) -> None:
    async def scenario() -> None:
        async with opened() as world:
            node = await world.person("a")
            await node.close()
            await node.close()

    asyncio.run(scenario())


class ClockSetBack(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() - 8 * 60_000


@pytest.mark.parametrize("medium", ["ip", "radio"])
def test_a_node_that_begins_anew_with_its_clock_set_back_is_told_and_heard(
    opened: Any, group: Any, medium: str
) -> None:
    async def scenario() -> None:
        async with opened() as world:
            media = {"group": group} if medium == "radio" else {}
            heard: list[Any] = []
            first = await world.person("a", on_changed=heard.append, **media)
            join = {} if media else {"join": [first.address]}
            former = await world.person("b", **media, **join)
            await world.until(lambda: bool(heard))
            await former.close()
            last = heard[-1].version
            await world.person("b", clock=ClockSetBack(), **media, **join)
            await world.until(lambda: heard[-1].version > last)
            assert heard[-1].created_ms < last - 60_000

    asyncio.run(scenario())
