from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.query.query_kinds import make_query
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.pipeline.datasource.rows import (
    CHANNEL_SCHEMA,
    ColumnCondition,
    EventChunk,
    parse_where,
    row_batches,
)

PARTS = st.sampled_from(
    [
        "type = 'a'",
        "type <> 'a'",
        "type IN ('a', 'c')",
        "source > 'b'",
        "subject LIKE 'x%'",
        "time >= 5",
        "time = 4.5",
        "received <= '1970-01-01T00:00:00.007Z'",
        "position BETWEEN 2 AND 6",
        "position > 3",
        "data.n * 2 > 8",
        "headers.h = 'yes'",
        "(type = 'b' OR time < 3)",
        "NOT source = 'a'",
    ]
)
NAMES = st.sampled_from(["a", "b", "c"])
EVENTS = st.builds(
    lambda source, kind, time, n, header: Event(
        source, "i", kind, f"x/{n}" if n % 2 else "", time, b'{"n": %d}' % n, header
    ),
    NAMES,
    NAMES,
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([{}, {"h": "yes"}, {"h": "no"}]),
)


@given(st.lists(PARTS, min_size=1, max_size=4), st.lists(EVENTS, max_size=12))
def test_a_condition_chooses_the_rows_that_a_request_would_get(parts, events) -> None:
    text = " AND ".join(parts)
    where, query = parse_where(text), make_query("sql", text)
    chunk = EventChunk(range(1, len(events) + 1), [7] * len(events), events, 1)
    found = row_batches([chunk], "c", CHANNEL_SCHEMA, where.simple, where.rest)
    table = pa.Table.from_batches(found, CHANNEL_SCHEMA)
    stored = [StoredEvent(n, 7, event) for n, event in enumerate(events, start=1)]
    expected = [one.position for one in stored if query.matches(one)]
    assert table["position"].to_pylist() == expected


def test_plain_comparisons_are_decided_on_columns_alone() -> None:
    where = parse_where("type = 'a' AND position > 3 AND source IN ('x', 'y') AND id <> 'z'")
    assert where.rest is None
    assert where.simple == (
        ColumnCondition("type", "=", "a"),
        ColumnCondition("position", ">", 3),
        ColumnCondition("source", "in", ("x", "y")),
        ColumnCondition("id", "=", "z", negated=True),
    )
    assert parse_where("").simple == ()


def test_a_condition_that_cannot_be_read_is_told() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_where("tpe = 'a'")
    assert caught.value.code == "query.unknown_field"
