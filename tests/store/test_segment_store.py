"""Segment files when things go wrong: full disks, failed syncs, torn tails, rot, second writers.
[CH-13]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.kernel.clock import Chance
from rapport.store.base import MAX_BODY_BYTES
from rapport.store.segment_files import HEADER_BYTES, decode_log_name, encode_log_name
from rapport.store.segment_store import SegmentLogStore
from support.faults.disk import ForgetfulDisk
from support.segment_frames import encode_frame

ROOT = Path("/store")
FIRST_SEGMENT = ROOT / "logs" / "a" / f"{1:020d}.log"


def open_on(disk: ForgetfulDisk, segment_bytes: int = 1_000_000) -> SegmentLogStore:
    return SegmentLogStore(ROOT, files=disk, segment_bytes=segment_bytes)


def fill(store: SegmentLogStore, count: int, size: int = 40) -> None:
    for number in range(store.last_position("a") + 1, store.last_position("a") + count + 1):
        store.append("a", [(1, b"%d " % number + b"x" * size)], number)


def numbers_in(store: SegmentLogStore) -> list[int]:
    return [int(block.body.split()[0]) for block in store.read_after("a", 0, max_records=10**6)]


# --- the disk says no ---------------------------------------------------------------------------


def test_an_append_on_a_full_disk_is_refused_whole_and_later_ones_work_again():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 3)
    for room in (0, 10, HEADER_BYTES + 5, 200):
        disk.full_after_bytes = room
        with pytest.raises(StoreUnavailable) as refused:
            store.append("a", [(1, b"4 " + b"y" * 100), (1, b"5 " + b"y" * 100)], 0)
        assert refused.value.code == "store.disk_full"
        assert refused.value.hint
        assert numbers_in(store) == [1, 2, 3]
        assert store.last_position("a") == 3
    disk.full_after_bytes = None
    fill(store, 2)
    store.close()
    assert numbers_in(open_on(disk)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("room", [0, 10, HEADER_BYTES + 5])
def test_a_first_append_that_is_refused_leaves_nothing_on_the_disk(room):
    disk = ForgetfulDisk()
    store = open_on(disk)
    disk.full_after_bytes = room
    with pytest.raises(StoreUnavailable):
        store.append("a", [(1, b"x" * 100)], 0)
    assert disk.names(ROOT / "logs") == []
    disk.full_after_bytes = None
    with pytest.raises(InvalidInput):
        store.append("a", [(1, bytes(MAX_BODY_BYTES + 1))], 0)
    assert (disk.names(ROOT / "logs"), store.logs()) == ([], [])
    fill(store, 2)
    disk.cut_power(Chance(1))
    assert numbers_in(open_on(disk)) == [1, 2]


def test_a_directory_whose_name_may_be_lost_is_not_kept_after_a_failed_sync():
    disk = ForgetfulDisk()
    store = open_on(disk)
    disk.failing_syncs = 1
    with pytest.raises(StoreUnavailable):
        fill(store, 1)
    assert disk.names(ROOT / "logs") == []
    fill(store, 2)
    disk.cut_power(Chance(1))
    assert numbers_in(open_on(disk)) == [1, 2]


def test_after_a_failed_sync_the_tail_is_not_trusted():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 3)
    disk.failing_syncs = 1
    with pytest.raises(StoreUnavailable) as refused:
        fill(store, 1)
    assert refused.value.code == "store.disk_failed"
    assert numbers_in(store) == [1, 2, 3]
    disk.failing_syncs = 2  # now the sync that follows the cut fails too
    with pytest.raises(StoreUnavailable):
        fill(store, 1)
    store.append("a", [(1, b"4 again")], 0)
    disk.cut_power(Chance(1))
    assert numbers_in(open_on(disk)) == [1, 2, 3, 4]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_what_a_failed_append_left_behind_never_comes_back(failing):
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 3)
    disk.failing_syncs = failing
    while disk.failing_syncs:
        with pytest.raises(StoreUnavailable):
            store.append("a", [(1, b"13 ghost")], 0)
    store.close()
    again = open_on(disk)
    assert numbers_in(again) == [1, 2, 3]
    assert again.problems() == []


def test_a_segment_that_cannot_be_begun_leaves_the_old_one_in_use():
    disk = ForgetfulDisk()
    store = open_on(disk, segment_bytes=300)
    fill(store, 4)
    disk.failing_syncs = (
        2  # that of the closed segment's index, which is no error, and that of the new name
    )
    with pytest.raises(StoreUnavailable):
        fill(store, 1)
    fill(store, 20)
    store.close()
    assert numbers_in(open_on(disk, segment_bytes=300)) == list(range(1, 25))


def test_the_operating_systems_refusal_is_reported_with_a_hint(tmp_path):
    if os.geteuid() == 0 and sys.platform == "linux":
        blocked = tmp_path / "file"
        blocked.write_text("not a directory")
        with pytest.raises(StoreUnavailable) as refused:
            SegmentLogStore(blocked)
    else:
        tmp_path.chmod(0o500)
        with pytest.raises(StoreUnavailable) as refused:
            SegmentLogStore(tmp_path / "store")
        tmp_path.chmod(0o700)
    assert refused.value.hint


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0, 10, HEADER_BYTES, HEADER_BYTES + 30])
def test_rot_in_the_middle_costs_one_record_and_is_reported(where):
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 10)
    store.close()
    offset = sum(HEADER_BYTES + len(b"%d " % n) + 40 for n in range(1, 4))
    disk.damage(FIRST_SEGMENT, offset + where, b"\xff\xfe\xfd")
    store = open_on(disk)
    assert numbers_in(store) == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    (problem,) = store.problems()
    assert problem.code == "log.damaged"
    assert f"{FIRST_SEGMENT} at offset {offset}" in problem.message
    assert store.read_after("a", 3, max_records=1)[0].first == 5
    fill(store, 1)
    store.close()
    assert numbers_in(open_on(disk)) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]


def test_rot_is_found_without_the_index_too():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 10)
    store.close()
    disk.remove(FIRST_SEGMENT.with_suffix(".index"))
    offset = 2 * (HEADER_BYTES + 42)
    disk.damage(FIRST_SEGMENT, offset + 3, b"\0\0\0")
    store = open_on(disk)
    assert numbers_in(store) == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert f"at offset {offset}" in store.problems()[0].message


def test_rot_in_the_last_record_is_not_mistaken_for_an_unfinished_write():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 3)
    store.close()
    disk.damage(FIRST_SEGMENT, 2 * (HEADER_BYTES + 42) + HEADER_BYTES, b"rot")
    store = open_on(disk)
    assert numbers_in(store) == [1, 2]
    assert store.last_position("a") == 3  # its position was given away once and is not given again
    assert store.append("a", [(1, b"4 ")], 0)[0].first == 4
    assert numbers_in(store) == [1, 2, 4]
    assert len(store.problems()) == 1


def test_an_unfinished_write_is_cut_and_its_bytes_are_kept():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 3)
    del store  # as if killed: nothing is closed
    disk.cut_power(Chance(0))
    end = 3 * (HEADER_BYTES + 42)
    torn = encode_frame(b"4 never acknowledged", first=4, count=1, received=0)[:-3]
    disk.damage(FIRST_SEGMENT, end, torn)
    store = open_on(disk)
    assert numbers_in(store) == [1, 2, 3]
    (problem,) = store.problems()
    assert "an unfinished write" in problem.message
    kept = FIRST_SEGMENT.with_suffix(f".cut-{end}")
    assert disk.content(kept) == torn
    fill(store, 1)
    assert numbers_in(store) == [1, 2, 3, 4]


def test_a_group_of_blocks_is_there_whole_or_not_at_all():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 2)
    del store
    disk.cut_power(Chance(0))
    frames = [
        encode_frame(b"%d " % n, first=n, count=1, received=0, index=n - 3, remaining=5 - n)
        for n in (3, 4, 5)
    ]
    end = 2 * (HEADER_BYTES + 42)
    disk.damage(FIRST_SEGMENT, end, b"".join(frames[:2]))
    assert numbers_in(open_on(disk)) == [1, 2]
    disk.cut_power(Chance(0))
    disk.damage(FIRST_SEGMENT, end, b"".join(frames))
    assert numbers_in(open_on(disk)) == [1, 2, 3, 4, 5]


def test_a_foreign_or_broken_index_is_made_again():
    disk = ForgetfulDisk()
    store = open_on(disk, segment_bytes=500)
    fill(store, 30)
    store.close()
    indexes = [name for name in disk.names(FIRST_SEGMENT.parent) if name.endswith(".index")]
    assert len(indexes) > 3
    for number, name in enumerate(indexes):
        disk.damage(FIRST_SEGMENT.parent / name, number % 9, b"????")
    store = open_on(disk, segment_bytes=500)
    assert numbers_in(store) == list(range(1, 31))
    assert store.problems() == []


def test_rot_in_a_closed_segment_is_passed_over_when_it_is_read():
    disk = ForgetfulDisk()
    store = open_on(disk, segment_bytes=500)
    fill(store, 30)
    disk.damage(FIRST_SEGMENT, HEADER_BYTES + 42 + 5, b"????")
    assert numbers_in(store) == [1, *range(3, 31)]
    assert len(store.problems()) == 1


def test_a_lost_segment_file_is_passed_over_and_reported():
    for opened_again in (False, True):
        disk = ForgetfulDisk()
        store = open_on(disk, segment_bytes=500)
        fill(store, 30)
        names = [name for name in disk.names(FIRST_SEGMENT.parent) if name.endswith(".log")]
        lost = FIRST_SEGMENT.parent / names[2]
        first, following = int(names[2][:20]), int(names[3][:20])
        disk.remove(lost)
        disk.remove(lost.with_suffix(".index"))
        if opened_again:
            store.close()
            store = open_on(disk, segment_bytes=500)
        expected = [number for number in range(1, 31) if not first <= number < following]
        for _time in range(2):
            assert numbers_in(store) == expected
            (problem,) = store.problems()
            assert "missing" in problem.message


def test_a_file_another_process_shortened_is_reported_and_its_positions_are_not_given_again():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 5)
    store.close()
    disk.open(FIRST_SEGMENT).truncate(3 * (HEADER_BYTES + 42) + 10)
    store = open_on(disk)
    assert numbers_in(store) == [1, 2, 3]
    assert store.problems()
    assert store.append("a", [(1, b"6 ")], 0)[0].first == 6
    assert numbers_in(store) == [1, 2, 3, 6]
    store.close()
    assert numbers_in(open_on(disk)) == [1, 2, 3, 6]


# --- one writer ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_writer_is_refused_with_the_holder_of_the_lock(tmp_path):
    store = SegmentLogStore(tmp_path / "store")
    attempt = (
        "import sys; from pathlib import Path\n"
        "from rapport.core.errors import StoreUnavailable\n"
        "from rapport.store.segment_store import SegmentLogStore\n"
        "try: SegmentLogStore(Path(sys.argv[1]))\n"
        "except StoreUnavailable as error: print(error.code, error.message)\n"
    )
    command = [sys.executable, "-c", attempt, str(tmp_path / "store")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert answer.startswith("store.locked")
    assert f"process {os.getpid()}" in answer
    with pytest.raises(StoreUnavailable):
        SegmentLogStore(tmp_path / "store")
    store.close()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


# --- names, sizes, room -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "raw.x-y_z", "..", ".", "A", "a/b", "%41", "ü", "a b", "~"])
def test_a_log_name_becomes_a_safe_file_name_and_back(name):
    encoded = encode_log_name(name)
    assert decode_log_name(encoded) == name
    assert encoded == encoded.lower() or "%" in encoded
    assert not encoded.startswith(".")
    assert "/" not in encoded


@pytest.mark.parametrize("name", ["", "x" * 201, "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(InvalidInput):
        encode_log_name(name)


def test_a_block_too_large_for_a_frame_is_refused():
    store = open_on(ForgetfulDisk())
    with pytest.raises(InvalidInput):
        store.append("a", [(1, bytes(MAX_BODY_BYTES + 1))], 0)


def test_reserved_room_is_given_back_at_close(tmp_path):
    store = SegmentLogStore(tmp_path)
    fill(store, 2)
    segment = tmp_path / "logs" / "a" / f"{1:020d}.log"
    assert 16_000 < segment.stat().st_size < 40_000  # a small log reserves little
    store.close()
    assert segment.stat().st_size == 2 * (HEADER_BYTES + 42)


def test_room_is_reserved_as_a_log_grows(tmp_path):
    store = SegmentLogStore(tmp_path)
    segment = tmp_path / "logs" / "a" / f"{1:020d}.log"
    used = 0
    for size in (100, 100_000, 10_000_000, 100):
        fill(store, 1, size)
        used = store.kept_bytes("a")
        assert used <= segment.stat().st_size <= used + min(max(used, 16_384), 4 * 1024 * 1024)
    store.close()
    assert segment.stat().st_size == used


def test_logs_beyond_the_open_files_are_written_by_turns(tmp_path):
    if not Path("/proc/self/fd").exists():
        pytest.skip("looks into /proc")
    before = len(os.listdir("/proc/self/fd"))
    store = SegmentLogStore(tmp_path, most_open=3)
    names = [f"log{number}" for number in range(20)]
    for turn in range(3):
        for name in names:
            store.append(name, [(1, b"%d" % turn)], 0)
            assert len(os.listdir("/proc/self/fd")) <= before + 4  # three files and the lock
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before
    again = SegmentLogStore(tmp_path, most_open=3)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for name in names:
        assert [block.body for block in again.read_after(name, 0)] == [b"0", b"1", b"2"]
    again.close()


def test_a_log_that_was_only_read_is_closed_without_a_write():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 2)
    store.close()
    again = open_on(disk)
    assert numbers_in(again) == [1, 2]
    before = disk.syncs
    again.close()
    assert disk.syncs == before


def test_one_append_syncs_once_however_many_blocks():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 1)
    before = disk.syncs
    store.append("a", [(1, b"x")] * 50, 0)
    assert disk.syncs == before + 1


def test_files_of_other_names_are_left_alone(tmp_path):
    directory = tmp_path / "logs" / "a"
    directory.mkdir(parents=True)
    (directory / "notes.txt").write_text("mine")
    (directory / "x.log").write_text("mine")
    store = SegmentLogStore(tmp_path)
    assert store.logs() == []
    fill(store, 2)
    store.close()
    assert (directory / "notes.txt").read_text() == "mine"


def test_what_is_appended_behind_a_shortened_file_outlives_a_kill():
    """A copy of a running node's directory may hold an index that is newer than its log."""
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 10)
    store.close()
    file = disk.open(FIRST_SEGMENT)
    file.truncate(file.size() // 2)
    file.sync()
    file.close()
    store = open_on(disk)
    kept = numbers_in(store)
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) < 10
    fill(store, 2)
    assert numbers_in(store) == [*kept, 11, 12]
    disk.cut_power(Chance(1))  # nothing is closed, and no index saved
    store = open_on(disk)
    assert numbers_in(store) == [*kept, 11, 12]
    assert store.last_position("a") == 12


def test_a_shortened_file_is_not_written_before_its_index_says_so():
    disk = ForgetfulDisk()
    store = open_on(disk)
    fill(store, 10)
    store.close()
    file = disk.open(FIRST_SEGMENT)
    file.truncate(file.size() // 2)
    file.close()
    disk.full_after_bytes = 0
    with pytest.raises(StoreUnavailable) as refused:
        open_on(disk).last_position("a")
    assert refused.value.code == "store.disk_full"
