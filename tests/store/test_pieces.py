"""The pieces of a log: what retention chooses among. [CH-14]"""

from __future__ import annotations

from itertools import pairwise

import pytest

from rapport.core.errors import StoreUnavailable
from rapport.store.history_index import MemoryHistory, SqliteHistory
from rapport.store.memory import MemoryLogStore
from rapport.store.segment_store import SegmentLogStore
from support.faults.disk import ForgetfulDisk


@pytest.fixture(params=["memory", "segments"])
def store(request, tmp_path):
    store = (
        MemoryLogStore()
        if request.param == "memory"
        else SegmentLogStore(tmp_path, segment_bytes=400)
    )
    yield store
    store.close()


def fill(store, blocks: int) -> None:
    for number in range(1, blocks + 1):
        store.append("c", [(2, b"x" * 100)], 1_000 * number)


def test_pieces_lie_end_to_end_and_know_their_times(store):
    assert (store.pieces("c", 5), store.kept_bytes("c")) == ([], 0)
    fill(store, 10)
    pieces = store.pieces("c", 100)
    assert (pieces[0].first, pieces[-1].last) == (1, 20)
    assert all(a.last + 1 == b.first for a, b in pairwise(pieces))
    assert (pieces[0].oldest, pieces[-1].newest) == (1_000, 10_000)
    assert all(one.oldest <= one.newest for one in pieces)
    assert sum(one.size for one in pieces) == store.kept_bytes("c")
    assert store.pieces("c", 2) == pieces[:2]


def test_bytes_are_counted_along_while_pieces_come_and_go(store):
    fill(store, 4)
    before = store.kept_bytes("c")
    fill(store, 8)
    assert store.kept_bytes("c") > before
    store.trim("c", 17)
    pieces = store.pieces("c", 100)
    assert sum(one.size for one in pieces) == store.kept_bytes("c")
    assert store.first_position("c") == pieces[0].first > 1


def test_a_closed_piece_can_go_and_positions_go_on(store):
    fill(store, 3)
    store.close_piece("c")
    store.close_piece("c")  # nothing new in it: no second one
    store.trim("c", 7)
    assert (store.first_position("c"), store.last_position("c")) == (7, 6)
    assert (store.pieces("c", 5), store.kept_bytes("c")) == ([], 0)
    assert store.read_after("c", 0) == []
    (block,) = store.append("c", [(1, b"y")], 1)
    assert block.first == 7
    assert [one.first for one in store.read_after("c", 0)] == [7]


def test_an_emptied_log_is_still_one_after_opening_again(tmp_path):
    store = SegmentLogStore(tmp_path, segment_bytes=400)
    fill(store, 3)
    store.close_piece("c")
    store.trim("c", 7)
    store.close()
    again = SegmentLogStore(tmp_path, segment_bytes=400)
    assert (again.logs(), again.last_position("c"), again.first_position("c")) == (["c"], 6, 7)
    again.close()


def test_a_segment_that_cannot_be_removed_is_kept_and_removed_later(tmp_path):
    disk = ForgetfulDisk()
    store = SegmentLogStore(tmp_path, files=disk, segment_bytes=400)
    fill(store, 8)
    remove, disk.remove = disk.remove, _refuse
    with pytest.raises(StoreUnavailable):
        store.trim("c", 9)
    assert store.first_position("c") == 1
    assert len(store.read_after("c", 0)) == 8
    disk.remove = remove
    store.trim("c", 9)
    assert store.first_position("c") > 1
    store.close()


def _refuse(_path):
    raise PermissionError(1, "no")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_pruned_ids_are_off_the_index_and_their_namesakes_are_not(kind, tmp_path):
    index = MemoryHistory() if kind == "memory" else SqliteHistory(tmp_path / "history.sqlite")
    index.feed("a", [(1, ["x", "y", "x"])], 3)
    index.feed("b", [(1, ["x"])], 1)
    index.prune("a", [(1, ["x", "y"])])
    assert index.find("x") == [("a", 3), ("b", 1)]
    assert index.find("y") == []
    assert index.fed("a") == 3
    index.prune("unknown", [(1, ["x"])])
    index.close()


def test_what_is_closed_shares_no_piece_with_what_comes_next(store):
    assert store.closed_end("c") == 0
    fill(store, 10)
    closed = store.closed_end("c")
    assert 0 < closed < 20
    assert closed in [one.last for one in store.pieces("c", 100)]
    store.close_piece("c")
    assert store.closed_end("c") == 20
    fill(store, 1)
    assert store.closed_end("c") == 20
    store.trim("c", 23)
    assert store.closed_end("c") == 20
