"""A detection that only a back-test has found, explained from recorded files: by policy, identities
and time; of Parquet only what touches the time is read. [PO-11, PO-2]
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from rapport.cli.main import run
from rapport.policy.explain.evidence import NeededRange
from rapport.policy.replay.replay import RowFaults
from rapport.site.explain import FileReadings, FilesAround
from rapport.site.recordings import recordings_in_site
from rapport.site.site import load_site

Read = pytest.CaptureFixture[str]
FOUND = ("A=182", "R=53", "--at", "1005061")


def shown(capsys: Read, command: list[str], code: int = 0) -> str:
    capsys.readouterr()
    assert run(command) == code
    return capsys.readouterr().out


@pytest.fixture
def table(checks: Path) -> pa.Table:
    return pyarrow.csv.read_csv(checks / "secure-building" / "events.csv")


def explain(checks: Path, file: Path, *more: str) -> list[str]:
    site = str(checks / "secure-building")
    return [
        "explain",
        "--policy",
        "secure-building",
        *more,
        "--recorded",
        str(file),
        "--site",
        site,
    ]


@pytest.mark.parametrize("is_timestamp", [False, True])
def test_a_file_of_many_row_groups_gives_the_same_text(
    checks: Path, tmp_path: Path, capsys: Read, table: pa.Table, is_timestamp: bool
) -> None:
    if is_timestamp:
        times = table.column("ts").cast(pa.timestamp("ms")).cast(pa.timestamp("us", "UTC"))
        table = table.set_column(table.schema.get_field_index("ts"), "ts", times)
    file = tmp_path / "events.parquet"
    pq.write_table(table, file, row_group_size=500)
    by_csv = shown(capsys, explain(checks, checks / "secure-building" / "events.csv", *FOUND))
    assert "secure-building fired" in by_csv
    assert shown(capsys, explain(checks, file, *FOUND)) == by_csv


def around(
    checks: Path, file: Path, *, with_last: bool = False, lateness_ms: int = 2_000
) -> FileReadings:
    site = load_site(checks / "secure-building", refusing_policies=False)
    faults = RowFaults()
    files = FilesAround(
        site.ontology,
        NeededRange(1_040_000, 1_041_000),
        lateness_ms=lateness_ms,
        with_last=with_last,
        report=faults.report,
    )
    return files.read(recordings_in_site(site, [f"positions={file}"]))


@pytest.mark.parametrize("with_last", [False, True])
def test_row_groups_give_what_the_whole_file_gives(
    checks: Path, tmp_path: Path, table: pa.Table, with_last: bool
) -> None:
    file = tmp_path / "events.parquet"
    pq.write_table(table, file, row_group_size=700)
    whole = around(
        checks, checks / "secure-building" / "events.csv", with_last=with_last, lateness_ms=50
    )
    found = around(checks, file, with_last=with_last, lateness_ms=50)
    assert whole.readings
    assert (found.readings, found.late, found.last, found.first) == (
        whole.readings,
        whole.late,
        whole.last,
        whole.first,
    )


def test_only_row_groups_that_touch_the_time_are_read(
    checks: Path, tmp_path: Path, table: pa.Table
) -> None:
    file = tmp_path / "events.parquet"
    pq.write_table(table, file, row_group_size=500, compression="none")
    expected = around(checks, file).readings
    data = bytearray(file.read_bytes())
    with pq.ParquetFile(file) as opened:
        untouched = opened.metadata.row_group(0)
    first, last = untouched.column(0), untouched.column(untouched.num_columns - 1)
    begin, end = first.file_offset or 4, last.data_page_offset + last.total_compressed_size
    data[begin:end] = bytes(end - begin)
    file.write_bytes(bytes(data))
    assert around(checks, file).readings == expected


def test_a_row_that_comes_too_late_in_its_file_does_not_count_and_is_told(
    checks: Path, tmp_path: Path, capsys: Read, table: pa.Table
) -> None:
    """As a replay judges it."""
    found = table.filter(pc.equal(table.column("id"), _cause(checks, capsys)))
    rest = table.filter(pc.not_equal(table.column("id"), found.column("id")[0]))
    file = tmp_path / "events.parquet"
    pq.write_table(pa.concat_tables([rest, found]), file, row_group_size=500)
    answer = shown(capsys, explain(checks, file, *FOUND), code=1)
    assert "secure-building did not fire" in answer
    assert "too late to count" in answer


def _cause(checks: Path, capsys: Read) -> str:
    text = shown(capsys, explain(checks, checks / "secure-building" / "events.csv", *FOUND))
    return text.split("positions, ")[1].split()[0]


def test_a_row_that_cannot_be_read_is_told_with_its_line(
    checks: Path, tmp_path: Path, capsys: Read, table: pa.Table
) -> None:
    keys = table.column("person").cast(pa.string()).to_pylist()
    keys[3] = ""
    table = table.set_column(table.schema.get_field_index("person"), "person", pa.array(keys))
    file = tmp_path / "events.parquet"
    pq.write_table(table, file, row_group_size=500)
    answer = shown(capsys, explain(checks, file, *FOUND))
    assert "1 rows of events.parquet could not be read, the first in line 4" in answer


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["explain"], "explain.no_id"),
        (["explain", "a", "b"], "explain.no_id"),
        (["explain", "--policy", "secure-building", "A=182"], "explain.no_time"),
        (["explain", "abc", "--lake", "nowhere"], "lake.none"),
    ],
)
def test_wrong_questions_are_refused(
    checks: Path, capsys: Read, command: list[str], code: str
) -> None:
    assert run([*command, "--site", str(checks / "secure-building")]) == 2
    assert code in capsys.readouterr().err


@pytest.mark.parametrize(("at", "truth"), [(1704488313749, "unknown"), (1704488313750, "true")])
def test_a_situation_is_explained_from_all_recorded_readings_before(
    capsys: Read, at: int, truth: str
) -> None:
    """At 1704488313750 it begins: 2, which never had a temperature, has been silent for 30 s."""
    site = str(Path(__file__).parents[2] / "data" / "situations")
    asked = ["why-not", "freezer", "S=2", "--at", str(at), "--recorded", "--json", "--site", site]
    answer = json.loads(shown(capsys, asked, int(truth != "true")))
    situation = answer["situation"]
    assert (situation["truth"], situation["bindings"]) == (truth, {"S": "2"})
    silent = next(one for one in situation["atoms"] if one["atom"]["text"].startswith("silent"))
    assert silent["atom"]["truth"] == ("true" if truth == "true" else "false")
    assert run(["why-not", "freezer", "--at", str(at), "--recorded", "--site", site]) == 2
    assert "S=..." in capsys.readouterr().err
