"""Hearing that a log in NATS has grown, whoever wrote it. [CH-13]

The server republishes the headers of what it stores. Such news can get lost with a connection, so
the streams are looked up as well, every few seconds and after each return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rapport.core.errors import Corrupt, RapportError, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.nats.groups import decode_token, read_mark
from rapport.store.nats.link import NatsLink
from rapport.store.nats.stream import NatsStream

_log = get_logger(__name__)

_LOOK_EVERY_SECONDS = 5.0

Grown = Callable[[str, int], None]


async def list_streams(link: NatsLink, prefix: str) -> dict[str, int]:
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


class Watch:
    """Calls `grown(log, last position)` in the thread of the connection."""

    def __init__(self, link: NatsLink, prefix: str, grown: Grown) -> None:
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
