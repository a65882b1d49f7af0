"""The directory on real record stores, shared by two processes: names of all kinds, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.directory import DirectoryChanges, StoredDirectory
from rapport.communication.peers import CachedDirectory, SiteDirectory
from rapport.kernel.clock import Chance, Ids, ManualClock
from rapport.store.base import RecordStore
from rapport.store.postgres_records import PostgresRecordStore
from rapport.store.sqlite import SqliteRecordStore
from support.servers.postgres import postgres, postgres_server  # noqa: F401

NAMES = ["Zoë", "a", "a b", "a/b", "a%2Fb", "ana", "zoe", "ö", "日本", "😀"]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def open_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], RecordStore]]:
    """Gives a new connection to the same records at each call."""
    opened: list[RecordStore] = []

    def connect() -> RecordStore:
        if request.param == "sqlite":
            opened.append(SqliteRecordStore(tmp_path / "records.sqlite"))
        else:
            address = request.getfixturevalue("postgres")
            opened.append(PostgresRecordStore(address.dsn, schema=address.schema))
        return opened[-1]

    yield connect
    for store in opened:
        store.close()


def test_what_one_process_changes_the_other_finds(
    open_store: Callable[[], RecordStore], clock: ManualClock
) -> None:
    nobody = SiteDirectory({}, {})
    records = open_store()
    own, other = StoredDirectory(nobody, records), StoredDirectory(nobody, open_store())
    cached = CachedDirectory(other, clock)
    channels = open_memory(clock)
    changes = DirectoryChanges(
        own,
        records,
        channels,
        clock,
        new_id=Ids(clock, Chance(3)).new,
        adapters=lambda: ("inbox", "mail"),
    )

    async def scenario() -> None:
        for name in NAMES:
            await changes.put_peer(name, {"addresses": ["inbox:"]}, by="")
        await changes.put_collective("all/of us", {}, NAMES, by="")
        assert [entry.name for entry in other.peers()] == sorted(NAMES)
        found, after = list[str](), ""
        while page := cached.member_names("all/of us", after=after, limit=3):
            found += page
            after = page[-1]
        assert found == sorted(NAMES)
        assert other.show_peer("a/b").collectives == ["all/of us"]
        assert cached.peer("ana") is not None
        await changes.put_peer("ana", {"addresses": ["mail:ana@example.org"]}, by="")
        await changes.remove_peer("zoe", by="")
        assert "zoe" not in cached.member_names("all/of us")
        clock.set_ms(clock.now_ms() + 60_000)
        ana = cached.peer("ana")
        assert ana is not None
        assert ana.addresses == ("mail:ana@example.org",)
        await changes.remove_collective("all/of us", by="")
        assert other.policy_of("all/of us") is None

    asyncio.run(scenario())
