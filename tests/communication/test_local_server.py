"""The servers that tests and the demo use leave no connection behind when they go down."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from rapport.scenarios.local_server import LocalServer
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.webhook_sink import WebhookSink

pytestmark = pytest.mark.slow


async def turn_the_loop(times: int) -> None:
    loop = asyncio.get_running_loop()
    for _turn in range(times):
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned


def is_cut(client: socket.socket) -> bool:
    """Whether the other side has closed, after what it said."""
    client.settimeout(5)
    try:
        while client.recv(4096):
            pass
    except ConnectionResetError:
        return True
    return True


@pytest.mark.parametrize("kind", [WebhookSink, LocalMailServer])
@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_comes_while_it_goes_down_is_cut(
    kind: type[LocalServer], turns: int
) -> None:
    async def scenario() -> list[socket.socket]:
        server = kind()
        await server.come_up()
        address = ("127.0.0.1", server.port)
        clients = [socket.create_connection(address) for _client in range(5)]
        await turn_the_loop(turns)
        await server.go_down()
        return clients

    clients = asyncio.run(scenario())
    gc.collect()  # what was left open would tell now, and warnings are errors
    for client in clients:
        with client:
            assert is_cut(client)


def test_it_comes_up_again_at_the_same_port() -> None:
    async def scenario() -> None:
        async with WebhookSink() as sink:
            port = sink.port
            await sink.go_down()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            await sink.come_up()
            await sink.come_up()
            assert sink.port == port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi")
            assert (await reader.read()).startswith(b"HTTP/1.1 204 ")
            writer.close()
            await writer.wait_closed()
            assert [(one.path, one.body) for one in sink.posted] == [("/x", b"hi")]

    asyncio.run(scenario())
