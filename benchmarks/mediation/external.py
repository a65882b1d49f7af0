"""A client that mediates for others: consumes, transforms, publishes again. [ME-9]

What one has without mediation in the node (the source measured an integration framework in this
place). Run as a program with a JSON object: the port for consumers, the address of the doors, and
the two channels. It transforms with the same generated code.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
import uvloop

from benchmarks.channel.door_clients import post_all, post_request
from benchmarks.mediation.events import PRODUCER, ROOT_TYPE, SENT, interpretations
from rapport.mediation.codegen.json_fast_path import compile_event_path

_CHUNK = 256 * 1024


class Between(msgspec.Struct):
    """Where it stands."""

    consumers: int
    doors: tuple[str, int]
    taken: str
    given: str


async def run(between: Between) -> None:
    """Until the node ends the connection; everything that has arrived goes on in one request."""
    held, _ = interpretations("flat")
    through = compile_event_path(
        [
            (held.plan(PRODUCER, SENT, "in"), held.types_met(PRODUCER)),
            (held.plan("consumer-0", ROOT_TYPE, "out"), held.types_met("consumer-0")),
        ]
    )
    assert through is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", between.consumers)
    wanted = {"channel": between.taken, "way": "baseline", "number": 0}
    writer.write(msgspec.json.encode(wanted) + b"\n")
    kept, sent = b"", 0
    sys.stdout.write((await reader.readline()).decode())
    sys.stdout.flush()
    while more := await reader.read(_CHUNK):
        *lines, kept = (kept + more).split(b"\n")
        values = [msgspec.Raw(told) for line in lines if (told := through(line)) is not None]
        assert len(values) == len(lines), "an event is not as its type says"
        if values:
            request = _publish(between.given, values, sent)
            await post_all(between.doors, [request], connections=1)
            sent += len(values)


def _publish(channel: str, values: list[msgspec.Raw], first: int) -> bytes:
    events = [
        {
            "specversion": "1.0",
            "id": f"{first + number:012d}",
            "source": "bench/external",
            "type": "Wanted0x0",
            "time": "2026-03-02T09:14:05.210Z",
            "data": value,
        }
        for number, value in enumerate(values)
    ]
    return post_request(f"/channels/{channel}/events", msgspec.json.encode(events))


if __name__ == "__main__":
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Between)))
