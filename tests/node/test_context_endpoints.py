"""Who is heard by the broker of a node: holders of keys by their rights, and strangers by v0 where
the site wants it. [CX-2, CX-9]
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rapport.context.clients.consumer import ContextConsumer
from rapport.context.clients.provider import ContextProvider
from rapport.core.context_record import EntityRef
from rapport.core.errors import InvalidInput, NotAllowed, Unavailable
from rapport.kernel.clock import SystemClock
from rapport.node.node import Node
from rapport.transport.base import Address
from rapport.transport.keys import add_key, load_keys, make_key, share_keys
from support.running import play
from support.servers.ports import free_port

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
ROOM = EntityRef("room", "r3")
PLAIN = """
[site]
name = "labs"
[concepts.room.attributes]
status = "text"
[context]
listen = "127.0.0.1:0"
"""
KEYS = """
keys = "keys.toml"
[context.rights.desk]
write = ["room/* status"]
[context.rights.guard]
read = ["room/* status"]
"""


def running(site: Path, text: str, scenario: Callable[[Node], Awaitable[None]]) -> None:
    (site / "site.toml").write_text(text)
    play(site, scenario, within_seconds=30)


def address_of(node: Node) -> Address:
    assert node.context is not None
    return node.context.broker.address


def test_only_holders_of_keys_are_heard_each_by_its_rights(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.toml", make_key("labs", "network"))
    for owner in ("desk", "guard"):
        add_key(tmp_path / "keys.toml", make_key(owner, "client"))
        share_keys(tmp_path / "keys.toml", owner, tmp_path / f"{owner}.toml")
    desk, guard = (load_keys(tmp_path / f"{owner}.toml") for owner in ("desk", "guard"))

    async def scenario(node: Node) -> None:
        brokers = [address_of(node)]
        async with await ContextProvider.open(brokers, name="desk", keys=desk) as provider:
            await provider.update(ROOM, "status", {"status": "open"}, valid_for_ms=60_000)
            with pytest.raises(NotAllowed):
                await provider.update(ROOM, "secret", {"code": 7}, valid_for_ms=60_000)
        async with await ContextConsumer.open(brokers, keys=guard) as consumer:
            found = await consumer.request(ROOM, "status")
            assert found.record.values == {"status": "open"}
        with pytest.raises(Unavailable):
            async with await ContextConsumer.open(brokers) as stranger:
                await stranger.request(ROOM, "status", within_ms=300)

    running(tmp_path, PLAIN + KEYS, scenario)


def test_a_stranger_that_speaks_v0_tells_and_asks_where_the_site_lets_it(tmp_path: Path) -> None:
    port = free_port()

    async def scenario(node: Node) -> None:
        now = CLOCK.now_ms()
        update = f"2|{now}|11|U|p1|room|r3|status|{now}|{now + 60_000}|status=open"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.0.0.1", 0))
            stranger.settimeout(5)
            stranger.sendto(update.encode(), ("127.0.0.1", port))
            told = [await asyncio.to_thread(stranger.recv, 2_000) for _ in range(2)]
            assert [b"Status:101" in told[0], b"Status:102" in told[1]] == [True, True]
            stranger.sendto(f"3|{now}|room|r3|status".encode(), ("127.0.0.1", port))
            while not (answer := await asyncio.to_thread(stranger.recv, 2_000)).startswith(b"4|"):
                assert b"Status:101" in answer
            assert b"status=open" in answer
        assert node.context is not None
        found = await node.context.broker.ask(ROOM, "status")
        assert (found.record.provider, found.record.values) == ("p1", {"status": "open"})

    running(tmp_path, PLAIN + f'v0 = "127.0.0.1:{port}"\n', scenario)


def test_a_node_does_not_start_where_its_keys_are_missing_or_its_address_is_taken(
    tmp_path: Path,
) -> None:
    async def never(_node: Node) -> None:
        raise AssertionError("it started")

    with pytest.raises(InvalidInput, match="keys"):
        running(tmp_path, PLAIN + 'keys = "keys.toml"\n', never)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        text = PLAIN.replace("127.0.0.1:0", f"127.0.0.1:{port}")
        with pytest.raises(Unavailable, match=str(port)):
            running(tmp_path, text, never)
