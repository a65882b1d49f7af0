"""Whole answers of the publishing endpoints, as they stand on the wire. [CH-12]"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from rapport.web.fast_path import SingleWriteResponses

EVENT = json.dumps({"id": "1", "source": "s", "type": "t", "data": {}}).encode()


def post(identity: str, *more: str) -> bytes:
    body = EVENT.replace(b'"1"', json.dumps(identity).encode())
    lines = ["POST /channels/c/events HTTP/1.1", "Host: 127.0.0.1", *more]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, dict[bytes, bytes], Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head.rstrip().split(b"\r\n")
    headers = {name: value for name, _, value in (line.partition(b": ") for line in lines)}
    return status, headers, json.loads(await reader.readexactly(int(headers[b"content-length"])))


def test_requests_on_one_connection_are_answered_in_order_each_with_its_head(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            host, port = api.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(post("a") + post("b"))  # the second one waits for the first
            for position in (1, 2):
                status, headers, answer = await read_answer(reader)
                assert status == b"HTTP/1.1 200 OK"
                assert headers[b"content-type"] == b"application/json"
                assert b"date" in headers
                assert headers[b"x-content-type-options"] == b"nosniff"
                assert answer == {"positions": [position], "duplicates": 0}
            writer.close()

    asyncio.run(scenario())


def test_who_wants_to_end_the_connection_is_answered_and_let_go(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            host, port = api.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(post("a", "Connection: close"))
            status, headers, answer = await read_answer(reader)
            assert (status, headers[b"connection"]) == (b"HTTP/1.1 200 OK", b"close")
            assert answer["positions"] == [1]
            assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())


def test_of_two_headers_with_one_name_the_first_counts(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            host, port = api.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(post("a", "Origin: http://elsewhere.example", "Origin: http://127.0.0.1"))
            status, _headers, answer = await read_answer(reader)
            assert status.startswith(b"HTTP/1.1 403")
            assert "access.origin" in json.dumps(answer)
            writer.close()

    asyncio.run(scenario())


def test_another_server_is_told_head_and_body_as_usual() -> None:
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    asyncio.run(SingleWriteResponses([(b"a", b"b")]).send(send, b"body"))
    assert told[0]["headers"] == [(b"a", b"b"), (b"content-length", b"4")]
    assert told[1] == {"type": "http.response.body", "body": b"body", "more_body": False}
