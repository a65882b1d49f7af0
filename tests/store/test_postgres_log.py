"""Logs in PostgreSQL: races, growth heard by others, schemas, trimming. [CH-13]"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from rapport.core.codec import decode_block, encode_block
from rapport.core.errors import InvalidInput, StoreUnavailable, Unsupported
from rapport.core.event import Event
from rapport.store.base import AppendConflict
from rapport.store.postgres_log import TRIM_RECORDS, PostgresHistory, PostgresLogStore

pytestmark = pytest.mark.slow

WRITER = """
import sys
from rapport.core.codec import encode_block
from rapport.core.event import Event
from rapport.store.postgres_log import PostgresLogStore

dsn, schema, source, size = sys.argv[1:]
store = PostgresLogStore(dsn, schema=schema)
for number in range(40):
    events = [Event(source, f"{number}/{part}", "t", "", 0) for part in range(int(size))]
    store.append("shared", [(len(events), encode_block(events))], number)
store.close()
"""


def block(*ids: str) -> tuple[int, bytes]:
    return len(ids), encode_block([Event("s", id, "t", "", 0) for id in ids])


@pytest.fixture
def open_store(postgres):
    opened = []

    def open_one(schema=postgres.schema):
        opened.append(PostgresLogStore(postgres.dsn, schema=schema))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def test_the_second_append_is_refused_and_nothing_of_it_is_there(open_store):
    one, other = open_store(), open_store()
    for size in (1, 100):  # by one statement, and by COPY
        last = one.last_position("log")
        one.append_after("log", last, [block("first")], 1)
        with pytest.raises(AppendConflict):
            other.append_after("log", last, [block(*map(str, range(size)))], 2)
        assert other.last_position("log") == last + 1
    assert [found.count for found in one.read_after("log", 0)] == [1, 1]


def test_an_append_behind_the_end_is_refused_like_one_before_it(open_store):
    store = open_store()
    with pytest.raises(AppendConflict):
        store.append_after("log", 5, [block("a")], 1)
    assert store.logs() == []


def test_threads_and_stores_share_a_log_without_gaps(open_store):
    stores = [open_store(), open_store()]

    def write(number: int) -> int:
        size = 1 + number % 3 * 20
        ids = [f"{number}/{part}" for part in range(size)]
        return stores[number % 2].append("log", [block(*ids)], number)[0].first

    with ThreadPoolExecutor(6) as pool:
        firsts = list(pool.map(write, range(90)))
    blocks = stores[0].read_after("log", 0)
    assert sorted(firsts) == [found.first for found in blocks]
    assert [p for b in blocks for p in range(b.first, b.last + 1)] == list(
        range(1, stores[1].last_position("log") + 1)
    )
    for found in blocks:
        assert len({event.id.partition("/")[0] for event in decode_block(found.body)}) == 1


def test_processes_share_a_log_without_gaps(postgres, open_store):
    sizes = {"one": 1, "some": 7, "many": 50}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, postgres.dsn, postgres.schema, source, str(size)]
        )
        for source, size in sizes.items()
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    store = open_store()
    blocks = store.read_after("shared", 0)
    assert [found.first for found in blocks] == [
        1 + sum(before.count for before in blocks[:number]) for number in range(len(blocks))
    ]
    found = [event for one in blocks for event in decode_block(one.body)]
    for source, size in sizes.items():
        expected = [f"{number}/{part}" for number in range(40) for part in range(size)]
        assert [event.id for event in found if event.source == source] == expected


def test_growth_is_heard_whoever_appended(open_store):
    one, other = open_store(), open_store()
    one.append("old", [block("before")], 0)
    heard: dict[str, int] = {}
    grown = threading.Condition()

    def hear(log: str, last: int) -> None:
        with grown:
            heard[log] = last
            grown.notify_all()

    one.watch(hear)
    long_name = "long" * 1_000
    other.append("a", [block("1", "2")], 0)
    one.append("b", [block(*map(str, range(50)))], 0)
    other.append(long_name, [block("1")], 0)
    with grown:
        assert grown.wait_for(lambda: heard == {"a": 2, "b": 50, long_name: 1}, 20)


def test_listening_goes_on_after_its_connection_was_cut(postgres, open_store):
    store, heard, changed = open_store(), [], threading.Event()

    def hear(_log: str, last: int) -> None:
        heard.append(last)
        changed.set()

    store.watch(hear)
    store.append("log", [block("1")], 0)
    assert changed.wait(20)
    changed.clear()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' "
            "OR (application_name = 'rapport' AND pid <> pg_backend_pid())"
        )
    store.append("log", [block("2")], 0)
    assert changed.wait(20)
    assert heard[-1] == 2


def test_a_watch_that_ends_while_it_is_being_stopped_is_stopped(postgres):
    """Its thread may notice by itself, between being told and being woken."""
    store = PostgresLogStore(postgres.dsn, schema=postgres.schema)
    store.watch(lambda _log, _last: None)
    (watch,) = store._watches
    watch._stopped = True
    watch._thread.join(10)
    assert not watch._thread.is_alive()
    store.close()


def test_a_cut_connection_is_not_noticed_by_who_appends_and_reads(postgres, open_store):
    store = open_store()
    for number in range(1, 4):
        store.append("log", [block(f"{number}")], 0)
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'rapport'"
            )
    assert len(store.read_after("log", 0)) == 3


def test_sites_with_schemas_of_their_own_do_not_meet(postgres, open_store):
    one, other = open_store(), open_store(f"{postgres.schema}_other")
    one.append("log", [block("1")], 0)
    assert other.logs() == []
    assert other.append("log", [block("1")], 0)[0].first == 1


def test_many_processes_make_the_tables_at_the_same_time(postgres):
    with ThreadPoolExecutor(6) as pool:
        stores = list(
            pool.map(lambda _: PostgresLogStore(postgres.dsn, schema=postgres.schema), range(6))
        )
    for store in stores:
        store.append("log", [block("x")], 0)
    assert stores[0].last_position("log") == 6
    for store in stores:
        store.close()


@pytest.mark.parametrize("name", ["", "Big", "a-b", "1a", "pg_mine", 'x"; DROP', "a" * 49])
def test_a_schema_name_that_would_need_quoting_is_refused(postgres, name):
    with pytest.raises(InvalidInput) as refused:
        PostgresLogStore(postgres.dsn, schema=name)
    assert refused.value.hint


def test_tables_of_a_newer_version_are_left_alone(postgres, open_store):
    open_store().close()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"UPDATE {postgres.schema}.schema_version SET version = 1000")
    with pytest.raises(StoreUnavailable) as refused:
        open_store()
    assert refused.value.code == "store.newer_schema"


def test_a_database_of_another_encoding_is_refused(postgres_server):
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE old ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    with pytest.raises(Unsupported) as refused:
        PostgresLogStore(postgres_server.dsn("old"))
    assert "LATIN1" in refused.value.message


def test_a_server_that_is_not_there_is_named_with_a_hint(tmp_path):
    with pytest.raises(StoreUnavailable) as refused:
        PostgresLogStore(f"postgresql://me@/db?host={tmp_path}")
    assert refused.value.code == "store.unreachable"
    assert refused.value.hint
    with pytest.raises(InvalidInput):
        PostgresLogStore("this is no address")


def test_a_password_never_gets_into_a_message(tmp_path):
    with pytest.raises(StoreUnavailable) as refused:
        PostgresLogStore(f"postgresql://me:geheim@/db?host={tmp_path}")
    assert "geheim" not in refused.value.message + refused.value.hint


def test_trimming_takes_whole_blocks_and_counts_the_bytes(open_store):
    store = open_store()
    store.append("log", [block("1", "2", "3"), block("4", "5"), block("6")], 0)
    whole = store.kept_bytes("log")
    store.trim("log", 5)
    assert store.first_position("log") == 4
    assert [found.first for found in store.read_after("log", 0)] == [4, 6]
    assert 0 < store.kept_bytes("log") < whole
    store.trim("log", 2)
    assert store.first_position("log") == 4
    store.trim("log", 100)
    assert (store.first_position("log"), store.kept_bytes("log")) == (7, 0)
    assert store.append("log", [block("7")], 0)[0].first == 7
    assert PostgresHistory(store).find("3") == []


def test_a_long_log_is_trimmed_in_several_transactions(open_store):
    store, count = open_store(), 1_000
    for start in range(0, TRIM_RECORDS + 20_000, count):
        ids = [str(number) for number in range(start, start + count)]
        store.append("log", [block(*ids)], start)
    store.trim("log", TRIM_RECORDS + 10_500)
    assert store.first_position("log") == TRIM_RECORDS + 10_001
    pieces = store.pieces("log", 10)
    assert [piece.first for piece in pieces] == [TRIM_RECORDS + 10_001]
    assert pieces[0].last == TRIM_RECORDS + 20_000
    assert sum(piece.size for piece in pieces) == store.kept_bytes("log")
    assert (pieces[0].oldest, pieces[0].newest) == (TRIM_RECORDS + 10_000, TRIM_RECORDS + 19_000)


def test_a_log_may_begin_where_an_older_part_ended(open_store):
    store = open_store()
    store.skip_to("log", 40_001)
    assert (store.first_position("log"), store.last_position("log")) == (40_001, 40_000)
    assert store.append_after("log", 40_000, [block("a")], 0)[0].first == 40_001
    assert store.read_after("log", 0)[0].first == 40_001
    store.skip_to("log", 90_001)
    store.append("log", [block("b", "c")], 0)
    assert [found.first for found in store.read_after("log", 0)] == [40_001, 90_001]
    store.trim("log", 90_001)
    assert store.first_position("log") == 90_001


def test_a_log_that_was_removed_may_begin_anew(open_store):
    store = open_store()
    store.append("log", [block("a")], 0)
    store.index_fields("log", {"type": ("type",)})
    assert store.indexes.wait(30)
    store.remove("log")
    store.remove("log")
    assert (store.logs(), store.last_position("log")) == ([], 0)
    with store.connections.use() as link:
        query = "SELECT count(*) FROM pg_indexes WHERE schemaname = %s AND indexname LIKE 'field%%'"
        assert link.execute(query, (store.connections.schema,)).fetchone() == (0,)
    assert store.append("log", [block("b")], 0)[0].first == 1


def test_ids_are_found_at_once_in_every_log(open_store):
    store = open_store()
    history = PostgresHistory(store)
    store.append("b", [block("x", "y")], 0)
    store.append("a", [block("y")], 0)
    assert history.find("y") == [("a", 1), ("b", 2)]
    assert history.find("\x00") == []
    assert history.fed("b") == 2
