"""Records in PostgreSQL: several threads and processes change them at the same time. [CH-13]"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rapport.core.errors import InvalidInput
from rapport.store.base import Delete, Put
from rapport.store.postgres_records import PostgresRecordStore

pytestmark = pytest.mark.slow


@pytest.fixture
def stores(postgres):
    opened = [PostgresRecordStore(postgres.dsn, schema=postgres.schema) for _ in range(2)]
    yield opened
    for store in opened:
        store.close()


def test_one_sees_what_the_other_wrote(stores):
    one, other = stores
    one.put("t", "k", b"1")
    assert other.get("t", "k") == b"1"
    other.delete("t", "k")
    assert one.find("t") == []


def test_changes_of_many_keys_never_mix(stores):
    keys = [f"{number:02d}" for number in range(20)]

    def write(number: int) -> None:
        order = keys if number % 2 else keys[::-1]  # so that they stand in each other's way
        value = b"%d" % number
        stores[number % 2].apply([Put("t", key, value) for key in order])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(40)))
    assert len({value for _key, value in stores[0].find("t")}) == 1


def test_a_change_that_fails_half_way_leaves_nothing(stores):
    store = stores[0]
    with pytest.raises(InvalidInput):
        store.apply([Put("t", "a", b"1"), Put("no\x00table", "b", b"2")])
    assert store.find("t") == []
    store.apply([Put("t", "a", b"1"), Delete("t", "a"), Put("t", "b", b"2")])
    assert store.find("t") == [("b", b"2")]


def test_what_is_no_text_is_refused_when_asked_for(stores):
    with pytest.raises(InvalidInput):
        stores[0].get("t", "\ud800")
    with pytest.raises(InvalidInput):
        stores[0].find("t\x00")
