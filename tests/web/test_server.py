"""The port itself: whatever is sent to it, however slowly, the node answers the next one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.site.site import load_site
from rapport.web.app import serving
from rapport.web.server import MOST_HEAD_BYTES, MinimumPace
from support.browser import BackgroundLoop
from support.examples import examples

pytestmark = pytest.mark.slow

EVENT = b'{"id":"1","source":"s","type":"t"}'
HEAD = b"POST /channels/mine/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(EVENT) + EVENT


def test_patience_grows_with_what_arrives() -> None:
    patience = MinimumPace(grace_seconds=10, bytes_per_second=1_000)
    assert not patience.is_over(9, 0)
    assert patience.is_over(11, 0)
    assert not patience.is_over(100, 100_000)


@asynccontextmanager
async def impatient(directory: Path) -> AsyncIterator[tuple[str, int]]:
    """A node that waits 0.3 s for a request."""
    site = prepare_site(
        directory / "site", mail_port=9, phone_url="http://127.0.0.1:9/x", answer_within="60s"
    )
    node = make_node(load_site(site), NodeSettings(port=0), SystemClock())
    patience = MinimumPace(grace_seconds=0.3, bytes_per_second=10_000, sweep_ms=20)
    try:
        async with serving(node, pace=patience) as url:
            await node.start()
            host, port = url.removeprefix("http://").split(":")
            yield host, int(port)
    finally:
        await node.stop()


@pytest.fixture(scope="module")
def impatient_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of one such node, for tests that leave it as it is."""
    loop, stack = BackgroundLoop(), AsyncExitStack()
    try:
        opened = stack.enter_async_context(impatient(tmp_path_factory.mktemp("impatient")))
        yield loop.run(opened)
    finally:
        loop.run(stack.aclose())
        loop.close()


async def answer_to(address: tuple[str, int], *parts: bytes, eof: bool = False) -> bytes:
    """Everything that comes back until the connection closes or nothing more comes."""
    reader, writer = await asyncio.open_connection(*address)
    found = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if eof:
            writer.write_eof()
        while part := await asyncio.wait_for(reader.read(65_536), 1.0):
            found += part
    except (TimeoutError, ConnectionError):
        return found
    finally:
        writer.close()
    return found


async def is_served(address: tuple[str, int]) -> bool:
    """Whether a whole request is answered with success."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(WHOLE)
        return (await reader.readline()).startswith(b"HTTP/1.1 200")
    finally:
        writer.close()


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"POST /channels/mine/ev",),
        (HEAD,),
        (HEAD + b"Content-Length: 100\r\n\r\n{",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",),
        (HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",),
        (WHOLE, HEAD),
    ],
)
def test_a_request_that_does_not_come_is_not_waited_for(
    impatient_node: tuple[str, int], parts: tuple[bytes, ...]
) -> None:
    async def scenario() -> None:
        assert b"408 Request Timeout" in await answer_to(impatient_node, *parts)
        assert await is_served(impatient_node)

    asyncio.run(scenario())


def test_a_slow_but_steady_sender_and_a_waiting_reader_are_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with impatient(tmp_path) as address:
            body = b'{"id":"1","source":"s","type":"t","data":"' + b"x" * 20_000 + b'"}'
            head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head)
            for start in range(0, len(body), 5_000):
                writer.write(body[start : start + 5_000])
                await asyncio.sleep(0.12)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
            waiting = b"GET /channels/none/events?wait=600ms HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            assert b"200 OK" in await answer_to(address, waiting)

    asyncio.run(scenario())


def test_a_head_without_end_is_refused(impatient_node: tuple[str, int]) -> None:
    async def scenario() -> None:
        lines = b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1_000) for n in range(65))
        assert MOST_HEAD_BYTES < len(HEAD + lines) < MOST_HEAD_BYTES + 1_000
        assert b"431" in await answer_to(impatient_node, HEAD + lines)
        assert await is_served(impatient_node)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
        (HEAD + b"Content-Length: -5\r\n\r\n", b"400"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (HEAD + b"Content-Length: 99999999999\r\n\r\n", b"413"),
        (b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"400"),
        (b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"40"),
        (b"GET /%00%ff/../.. HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"404"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"403"),
        (b"GET /healthz HTTP/1.1\r\nHost: [\r\n\r\n", b"403"),
        (WHOLE + WHOLE + b"\x00garbage\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request_is_refused_and_the_next_one_is_served(
    impatient_node: tuple[str, int], request_bytes: bytes, status: bytes
) -> None:
    async def scenario() -> None:
        found = await answer_to(impatient_node, request_bytes)
        assert found[9:12].startswith(status), found[:200]
        assert await is_served(impatient_node)

    asyncio.run(scenario())


def too_large(*more: bytes) -> bytes:
    """Sent by who closes afterwards, as Python's own client does: nine megabytes at once."""
    size = 9_000_000
    head = HEAD + b"".join(more) + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size
    return head + b"x" * size


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (too_large(), b"413", b"input.too_large"),
        (too_large().replace(b"/channels/mine/events", b"/messages"), b"413", b"input.too_large"),
        (too_large(b"Origin: http://elsewhere\r\n"), b"403", b"access.origin"),
        (too_large().replace(b"/channels/mine/events", b"/nowhere"), b"404", b"http.not_found"),
    ],
    ids=["publishing", "the framework", "a stranger's page", "no such door"],
)
def test_who_is_answered_before_all_was_read_gets_the_answer(
    served_node: Callable[..., Any], sent: bytes, status: bytes, code: bytes
) -> None:
    """Read only after all was sent: a connection that was closed meanwhile would be reset."""

    def ask(host: str, port: str) -> bytes:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(sent)
            found = b""
            while part := connection.recv(65_536):
                found += part
            return found

    async def scenario() -> None:
        async with served_node() as api:
            host, port = api.url.removeprefix("http://").split(":")
            found = await asyncio.to_thread(ask, host, port)
            assert found[9:12] == status
            assert code in found
            assert b"connection: close" in found

    asyncio.run(scenario())


@pytest.mark.parametrize("keeping", [b"", b"Connection: close\r\n"], ids=["stays", "leaves"])
@pytest.mark.parametrize("limit", ["MOST_LEFT_BYTES", "LEFT_SECONDS"])
def test_what_comes_after_an_early_answer_is_read_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeping: bytes, limit: str
) -> None:
    monkeypatch.setattr(f"rapport.web.server.{limit}", 0)

    async def scenario() -> None:
        async with impatient(tmp_path) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(HEAD + keeping + b"Content-Length: 99999999999\r\n\r\n")
            assert (await reader.readuntil(b"}"))[9:12] == b"413"
            closed = False
            while not closed:
                try:
                    writer.write(b"x" * 1_000)
                    await writer.drain()
                    await asyncio.sleep(0.01)
                except ConnectionError:
                    closed = True
            assert await is_served(address)

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_connection_that_stays_serves_the_next_request_after_an_early_answer(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            host, port = api.url.removeprefix("http://").split(":")
            sent = too_large().replace(b"Connection: close\r\n", b"")
            found = await answer_to((host, int(port)), sent, WHOLE)
            assert found[9:12] == b"413"
            assert b"HTTP/1.1 200" in found

    asyncio.run(scenario())


def test_no_bytes_on_the_port_break_the_node(served_node: Callable[..., Any]) -> None:
    found: list[bytes] = []
    pieces = st.sampled_from(
        [
            *(b"GET ", b"POST ", b"/channels/mine/events", b"/channels/mine/socket", b" HTTP/1.1"),
            *(b"\r\n", b"\r\n\r\n", b"Host: 127.0.0.1\r\n", b"Content-Length: 3\r\n"),
            *(b"Transfer-Encoding: chunked\r\n", b"Connection: Upgrade\r\n"),
            *(b"Upgrade: websocket\r\n", b"Sec-WebSocket-Version: 13\r\n", b"5\r\nhello\r\n"),
            *(b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", b"\x81\x85", b"\xff", EVENT),
        ]
    )

    @settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(pieces | st.binary(max_size=8), max_size=14).map(b"".join))
    def collect(sent: bytes) -> None:
        found.append(sent)

    collect()

    async def scenario() -> None:
        async with served_node() as api:
            host, port = api.url.removeprefix("http://").split(":")
            address = (host, int(port))
            answers = await asyncio.gather(*(answer_to(address, one, eof=True) for one in found))
            assert not [answer for answer in answers if answer[9:10] == b"5"]
            assert (await api.call("GET", "/readyz")).status == 200
            assert await is_served(address)

    asyncio.run(scenario())
