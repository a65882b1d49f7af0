"""The same shape on message brokers: publish, consume, reply, consume the reply; every message on
the broker's disk before it counts as published. [CO-7]

They do less: no people, no policies, no ledger, no marks, no duplicate check (NATS has one), no
search by id. What they hold are the same texts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from benchmarks.communication.room import CLOCK, CONTENT
from benchmarks.peers.redis import RedisPeer, redis_peer
from support.servers.nats import NatsServer

_BATCH, _IN_FLIGHT = 500, 2_000
_TEXT, _REPLY = CONTENT.encode(), b"I am on my way."
NATS = "NATS JetStream, file storage, sync_interval always"
REDIS = "Redis Streams, appendfsync always"


def nats_rate(messages: int) -> float:
    """Messages and replies per second through a server of its own."""
    with NatsServer() as server:
        return asyncio.run(_through_nats(server.url, messages))


async def _through_nats(url: str, messages: int) -> float:
    import nats
    from nats.js.api import StorageType, StreamConfig

    async with await nats.connect(url) as client:
        stream = client.jetstream(publish_async_max_pending=_IN_FLIGHT)
        for name in ("out", "in"):
            config = StreamConfig(name=name, subjects=[name], storage=StorageType.FILE)
            await stream.add_stream(config)
        began_ns = CLOCK.steady_ns()
        await asyncio.gather(
            _publish(stream, messages),
            _consume(stream, "out", messages, reply=True),
            _consume(stream, "in", messages, reply=False),
        )
        return 2 * messages / ((CLOCK.steady_ns() - began_ns) / 1e9)


async def _publish(stream: object, messages: int) -> None:
    for start in range(0, messages, _BATCH):
        await _all_stored(stream, "out", [_TEXT] * min(_BATCH, messages - start))


async def _all_stored(stream: object, subject: str, bodies: list[bytes]) -> None:
    """Pipelined, and all acknowledged when it returns."""
    waiting = [await stream.publish_async(subject, body) for body in bodies]  # type: ignore[attr-defined]
    await asyncio.gather(*waiting)


async def _consume(stream: object, subject: str, messages: int, *, reply: bool) -> None:
    from nats.js.api import AckPolicy, ConsumerConfig

    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    reader = await stream.pull_subscribe(subject, stream=subject, config=config)  # type: ignore[attr-defined]
    found = 0
    while found < messages:
        batch = await reader.fetch(min(_BATCH, messages - found), timeout=30)
        found += len(batch)
        if reply:
            await _all_stored(stream, "in", [_REPLY] * len(batch))
    await reader.unsubscribe()


def redis_rate(messages: int) -> float | None:
    """The same through Redis; None when it is not installed."""
    with redis_peer() as first:
        if first is None:
            return None
        failures: list[BaseException] = []
        began_ns = CLOCK.steady_ns()
        threads = [
            _thread(lambda: _add(first, "out", _TEXT, messages), failures),
            _thread(lambda: _read_on(first.another(), "out", messages, reply=True), failures),
            _thread(lambda: _read_on(first.another(), "in", messages, reply=False), failures),
        ]
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return 2 * messages / ((CLOCK.steady_ns() - began_ns) / 1e9)


def _thread(work: Callable[[], None], failures: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _add(peer: RedisPeer, stream: str, body: bytes, count: int) -> None:
    for start in range(0, count, _BATCH):
        peer.call([("XADD", stream, "*", "e", body)] * min(_BATCH, count - start))


def _read_on(peer: RedisPeer, stream: str, messages: int, *, reply: bool) -> None:
    found, after = 0, "0"
    while found < messages:
        asked = ("XREAD", "COUNT", str(_BATCH), "BLOCK", "30000", "STREAMS", stream, after)
        (answer,) = peer.call([asked])
        if answer is None:
            raise RuntimeError(f"Redis gave {found} of {messages} messages")
        entries = answer[0][1]
        found, after = found + len(entries), entries[-1][0].decode()
        if reply:
            _add(peer, "in", _REPLY, len(entries))
    peer.close()
