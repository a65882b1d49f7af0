"""A node starts with the rows of before when a source elsewhere does not answer. [PO-2]"""

import asyncio
from pathlib import Path

import pytest

from rapport.core.errors import SiteError
from rapport.kernel.clock import Chance, ManualClock
from rapport.tables.declaration import TableDeclaration
from rapport.tables.refresh import TableRefresher
from rapport.tables.row_cache import RowCache, is_cached
from rapport.tables.tables import Tables
from support.servers.rows import RowsServer

CONCEPTS = {"person": {"status": "text"}}


def people(server: RowsServer, **changes: object) -> TableDeclaration:
    given: dict[str, object] = {
        "name": "people/ä",
        "concept": "person",
        "url": server.url,
        "key": "id",
        "columns": {"status": ("status",)},
        "lifetime_ms": 60_000,
    }
    return TableDeclaration(**(given | changes))


def load(site: Path, table: TableDeclaration) -> Tables:
    return Tables.load(site, [table], CONCEPTS, kept=RowCache(site / "kept"))


def test_the_rows_of_before_serve_until_the_source_answers(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    rows_server.body = b'[{"id": "a", "status": "guest", "note": "\\u00fc\\n"}]'
    table = people(rows_server)
    first = load(tmp_path, table)
    assert first.stale == {}
    RowCache(tmp_path / "kept").save(first.loaded()[table.name], 5_000)
    rows_server.status = 503
    again = load(tmp_path, table)
    assert again.lookup(table.name, "a", "note") == "ü\n"
    assert again.version() == first.version()
    assert again.stale[table.name].problem.code == "source.bad_status"

    async def scenario() -> None:
        clock = ManualClock(9_000)
        refreshing = TableRefresher(again, clock, Chance(1))
        (status,) = refreshing.status()
        assert (status.age_ms, status.failures) == (4_000, 1)
        rows_server.status, rows_server.body = 200, b'[{"id": "a", "status": "staff"}]'
        running = asyncio.create_task(refreshing.run())
        async with asyncio.timeout(20):
            while refreshing.failing():
                await clock.advance(100)
                await asyncio.sleep(0.005)
        running.cancel()
        assert again.instances("person").columns["status"].tolist() == ["staff"]
        assert again.stale == {}

    asyncio.run(scenario())


def test_kept_rows_of_another_declaration_or_damaged_ones_are_not_used(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    rows_server.body = b'[{"id": "a", "status": "guest"}]'
    table, kept = people(rows_server), RowCache(tmp_path / "kept")
    kept.save(load(tmp_path, table).loaded()[table.name], 5_000)
    rows_server.status = 503
    with pytest.raises(SiteError):
        load(tmp_path, people(rows_server, timeout_ms=3_000))
    (file,) = (tmp_path / "kept").iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], b"\xff" * 20):
        file.write_bytes(damaged)
        assert kept.find(table) is None
    with pytest.raises(SiteError):
        load(tmp_path, table)


def test_a_wrong_answer_is_reported_and_not_hidden(tmp_path: Path, rows_server: RowsServer) -> None:
    rows_server.body = b'[{"id": "a", "status": "guest"}]'
    table = people(rows_server)
    RowCache(tmp_path / "kept").save(load(tmp_path, table).loaded()[table.name], 5_000)
    rows_server.body = b'[{"id": "a", "state": "guest"}]'
    with pytest.raises(SiteError) as caught:
        load(tmp_path, table)
    assert caught.value.problems[0].code == "tables.missing_column"


def test_only_rows_of_servers_with_a_lifetime_are_kept(rows_server: RowsServer) -> None:
    assert is_cached(people(rows_server))
    assert not is_cached(people(rows_server, lifetime_ms=0))
    assert not is_cached(people(rows_server, url="", csv="people.csv"))
    query = {"url": "", "sql": "SELECT 1"}
    assert is_cached(people(rows_server, **query, database="env:DSN"))
    assert is_cached(people(rows_server, **query, login={"host": "h"}))
    assert not is_cached(people(rows_server, **query, database="p.sqlite"))
