"""Reading a log that another process writes. [design 17]"""

from __future__ import annotations

import subprocess
import sys

from rapport.store.segment_store import SegmentLogReader, SegmentLogStore
from support.segment_frames import encode_frame


def last_bodies(reader: SegmentLogReader, position: int = 0) -> list[bytes]:
    return [block.body for block in reader.read_after("a", position, max_records=10**6)]


def test_a_reader_follows_a_writer_over_segments_and_trims(tmp_path):
    reader = SegmentLogReader(tmp_path)
    assert (reader.last_position("a"), reader.first_position("a"), reader.logs()) == (0, 1, [])
    store = SegmentLogStore(tmp_path, segment_bytes=1000)
    position = 0
    for number in range(60):
        store.append("a", [(1, b"%d" % number), (2, b"x" * 50)], number)
        found = reader.read_after("a", position)
        assert [block.first for block in found] == [position + 1, position + 2]
        position = found[-1].last
    store.trim("a", 100)
    assert reader.first_position("a") == store.first_position("a") > 1
    assert last_bodies(reader) == [block.body for block in store.read_after("a", 0)]
    assert reader.logs() == ["a"]
    store.close()
    assert reader.last_position("a") == 180
    reader.close()


def test_a_reader_begun_late_reads_closed_segments_with_and_without_index(tmp_path):
    store = SegmentLogStore(tmp_path, segment_bytes=500)
    for number in range(50):
        store.append("a", [(1, b"%d" % number * 10)], number)
    expected = [block.body for block in store.read_after("a", 0)]
    assert last_bodies(SegmentLogReader(tmp_path)) == expected
    for index in (tmp_path / "logs" / "a").glob("*.index"):
        index.unlink()
    before = sorted((tmp_path / "logs" / "a").iterdir())
    assert last_bodies(SegmentLogReader(tmp_path)) == expected
    assert sorted((tmp_path / "logs" / "a").iterdir()) == before
    store.close()


def test_an_unfinished_group_is_not_shown_until_it_is_whole(tmp_path):
    store = SegmentLogStore(tmp_path)
    store.append("a", [(1, b"one")], 0)
    reader = SegmentLogReader(tmp_path)
    assert last_bodies(reader) == [b"one"]
    segment = next((tmp_path / "logs" / "a").glob("*.log"))
    frames = [
        encode_frame(b"two", first=2, count=1, received=0, index=0, remaining=1),
        encode_frame(b"three", first=3, count=1, received=0, index=1, remaining=0),
    ]
    at = len(encode_frame(b"one", first=1, count=1, received=0))
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(frames[0])
        file.flush()
        assert last_bodies(reader) == [b"one"]
        file.write(frames[1][:-1])
        file.flush()
        assert last_bodies(reader) == [b"one"]
        file.write(frames[1][-1:])
        file.flush()
        assert last_bodies(reader) == [b"one", b"two", b"three"]


def test_damage_is_passed_over_and_reported(tmp_path):
    store = SegmentLogStore(tmp_path)
    for number in range(5):
        store.append("a", [(1, b"record %d" % number)], 0)
    segment = next((tmp_path / "logs" / "a").glob("*.log"))
    content = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(content.index(b"record 2"))
        file.write(b"REC")
    reader = SegmentLogReader(tmp_path)
    assert last_bodies(reader) == [b"record %d" % number for number in (0, 1, 3, 4)]
    assert "a damaged record" in reader.problems()[0].message
    store.close()


def test_another_process_reads_what_this_one_wrote(tmp_path):
    store = SegmentLogStore(tmp_path)
    store.append("a", [(3, b"abc")], 0)
    program = (
        "import sys; from pathlib import Path\n"
        "from rapport.store.segment_store import SegmentLogReader\n"
        "print(SegmentLogReader(Path(sys.argv[1])).read_after('a', 0)[0].body.decode())"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "abc\n"
    store.close()
