"""Recorded files: formats, places of faults, batches, and several files as one stream."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from rapport.core.errors import Problem, SiteError, Unsupported
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.recordings.files import merge_recordings, read_recorded

SOURCE = PushSource(
    name="positions", concept="person", attribute="position", time="ts", key="who", value=("x", "y")
)
FLAG = PushSource(name="doors", concept="door", attribute="open", key="door", value=("open",))
ONTOLOGY = Ontology(
    concepts={"person": {"position": "point"}, "door": {"open": "boolean"}},
    relationships={},
    sources={"positions": SOURCE, "doors": FLAG},
)


def read(
    path: Path, source: PushSource = SOURCE, batch: int = 10_000
) -> tuple[list[dict[str, Any]], list[Problem]]:
    problems: list[Problem] = []
    batches = read_recorded(path, source, ONTOLOGY, batch=batch, report=problems.append)
    return [row for rows in batches for row in rows.to_pylist()], problems


def written(folder: Path, text: str | bytes, name: str = "events.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def places(problems: list[Problem]) -> list[tuple[str, int, int]]:
    return [(problem.code, problem.line, problem.column) for problem in problems]


def test_csv_is_read_by_the_names_in_its_heading(tmp_path: Path) -> None:
    path = written(tmp_path, "who,y,more,x,ts,id\n05,2,?,1.5,7,e1\nann,4,?,-3,8,e2\n")
    rows, problems = read(path)
    assert problems == []
    assert rows[0] == {
        "time": 7,
        "id": "e1",
        "stream": "person.position",
        "source": "positions",
        "key": "05",
        "person.position.x": 1.5,
        "person.position.y": 2.0,
        "door.open.value": None,
    }
    assert rows[1]["person.position.x"] == -3.0


def test_iso_times_quotes_and_a_byte_order_mark_are_understood(tmp_path: Path) -> None:
    text = (
        '\ufeffid,ts,who,x,y\n"e,1",1970-01-01T00:00:01Z,é,1,2\n'
        "e2,1970-01-01T01:00:02+01:00,b,1,2\n"
    )
    rows, problems = read(written(tmp_path, text))
    assert problems == []
    assert [(row["id"], row["time"], row["key"]) for row in rows] == [
        ("e,1", 1_000, "é"),
        ("e2", 2_000, "b"),
    ]


def test_faulty_rows_are_reported_with_line_and_column_and_the_rest_goes_on(tmp_path: Path) -> None:
    lines = ["id,ts,who,x,y"]
    lines += [f"a{number},{number},p,1,2" for number in range(5)]
    lines += [
        "b,noon,p,1,2",
        "c,1,p,1;5,2",
        "",
        'd,1,p,"1,5",2',
        "e,1,,1,2",
        "f,1,p,1",
        "g,9,p,1,2",
    ]
    lines += ["h,1,p,nan,2", "i,1,p,1,inf", f"j,{2**61},p,1,2", ",1,p,1,2", "k,1,p,1_0,2"]
    rows, problems = read(written(tmp_path, "\n".join(lines) + "\n"))
    assert [row["id"] for row in rows] == ["a0", "a1", "a2", "a3", "a4", "g"]
    assert places(problems) == [
        ("events.bad_time", 7, 2),
        ("events.bad_number", 8, 4),
        ("events.bad_number", 10, 4),
        ("events.missing_value", 11, 3),
        ("events.bad_row", 12, 0),
        ("events.bad_number", 14, 4),
        ("events.bad_number", 15, 5),
        ("events.bad_time", 16, 2),
        ("events.missing_value", 17, 1),
        ("events.bad_number", 18, 4),
    ]
    assert "decimal" in problems[2].hint
    assert all(problem.file == "events.csv" for problem in problems)


@pytest.mark.slow
def test_a_fault_far_into_a_large_file_keeps_its_line(tmp_path: Path) -> None:
    lines = [f"e{number},{number},p,1,2" for number in range(120_000)]
    lines[110_000] = "bad,x,p,1,2"
    rows, problems = read(written(tmp_path, "id,ts,who,x,y\n" + "\n".join(lines)))
    assert len(rows) == 119_999
    assert places(problems) == [("events.bad_time", 110_002, 2)]
    assert [row["time"] for row in rows] == [n for n in range(120_000) if n != 110_000]


def test_bytes_that_are_not_utf8_are_a_fault_of_their_row(tmp_path: Path) -> None:
    rows, problems = read(written(tmp_path, b"id,ts,who,x,y\ne1,1,\xff,1,2\ne2,2,p,1,2\n"))
    assert [row["id"] for row in rows] == ["e2"]
    assert places(problems) == [("events.not_utf8", 2, 3)]


@pytest.mark.parametrize(
    ("name", "content", "code", "hint"),
    [
        ("events.csv", "id,ts,wo,x,y\n", "events.missing_column", "did you mean 'wo'?"),
        ("events.csv", "", "events.empty", "first line"),
        ("events.parquet", "nonsense", "events.bad_file", ""),
        ("events.xml", "<a/>", "events.unknown_format", ".csv"),
    ],
)
def test_a_file_that_cannot_be_read_at_all_is_refused(
    tmp_path: Path, name: str, content: str, code: str, hint: str
) -> None:
    with pytest.raises(SiteError) as caught:
        read(written(tmp_path, content, name))
    assert caught.value.problems[0].code == code
    assert hint in caught.value.problems[0].hint


def test_a_missing_file_and_a_source_with_an_interpretation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="cannot read"):
        read(tmp_path / "none.csv")
    foreign = PushSource(
        name="f",
        concept="person",
        attribute="position",
        key="k",
        value=("x", "y"),
        interpretation="i",
    )
    with pytest.raises(Unsupported):
        read(tmp_path / "none.csv", foreign)


def test_without_anybody_to_report_to_the_first_fault_ends_it(tmp_path: Path) -> None:
    path = written(tmp_path, "id,ts,who,x,y\ne1,?,p,1,2\n")
    with pytest.raises(SiteError, match="not a time"):
        list(read_recorded(path, SOURCE, ONTOLOGY))


def test_json_lines_are_read_by_field_or_dotted_path(tmp_path: Path) -> None:
    source = PushSource(
        name="p", concept="person", attribute="position", key="who", value=("at.x", "at.y")
    )
    text = (
        '{"id":1,"time":5,"who":7,"at":{"x":1,"y":2.5}}\n\n'
        '{"id":"b","time":"1970-01-01T00:00:01Z","who":"q","at":{"x":0,"y":0},"more":[1]}\n'
    )
    rows, problems = read(written(tmp_path, text, "events.jsonl"), source)
    assert problems == []
    assert [(row["id"], row["time"], row["key"]) for row in rows] == [
        ("1", 5, "7"),
        ("b", 1000, "q"),
    ]
    assert rows[0]["person.position.y"] == 2.5


def test_faulty_json_lines_are_reported(tmp_path: Path) -> None:
    lines = [
        '{"id":"a","ts":1,"who":"p","x":1,"y":2}',
        "{broken",
        '{"id":"b","ts":1,"who":"p","x":"one","y":2}',
        '{"id":"c","ts":1,"wo":"p","x":1,"y":2}',
        "[1]",
        '{"id":"d","ts":2.5,"who":"p","x":1,"y":2}',
        '{"id":"e","ts":true,"who":"p","x":1,"y":2}',
        '{"id":"f","ts":3,"who":"p","x":1,"y":2}',
    ]
    rows, problems = read(written(tmp_path, "\n".join(lines), "events.jsonl"))
    assert [row["id"] for row in rows] == ["a", "f"]
    assert places(problems) == [
        ("events.bad_row", 2, 0),
        ("events.bad_number", 3, 28),
        ("events.missing_column", 4, 0),
        ("events.bad_row", 5, 0),
        ("events.bad_time", 6, 11),
        ("events.bad_time", 7, 11),
    ]
    assert problems[2].hint == "did you mean 'wo'?"


def test_parquet_is_read_with_integer_iso_and_timestamp_times(tmp_path: Path) -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, 500_900, tzinfo=UTC)
    for times in ([1_500], ["1970-01-01T00:00:01.500Z"], [moment]):
        table = pa.table({"id": [9], "ts": times, "who": ["p"], "x": [1], "y": [2.5]})
        path = tmp_path / "events.parquet"
        pyarrow.parquet.write_table(table, path)
        rows, problems = read(path)
        assert problems == []
        assert (rows[0]["time"], rows[0]["id"], rows[0]["person.position.x"]) == (1_500, "9", 1.0)


def test_faulty_parquet_rows_are_reported(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["a", "b", None],
            "ts": [1, 2, 3],
            "who": ["p"] * 3,
            "x": [1, None, 3],
            "y": [2.0] * 3,
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "events.parquet")
    rows, problems = read(tmp_path / "events.parquet")
    assert [row["id"] for row in rows] == ["a"]
    assert places(problems) == [("events.missing_value", 2, 4), ("events.missing_value", 3, 1)]


WITHOUT_PANDAS = """
import sys
from pathlib import Path

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)

sys.meta_path.insert(0, NoPandas())
from rapport.policy.recordings.formats import parquet_batches
from rapport.policy.recordings.formats import FieldMapping
wanted = FieldMapping("id", "ts", "who", ("x", "y"), "point")
faults = []
for rows in parquet_batches(Path(sys.argv[1]), wanted, faults.append):
    print(rows.column("time").to_pylist(), [(one.code, one.line) for one in faults])
"""


def test_fine_times_beside_a_faulty_row_need_no_further_package(tmp_path: Path) -> None:
    """A node has no pandas; pyarrow asks for it where times are finer than Python's."""
    times = pa.array([1_500_900_001, 2_500_900_001], pa.timestamp("ns"))
    table = pa.table(
        {"id": ["a", "b"], "ts": times, "who": ["p"] * 2, "x": [1.0, None], "y": [2.0] * 2}
    )
    pyarrow.parquet.write_table(table, tmp_path / "events.parquet")
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path / "events.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[1500] [('events.missing_value', 2)]\n", done.stderr


def test_booleans_are_read_as_people_write_them(tmp_path: Path) -> None:
    text = "id,time,door,open\na,1,d,true\nb,2,d,False\nc,3,d,0\nd,4,d,yes\ne,5,d,maybe\n"
    rows, problems = read(written(tmp_path, text), FLAG)
    assert [row["door.open.value"] for row in rows] == [True, False, False, True]
    assert places(problems) == [("events.bad_value", 6, 4)]


@pytest.mark.parametrize("batch", [1, 2, 7, 100])
def test_batches_have_the_requested_size(tmp_path: Path, batch: int) -> None:
    text = "id,ts,who,x,y\n" + "".join(f"e{n},{n},p,1,2\n" for n in range(20))
    sizes = [
        len(rows) for rows in read_recorded(written(tmp_path, text), SOURCE, ONTOLOGY, batch=batch)
    ]
    assert sum(sizes) == 20
    assert all(size == batch for size in sizes[:-1])


def test_several_files_interleave_by_the_clock_of_each(tmp_path: Path) -> None:
    first = [(1, "a1"), (5, "a2"), (3, "a3"), (9, "a4"), (9, "a5")]
    second = [(2, "b1"), (5, "b2"), (8, "b3"), (20, "b4")]
    for batch in (1, 2, 100):
        files = [
            read_recorded(
                written(
                    tmp_path,
                    "id,ts,who,x,y\n" + "".join(f"{id},{time},p,1,2\n" for time, id in rows),
                    f"{name}.csv",
                ),
                SOURCE,
                ONTOLOGY,
                batch=batch,
            )
            for name, rows in (("first", first), ("second", second))
        ]
        merged = [
            id
            for rows in merge_recordings(files, batch=batch)
            for id in rows.column("id").to_pylist()
        ]
        assert merged == ["a1", "b1", "a2", "a3", "b2", "b3", "a4", "a5", "b4"]
