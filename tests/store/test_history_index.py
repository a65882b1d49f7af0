"""The history index, in SQLite and in memory: (log, id) to position. [CH-4]"""

from __future__ import annotations

import pytest

from rapport.store.history_index import MemoryHistory, SqliteHistory


@pytest.fixture(params=["sqlite", "memory"])
def history(request, tmp_path):
    made = SqliteHistory(tmp_path / "h.sqlite") if request.param == "sqlite" else MemoryHistory()
    yield made
    made.close()


def test_an_id_is_found_in_every_log_it_stands_in(history):
    history.feed("b", [(1, ["x", "y"]), (3, ["z"])], 3)
    history.feed("a", [(10, ["y", "y"])], 11)
    assert history.find("y") == [("a", 10), ("a", 11), ("b", 2)]
    assert history.find("z") == [("b", 3)]
    assert history.find("nobody") == []
    assert (history.fed("a"), history.fed("b"), history.fed("c")) == (11, 3, 0)


def test_feeding_again_changes_nothing(history):
    for _time in range(2):
        history.feed("a", [(1, ["x", "y"])], 2)
    assert history.find("y") == [("a", 2)]


def test_a_forgotten_log_is_fed_from_its_start(history):
    history.feed("a", [(1, ["x"])], 1)
    history.feed("b", [(1, ["x"])], 1)
    history.forget("a")
    assert history.fed("a") == 0
    assert history.find("x") == [("b", 1)]


@pytest.mark.parametrize("strange", ["", '"', "a\\b", "ü😀", "\u2028", "\x7f", "null", "007"])
def test_any_text_can_be_an_id(history, strange):
    history.feed("a", [(1, ["before", strange, "after"])], 3)
    assert history.find(strange) == [("a", 2)]


def test_the_index_in_a_file_outlives_a_restart(tmp_path):
    first = SqliteHistory(tmp_path / "h.sqlite")
    first.feed("a", [(1, [f"id-{number}" for number in range(5000)])], 5000)
    first.close()
    second = SqliteHistory(tmp_path / "h.sqlite")
    assert second.fed("a") == 5000
    assert second.find("id-4321") == [("a", 4322)]
    second.close()
