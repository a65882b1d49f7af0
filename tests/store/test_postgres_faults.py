"""A PostgreSQL that restarts, is killed, hangs or loses an answer: nothing acknowledged is lost,
nothing is doubled, nobody waits for ever. [CH-13]
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import psycopg
import pytest

from rapport.core.codec import encode_block
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.store import postgres_connections
from rapport.store import postgres_log as postgres_appending
from rapport.store.base import AppendConflict
from rapport.store.postgres_log import PostgresLogStore
from rapport.store.postgres_records import PostgresRecordStore
from support.servers.postgres import LocalPostgres
from support.servers.postgres_channels import open_postgres

pytestmark = pytest.mark.slow

CLOCK = SystemClock()


def block(*ids: str) -> tuple[int, bytes]:
    return len(ids), encode_block([Event("s", id, "t", "", 0) for id in ids])


@pytest.fixture
def store(postgres):
    opened = PostgresLogStore(postgres.dsn, schema=postgres.schema)
    yield opened
    opened.close()


@pytest.fixture
def own_server():
    """A server that the test may kill."""
    server = LocalPostgres()
    server.start()
    yield server
    server.remove()


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_append_whose_answer_got_lost_is_done_once(store, monkeypatch, size, when):
    add, broken = postgres_appending._add, []

    def add_and_break(connection, addition):
        if when == "after" or broken:
            add(connection, addition)
        if not broken:
            broken.append(True)
            connection.close()
            raise psycopg.OperationalError("the answer got lost")

    monkeypatch.setattr(postgres_appending, "_add", add_and_break)
    placed = store.append_after("log", 0, [block(*map(str, range(size)))], 5)
    assert broken
    assert store.read_after("log", 0) == placed
    assert store.last_position("log") == size


def test_others_that_came_in_between_are_not_taken_for_ours(store, monkeypatch):
    add, calls = postgres_appending._add, []

    def overtaken_and_broken(connection, addition):
        calls.append(addition)
        if len(calls) == 1:
            store.append_after("log", 0, [block("another's")], 5)
            connection.close()
            raise psycopg.OperationalError("the connection broke")
        add(connection, addition)

    monkeypatch.setattr(postgres_appending, "_add", overtaken_and_broken)
    with pytest.raises(AppendConflict):
        store.append_after("log", 0, [block("ours")], 5)
    assert store.last_position("log") == 1


def test_a_server_that_hangs_is_given_up(store, monkeypatch):
    monkeypatch.setattr(postgres_connections, "STATEMENT_SECONDS", 0.3)
    monkeypatch.setattr(postgres_connections, "_GRACE_SECONDS", 0.2)
    store.append("log", [block("1")], 0)
    with store.connections.use() as connection:
        backend = connection.info.backend_pid
    os.kill(backend, signal.SIGSTOP)
    try:
        placed = store.append_after("log", 1, [block("2")], 0)
    finally:
        os.kill(backend, signal.SIGCONT)
    # What had been sent to the hanging one comes too late: the log has moved on.
    assert store.append_after("log", 2, [block("3")], 0)[0].first == 3
    assert store.read_after("log", 1)[0] == placed[0]
    assert store.last_position("log") == 3


def test_a_statement_that_waits_too_long_is_refused_with_a_hint(postgres, store):
    store.append("log", [block("1")], 0)
    with store.connections.use() as connection:
        connection.execute("SET statement_timeout = '100ms'")
    with psycopg.connect(postgres.dsn) as other:
        other.execute(f"SELECT * FROM {postgres.schema}.logs FOR UPDATE")
        with pytest.raises(StoreUnavailable) as refused:
            store.append("log", [block("2")], 0)
    assert refused.value.code == "store.timed_out"
    assert refused.value.hint
    assert store.append("log", [block("2")], 0)[0].first == 2


def test_stores_go_on_when_the_server_is_back(own_server):
    log = PostgresLogStore(own_server.dsn())
    records = PostgresRecordStore(own_server.dsn())
    heard = threading.Event()
    log.watch(lambda _log, last: heard.set() if last == 2 else None)
    log.append("log", [block("1")], 0)
    records.put("t", "k", b"1")
    own_server.stop()
    for call in (
        lambda: log.append("log", [block("2")], 0),
        lambda: log.read_after("log", 0),
        lambda: records.get("t", "k"),
    ):
        with pytest.raises(StoreUnavailable) as refused:
            call()
        assert refused.value.hint
    own_server.start()
    assert log.append("log", [block("2")], 0)[0].first == 2
    assert records.get("t", "k") == b"1"
    assert heard.wait(20)
    log.close()
    records.close()


class Load:
    """Publishers that repeat what was not acknowledged, as a publisher's agent does."""

    def __init__(self, channel) -> None:
        self.acknowledged: dict[str, int] = {}
        self._channel, self._done = channel, asyncio.Event()
        self._tasks = [asyncio.create_task(self._publish(source)) for source in range(4)]

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            await CLOCK.sleep(10)

    async def end(self) -> None:
        self._done.set()
        await asyncio.gather(*self._tasks)

    async def _publish(self, source: int) -> None:
        number, size = 0, 1 if source % 2 else 40
        while not self._done.is_set():
            ids = [f"{source}-{number + part}" for part in range(size)]
            events = [Event(f"p{source}", id, "t", "", 0, b'{"a":1}') for id in ids]
            try:
                positions = (await self._channel.append(events)).positions
            except ChannelUnavailable:
                await CLOCK.sleep(20)
                continue
            self.acknowledged.update(zip(ids, positions, strict=True))
            number += size


async def everything_in(channel) -> dict[str, int]:
    found: dict[str, int] = {}
    position = 0
    while page := await channel.read_after(position):
        assert page[0].position == position + 1
        for stored in page:
            assert stored.event.id not in found, "doubled"
            found[stored.event.id] = stored.position
        position = page[-1].position
    return found


@pytest.mark.parametrize(
    ("end", "rounds"),
    [
        pytest.param("kill", 3, marks=pytest.mark.slow),
        pytest.param("stop", 2, marks=pytest.mark.slow),
        pytest.param("kill", 100, marks=pytest.mark.long),
    ],
)
def test_a_server_that_ends_under_load_loses_and_doubles_nothing(own_server, end, rounds):
    async def scenario() -> None:
        channels = open_postgres(own_server.dsn(), CLOCK)
        load = Load(channels.channel("load"))
        for number in range(rounds):
            await load.more(400)
            await asyncio.to_thread(getattr(own_server, end))
            await CLOCK.sleep(50 * (number % 4))
            await asyncio.to_thread(own_server.start)
        await load.more(200)
        await load.end()
        await channels.close()
        again = open_postgres(own_server.dsn(), CLOCK)
        assert load.acknowledged.items() <= (await everything_in(again.channel("load"))).items()
        await again.close()

    async def limited() -> None:
        async with asyncio.timeout(60 + 10 * rounds):
            await scenario()

    asyncio.run(limited())
