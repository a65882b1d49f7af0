"""Logs in NATS JetStream: several processes may write one log. [CH-13]

A log is a stream. One append writes one message (several when it is large), which names the
sequence it follows, so that of two concurrent writers one gets a conflict. A call that returns was
acknowledged by JetStream: on disk, if the server runs with `sync_interval: always`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rapport.core.errors import Corrupt, RapportError, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    MAX_BODY_BYTES,
    AppendConflict,
    Block,
    LogPiece,
    check_contiguous,
    check_sizes,
    is_side_log,
    place_blocks,
)
from rapport.store.nats_connection import PATIENCE_SECONDS, NatsConnection
from rapport.store.nats_groups import check_prefix, decode_token, read_mark
from rapport.store.nats_stream import NatsLog, pieces_of

_log = get_logger(__name__)

_LOOK_EVERY_SECONDS = 5.0

OnGrowth = Callable[[str, int], None]


async def list_streams(connection: NatsConnection, prefix: str) -> dict[str, int]:
    """Name and last sequence of every log below a prefix."""
    found: dict[str, int] = {}
    offset = 0
    while True:
        page = await connection.api("STREAM.LIST", {"subject": f"{prefix}.log.*", "offset": offset})
        if "error" in page:
            raise StoreUnavailable(
                f"NATS does not list its streams: {page['error'].get('description')}",
                code="store.nats_refused",
                hint="is JetStream on for this account?",
            )
        streams = page.get("streams") or []
        for stream in streams:
            token = stream["config"]["name"].removeprefix(f"{prefix}_")
            found[decode_token(token)] = int(stream["state"]["last_seq"])
        offset += len(streams)
        if not streams or offset >= int(page["total"]):
            return found


class NatsWatch:
    """Calls `grown(log, last position)` in the thread of the connection.

    The server republishes the headers of stored messages. Such notifications can get lost with a
    connection, so the streams are also polled every few seconds and after each reconnection.
    """

    def __init__(self, connection: NatsConnection, prefix: str, grown: OnGrowth) -> None:
        self._connection, self._prefix, self._grown = connection, prefix, grown
        self._sequences: dict[str, int] = {}
        self._logs: dict[str, NatsLog] = {}
        self._look = asyncio.Event()

    async def start(self) -> None:
        """Begins to listen; existing records are not reported."""
        await self._connection.subscribe(f"{self._prefix}.grown.*", self._on_message)
        self._sequences = await list_streams(self._connection, self._prefix)
        self._connection.on_reconnect(self._look.set)
        self._task = asyncio.get_running_loop().create_task(self._poll())

    async def _on_message(self, news: Any) -> None:
        log = decode_token(news.subject.rpartition(".")[2])
        try:
            mark = read_mark(news.headers)
        except Corrupt as error:
            _log.warning("notification not understood", log=log, why=error.message)
            return
        if mark.is_final:
            self._sequences[log] = max(
                int(news.headers["Nats-Sequence"]), self._sequences.get(log, 0)
            )
            self._grown(log, mark.last)

    async def _poll(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY_SECONDS):
                    await self._look.wait()
            except TimeoutError:
                pass  # nothing happened: poll all the same
            self._look.clear()
            try:
                await self._check_streams()
            except RapportError as error:
                _log.info("streams not polled", why=error.message)

    async def _check_streams(self) -> None:
        for log, sequence in (await list_streams(self._connection, self._prefix)).items():
            if self._sequences.get(log, 0) == sequence:
                continue
            if log not in self._logs:
                self._logs[log] = NatsLog(log, self._prefix, self._connection)
            tail = await self._logs[log].refresh()
            self._sequences[log] = sequence
            if tail is not None and tail.position:
                self._grown(log, tail.position)


PREFIX = "rapport"


class NatsLogStore:
    """A SharedLogStore on the server at one of `servers`; streams are named `<prefix>_<log>`.

    Calls block for at most `patience_seconds` when the server is away, then raise StoreUnavailable;
    an append that failed so may still appear later, once and whole, as if another process had
    written it. Reading costs one request, however long the log is; the first read at an unknown
    position one more per halving of the log.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        prefix: str = PREFIX,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        check_prefix(prefix)
        self._prefix = prefix
        self._connection = NatsConnection(servers, patience_seconds=patience_seconds)
        self._guard = threading.Lock()
        self._logs: dict[str, NatsLog] = {}
        self._writer, self._writes = secrets.token_hex(6), itertools.count(1)
        try:
            self._connection.run(
                list_streams(self._connection, prefix)
            )  # raises when JetStream is off
        except BaseException:
            self._connection.close()
            raise
        _log.info(
            "logs in nats",
            prefix=prefix,
            note="a client cannot see whether the server syncs every write: it must be "
            "configured with sync_interval: always",
        )

    def append(self, log: str, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """See LogStore; behind the appends of other processes."""
        if not blocks:
            return []
        while True:
            try:
                return self.append_after(log, self.last_position(log), blocks, received)
            except AppendConflict:
                continue  # somebody else went on, so this ends

    def append_after(
        self, log: str, after: int, blocks: Sequence[tuple[int, bytes]], received: int
    ) -> list[Block]:
        placed = place_blocks(blocks, after + 1, received)
        self._append(log, placed)
        return placed

    def _append(self, log: str, placed: Sequence[Block]) -> None:
        check_sizes(placed, MAX_BODY_BYTES)
        if placed:
            self._connection.run(self._log(log).append(placed, self._next_write()))

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        return self._connection.run(self._log(log).read_after(position, max_records))

    def last_position(self, log: str) -> int:
        tail = self._connection.run(self._log(log).refresh())
        return tail.position if tail is not None else 0

    def first_position(self, log: str) -> int:
        return self._connection.run(self._log(log).first_position())

    def trim(self, log: str, before: int) -> None:
        """See LogStore; whole groups, and the last one stays."""
        self._connection.run(self._log(log).trim(before))

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        """See LogStore; a piece is a run of messages, its bytes are an estimate."""
        return self._connection.run(pieces_of(self._log(log), limit))

    def trims_blocks(self, log: str) -> bool:
        return True

    def kept_bytes(self, log: str) -> int:
        return self._connection.run(self._log(log).size())

    def close_piece(self, log: str) -> None:
        """See LogStore; appends a message without records, so that all before it can be
        removed.
        """
        self._connection.run(self._log(log).mark_end(self._next_write()))

    def closed_end(self, log: str) -> int:
        return self.last_position(log)

    def skip_to(self, log: str, position: int) -> None:
        self._connection.run(self._log(log).skip_to(position, self._next_write()))

    def restore(self, log: str, blocks: Sequence[Block]) -> None:
        if blocks:
            check_contiguous(log, blocks[0].first - 1, blocks)
            self._append(log, blocks)

    def remove(self, log: str) -> None:
        self._connection.run(self._log(log).remove())

    def logs(self) -> list[str]:
        found = self._connection.run(list_streams(self._connection, self._prefix))
        return sorted(log for log in found if not is_side_log(log))

    def watch(self, grown: Callable[[str, int], None]) -> None:
        watch = NatsWatch(self._connection, self._prefix, grown)
        self._connection.run(watch.start())

    def close(self) -> None:
        self._connection.close()

    def _log(self, name: str) -> NatsLog:
        with self._guard:
            if name not in self._logs:
                self._logs[name] = NatsLog(name, self._prefix, self._connection)
            return self._logs[name]

    def _next_write(self) -> str:
        return f"{self._writer}-{next(self._writes)}"
