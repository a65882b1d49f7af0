"""A site whose channels are in several stores looks each of them up as its store can best.
[CH-4, CH-13]
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.channel.query.query_kinds import make_query
from rapport.channel.requests.request import Request
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile
from support.servers.postgres import PostgresAddress

pytestmark = pytest.mark.slow

SITE = """
[channels]
index = ["data.room"]
nats = "file:nats"
postgres = "file:postgres"
[channels.b]
log = "postgres"
[channels.c]
log = "nats"
"""
COUNT, EVERY = 3_000, 500
CONDITION = "data.room = 'r7' AND data.n > 10"


def test_every_store_of_a_mixed_site_looks_up_and_answers_as_reading_does(
    tmp_path: Path, nats_address: str, postgres: PostgresAddress
) -> None:
    (tmp_path / "nats").write_text(nats_address)
    (tmp_path / "postgres").write_text(f"{postgres.dsn}#{postgres.schema}")
    declared, problems = channels_from_site(TomlFile.parse(SITE.encode(), name="site.toml"))
    assert problems == []
    query = make_query("sql", CONDITION)
    events = [
        Event("s", str(n), "t", "", n, b'{"room":"r%d","n":%d}' % (n % EVERY, n))
        for n in range(1, COUNT + 1)
    ]
    expected = [n for n in range(11, COUNT + 1) if n % EVERY == 7]

    async def scenario() -> None:
        channels = open_channels(
            tmp_path / "log", SystemClock(), declared, site=tmp_path, segment_bytes=100_000
        )
        try:
            channels.use_rules(declared)
            for name in ("a", "b", "c"):
                channel = channels.channel(name)
                for start in range(0, COUNT, 1_000):
                    await channel.append(events[start : start + 1_000])
                looked_up = await until_looked_up(channels, name)
                assert looked_up < COUNT / 10, name
                batch = await channels.source.request(name, Request(query=CONDITION), identity="me")
                assert [stored.position for stored in batch.events] == expected
                told = channels.explain_query(name, query)
                assert "looked up: data.room" in told
                assert ("evaluated where" in told) is (name == "b")
        finally:
            await channels.close()

    async def until_looked_up(channels, name: str) -> int:
        """How many events are looked at; indexes are made behind the writers."""
        channel = channels.channel(name)
        async with asyncio.timeout(30):
            while True:
                channels.wake_index()
                found = await channel.find_after(query, 0, until=COUNT, limit=100)
                if found is not None and found.events is not None and found.through == COUNT:
                    return len(found.events)
                await asyncio.sleep(0.05)

    asyncio.run(scenario())
