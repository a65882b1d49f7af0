"""NATS JetStream with `sync_interval: always`; batches are atomic batches of the server. [CH-13]

Pipelined single publishes are measured too: the faster of the two counts as the peer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.peer import BATCH
from rapport.core.codec import encode_block
from rapport.core.event import Event
from support.servers.nats import NatsServer

_SUBJECT, _STREAM = "bench.events", "bench"
_DEDUPE_SECONDS = 120


class NatsPeer:
    """See Peer. One message per event."""

    def __init__(self, url: str, *, atomic: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._atomic = atomic
        way = "atomic batches" if atomic else "pipelined publishes, Nats-Msg-Id"
        self.how = f"NATS JetStream, file storage, sync_interval always, {way}"
        self._run(self._open(url))

    def publish(self, events: list[Event]) -> None:
        """Returns with the acknowledgement of the last."""
        if self._atomic and len(events) > 1:
            self._run(self._publish_atomic(events))
        else:
            self._run(self._publish_pipelined(events))

    def read_all(self) -> int:
        """By a pull consumer, 1,000 messages a fetch."""
        return int(self._run(self._read_all()))

    def close(self) -> None:
        """Hangs up."""
        self._run(self._client.close())
        self._loop.close()

    async def _open(self, url: str) -> None:
        import nats
        from nats.js.api import StorageType, StreamConfig

        self._client = await nats.connect(url)
        self._stream = self._client.jetstream(publish_async_max_pending=BATCH * 2)
        await self._stream.add_stream(
            StreamConfig(
                name=_STREAM,
                subjects=[_SUBJECT],
                storage=StorageType.FILE,
                allow_atomic=self._atomic,
                duplicate_window=_DEDUPE_SECONDS,
            )
        )

    async def _publish_pipelined(self, events: list[Event]) -> None:
        waiting = [
            await self._stream.publish_async(
                _SUBJECT, encode_block([event]), headers={"Nats-Msg-Id": event.id}
            )
            for event in events
        ]
        for one in await asyncio.gather(*waiting):
            if one.duplicate:
                raise RuntimeError("a fresh event was taken for a duplicate")

    async def _publish_atomic(self, events: list[Event]) -> None:
        batch, last = str(next(self._numbers)), len(events)
        for number, event in enumerate(events, start=1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            body = encode_block([event])
            if number == last:
                headers["Nats-Batch-Commit"] = "1"
                answer = await self._client.request(_SUBJECT, body, 30, headers=headers)
                if b'"error"' in answer.data:
                    raise RuntimeError(answer.data.decode())
            else:
                await self._client.publish(_SUBJECT, body, headers=headers)

    async def _read_all(self) -> int:
        from nats.js.api import AckPolicy, ConsumerConfig

        wanted = (await self._stream.stream_info(_STREAM)).state.messages
        reader = await self._stream.pull_subscribe(
            _SUBJECT, stream=_STREAM, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
        )
        found = 0
        while found < wanted:
            found += len(await reader.fetch(min(BATCH, wanted - found), timeout=10))
        await reader.unsubscribe()
        return found

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)


@contextmanager
def nats_peer(*, atomic: bool) -> Iterator[NatsPeer]:
    """A server of its own in a temporary directory."""
    with NatsServer() as server:
        peer = NatsPeer(server.url, atomic=atomic)
        try:
            yield peer
        finally:
            peer.close()
