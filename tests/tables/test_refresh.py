"""Tables asked again in the background, from real sources, while a loop goes on. [PO-2]"""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from blockbuster import BlockBuster

from rapport.core.errors import SiteError, UnknownName
from rapport.kernel.clock import Chance, ManualClock
from rapport.kernel.tasks import run_in_thread
from rapport.tables.declaration import PairDeclaration, TableDeclaration
from rapport.tables.refresh import TableRefresher, TableStatus
from rapport.tables.row_cache import RowCache
from rapport.tables.tables import Tables, TablesChange
from support.servers.rows import RowsServer

CONCEPTS = {"person": {"status": "text", "age": "number"}}
LIFETIME_MS = 60_000


class World:
    """Tables kept fresh; time moves only when told."""

    def __init__(self, tables: Tables) -> None:
        self.tables, self.clock = tables, ManualClock(1_000_000)
        self.refreshing = TableRefresher(tables, self.clock, Chance(1))
        self.changes: list[TablesChange] = []
        tables.changed.append(self.changes.append)

    def status(self, name: str = "people") -> TableStatus:
        return next(one for one in self.refreshing.status() if one.table == name)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for threads and servers, not for time."""
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - what is waited for happens in threads
                await asyncio.sleep(0.002)

    async def expire(self) -> None:
        await self.clock.advance(LIFETIME_MS)


def people(server: RowsServer, **changes: object) -> TableDeclaration:
    given: dict[str, object] = {
        "name": "people",
        "concept": "person",
        "url": server.url,
        "key": "id",
        "columns": {"status": ("status",)},
        "lifetime_ms": LIFETIME_MS,
        "timeout_ms": 5_000,
    }
    return TableDeclaration(**(given | changes))


def give(server: RowsServer, **statuses: str) -> None:
    server.body = msgspec.json.encode([{"id": k, "status": v} for k, v in statuses.items()])


def in_a_world(
    site: Path,
    declared: list[TableDeclaration],
    scenario: Callable[[World], Awaitable[None]],
    pairs: tuple[PairDeclaration, ...] = (),
) -> None:
    async def run() -> None:
        world = World(
            await asyncio.to_thread(lambda: Tables.load(site, declared, CONCEPTS, pairs=pairs))
        )
        running = asyncio.create_task(world.refreshing.run())
        try:
            await scenario(world)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


@pytest.fixture
def blocking_is_noticed() -> Iterator[None]:
    """Whoever waits for a socket or a file in the event loop is told."""
    blockbuster = BlockBuster()
    blockbuster.activate()
    yield
    blockbuster.deactivate()


@pytest.mark.usefixtures("blocking_is_noticed")
def test_new_rows_become_a_version_from_the_time_they_were_read(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    give(rows_server, ada="guest")

    async def scenario(world: World) -> None:
        old = world.tables.instances("person")
        version, revision = world.tables.version(), world.tables.revision
        give(rows_server, ada="staff", bob="guest")
        await world.clock.advance(LIFETIME_MS - 1)
        assert len(rows_server.asked) == 1
        await world.clock.advance(1)
        await world.until(lambda: bool(world.changes))
        new = world.tables.instances("person")
        assert new.columns["status"].tolist() == ["staff", "guest"]
        assert world.tables.lookup("people", "bob", "status") == "guest"
        now = world.clock.now_ms()
        assert world.tables.instances("person", at_ms=now) is new
        assert world.tables.instances("person", at_ms=now - 1) is old
        assert world.tables.version() != version
        assert world.tables.revision == revision + 1
        assert world.changes == [
            TablesChange(tables=("people",), concepts=("person",), functions=(), time=now)
        ]
        await world.until(lambda: world.status().changes == 1)
        await world.clock.advance(5_000)
        assert (world.status().age_ms, world.status().rows) == (5_000, 2)

    in_a_world(tmp_path, [people(rows_server)], scenario)


def test_the_same_rows_are_no_change(tmp_path: Path, rows_server: RowsServer) -> None:
    give(rows_server, ada="guest")
    rows_server.tag = '"1"'

    async def scenario(world: World) -> None:
        for tag in ('"1"', '"2"'):  # answered by 304, then by the same rows
            rows_server.tag = tag
            requests = len(rows_server.asked)
            await world.expire()
            await world.until(lambda requests=requests: len(rows_server.asked) == requests + 1)
            await world.until(lambda: world.status().age_ms == 0)
        assert rows_server.asked[1]["if-none-match"] == '"1"'
        assert world.changes == []
        assert len(world.tables.versions["person"]) == 1

    in_a_world(tmp_path, [people(rows_server)], scenario)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'[{"id": "ada", "state": "staff"}]', "tables.missing_column"),
        (b'[{"id": "a", "status": "x"}, {"id": "a", "status": "y"}]', "tables.duplicate_key"),
        (b'{"error": "maintenance"}', "tables.bad_json"),
        (b"", "tables.bad_json"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_and_the_old_ones_stay(
    tmp_path: Path, rows_server: RowsServer, body: bytes, code: str
) -> None:
    give(rows_server, ada="guest")

    async def scenario(world: World) -> None:
        rows_server.body = body
        await world.expire()
        await world.until(lambda: world.status().failures == 1)
        status = world.status()
        assert status.error is not None
        assert status.error.code == code
        assert status.age_ms == LIFETIME_MS
        assert world.refreshing.failing() == ["people"]
        assert world.tables.lookup("people", "ada", "status") == "guest"
        assert world.changes == []

    in_a_world(tmp_path, [people(rows_server)], scenario)


def test_a_failing_source_is_read_again_after_growing_pauses_and_recovers(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    give(rows_server, ada="guest")

    async def scenario(world: World) -> None:
        rows_server.status = 503
        await world.expire()
        times = []
        for failures in range(1, 5):
            await world.until(lambda failures=failures: world.status().failures == failures)
            times.append(world.clock.now_ms())
            while world.status().failures == failures:
                await world.clock.advance(50)
                await asyncio.sleep(0.005)
        pauses = [after - before for before, after in pairwise(times)]
        assert pauses == sorted(pauses)
        assert pauses[-1] >= 3 * pauses[0]
        rows_server.status = 200
        give(rows_server, ada="staff")
        while world.status().failures:
            await world.clock.advance(1_000)
            await asyncio.sleep(0.005)
        assert world.status().error is None
        assert world.tables.lookup("people", "ada", "status") == "staff"

    in_a_world(tmp_path, [people(rows_server)], scenario)


@pytest.mark.usefixtures("blocking_is_noticed")
def test_a_slow_source_keeps_neither_the_loop_nor_another_source_waiting(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    give(rows_server, ada="guest")
    (tmp_path / "ages.csv").write_text("id,age\nada,3\n")
    ages = TableDeclaration(
        name="ages",
        concept="person",
        csv="ages.csv",
        key="id",
        columns={"age": ("age",)},
        lifetime_ms=LIFETIME_MS,
    )

    async def scenario(world: World) -> None:
        rows_server.pause_after = 3
        await asyncio.to_thread((tmp_path / "ages.csv").write_text, "id,age\nada,4\n")
        await world.expire()
        await world.until(lambda: len(rows_server.asked) == 2)
        await world.until(lambda: bool(world.changes))
        assert world.tables.instances("person").columns["age"].tolist() == [4.0]
        assert world.status().failures == 0
        assert world.tables.lookup("people", "ada", "status") == "guest"
        rows_server.go_on.set()
        await world.until(lambda: world.status().age_ms == 0)

    in_a_world(tmp_path, [people(rows_server, timeout_ms=60_000), ages], scenario)


def test_stopping_does_not_wait_for_a_slow_source(tmp_path: Path, rows_server: RowsServer) -> None:
    give(rows_server, ada="guest")

    async def scenario(world: World) -> None:
        rows_server.pause_after = 3
        await world.expire()
        await world.until(lambda: len(rows_server.asked) == 2)

    in_a_world(tmp_path, [people(rows_server, timeout_ms=60_000)], scenario)
    assert not rows_server.go_on.is_set()


def test_a_query_and_files_are_read_again(tmp_path: Path) -> None:
    def write(status: str, metres: str) -> None:
        with sqlite3.connect(tmp_path / "p.sqlite") as database:
            database.execute("CREATE TABLE IF NOT EXISTS people (id PRIMARY KEY, status)")
            database.execute("REPLACE INTO people VALUES (1, ?)", (status,))
        database.close()
        (tmp_path / "d.xml").write_text(f"<d><p><a>x</a><b>y</b><m>{metres}</m></p></d>")

    write("guest", "5")
    queried = TableDeclaration(
        name="people",
        concept="person",
        sql="SELECT id, status FROM people",
        database="p.sqlite",
        key="id",
        columns={"status": ("status",)},
        lifetime_ms=LIFETIME_MS,
    )
    distances = TableDeclaration(
        name="distances", xml="d.xml", xpath="/d/p", key="a", lifetime_ms=LIFETIME_MS
    )
    near = PairDeclaration(
        function="near", table="distances", keys=("a", "b"), value="m", symmetric=True
    )

    async def scenario(world: World) -> None:
        await asyncio.to_thread(write, "staff", "7")
        await world.expire()
        await world.until(lambda: len(world.changes) == 2)
        assert world.tables.lookup("people", "1", "status") == "staff"
        assert world.tables.pairs("near")["y", "x"] == 7.0
        assert {change.functions for change in world.changes} == {(), ("near",)}
        with sqlite3.connect(tmp_path / "p.sqlite") as database:
            database.execute("ALTER TABLE people RENAME COLUMN status TO state")
        database.close()
        await asyncio.to_thread(write_pairs, "far")
        await world.expire()
        await world.until(lambda: len(world.refreshing.failing()) == 2)
        errors = {one.table: one.error.code for one in world.refreshing.status() if one.error}
        assert errors == {"people": "tables.bad_query", "distances": "tables.bad_number"}
        assert world.tables.pairs("near")["y", "x"] == 7.0

    def write_pairs(metres: str) -> None:
        (tmp_path / "d.xml").write_text(f"<d><p><a>x</a><b>y</b><m>{metres}</m></p></d>")

    in_a_world(tmp_path, [queried, distances], scenario, (near,))


def test_a_column_that_is_gone_is_a_changed_schema(tmp_path: Path) -> None:
    (tmp_path / "badges.csv").write_text("tag,person,note\nE1,5,x\n")
    badges = TableDeclaration(name="badges", csv="badges.csv", key="tag", lifetime_ms=LIFETIME_MS)

    async def scenario(world: World) -> None:
        await asyncio.to_thread((tmp_path / "badges.csv").write_text, "tag,note\nE1,y\n")
        with pytest.raises(SiteError) as caught:
            await world.refreshing.refresh("badges")
        assert caught.value.problems[0].code == "tables.schema_changed"
        assert world.tables.lookup("badges", "E1", "person") == "5"
        await asyncio.to_thread(
            (tmp_path / "badges.csv").write_text, "more,note,person,tag\n1,y,6,E1\n"
        )
        assert await world.refreshing.refresh("badges")
        assert world.tables.lookup("badges", "E1", "person") == "6"
        assert world.changes[-1].concepts == ()
        with pytest.raises(UnknownName):
            await world.refreshing.refresh("badgers")

    in_a_world(tmp_path, [badges], scenario)


def test_fields_that_no_row_has_any_more_are_missing_values(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    rows_server.body = b'[{"id": "ada", "status": "guest", "note": "x"}]'

    async def scenario(world: World) -> None:
        give(rows_server, ada="staff")
        assert await world.refreshing.refresh("people")
        assert world.tables.lookup("people", "ada", "note") is None
        rows_server.body = b"[]"
        assert await world.refreshing.refresh("people")
        assert len(world.tables.instances("person")) == 0
        assert world.tables.lookup("people", "ada", "note") is None

    in_a_world(tmp_path, [people(rows_server)], scenario)


def test_a_table_added_at_run_time_changes_the_choice_of_tables(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    for name, attribute in (("s", "status"), ("a", "age")):
        (tmp_path / f"{name}.csv").write_text(f"id,{attribute}\n{name},1\n")
    (tmp_path / "both.csv").write_text("id,status,age\nboth,x,2\n")

    def table(name: str, *attributes: str) -> TableDeclaration:
        columns = {attribute: (attribute,) for attribute in attributes}
        return TableDeclaration(
            name=name, concept="person", csv=f"{name}.csv", key="id", columns=columns
        )

    async def scenario(world: World) -> None:
        assert world.tables.instances("person").ids == ["s", "a"]
        await world.refreshing.add(table("both", "status", "age"))
        assert world.tables.instances("person").ids == ["both"]
        assert world.changes[-1].tables == ("both",)
        assert world.status("both").rows == 1
        with pytest.raises(SiteError):
            await world.refreshing.add(table("absent", "status"))
        assert world.tables.instances("person").ids == ["both"]
        await world.refreshing.add(people(rows_server))
        await world.until(lambda: len(rows_server.asked) == 1)
        await world.expire()
        await world.until(lambda: len(rows_server.asked) == 2)

    give(rows_server, ada="guest")
    in_a_world(tmp_path, [table("s", "status"), table("a", "age")], scenario)


def test_rows_for_a_declaration_that_changed_meanwhile_are_dropped(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    give(rows_server, ada="guest")

    async def scenario(world: World) -> None:
        give(rows_server, ada="staff")
        rows_server.pause_after = 3
        requests = asyncio.create_task(world.refreshing.refresh("people"))
        await world.until(lambda: len(rows_server.asked) == 2)
        (tmp_path / "p.csv").write_text("id,status\neve,guest\n")
        other = TableDeclaration(
            name="people",
            concept="person",
            csv="p.csv",
            key="id",
            columns={"status": ("status",)},
        )
        reloaded = await asyncio.to_thread(Tables.load, tmp_path, [other], CONCEPTS)
        world.tables.take_over(reloaded, world.clock.now_ms())
        rows_server.go_on.set()
        assert await requests is False
        assert world.tables.instances("person").ids == ["eve"]
        assert reloaded.lookup("people", "eve", "status") == "guest"
        assert [change.concepts for change in world.changes] == [("person",)]
        (tmp_path / "p.csv").write_text("id,status\neve,staff\n")
        assert await world.refreshing.refresh("people")
        assert reloaded.lookup("people", "eve", "status") == "staff"  # both hold the same

    in_a_world(tmp_path, [people(rows_server)], scenario)


def reloaded(site: Path, table: TableDeclaration) -> Tables:
    return Tables.load(site, [table], CONCEPTS, kept=RowCache(site / "kept"))


def test_age_and_error_are_those_of_the_tables_in_force_after_a_reload_and_after_going_back(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    give(rows_server, ada="guest")
    table = people(rows_server)

    async def scenario(world: World) -> None:
        rows_server.status = 503
        await world.clock.advance(5_000)
        with pytest.raises(SiteError):
            await world.refreshing.refresh("people")
        former = world.tables.share()
        assert (world.status().age_ms, world.status().failures) == (5_000, 1)
        rows_server.status = 200
        give(rows_server, ada="staff")
        anew = await asyncio.to_thread(reloaded, tmp_path, table)
        world.tables.take_over(anew, world.clock.now_ms())
        results = world.status()
        assert (results.age_ms, results.failures, results.error, results.changes) == (0, 0, None, 1)
        assert world.refreshing.failing() == []
        await world.clock.advance(1_000)
        world.tables.take_over(former, world.clock.now_ms())
        results = world.status()
        assert (results.age_ms, results.failures, results.changes) == (6_000, 1, 0)
        assert results.error is not None
        assert world.refreshing.failing() == ["people"]

    in_a_world(tmp_path, [table], scenario)


def test_a_reload_without_an_answer_reports_the_age_of_the_cached_rows(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    give(rows_server, ada="guest")
    table = people(rows_server)

    async def scenario(world: World) -> None:
        kept = RowCache(tmp_path / "kept")
        await asyncio.to_thread(kept.save, world.tables.loaded()["people"], 993_000)
        rows_server.status = 503
        anew = await asyncio.to_thread(reloaded, tmp_path, table)
        world.tables.take_over(anew, world.clock.now_ms())
        results = world.status()
        assert (results.age_ms, results.failures, results.changes) == (7_000, 1, 0)
        assert results.error is not None
        assert results.error.code == "source.bad_status"

    in_a_world(tmp_path, [table], scenario)


def test_a_failure_of_a_read_before_a_reload_does_not_affect_the_new_status(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    give(rows_server, ada="guest")
    table = people(rows_server)

    async def scenario(world: World) -> None:
        anew = await asyncio.to_thread(reloaded, tmp_path, table)
        rows_server.pause_after = 3
        requests = asyncio.create_task(world.refreshing.refresh("people"))
        await world.until(lambda: len(rows_server.asked) == 3)
        assert not requests.done()
        world.tables.take_over(anew, world.clock.now_ms())
        rows_server.body = rows_server.body[:-2]  # less than was announced
        rows_server.go_on.set()
        with pytest.raises(SiteError):
            await requests
        assert (world.status().failures, world.status().error) == (0, None)

    in_a_world(tmp_path, [table], scenario)


def test_versions_do_not_grow_without_end_and_times_rise(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,status\na,0\n")
    table = TableDeclaration(
        name="people", concept="person", csv="p.csv", key="id", columns={"status": ("status",)}
    )
    tables = Tables.load(tmp_path, [table], CONCEPTS)
    for number in range(100):
        (tmp_path / "p.csv").write_text(f"id,status\na,{number + 1}\n")
        read = tables.read_again("people")
        assert read is not None
        clock_set_back = 50 if number == 60 else 1_000 + number
        assert tables.switch(tables.prepared([read]), clock_set_back)
    times = [time for time, _instances in tables.versions["person"]]
    assert len(times) == 32
    assert times == sorted(times)
    assert tables.instances("person", at_ms=0).columns["status"].tolist() == ["69"]


def test_work_in_its_own_thread_gives_results_errors_and_lets_go() -> None:
    async def scenario() -> None:
        assert await run_in_thread(lambda: 3, name="t") == 3
        with pytest.raises(ZeroDivisionError):
            await run_in_thread(lambda: 1 // 0, name="t")
        held = threading.Event()
        waiting = asyncio.create_task(run_in_thread(held.wait, name="t"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        held.set()

    asyncio.run(scenario())
