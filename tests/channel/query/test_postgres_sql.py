"""Conditions as SQL on a real PostgreSQL: no match is left out, and what is called exact is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.postgres_sql import SqlCondition, to_sql
from rapport.channel.query.query_kinds import Query, make_query
from rapport.channel.query.tree import Not
from rapport.core.event import Event, StoredEvent
from support.judge.conditions import CONDITIONS, stored_events
from support.servers.postgres import PostgresAddress

pytestmark = pytest.mark.slow

SQL_FUNCTIONS = r"""
CREATE OR REPLACE FUNCTION rapport_payload(data text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  IF data ~ '[0-9]{200}|[0-9.][eE][+-]?[0-9]{3}'
     OR length(data) - length(translate(data, '[{', '')) > 300 THEN
    RETURN NULL;
  END IF;
  RETURN data::jsonb;
EXCEPTION WHEN data_exception OR statement_too_complex THEN
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION rapport_element(list jsonb, place integer) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE jsonb_typeof(list) WHEN 'array' THEN list -> place END
$$;
"""
"""`rapport_payload`: the payload; SQL null where PostgreSQL and Python might read it differently:
not JSON, absurd numbers, very deep. A JSON null is not SQL null. `rapport_element`: PostgreSQL's
own `-> 0` of a scalar would be the scalar.
"""

Rows = Any


@pytest.fixture
def rows(postgres: PostgresAddress) -> Iterator[Rows]:
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute(SQL_FUNCTIONS)
        connection.execute(SQL_FUNCTIONS)
        connection.execute(
            "CREATE TEMPORARY TABLE rows (number int, position bigint, received bigint, "
            "source text, id text, type text, subject text, time bigint, data text, headers jsonb)"
        )
        yield connection
        connection.rollback()


def put(rows: Rows, events: list[StoredEvent]) -> None:
    rows.execute("TRUNCATE rows")
    for number, stored in enumerate(events):
        event = stored.event
        rows.execute(
            "INSERT INTO rows VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                number,
                stored.position,
                stored.received,
                event.source,
                event.id,
                event.type,
                event.subject,
                event.time,
                event.data.decode(),
                json.dumps(event.headers),
            ),
        )


def found(rows: Rows, condition: SqlCondition) -> set[int]:
    text = f"SELECT number FROM rows WHERE {condition.text}"
    return {number for (number,) in rows.execute(text, condition.parameters)}


def check(rows: Rows, events: list[StoredEvent], query: Query) -> SqlCondition:
    matching = {number for number, stored in enumerate(events) if query.matches(stored)}
    condition = to_sql(query)
    got = found(rows, condition)
    assert matching <= got, condition
    if condition.exact:
        assert matching == got, condition
    return condition


def query_of(condition: Any) -> Query:
    return Query("sql", "", compile_condition(condition), condition=condition)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(stored_events(), min_size=1, max_size=8), st.lists(CONDITIONS, max_size=4))
def test_no_match_is_left_out(rows: Rows, events: list[StoredEvent], conditions: list[Any]) -> None:
    put(rows, events)
    for condition in conditions:
        check(rows, events, query_of(condition))
        check(rows, events, query_of(Not(condition)))


PAYLOADS = [
    "null",
    "true",
    "5",
    '"5"',
    '"<a>5</a>"',
    '{"x": 5}',
    '{"x": 5.0}',
    '{"x": "5"}',
    '{"x": [5]}',
    '{"x": null}',
    '{"x": true}',
    '{"x": "a\\u0000b"}',
    '{"x": "\\ud83d\\ude00"}',
    '{"x": "ä"}',
    '{"x": "Z"}',
    '{"x": 9007199254740993}',
    '{"x": 9007199254740992.0}',
    '{"x": 0.1000000000000000055511151231257827021181583404541015625}',
    '{"x": 1e400}',
    '{"x": 1e-400}',
    '{"x": 1e300}',
    f'{{"x": {"9" * 4_000}}}',
    f'{{"x": 0.{"0" * 190}1e-99}}',
    '{"x": -0.0}',
    '{"x": 5, "x": 6}',
    f'{{"x": {"[" * 600}{"]" * 600}}}',
    '{"x": "50%"}',
    "not JSON",
]
TEXTS = [
    "data.x = 5",
    "data.x <> 5",
    "NOT data.x = 5",
    "data.x = '5'",
    "data.x IN (5, '5', TRUE)",
    "data.x NOT IN (5, '5', TRUE)",
    "data.x > 9007199254740992",
    "data.x >= 9007199254740992",
    "NOT data.x > 9007199254740992",
    "data.x = 9007199254740993",
    "data.x = 0.1",
    "NOT data.x = 0.1",
    "data.x < 0.1",
    "data.x = 0",
    "data.x BETWEEN 1 AND 1e301",
    "data.x > 'Z'",
    "data.x <= 'ä'",
    "data.x LIKE '_'",
    "data.x NOT LIKE '5%'",
    "data.x LIKE '50!%' ESCAPE '!'",
    "data.x LIKE 'a%b'",
    "data.x IS NULL",
    "data.x IS NOT NULL",
    "data IS NULL",
    "data[0] = 5",
    "data.x[0] = 5",
    "NOT data.x",
    "data.x OR type = 'a'",
    "data.x + 1 = 6",
    "data.a = 5 OR data.x = 5",
    "data = 5",
    "data LIKE '%5%'",
    "type = 'badge' AND data.x = 5",
    "headers.h = 'v'",
    "headers.h <> 'v'",
    "NOT headers.h LIKE 'v%'",
    "headers.h IS NULL",
    "subject < type",
    "time >= '1970-01-01T00:00:00.005Z'",
    "time < 5.5 AND time > 4.5",
    "time < 100000000000000000000",
    "position <> 3",
    "NOT (position > 3 AND data.x = 5)",
    "id LIKE '%%1%%'",
    "",
    "FALSE",
]


def odd_events() -> list[StoredEvent]:
    kinds: list[dict[str, str]] = [{}, {"h": "v"}, {"h": "w", "datacontenttype": "application/xml"}]
    return [
        StoredEvent(
            number + 1, 7, Event("s", f"i%{number}", "badge", "a", number, data.encode(), headers)
        )
        for number, (data, headers) in enumerate(
            (data, headers) for data in PAYLOADS for headers in kinds
        )
    ]


def test_odd_payloads_are_never_lost(rows: Rows) -> None:
    events = odd_events()
    put(rows, events)
    for text in TEXTS:
        check(rows, events, make_query("sql", text))


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("", True),
        ("type = 'a' AND time > '2026-01-01' AND headers.h LIKE 'x%'", True),
        ("subject IN ('a', 'b') OR NOT position > 5", True),
        ("data.x = 5", False),
        ("position + 1 > 5", False),
    ],
)
def test_only_what_the_database_decides_alone_is_called_exact(text: str, exact: bool) -> None:
    assert to_sql(make_query("sql", text)).exact is exact


def test_a_payload_of_another_kind_does_not_come_through(rows: Rows) -> None:
    events = [
        StoredEvent(n + 1, 7, Event("s", str(n), "t", "", 5, data))
        for n, data in enumerate((b'{"x":5}', b'{"x":6}', b'{"x":"5"}', b"{}", b'{"x":null}'))
    ]
    put(rows, events)
    assert found(rows, to_sql(make_query("sql", "data.x = 5"))) == {0}
    assert found(rows, to_sql(make_query("sql", "NOT data.x = 5"))) == {1, 2}
    assert found(rows, to_sql(make_query("", {"data": {"x": 6}}))) == {1}


def test_a_query_without_a_condition_lets_everything_through() -> None:
    condition = to_sql(Query("other", "", lambda stored: False))
    assert condition == SqlCondition("TRUE", (), exact=False)
