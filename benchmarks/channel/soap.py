"""How fast the SOAP door is: publishing and requesting, as raw envelopes. [CH-12]

The node runs as a process of its own (`rapport up`), the clients in this one; both share the
machine. The clients write prepared bytes, so that no SOAP library of theirs is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from benchmarks.channel.door_clients import post_all, post_request
from benchmarks.fresh_node import Address, fresh_node
from benchmarks.results import Result, rate
from rapport.channel.xmessages.envelope import HANDLE, REQUEST, SOAP_11, write_envelope
from rapport.channel.xmessages.messages import write_event
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock

_CLOCK = SystemClock()
_DATA = b'{"reading":"' + b"7" * 186 + b'"}'
_CONNECTIONS, _BATCH_CONNECTIONS, _BATCH = 32, 8, 100


def run(quick: bool) -> dict[str, Any]:
    """All measurements against one fresh node; some seconds when quick, 30 s otherwise."""
    with fresh_node() as address:
        results = asyncio.run(_measure(address, quick))
    return {"name": "soap", "results": results}


async def _measure(address: Address, quick: bool) -> list[Result]:
    scale = 1 if quick else 20
    await post_all(address, _publishes("warm", 200, 1), connections=8)
    singles, batches, asked = 400 * scale, 4_000 * scale, 40 * scale
    single = await _seconds(
        post_all(address, _publishes("single", singles, 1), connections=_CONNECTIONS)
    )
    batch = await _seconds(
        post_all(address, _publishes("batch", batches, _BATCH), connections=_BATCH_CONNECTIONS)
    )
    request = await _seconds(
        post_all(address, [_request("batch")] * asked, connections=_BATCH_CONNECTIONS)
    )
    one = await _seconds(
        post_all(address, [_request("batch", most=1)] * asked * 5, connections=_CONNECTIONS)
    )
    where = "200 B data, each answered when synced"
    return [
        rate(
            f"SOAP publish, {_CONNECTIONS} connections, one event per envelope, {where}",
            singles / single,
            "requests/s",
        ),
        rate(
            f"SOAP publish, {_BATCH_CONNECTIONS} connections, {_BATCH} events per envelope, "
            f"{where}",
            batches / batch,
            "events/s",
        ),
        rate(
            f"SOAP request by query, {_BATCH_CONNECTIONS} connections, {_BATCH} events of 200 B "
            "per answer",
            asked * _BATCH / request,
            "events/s",
        ),
        rate(
            f"SOAP request by query, {_CONNECTIONS} connections, one event of 200 B per answer",
            asked * 5 / one,
            "requests/s",
        ),
    ]


def _publishes(channel: str, count: int, size: int) -> list[bytes]:
    return [
        _call(
            channel,
            HANDLE,
            "<x:batch><x:messages>"
            + "".join(write_event(_event(number)) for number in range(first, first + size))
            + "</x:messages></x:batch>",
        )
        for first in range(0, count, size)
    ]


def _request(channel: str, *, most: int = _BATCH) -> bytes:
    limit = f"<x:maxNumberOfMessagesToReturn>{most}</x:maxNumberOfMessagesToReturn>"
    query = "<x:query>type = 'bench.reading'</x:query>"
    return _call(channel, REQUEST, f"<x:request>{query}{limit}</x:request>")


def _call(channel: str, operation: str, content: str) -> bytes:
    envelope = write_envelope(SOAP_11, f"<x:{operation}>{content}</x:{operation}>")
    return post_request(f"/soap/channels/{channel}", envelope)


def _event(number: int) -> Event:
    return Event("bench", str(number), "bench.reading", "", 1_700_000_000_000 + number, _DATA)


async def _seconds(work: Awaitable[None]) -> float:
    began = _CLOCK.steady_ns()
    await work
    return (_CLOCK.steady_ns() - began) / 1e9
