"""Conditions evaluated by PostgreSQL, with and without indexes, find what we would find. [CH-4]"""

from __future__ import annotations

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends import postgres as postgres_finder
from rapport.channel.backends.postgres import PostgresFinder
from rapport.channel.query.index_plan import index_path, plan_lookup
from rapport.channel.query.query_kinds import make_query
from rapport.core.codec import encode_block
from rapport.core.event import Event, StoredEvent
from rapport.store import postgres_search
from rapport.store.field_keys import PARTITION_BITS, number_key, number_of_key
from rapport.store.postgres_log import PostgresLogStore
from support.examples import examples

pytestmark = pytest.mark.slow

FIELDS = ("subject", "type", "time", "data.room", "data.list[1]", "headers.trace", 'data."a%b"')
CONDITIONS = (
    "data.room = 'r1'",
    "data.room = 5",
    "data.room = true",
    "data.room",
    "NOT data.room",
    "data.room >= 'r1' AND data.room < 'r3'",
    "data.room BETWEEN -1 AND 5",
    "data.room > 4.5",
    "data.room < 'r2'",
    "data.room IN ('r1', 'r2', 5)",
    "data.room LIKE 'r%'",
    "data.room LIKE 'long%'",
    "data.room <> 'r1'",
    "data.room IS NULL",
    "data.list[1] = 2",
    "data.\"a%b\" = '50%'",
    "headers.trace = 'on'",
    "subject = 'room/1' OR data.room = 'r1'",
    "type = 'a' AND data.room = 'r1'",
    "time >= 3 AND time < 6",
    "data.room = 'r1' AND data.list[1] > 1",
)
rooms = st.sampled_from(
    ["r1", "r2", "r3", "long" * 40, "long" * 40 + "x", 5, 5.0, -1, 4.6, True, False, None, {}]
)
payloads = st.fixed_dictionaries(
    {},
    optional={
        "room": rooms,
        "list": st.lists(st.integers(0, 3), max_size=3),
        "a%b": st.sampled_from(["50%", "%s", 1]),
    },
).map(msgspec.json.encode)
datas = payloads | st.sampled_from(
    [b"not json", b'{"room":"r1","x":"\\u0000"}', b'{"room":1e-400}', b"[1]", b"null"]
)
made = st.builds(
    Event,
    source=st.just("s"),
    id=st.just("i"),
    type=st.sampled_from("ab"),
    subject=st.sampled_from(["", "room/1"]),
    time=st.integers(0, 9),
    data=datas,
    headers=st.sampled_from([{}, {"trace": "on"}, {"trace": "\x00"}]),
)
xml = Event("s", "i", "a", "", 3, b'"<room>r1</room>"', {"datacontenttype": "application/xml"})


@pytest.fixture(scope="module", autouse=True)
def _never_read_instead():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_finder, "_NEAR", 0)
        yield


@pytest.fixture(scope="module")
def store(postgres_server):
    opened = PostgresLogStore(postgres_server.dsn(), schema="matching")
    yield opened
    opened.close()


def found_by(finder, log, query, last, limit) -> list[StoredEvent]:
    events, after = [], 0
    while after < last:
        found = finder.find(log, query, after=after, until=last, limit=limit)
        assert found.through > after
        assert all(after < stored.position <= found.through for stored in found.events)
        events += found.events
        after = found.through
    return [stored for stored in events if query.matches(stored)]


class Growing:
    """A log that every example adds to: so there is enough in it for an index to pay."""

    def __init__(self, store, name: str, fields: tuple[str, ...]) -> None:
        self._store, self._name = store, name
        self.finder = PostgresFinder(store, lambda _log: tuple(map(index_path, fields)))
        self.events: list[StoredEvent] = []
        self.add([Event("s", str(n), "c", "f", 99, b"{}") for n in range(1_000)])
        self.found(make_query("sql", "type = 'c'"), 1_000)  # the indexes are made from now on
        assert store.indexes.wait(30)

    def add(self, events: list[Event]) -> None:
        parts = [part for part in (events[:7], events[7:]) if part]
        self._store.append(self._name, [(len(part), encode_block(part)) for part in parts], 9)
        for position, event in enumerate(events, start=len(self.events) + 1):
            self.events.append(StoredEvent(position, 9, event))

    def found(self, query, limit: int) -> list[StoredEvent]:
        return found_by(self.finder, self._name, query, len(self.events), limit)


@pytest.fixture(scope="module", params=["read", "indexed"])
def growing(request, store):
    return Growing(store, request.param, FIELDS if request.param == "indexed" else ())


@settings(max_examples=examples(10))
@given(st.lists(made | st.just(xml), min_size=1, max_size=30), st.sampled_from([11, 50, 400]))
def test_what_is_found_is_what_reading_finds(growing, events, limit):
    growing.add(events)
    for text in CONDITIONS:
        query = make_query("sql", text)
        expected = [stored for stored in growing.events if query.matches(stored)]
        assert growing.found(query, limit) == expected, text


def test_an_index_is_used_and_goes_over_partitions(store, monkeypatch):
    query = make_query("sql", "data.room = 'r7'")
    finder = PostgresFinder(store, lambda _log: ("data.room",))
    for start in range(0, 20_000, 1_000):
        rows = [
            Event("s", str(n), "t", "", n, b'{"room":"r%d"}' % (n % 1_000))
            for n in range(start, start + 1_000)
        ]
        store.append("many", [(len(rows), encode_block(rows))], start)
    assert finder.find("many", query, after=0, until=20_000, limit=5).events is not None
    assert store.indexes.wait(30)
    found = found_by(finder, "many", query, 20_000, 7)
    assert [stored.position for stored in found] == list(range(8, 20_000, 1_000))
    lookup = plan_lookup(query.condition, ["data.room"])
    number = store._known_number("many")
    wanted = postgres_search.EventQuery(number, "TRUE", (), lookup, store.indexes.ready(number))
    with store.connections.use() as link:
        text = postgres_search._query(link, wanted, 0, 20_000, 5).as_string(link)
        plan = link.execute("EXPLAIN " + text.replace("%%", "%")).fetchall()
    assert any(f"field_{number}_" in line for (line,) in plan), plan


def test_fields_that_are_no_longer_declared_lose_their_index(store):
    store.append("changing", [(1, encode_block([xml]))], 0)
    number = store._known_number("changing")
    fields = {"type": ("type",), "data.room": ("data", "room")}

    def indexes() -> int:
        query = "SELECT count(*) FROM pg_class WHERE starts_with(relname, %s)"
        with store.connections.use() as link:
            return link.execute(query, (f"field_{number}_",)).fetchone()[0]

    store.index_fields("changing", fields)
    assert store.indexes.wait(30)
    assert store.index_fields("changing", fields) == fields
    assert indexes() == 3
    store.index_fields("changing", {"type": ("type",)})
    assert store.indexes.wait(30)
    assert indexes() == 1


def test_an_index_left_half_made_is_made_again(store):
    store.append("half", [(1, encode_block([xml]))], 0)
    number = store._known_number("half")
    store.index_fields("half", {"type": ("type",)})
    assert store.indexes.wait(30)
    with store.connections.use() as link:
        link.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid IN "
            "(SELECT oid FROM pg_class WHERE starts_with(relname, %s))",
            (f"field_{number}_",),
        )
    store.indexes.declare(number, {"type": ("type",), "subject": ("subject",)})
    assert store.indexes.wait(30)
    with store.connections.use() as link:
        valid = link.execute(
            "SELECT bool_and(indisvalid) FROM pg_index WHERE indexrelid IN "
            "(SELECT oid FROM pg_class WHERE starts_with(relname, %s))",
            (f"field_{number}_",),
        ).fetchone()
    assert valid == (True,)


def test_closing_does_not_wait_for_an_index(postgres):
    store = PostgresLogStore(postgres.dsn, schema=postgres.schema)
    store.append("log", [(1, encode_block([xml]))], 0)
    with psycopg.connect(postgres.dsn) as other:
        other.execute(f"UPDATE {postgres.schema}.events SET size = size")  # the making waits for it
        store.index_fields("log", {"type": ("type",)})
        assert not store.indexes.wait(0.3)
        store.close()
    again = PostgresLogStore(postgres.dsn, schema=postgres.schema)
    again.index_fields("log", {"type": ("type",)})
    assert again.indexes.wait(30)
    again.close()


def test_large_events_come_in_pages_of_some_megabytes(store):
    data = msgspec.json.encode({"room": "big", "text": "x" * 900_000})
    store.append("large", [(1, encode_block([Event("s", str(n), "t", "", 0, data)]))
                           for n in range(12)], 0)  # fmt: skip
    events, through = store.find_matching("large", "TRUE", (), after=0, until=12, limit=100)
    assert 4 <= len(events) < 8
    assert through == len(events)


def test_events_are_fetched_by_position(store):
    store.append("few", [(2, encode_block([xml, xml])), (3, b"no events")], 4)
    assert store.fetch("few", [2, 9, 4]) == [StoredEvent(2, 4, xml)]
    assert store.fetch("nothing", [1]) == []


@given(st.floats(allow_nan=False))
def test_keys_of_numbers_are_turned_back(number):
    assert number_of_key(number_key(number)) == number


def test_partitions_are_those_of_the_index():
    from rapport.store.field_search import PARTITION_SIZE

    assert PARTITION_SIZE == 1 << PARTITION_BITS
