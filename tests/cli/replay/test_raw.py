"""`rapport replay` and `rapport why-not` over raw files: what was received gets the meaning it gets
live, and what cannot be used is told with its line. [ME-5, ME-7, ME-13, UX-3]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from rapport.channel.backends.local import open_memory
from rapport.cli.main import run
from rapport.core.errors import Problem, SiteError, Unsupported
from rapport.core.event import Event
from rapport.core.times import parse_time
from rapport.kernel.clock import ManualClock
from rapport.mediation.interpretations.repository import Repository
from rapport.mediation.reader import MediationReader
from rapport.policy.readings import split_events
from rapport.site.interpretations import source_bindings
from rapport.site.recordings import meanings_in_files, recordings_in_site
from rapport.site.site import load_site

Read = pytest.CaptureFixture[str]
HOT = """concepts
  station S
conditions
  temperature of S above 30 degC for 2 hours
actions
  call
"""
SITE = """
[concepts.station.attributes]
place = "text"
temperature = "number"
humidity = "number"
[concepts.station.units]
temperature = "degC"
humidity = "%"
[tables.stations]
concept = "station"
csv = "stations.csv"
key = "id"
columns = { place = "place" }
[peers.chief]
addresses = ["inbox:"]
[actions."call"]
send_to = "peer:chief"
text = "hot"
"""
CSV_FORM = """
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "inmet"
key = "x"
value = ["y"]
events = "janeiro.csv"
[interpretations.inmet]
time = { field = "when", format = "%d/%m/%Y %H:%M", zone = "UTC" }
identity = { field = "Estação" }
value = { field = "Temperatura (°F)", unit = "degF" }
[interpretations.inmet.format]
name = "csv"
delimiter = ";"
decimal = "comma"
encoding = "latin-1"
skip = 1
join = { when = "{Data} {Hora}" }
"""
JSON_FORM = """
[sources.garden]
concept = "station"
attribute = "temperature"
interpretation = "garden"
key = "who"
value = ["temp_f"]
id = "n"
time = "at"
events = "garden.jsonl"
[interpretations.garden]
identity = { field = "who" }
value = { field = "temp_f", unit = "degF" }
"""
TYPED_FORM = """
[sources.masts]
concept = "station"
attributes = ["temperature", "humidity"]
interpretation = "us"
events = "masts.jsonl"
[interpretations.us]
units = { "station.temperature" = "degF" }
"""


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[[str], Path]:
    def make(more: str) -> Path:
        (tmp_path / "site.toml").write_text(SITE + more, encoding="utf-8")
        (tmp_path / "stations.csv").write_text("id,place\nMorro São João,hill\n")
        (tmp_path / "hot.dpl").write_text(HOT)
        return tmp_path

    return make


def weather(hours: int = 24, **replaced: str) -> bytes:
    """A day with a hot afternoon; `replaced`: other lines, by number (`line7=...`)."""
    lines = ["Instituto de Previsão", "Data;Hora;Estação;Temperatura (°F)"]
    for hour in range(hours):
        warm = "95,5" if 12 <= hour < 16 else "70,1"
        lines.append(f"01/02/2026;{hour:02}:00;Morro São João;{warm}")
    for name, line in replaced.items():
        lines[int(name.removeprefix("line")) - 1] = line
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")


def rows_of(site: Path, report: Callable[[Problem], None]) -> list[dict[str, object]]:
    loaded = load_site(site)
    return [
        row
        for item in recordings_in_site(loaded)
        for batch in item.batches(loaded.ontology, 7, report)
        for row in batch.to_pylist()
    ]


def unexpected(problem: Problem) -> None:
    raise AssertionError(problem)


def test_a_foreign_spreadsheet_is_replayed_as_it_was_saved(
    make_site: Callable[[str], Path], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    site = make_site(CSV_FORM)
    (site / "janeiro.csv").write_bytes(weather())
    assert run(["replay", "--site", str(site)]) == 0
    [found] = capsysbinary.readouterr().out.splitlines()
    assert json.loads(found) == {
        "policy": "hot",
        "time": 1769954400000,  # 2026-02-01T14:00
        "bindings": {"S": "Morro São João"},
        "causes": ["janeiro.csv:15"],  # the line of the row
    }


def test_rows_that_cannot_be_used_are_told_by_reason_with_their_lines(
    make_site: Callable[[str], Path], capsys: Read
) -> None:
    site = make_site(CSV_FORM)
    where = "Morro São João"
    (site / "janeiro.csv").write_bytes(
        weather(
            line5=f"01/02/2026;02:00;{where};quente",
            line7=f"01/02/2026;04:00;{where}",
            line8=f'01/02/2026;05:00;"{where}" !;70,0',
            line9=f"01/13/2026;06:00;{where};70,0",
            line10=f"01/13/2026;07:00;{where};70,0",
        )
    )
    assert run(["replay", "--site", str(site)]) == 1
    said = capsys.readouterr()
    assert '"time":1769954400000' in said.out  # the others count
    told = " ".join(said.err.split())
    assert "error[value.not_a_number] janeiro.csv:5:" in told
    assert "error[format.ragged_row] janeiro.csv:7: the row has 3 cells" in told
    assert "error[format.not_csv] janeiro.csv:8: the row is not CSV" in told
    assert "error[time.bad_time] janeiro.csv:9:" in told
    assert "(and 1 more rows: 10)" in told
    assert "5 rows could not be read" in told


def test_strict_stops_at_the_first_faulty_row(
    make_site: Callable[[str], Path], capsys: Read
) -> None:
    site = make_site(CSV_FORM)
    where = "Morro São João"
    (site / "janeiro.csv").write_bytes(
        weather(line5=f"01/02/2026;02:00;{where};quente", line7=f"01/02/2026;04:00;{where}")
    )
    assert run(["replay", "--site", str(site), "--strict"]) == 1
    said = capsys.readouterr()
    assert "janeiro.csv:5" in said.err
    assert "janeiro.csv:7" not in said.err
    assert said.out == ""


def test_metadata_and_sniffed_delimiters_survive_a_faulty_row(
    make_site: Callable[[str], Path],
) -> None:
    form = CSV_FORM.replace('delimiter = ";"', 'delimiter = "sniffed"\nmetadata = 1')
    site = make_site(form.replace('field = "Estação"', 'field = "ESTACAO"'))
    lines = weather(3, line4="broken").decode("latin-1").splitlines()
    lines.insert(1, "ESTACAO:;A701")
    (site / "janeiro.csv").write_bytes("\n".join(lines).encode("latin-1"))
    problems: list[Problem] = []
    rows = rows_of(site, problems.append)
    assert [row["key"] for row in rows] == ["A701", "A701"]
    assert [row["id"] for row in rows] == ["janeiro.csv:4", "janeiro.csv:6"]
    assert [(one.line, one.code) for one in problems] == [(5, "format.ragged_row")]


def test_json_lines_with_ids_and_times_of_their_own(make_site: Callable[[str], Path]) -> None:
    site = make_site(JSON_FORM)
    (site / "garden.jsonl").write_text(
        '{"n": "g1", "at": "2026-02-01T12:00:00Z", "who": "shed", "temp_f": 95}\n'
        "\n"
        '{"n": 2, "at": 1769954400000, "who": "shed", "temp_f": 86}\n'
        '{"who": "shed", "temp_f": 86}\n'
        '{"n": 3, "at": 1769954400001, "who": "shed"\n'
        '{"n": 4, "at": 1769954400001, "temp_f": 86}\n'
    )
    problems: list[Problem] = []
    rows = rows_of(site, problems.append)
    assert [(row["id"], row["time"], row["station.temperature.value"]) for row in rows] == [
        ("g1", 1769947200000, 35.0),
        ("2", 1769954400000, 30.0),
    ]
    assert [one.line for one in problems] == [4, 5, 6]
    assert problems[0].code == "events.no_time"


def test_whole_events_as_the_log_is_read_out(make_site: Callable[[str], Path]) -> None:
    site = make_site(JSON_FORM)
    event = {
        "position": 4,
        "received": 5,
        "specversion": "1.0",
        "id": "e1",
        "source": "elsewhere",
        "type": "garden.raw",
        "time": "2026-02-01T12:00:00Z",
        "data": {"who": "shed", "temp_f": 95},
    }
    (site / "garden.jsonl").write_bytes(msgspec.json.encode(event) + b"\n")
    [row] = rows_of(site, unexpected)
    assert (row["id"], row["time"], row["source"]) == ("e1", 1769947200000, "garden")
    assert row["station.temperature.value"] == 35.0


@pytest.mark.parametrize("form", ["list", "parquet"])
def test_other_files_of_objects(make_site: Callable[[str], Path], form: str) -> None:
    site = make_site(JSON_FORM.replace("garden.jsonl", f"garden.{form}"))
    rows = [
        {"n": f"g{place}", "at": 1769947200000 + place, "who": "shed", "temp_f": 95}
        for place in range(3)
    ]
    path = site / f"garden.{form}"
    if form == "list":
        path.write_text(json.dumps(rows, indent=2))
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    assert [row["id"] for row in rows_of(site, unexpected)] == ["g0", "g1", "g2"]


def test_a_typed_interpretation_gives_several_attributes(make_site: Callable[[str], Path]) -> None:
    site = make_site(TYPED_FORM)
    (site / "masts.jsonl").write_text(
        '{"key": "m1", "time": 1769947200000, "temperature": 95, "humidity": 20}\n'
        '{"key": "m1", "time": 1769947260000, "temperature": "warm", "humidity": 20}\n'
        '{"key": "m1", "time": 1769947320000, "humidity": 21}\n'
    )
    problems: list[Problem] = []
    rows = rows_of(site, problems.append)
    assert [(row["id"], row["stream"]) for row in rows] == [
        ("masts.jsonl:1/temperature", "station.temperature"),
        ("masts.jsonl:1/humidity", "station.humidity"),
        ("masts.jsonl:3/humidity", "station.humidity"),
    ]
    assert rows[0]["station.temperature.value"] == 35.0
    assert [one.line for one in problems] == [2]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "events.empty"),
        ("Instituto\nData;Data\n1;2\n".encode("latin-1"), "format.bad_heading"),
    ],
)
def test_a_file_that_cannot_be_read_at_all_is_refused(
    make_site: Callable[[str], Path], text: bytes, code: str
) -> None:
    site = make_site(CSV_FORM)
    (site / "janeiro.csv").write_bytes(text)
    with pytest.raises(SiteError) as refused:
        rows_of(site, unexpected)
    assert refused.value.problems[0].code == code


def test_a_missing_file_is_named(make_site: Callable[[str], Path], capsys: Read) -> None:
    assert run(["replay", "--site", str(make_site(CSV_FORM))]) == 1
    assert "janeiro.csv" in capsys.readouterr().err


def test_a_text_in_another_encoding_is_refused_with_what_to_declare(
    make_site: Callable[[str], Path],
) -> None:
    site = make_site(CSV_FORM.replace("latin-1", "utf-8"))
    (site / "janeiro.csv").write_bytes(weather())
    with pytest.raises(SiteError) as refused:
        rows_of(site, unexpected)
    assert refused.value.problems[0].code == "format.not_text"


def test_what_depends_on_other_sources_is_refused(make_site: Callable[[str], Path]) -> None:
    moving = """
[interpretations.us.conversions.there]
from = "text"
to = "text"
context = { concept = "station", attribute = "place" }
"""
    site = make_site(TYPED_FORM + moving)
    (site / "masts.jsonl").write_text('{"key": "m1", "time": 1, "humidity": 20}\n')
    loaded = load_site(site)
    assert loaded.faults == ()
    with pytest.raises(Unsupported, match="other sources"):
        recordings_in_site(loaded)


@pytest.mark.parametrize("form", [CSV_FORM, JSON_FORM, TYPED_FORM])
def test_readings_are_those_that_mediation_makes_live(
    make_site: Callable[[str], Path], form: str
) -> None:
    site = make_site(form)
    (site / "janeiro.csv").write_bytes(weather())
    lines = [
        {"n": str(n), "at": n, "time": n, "who": "w", "key": "w", "temp_f": n, "temperature": n}
        for n in range(20)
    ]
    for name in ("garden.jsonl", "masts.jsonl"):
        (site / name).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    loaded = load_site(site)
    in_force = meanings_in_files(loaded)
    [item] = recordings_in_site(loaded)
    raws = raw_events(site / item.source.events, item.source.name)

    async def live() -> list[dict[str, object]]:
        # Of a node whose clock is not set yet: it compares no time with the arrival.
        channels, clock = open_memory(ManualClock(5)), ManualClock(5)
        bindings = source_bindings(loaded.ontology).values()
        reader = MediationReader(
            channels, bindings, Repository(in_force), clock, lookups=loaded.tables
        )
        await channels.channel(f"raw.{item.source.name}").append(raws)
        await reader.lane(item.source.name).step(timeout_ms=0)
        stored = await channels.channel("events").read_after(0, limit=1_000)
        rows, rejected = split_events([one.event for one in stored], loaded.ontology)
        assert rejected == []
        await channels.close()
        return list(rows.to_pylist())

    def without_ids(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return [{name: value for name, value in row.items() if name != "id"} for row in rows]

    found = rows_of(site, unexpected)
    assert len(found) >= 20
    assert without_ids(found) == without_ids(asyncio.run(live()))


def raw_events(path: Path, source: str) -> list[Event]:
    """A file as a door receives it: CSV whole, JSON line by line with its time in the envelope."""
    if path.suffix == ".csv":
        data = msgspec.json.encode(path.read_bytes().decode("latin-1"))
        headers = {"datacontenttype": "text/csv"}
        return [Event(source, "file", f"{source}.raw", "", 0, data, headers)]
    return [
        Event(source, str(n), f"{source}.raw", "", json.loads(line)["at"], line)
        for n, line in enumerate(path.read_bytes().splitlines())
    ]


def test_why_not_asks_raw_files_too(make_site: Callable[[str], Path], capsys: Read) -> None:
    site = make_site(CSV_FORM)
    (site / "janeiro.csv").write_bytes(weather(line7="broken"))
    asked = ["why-not", "hot", "--site", str(site), "--recorded", "--at", "2026-02-01T11:00:00Z"]
    assert run(asked) == 1
    said = capsys.readouterr().out
    assert "21.1667 degC is not > 30 degC" in said
    assert "1 rows of janeiro.csv could not be read, the first in line 7" in said


def test_stopping_and_going_on_notices_a_changed_interpretation(
    make_site: Callable[[str], Path], tmp_path: Path, capsys: Read
) -> None:
    site = make_site(CSV_FORM)
    (site / "janeiro.csv").write_bytes(weather())
    assert run(["replay", "--site", str(site), "--stop-after", "5"]) == 0
    assert run(["replay", "--site", str(site), "--resume"]) == 0
    assert '"time":1769954400000' in capsys.readouterr().out
    assert run(["replay", "--site", str(site), "--stop-after", "5"]) == 0
    make_site(CSV_FORM.replace('"degF"', '"K"'))
    assert run(["replay", "--site", str(site), "--resume"]) != 0
    assert "replay.changed" in capsys.readouterr().err


LOCAL_FORM = """
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "local"
events = "local.csv"
[interpretations.local]
format = "csv"
time = { field = "when", format = "iso8601" }
identity = { field = "station" }
value = { field = "t", unit = "degC" }
"""
LOCAL_TYPED_FORM = """
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "local"
events = "local.csv"
[interpretations.local]
format = "csv"
[interpretations.local.types.Row]
when = "text"
station = "text"
t = "degC"
[interpretations.local.conversions]
moment = { from = "text", to = "Time", parse-time = { format = "iso8601" } }
[[interpretations.local.mappings]]
from = "Row"
to = "station"
direction = "in"
rename = { when = "time", station = "key", t = "temperature" }
[[interpretations.local.rules]]
match = "Row.when"
convert = "moment"
"""


@pytest.mark.parametrize("form", [LOCAL_FORM, LOCAL_TYPED_FORM])
def test_rows_in_local_time_pass_the_repeated_hour_in_the_order_of_the_file(
    make_site: Callable[[str], Path], form: str
) -> None:
    """By the zone of the site, with 24:00 at the end of a day; hourly rows of two stations."""
    site = make_site('\n[site]\nzone = "Europe/Berlin"\n' + form)
    hours = ["2026-10-24T24:00", *(f"2026-10-25T{hour}" for hour in ("01:00", "02:00", "02:00"))]
    rows = [f"{hour},{name},20" for hour in [*hours, "2026-10-25T03:00"] for name in ("a", "b")]
    (site / "local.csv").write_text("when,station,t\n" + "\n".join(rows) + "\n")
    problems: list[Problem] = []
    (item,) = recordings_in_site(load_site(site))
    assert item.read is not None
    times = [
        time
        for batch in item.read(1_000, problems.append)
        for time in batch.column("time").to_pylist()
    ]
    start = parse_time("2026-10-24T22:00Z")
    assert times == [start + hour * 3_600_000 for hour in range(5) for _ in range(2)]
    assert problems == []
