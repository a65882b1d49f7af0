"""What only UDP has: sockets, sizes, addresses that are none, handlers that fail. [CX-2]"""

from __future__ import annotations

import asyncio
import socket

import pytest

from rapport.core.errors import InvalidInput, Unavailable, Unsupported
from rapport.kernel.clock import Chance
from rapport.transport.addresses import format_address, is_loopback, parse_address, resolve
from rapport.transport.udp import LARGEST_DATAGRAM, MulticastGroup, UdpEndpoint
from support.faults.lossy import LossyEndpoint


async def until(condition) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen within a second")


async def listening(**more) -> tuple[UdpEndpoint, list[bytes]]:
    endpoint, heard = await UdpEndpoint.open("127.0.0.1", 0, **more), []
    endpoint.receive(lambda datagram, _sender: heard.append(datagram))
    return endpoint, heard


def test_an_address_that_is_none_is_counted_and_nothing_is_looked_up() -> None:
    async def scenario() -> None:
        endpoint, _heard = await listening()
        nowhere = [("localhost", 7), ("example.org", 7), ("", 7), ("::1", 7), ("127.0.0.1", 0)]
        for to in [*nowhere, ("127.0.0.1", 70_000), ("127.0.0.1", -1), (7, 7), ("1.2.3.4", "x")]:
            endpoint.send(b"hello", to)
        assert endpoint.counters.unsendable == 9
        assert endpoint.counters.sent == 0
        await endpoint.close()

    asyncio.run(scenario())


def test_a_handler_that_fails_does_not_stop_the_datagrams_after() -> None:
    async def scenario() -> None:
        endpoint = await UdpEndpoint.open("127.0.0.1")
        heard: list[bytes] = []

        def handler(datagram: bytes, _sender: object) -> None:
            heard.append(datagram)
            if datagram == b"bad":
                raise ValueError("a handler's own fault")

        endpoint.receive(handler)
        for datagram in (b"bad", b"good", b"bad", b"good"):
            endpoint.send(datagram, endpoint.address)
        await until(lambda: len(heard) == 4)
        assert endpoint.counters.failed == 2
        await endpoint.close()

    asyncio.run(scenario())


def test_a_handler_may_close_its_endpoint() -> None:
    async def scenario() -> None:
        endpoint = await UdpEndpoint.open("127.0.0.1")
        closing: list[asyncio.Task[None]] = []
        endpoint.receive(lambda *_: closing.append(asyncio.ensure_future(endpoint.close())))
        for _ in range(100):
            endpoint.send(b"x", endpoint.address)
        await until(lambda: bool(closing))
        await asyncio.gather(*closing)
        assert len(closing) <= 64

    asyncio.run(scenario())


def test_the_largest_datagrams_pass_when_they_are_asked_for() -> None:
    async def scenario() -> None:
        one, _ = await listening(max_datagram=LARGEST_DATAGRAM)
        other, heard = await listening()
        one.send(b"x" * LARGEST_DATAGRAM, other.address)
        await until(lambda: bool(heard))
        assert len(heard[0]) == LARGEST_DATAGRAM
        await one.close()
        await other.close()

    asyncio.run(scenario())


def test_more_than_the_loop_takes_at_once_arrives_too() -> None:
    async def scenario() -> None:
        one, _ = await listening()
        other, heard = await listening()
        for number in range(1_000):
            one.send(b"%d" % number, other.address)
        await until(lambda: len(heard) == 1_000)
        assert other.counters.received == one.counters.sent == 1_000
        await one.close()
        await other.close()

    asyncio.run(scenario())


def test_an_address_that_is_taken_or_not_ours_is_reported() -> None:
    async def scenario() -> None:
        one = await UdpEndpoint.open("127.0.0.1")
        for host, port in (one.address, ("203.0.113.9", 0)):
            with pytest.raises(Unavailable) as found:
                await UdpEndpoint.open(host, port)
            assert found.value.code == "transport.cannot_open"
        for host, port in (("localhost", 0), ("127.0.0.1", 65_536)):
            with pytest.raises(InvalidInput):
                await UdpEndpoint.open(host, port)
        with pytest.raises(Unsupported):
            one.broadcast(b"all")
        with pytest.raises(InvalidInput):
            await UdpEndpoint.open("127.0.0.1", group=MulticastGroup("somewhere", 7))
        with pytest.raises(InvalidInput):
            await UdpEndpoint.open("127.0.0.1", group=MulticastGroup("ff02::1", 7))
        await one.close()

    asyncio.run(scenario())


def test_two_groups_do_not_hear_each_other() -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
            opened.bind(("127.0.0.1", 0))
            port = opened.getsockname()[1]
        one, _ = await listening(group=MulticastGroup("239.255.74.12", port))
        other, heard = await listening(group=MulticastGroup("239.255.74.12", port))
        third, foreign = await listening(group=MulticastGroup("239.255.74.13", port))
        one.broadcast(b"ours")
        await until(lambda: bool(heard))
        assert (heard, foreign) == ([b"ours"], [])
        for endpoint in (one, other, third):
            await endpoint.close()

    asyncio.run(scenario())


def test_a_lossy_endpoint_loses_repeats_and_delays() -> None:
    async def scenario() -> None:
        one, _ = await listening()
        other, heard = await listening()
        lossy = LossyEndpoint(one, Chance(3), loss=0.3, duplication=0.2, jitter_ms=20)
        for number in range(200):
            lossy.send(b"%03d" % number, other.address)
        expected = 200 - lossy.lost + lossy.duplicated
        await until(lambda: len(heard) == expected)
        assert 40 < lossy.lost < 80
        assert 10 < lossy.duplicated < 50
        assert heard != sorted(heard)
        lossy.cut_off.add(other.address)
        lossy.send(b"cut", other.address)
        lossy.loss = lossy.duplication = lossy.jitter_ms = 0.0
        lossy.cut_off.clear()
        lossy.send(b"healed", other.address)
        await until(lambda: b"healed" in heard)
        assert b"cut" not in heard
        await lossy.close()
        await other.close()

    asyncio.run(scenario())


def test_addresses_are_read_as_people_write_them() -> None:
    for text, address in {
        "127.0.0.1:7411": ("127.0.0.1", 7411),
        " [::1]:7411 ": ("::1", 7411),
        "broker.example:80": ("broker.example", 80),
    }.items():
        assert parse_address(text) == address
        assert parse_address(format_address(address)) == address
    for text in ("", "7411", "host:", ":7411", "host:70000", "::1:7411", "a b:1", "h:-1", "h:٣"):
        with pytest.raises(InvalidInput) as found:
            parse_address(text)
        assert found.value.code == "transport.bad_address"


def test_who_is_on_this_machine_is_known_without_asking_anybody() -> None:
    assert all(is_loopback((host, 1)) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback((host, 1)) for host in ("0.0.0.0", "10.0.0.1", "::", "localhost.x"))


def test_a_name_is_looked_up_before_it_is_sent_to() -> None:
    async def scenario() -> None:
        assert await resolve(("10.1.2.3", 7)) == ("10.1.2.3", 7)
        assert await resolve(("2001:DB8:0::A", 7)) == ("2001:db8::a", 7)
        assert await resolve(("localhost", 7)) == ("127.0.0.1", 7)
        with pytest.raises(InvalidInput) as found:
            await resolve(("no-such-host.invalid", 7))
        assert found.value.code == "transport.unknown_host"

    asyncio.run(scenario())
