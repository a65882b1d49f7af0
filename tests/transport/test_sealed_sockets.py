"""Sealed stations on real sockets: strangers are not heard, keys are exchanged under traffic, loss
takes messages and nothing else. [CX-9]
"""

from __future__ import annotations

import asyncio
import os

import pytest

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.keys import (
    DatagramKeys,
    KeyFileWatch,
    add_key,
    load_keys,
    make_key,
    retire_key,
)
from rapport.transport.station import Station
from rapport.transport.udp import UdpEndpoint, host_towards
from support.faults.lossy import LossyEndpoint


async def until(condition) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen within two seconds")


async def sealed(keys, **more) -> tuple[Station, list[bytes]]:
    endpoint = await UdpEndpoint.open("127.0.0.1")
    if more:
        endpoint = LossyEndpoint(endpoint, Chance(5), **more)
    station, heard = Station.sealed(endpoint, keys, clock=SystemClock()), []
    station.receive(lambda message, _sender: heard.append(message))
    return station, heard


def test_keys_are_exchanged_while_messages_fly_and_none_is_lost(tmp_path) -> None:
    async def scenario() -> None:
        path, clock = tmp_path / "keys.toml", SystemClock()
        old = make_key("brokers", "network")
        add_key(path, old)
        here, there = KeyFileWatch(path), KeyFileWatch(path)
        one, _ = await sealed(here.keys)
        other, heard = await sealed(there.keys)
        for number in range(60):
            if number == 15:
                # The file reaches the other end first; the new key begins at once.
                add_key(path, make_key("brokers", "network", from_ms=clock.now_ms()))
                assert there.refresh()
            if number == 30:
                assert here.refresh()
            if number == 45:
                # Those under way are heard for another 30 s.
                retire_key(path, old.id, clock.now_ms())
                assert there.refresh()
                assert here.refresh()
            one.send(b"%d" % number + bytes(3_000), other.address)
            await until(lambda wanted=number: len(heard) == wanted + 1)
        assert [int(message[:-3_000]) for message in heard] == list(range(60))
        await one.close()
        await other.close()

    asyncio.run(scenario())


def test_a_stranger_on_the_wire_is_neither_accepted_nor_answered(ring) -> None:
    async def scenario() -> None:
        broker, heard = await sealed(ring.member())
        broker.receive(
            lambda message, sender: (heard.append(message), broker.send(message, sender.address))
        )
        stranger = await UdpEndpoint.open("127.0.0.1")
        answers: list[bytes] = []
        stranger.receive(lambda datagram, _sender: answers.append(datagram))
        without_keys = Station(stranger, clock=SystemClock())
        for size in (0, 1, 55, 56, 57, 400, 1_400):
            stranger.send(os.urandom(size), broker.address)
        without_keys.send(b"let me in", broker.address)
        ann, answered = await sealed(ring.client("ann"))
        ann.send(b"hello", broker.address)
        await until(lambda: answered == [b"hello"])
        assert (heard, answers) == ([b"hello"], [])
        for station in (broker, ann, without_keys):
            await station.close()

    asyncio.run(scenario())


def test_under_loss_on_sockets_messages_are_whole_or_missing(tmp_path) -> None:
    async def scenario() -> None:
        path = tmp_path / "keys.toml"
        add_key(path, make_key("brokers", "network"))
        one, _ = await sealed(load_keys(path), loss=0.2, duplication=0.2, jitter_ms=5)
        other, heard = await sealed(load_keys(path))
        sent = [os.urandom(2_500) for _ in range(150)]
        for message in sent:
            one.send(message, other.address)
        one.endpoint.loss = one.endpoint.jitter_ms = 0.0
        await asyncio.sleep(0.02)
        one.send(b"last", other.address)
        await until(lambda: b"last" in heard)
        got = [message for message in heard if message != b"last"]
        assert set(got) <= set(sent)
        assert len(got) == len(set(got))
        assert 60 < len(got) < 135
        await one.close()
        await other.close()

    asyncio.run(scenario())


def test_a_member_that_listens_on_every_address_is_refused() -> None:
    """Nothing could be sealed for it."""

    async def scenario() -> None:
        endpoint = await UdpEndpoint.open("0.0.0.0", 0)
        with pytest.raises(InvalidInput) as error:
            Station.sealed(
                endpoint, DatagramKeys([make_key("brokers", "network")]), clock=SystemClock()
            )
        assert error.value.code == "transport.bad_address"
        client = DatagramKeys([make_key("ana", "client")])
        Station.sealed(endpoint, client, clock=SystemClock())  # who only asks may
        await endpoint.close()

    asyncio.run(scenario())


def test_the_host_by_which_another_sees_this_machine() -> None:
    assert host_towards(("127.0.0.1", 7411)) == "127.0.0.1"
    assert host_towards(("::1", 7411)) == "::1"
