"""Hearing that a log in NATS has grown, whoever wrote it. [CH-13]

The server republishes the headers of what it stores. Such news can get lost with a connection, so
the streams are looked up as well, every few seconds and after each return.

Logs in NATS JetStream: several processes may write one log. [CH-13]

A log is a stream; what one append writes is one message (several when it is large), which names the
sequence it follows, so that of two writers one is told to read on. "Returned" means that JetStream
has acknowledged: on disk, if the server runs with `sync_interval: always`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rapport.core.errors import Corrupt, InvalidInput, RapportError, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    MAX_BODY_BYTES,
    AppendConflict,
    Block,
    LogPiece,
    check_contiguous,
    is_side_log,
    place_blocks,
)
from rapport.store.nats_connection import PATIENCE_SECONDS, NatsConnection
from rapport.store.nats_groups import check_prefix, decode_token, read_mark
from rapport.store.nats_stream import NatsLog, NatsStream, pieces_of

_log = get_logger(__name__)

_LOOK_EVERY_SECONDS = 5.0

OnGrowth = Callable[[str, int], None]


async def list_streams(link: NatsConnection, prefix: str) -> dict[str, int]:
    """Name and last sequence of every log below a prefix."""
    found: dict[str, int] = {}
    offset = 0
    while True:
        page = await link.api("STREAM.LIST", {"subject": f"{prefix}.log.*", "offset": offset})
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
    """Calls `grown(log, last position)` in the thread of the connection."""

    def __init__(self, link: NatsConnection, prefix: str, grown: OnGrowth) -> None:
        self._link, self._prefix, self._grown = link, prefix, grown
        self._told: dict[str, int] = {}
        self._logs: dict[str, NatsStream] = {}
        self._look = asyncio.Event()

    async def start(self) -> None:
        """Listens from now on; what was there before is not told."""
        await self._link.subscribe(f"{self._prefix}.grown.*", self._hear)
        self._told = await list_streams(self._link, self._prefix)
        self._link.on_return(self._look.set)
        self._task = asyncio.get_running_loop().create_task(self._look_again_and_again())

    async def _hear(self, news: Any) -> None:
        log = decode_token(news.subject.rpartition(".")[2])
        try:
            mark = read_mark(news.headers)
        except Corrupt as error:
            _log.warning("news not understood", log=log, why=error.message)
            return
        if mark.is_final:
            self._told[log] = max(int(news.headers["Nats-Sequence"]), self._told.get(log, 0))
            self._grown(log, mark.last)

    async def _look_again_and_again(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY_SECONDS):
                    await self._look.wait()
            except TimeoutError:
                pass  # nothing happened: look all the same
            self._look.clear()
            try:
                await self._look_once()
            except RapportError as error:
                _log.info("streams not looked up", why=error.message)

    async def _look_once(self) -> None:
        for log, sequence in (await list_streams(self._link, self._prefix)).items():
            if self._told.get(log, 0) == sequence:
                continue
            if log not in self._logs:
                self._logs[log] = NatsStream(log, self._prefix, self._link)
            tail = await self._logs[log].refresh()
            self._told[log] = sequence
            if tail is not None and tail.position:
                self._grown(log, tail.position)


PREFIX = "rapport"


class NatsLogStore:
    """A SharedLogStore on the server at one of `servers`; streams are named `<prefix>_<log>`.

    Calls block, at most `patience_seconds` when the server is away, then raise StoreUnavailable;
    what was being appended then may yet turn up, once and whole, as if another process had written
    it. Reading costs one question, however long the log is; the first reading in an unknown place
    one more per halving of the log.
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
        self._link = NatsConnection(servers, patience_seconds=patience_seconds)
        self._guard = threading.Lock()
        self._logs: dict[str, NatsLog] = {}
        self._writer, self._writes = secrets.token_hex(6), itertools.count(1)
        try:
            self._link.run(list_streams(self._link, prefix))  # says so when JetStream is off
        except BaseException:
            self._link.close()
            raise
        _log.info(
            "logs in nats",
            prefix=prefix,
            note="a client cannot see whether the server syncs every write: it must be "
            "configured with sync_interval: always",
        )

    def append(self, log: str, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """See LogStore; after whatever other processes append meanwhile."""
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
        for block in placed:
            if block.count < 1 or len(block.body) > MAX_BODY_BYTES:
                raise InvalidInput(
                    f"a block of {block.count} records and {len(block.body)} bytes cannot be kept",
                    code="log.bad_block_size",
                )
        if placed:
            self._link.run(self._log(log).append(placed, self._next_write()))

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        return self._link.run(self._log(log).read_after(position, max_records))

    def last_position(self, log: str) -> int:
        """See LogStore; asks the server."""
        tail = self._link.run(self._log(log).refresh())
        return tail.position if tail is not None else 0

    def first_position(self, log: str) -> int:
        return self._link.run(self._log(log).first_position())

    def trim(self, log: str, before: int) -> None:
        """See LogStore; to the group, and the last one stays."""
        self._link.run(self._log(log).trim(before))

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        """See PiecedLogStore; a piece is a run of messages, its bytes are an estimate."""
        return self._link.run(pieces_of(self._log(log), limit))

    def trims_blocks(self, log: str) -> bool:
        return True

    def kept_bytes(self, log: str) -> int:
        return self._link.run(self._log(log).size())

    def close_piece(self, log: str) -> None:
        """See PiecedLogStore: an empty message says where the log ends, so that all before it can
        go.
        """
        self._link.run(self._log(log).mark_end(self._next_write()))

    def closed_end(self, log: str) -> int:
        return self.last_position(log)

    def skip_to(self, log: str, position: int) -> None:
        self._link.run(self._log(log).skip_to(position, self._next_write()))

    def restore(self, log: str, blocks: Sequence[Block]) -> None:
        if blocks:
            check_contiguous(log, blocks[0].first - 1, blocks)
            self._append(log, blocks)

    def remove(self, log: str) -> None:
        self._link.run(self._log(log).remove())

    def logs(self) -> list[str]:
        found = self._link.run(list_streams(self._link, self._prefix))
        return sorted(log for log in found if not is_side_log(log))

    def watch(self, grown: Callable[[str, int], None]) -> None:
        """See SharedLogStore. Told by the server as it stores; looked up every few seconds and
        after a lost connection, so that nothing is missed for longer.
        """
        watch = NatsWatch(self._link, self._prefix, grown)
        self._link.run(watch.start())

    def close(self) -> None:
        self._link.close()

    def _log(self, name: str) -> NatsLog:
        with self._guard:
            if name not in self._logs:
                self._logs[name] = NatsLog(name, self._prefix, self._link)
            return self._logs[name]

    def _next_write(self) -> str:
        return f"{self._writer}-{next(self._writes)}"
