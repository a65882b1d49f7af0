"""Sorted runs of the history index, judged by a dictionary. [CH-4]"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rapport.store.history_index import (
    LAST_LEVEL,
    KeyFilter,
    MemoryHistory,
    SqliteHistory,
    build_run,
    id_key,
    id_keys,
    key_ranges,
    level_of,
    read_pieces,
)

COLLIDING = ("d486e40b55", "82a4a2d12a")
"""Two words of one key."""


def test_words_of_one_key_are_both_found_at_both_places(tmp_path):
    assert id_key(COLLIDING[0]) == id_key(COLLIDING[1])
    history = SqliteHistory(tmp_path / "h.sqlite")
    history.feed("a", [(1, COLLIDING)], 2)
    assert history.find(COLLIDING[0]) == history.find(COLLIDING[1]) == [("a", 1), ("a", 2)]
    history.close()


@given(st.lists(st.text(st.characters(), max_size=40) | st.from_regex(r"[a-c]{0,9}"), max_size=40))
def test_keys_made_together_are_those_made_one_by_one(ids):
    assert id_keys(ids).tolist() == [id_key(id) for id in ids]


@given(
    st.lists(st.tuples(st.sampled_from("ab\x00é漢\U0001f600"), st.integers(0, 300)), max_size=40)
)
def test_keys_of_ids_of_many_lengths_are_those_made_one_by_one(drawn):
    ids = [letter * length for letter, length in drawn]
    assert id_keys(ids).tolist() == [id_key(id) for id in ids]


def test_keys_of_ids_of_many_lengths_are_made_faster_than_one_by_one():
    ids = ["x" * (1 + number * 7 % 200) for number in range(5_000)]
    assert least_ns(lambda: id_keys(ids)) < least_ns(lambda: list(map(id_key, ids)))
    ids[17] = "ü"
    assert least_ns(lambda: id_keys(ids)) < least_ns(lambda: list(map(id_key, ids)))


def test_blocks_of_one_event_cost_no_more_than_their_keys_one_by_one():
    blocks = [(number, [f"gate-{number:09d}"]) for number in range(1, 10_001)]
    singly = least_ns(lambda: [id_key(id) for _first, ids in blocks for id in ids])
    assert least_ns(lambda: build_run(1, blocks, 0)) < 2 * singly


def least_ns(work: Callable[[], object]) -> int:
    """The least time that work took of some tries: others use the machine, too."""
    taken = []
    for _try in range(5):
        began = time.process_time_ns()
        work()
        taken.append(time.process_time_ns() - began)
    return min(taken)


def test_of_blocks_only_what_was_not_fed_yet_is_indexed():
    pieces = [[f"id-{place}-{number}" for number in range(3)] for place in range(6)]
    blocks = [(1 + 3 * place, ids) for place, ids in enumerate(pieces)]
    places = {id: first + at for first, ids in blocks for at, id in enumerate(ids)}
    for after in (0, 4, 6, 18):
        run = build_run(3, blocks, after)
        for id, position in places.items():
            assert list(run.find(id_key(id))) == ([(3, position)] if position > after else [])
        assert len(run) == 18 - after


def test_counted_ids_have_few_keys_in_common():
    keys = id_keys([f"reader/{number}" for number in range(200_000)])
    assert len(set(keys.tolist())) > 200_000 - 30  # some five of random ones


def test_a_run_that_is_cut_and_read_again_is_the_same():
    ids = [f"id-{number % 3_000}" for number in range(10_000)] + ["same"] * 5_000
    run = build_run(7, [(1, ids)], 0)
    pieces = list(run.pieces())
    again = read_pieces([body for _, body in pieces])
    assert again.keys.tolist() == run.keys.tolist()
    assert again.places.tolist() == run.places.tolist()
    assert len({first for first, _ in pieces}) == len(pieces) > 3
    assert list(again.find(id_key("same"))) == [(7, place) for place in range(10_001, 15_001)]
    assert list(again.find(id_key("id-2999"))) == [(7, 3_000), (7, 6_000), (7, 9_000)]


def test_marks_deny_no_key_that_is_there_and_most_that_are_not():
    marks = KeyFilter(build_run(1, [(1, [f"id-{number}" for number in range(5_000)])], 0).keys)
    assert all(marks.may_hold(id_key(f"id-{number}")) for number in range(5_000))
    assert sum(marks.may_hold(id_key(f"other-{number}")) for number in range(5_000)) < 1_500


def test_positions_that_are_gone_and_logs_that_are_forgotten_leave_with_a_merge():
    run = read_pieces(
        [body for log in (1, 2) for _, body in build_run(log, [(1, "abc")], 0).pieces()]
    )
    kept = run.only_kept({1: 3})
    assert [list(kept.find(id_key(each))) for each in "abc"] == [[], [], [(1, 3)]]
    assert len(run.only_kept({})) == len(build_run(1, [], 0).only_kept({1: 1})) == 0


def test_what_another_process_has_fed_is_not_fed_again(tmp_path):
    first, second = (SqliteHistory(tmp_path / "h.sqlite") for _ in range(2))
    first.feed("a", [(1, ["x", "y"])], 2)
    second.feed("a", [(1, ["x", "y", "y"]), (4, ["z"])], 4)
    first.feed("a", [(3, ["y"])], 3)
    for history in (first, second):
        assert history.find("y") == [("a", 2), ("a", 3)]
        assert history.fed("a") == 4
        history.close()


def test_an_index_of_an_earlier_version_begins_anew(tmp_path):
    with sqlite3.connect(tmp_path / "h.sqlite") as earlier:
        earlier.execute("CREATE TABLE logs (number INTEGER PRIMARY KEY, name TEXT, fed INTEGER)")
        earlier.execute("INSERT INTO logs VALUES (1, 'a', 9)")
    earlier.close()
    history = SqliteHistory(tmp_path / "h.sqlite")
    assert history.fed("a") == 0
    history.feed("a", [(1, ["x"])], 1)
    assert history.find("x") == [("a", 1)]
    history.close()


def test_runs_stay_few_and_nothing_is_lost_in_merging(tmp_path):
    history = SqliteHistory(tmp_path / "h.sqlite")
    for start in range(0, 30_000, 100):
        log = "ab"[start // 100 % 2]
        history.feed(log, [(start + 1, [f"id-{start + each}" for each in range(100)])], start + 100)
    with history._database.use() as connection:
        (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    assert runs < 8 * LAST_LEVEL
    for number in range(0, 30_000, 37):
        assert ("ab"[number // 100 % 2], number + 1) in history.find(f"id-{number}")
    history.prune("a", [(29_801, [""] * 100)])
    history.prune("b", [(29_901, [""] * 100)])
    with history._database.use() as connection:
        assert connection.execute("SELECT count(*) FROM pieces").fetchone() == (0,)
    history.close()


def test_levels_grow_with_the_size_up_to_the_last():
    levels = [level_of(1 << bits) for bits in range(24)]
    assert levels == sorted(levels)
    assert levels[-1] == levels[17] == LAST_LEVEL


steps = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["feed", "feed", "feed", "feed", "prune", "forget"]),
        st.lists(st.sampled_from([f"id-{number}" for number in range(9)]), max_size=12),
    ),
    max_size=60,
)


@given(steps)
def test_any_history_of_feeding_pruning_and_forgetting_finds_the_same_as_in_memory(taken):
    history, judge = SqliteHistory(Path(":memory:")), MemoryHistory()
    fed: dict[str, list[str]] = {}
    for log, what, ids in taken:
        known = fed.setdefault(log, [])
        if what == "feed":
            for index in (history, judge):
                index.feed(log, [(len(known) + 1, ids)], len(known) + len(ids))
            known += ids
        elif what == "prune":
            for index in (history, judge):
                index.prune(log, [(1, known[: len(known) // 2])])
        else:
            for index in (history, judge):
                index.forget(log)
            fed[log] = []
    for number in range(9):
        assert history.find(f"id-{number}") == judge.find(f"id-{number}")
    assert all(history.fed(log) == judge.fed(log) for log in "abc")
    history.close()


def test_a_large_merge_is_done_in_stretches_and_loses_no_key(tmp_path):
    ends = key_ranges(1_000_000)
    assert (ends[0][0], ends[-1][1]) == (0, 1 << 32)
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    history = SqliteHistory(tmp_path / "h.sqlite")
    for start in range(0, 120_000, 15_000):
        ids = [f"id-{number}" for number in range(start, start + 15_000)]
        history.feed("a", [(start + 1, ids)], start + 15_000)
    with history._database.use() as connection:
        assert connection.execute("SELECT size FROM runs").fetchall() == [(120_000,)]
    for number in range(0, 120_000, 997):
        assert ("a", number + 1) in history.find(f"id-{number}")
    history.close()
