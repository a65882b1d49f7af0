"""What SQLite leaves behind when the power goes: its files as they were, the end of its write-ahead
log cut or torn behind the last sync. Every change that had returned is there. [CH-13]

The files are copied while the store is at work, which is what a disk shows after a cut, and the
write-ahead log is shortened and overwritten behind what the last acknowledged change had written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rapport.kernel.clock import Chance
from rapport.store.base import Put
from rapport.store.history_index import SqliteHistory
from rapport.store.sqlite import SqliteRecordStore

WAL = "records.sqlite-wal"


def cut_copy(source: Path, target: Path, synced: int, chance: Chance) -> None:
    """The files after a cut: whole up to the last sync, anything behind it."""
    shutil.copytree(source, target)
    wal = target / WAL
    raw = bytearray(wal.read_bytes())
    del raw[chance.randint(synced, len(raw)) :]
    for at in range(synced, len(raw)):
        if chance.randint(0, 3) == 0:
            raw[at] = 0
    wal.write_bytes(raw)
    shm = target / "records.sqlite-shm"
    if shm.exists():
        shm.unlink()  # it is memory: a cut does not keep it


@pytest.mark.parametrize("seed", range(6))
def test_changes_that_returned_outlive_a_torn_write_ahead_log(tmp_path: Path, seed: int) -> None:
    chance, source = Chance(seed), tmp_path / "source"
    source.mkdir()
    store = SqliteRecordStore(source / "records.sqlite")
    for number in range(40):
        store.apply([Put("a", "n", str(number).encode()), Put("b", "n", str(number).encode())])
        synced = (source / WAL).stat().st_size
        if number % 8 == 7:
            store.apply([Put("a", "n", b"next"), Put("b", "n", b"next")])
            cut_copy(source, tmp_path / f"cut{number}", synced, chance)
            found = SqliteRecordStore(tmp_path / f"cut{number}" / "records.sqlite")
            pair = (found.get("a", "n"), found.get("b", "n"))
            assert pair in [(str(number).encode(),) * 2, (b"next",) * 2]
            found.close()
            store.apply([Put("a", "n", str(number).encode()), Put("b", "n", str(number).encode())])
    store.close()


def test_a_history_that_lost_its_end_is_fed_again_from_where_it_stands(tmp_path: Path) -> None:
    """It is synced seldom, because the log can feed it again: it must know how far it came."""
    history = SqliteHistory(tmp_path / "history.sqlite")
    history.feed("c", [(1, [f"e{n}" for n in range(1, 11)])], 10)
    shutil.copytree(tmp_path, tmp_path.with_name("cut"))
    history.feed("c", [(11, [f"e{n}" for n in range(11, 21)])], 20)
    history.close()
    for left in tmp_path.with_name("cut").glob("*-shm"):
        left.unlink()
    found = SqliteHistory(tmp_path.with_name("cut") / "history.sqlite")
    assert found.fed("c") == 10
    assert (found.find("e10"), found.find("e11")) == ([("c", 10)], [])
    found.close()
