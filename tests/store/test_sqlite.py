"""SQLite's own troubles come out as Rapport's errors; several threads may call. [CH-13]"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable
from rapport.store.base import Put
from rapport.store.sqlite import SqliteRecordStore


def test_a_file_that_is_no_database_is_called_damaged(tmp_path):
    path = tmp_path / "records.sqlite"
    path.write_bytes(b"this is not a database, it is a letter to my aunt" * 100)
    with pytest.raises(Corrupt) as refused:
        SqliteRecordStore(path)
    assert str(path) in refused.value.message
    assert refused.value.hint


def test_a_directory_that_does_not_exist_is_unavailable(tmp_path):
    with pytest.raises(StoreUnavailable):
        SqliteRecordStore(tmp_path / "nowhere" / "records.sqlite")


def test_an_exception_inside_a_change_leaves_nothing(tmp_path):
    store = SqliteRecordStore(tmp_path / "records.sqlite")

    def fail_half_way() -> None:
        with store._database.change() as connection:
            connection.execute("INSERT INTO records VALUES ('t', 'k', x'00')")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()
    assert store.get("t", "k") is None
    store.put("t", "k", b"after")
    assert store.get("t", "k") == b"after"
    store.close()


def test_a_key_that_is_no_text_is_refused_when_asked_for(tmp_path):
    store = SqliteRecordStore(tmp_path / "records.sqlite")
    with pytest.raises(InvalidInput):
        store.get("t", "\ud800")
    with pytest.raises(InvalidInput):
        store.apply([Put("t", 5, b"")])
    store.close()


def test_threads_share_one_store(tmp_path):
    store = SqliteRecordStore(tmp_path / "records.sqlite")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put("t", f"{number:03d}", b"x"), range(100)))
        found = list(pool.map(lambda number: store.get("t", f"{number:03d}"), range(100)))
    assert found == [b"x"] * 100
    store.close()
