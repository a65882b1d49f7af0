"""Blocks become rows and come back byte for byte, whatever stands in the events. [CH-13]"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.codec import encode_block
from rapport.core.event import Event
from rapport.store.base import Block
from rapport.store.postgres_rows import blocks_of_rows, plain_json, rows_of_block

pytestmark = pytest.mark.slow

ODD_DATA = (
    b"",
    b"\xff\xfe",
    b"\x00",
    b'"\\u0000"',
    b'"\\ud800"',
    b"nan",
    b"[1,]",
    b"1e-20000",
    b"0." + b"1" * 20_000,
    b"1" * 200_000,
    b"1e99999999999",
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
datas = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(ODD_DATA),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=6,
    ).map(msgspec.json.encode),
)
events = st.builds(
    Event,
    source=texts,
    id=texts,
    type=texts,
    subject=texts,
    time=st.integers(-(2**63), 2**64 - 1),
    data=datas,
    headers=st.dictionaries(texts, texts, max_size=3),
)
bodies = st.one_of(
    st.lists(events, min_size=1, max_size=5).map(lambda found: (len(found), encode_block(found))),
    st.tuples(st.integers(1, 5), st.binary(max_size=40)),
)


@pytest.fixture(scope="module")
def keep(postgres_server):
    """Rows as PostgreSQL gives them back."""
    from rapport.store.postgres_log import PostgresLogStore

    store = PostgresLogStore(postgres_server.dsn(), schema="rows")
    yield store
    store.close()


@given(st.lists(bodies, min_size=1, max_size=4))
def test_rows_give_back_the_blocks_they_came_from(given_bodies):
    blocks, position = [], 1
    for count, body in given_bodies:
        blocks.append(Block(position, count, 7, body))
        position += count
    rows = [row for block in blocks for row in rows_of_block(1, block)]
    assert blocks_of_rows([row[1:] for row in rows]) == blocks
    assert len({row[:2] for row in rows}) == len(rows)


@given(given_bodies=st.lists(bodies, min_size=1, max_size=4))
def test_postgres_keeps_every_byte(keep, given_bodies):
    last = keep.last_position("log")
    placed = keep.append("log", given_bodies, 7)
    assert [block.body for block in placed] == [body for _count, body in given_bodies]
    assert keep.read_after("log", last) == placed


@pytest.mark.parametrize("data", ODD_DATA, ids=lambda data: repr(data[:12]))
def test_what_postgres_would_refuse_as_json_is_not_given_to_it_as_json(data):
    assert plain_json(data) is None


@given(data=datas)
def test_what_is_called_plain_is_json_for_postgres(keep, data):
    text = plain_json(data)
    if text is not None:
        with keep.connections.use() as connection:
            assert connection.execute("SELECT %s::text::jsonb IS NOT NULL", (text,)).fetchone()


def test_ids_that_look_like_odd_numbers_stay_plain():
    data = b'{"id": "0198c7e-12345-7e-99999", "n": 7e-5}'
    assert plain_json(data) == data.decode()
