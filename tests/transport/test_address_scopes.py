"""Link-local addresses keep the network they are an address in, to the socket and back. [CX-2]"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from rapport.transport.addresses import (
    canonical_address,
    display_address,
    format_address,
    ip_of,
    parse_address,
    resolve,
    socket_address,
)
from rapport.transport.base import Address
from rapport.transport.sealed_datagrams import receiver_name
from rapport.transport.udp import UdpEndpoint, host_towards

INDEX, NAME = socket.if_nameindex()[0]


def test_a_scope_is_shown_by_name_and_given_to_sockets_by_number() -> None:
    told = display_address(("fe80::1", 7411, 0, INDEX))
    assert told == (f"fe80::1%{NAME}", 7411)
    assert socket_address(told) == ("fe80::1", 7411, 0, INDEX)
    assert parse_address(format_address(told)) == told
    for plain in (("10.0.0.1", 7), ("2001:db8::1", 7)):
        assert socket_address(plain) == plain
        assert display_address((*plain, 0, 0)) == plain


def test_an_interface_that_went_is_shown_by_its_number() -> None:
    gone = 2**31 - 5
    told = display_address(("fe80::1", 7, 0, gone))
    assert told == (f"fe80::1%{gone}", 7)
    assert socket_address(told) == ("fe80::1", 7, 0, gone)


@pytest.mark.parametrize("scope", ["no-such-net", "x" * 500, "a\0b", "99999999999", "\udc80", "٣"])
def test_a_scope_that_this_machine_does_not_have_is_no_place(scope: str) -> None:
    with pytest.raises(OSError, match=r"."):
        socket_address((f"fe80::1%{scope}", 7))


def test_addresses_are_spelled_as_those_of_senders_are() -> None:
    async def scenario() -> None:
        assert await resolve((f"FE80:0::1%{INDEX}", 7)) == (f"fe80::1%{NAME}", 7)
        assert await resolve((f"fe80::1%{NAME}", 7)) == (f"fe80::1%{NAME}", 7)
        assert await resolve(("::1%anything", 7)) == ("::1", 7)
        assert canonical_address(ip_address("127.0.0.1")) == "127.0.0.1"

    asyncio.run(scenario())


def test_a_seal_for_a_receiver_does_not_depend_on_what_its_network_is_called_here() -> None:
    assert receiver_name(("fe80::1%eth0", 7)) == receiver_name(("fe80::1%en1", 7))
    assert receiver_name(("fe80::1%eth0", 7)) == receiver_name(("fe80::1", 7))


def test_an_answer_to_a_scope_that_is_none_is_counted_and_no_more() -> None:
    async def scenario() -> None:
        endpoint = await UdpEndpoint.open("::1")
        endpoint.send(b"x", ("fe80::1%no-such-net", 7))
        assert endpoint.counters.unsendable == 1
        assert endpoint.address[0] == "::1"
        await endpoint.close()

    asyncio.run(scenario())


def link_local_address() -> str:
    """One of this machine with its scope; skips where it has none."""
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, *_, name = line.split()
        found = ip_of(":".join(digits[at : at + 4] for at in range(0, 32, 4)))
        if found is not None and found.is_link_local:
            return f"{found.compressed}%{name}"
    pytest.skip("no network of this machine has a link-local address")


def test_an_answer_goes_back_to_a_link_local_sender() -> None:
    host = link_local_address()

    async def scenario() -> None:
        one, other = await UdpEndpoint.open(host), await UdpEndpoint.open(host)
        answers: list[tuple[bytes, Address]] = []
        other.receive(lambda datagram, sender: other.send(datagram + b"!", sender))
        answered = asyncio.Event()

        def hear(datagram: bytes, sender: Address) -> None:
            answers.append((datagram, sender))
            if len(answers) == 2:
                answered.set()

        one.receive(hear)
        assert one.address[0] == other.address[0] == host
        assert host_towards(other.address) == host
        for _ in range(2):
            one.send(b"hello", other.address)
        await asyncio.wait_for(answered.wait(), 10)
        assert answers == [(b"hello!", other.address)] * 2
        await one.close()
        await other.close()

    asyncio.run(scenario())
