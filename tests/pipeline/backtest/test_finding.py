"""Which history is meant, and what is said when there is none. [PI-9]"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.core.errors import InvalidInput, SiteError
from rapport.core.times import parse_time
from rapport.pipeline.backtest.contenders import choose
from rapport.pipeline.backtest.find_history import check_history, find_history
from rapport.pipeline.backtest.pieces import Window
from rapport.site.site import Site, load_site

WEATHER = """
[concepts.station.attributes]
temperature = "number"
wind = "number"
[concepts.station.units]
temperature = "degC"
wind = "m/s"
[sources.temperatures]
concept = "station"
attribute = "temperature"
key = "station"
value = "temperature"
[sources.winds]
concept = "station"
attribute = "wind"
key = "station"
value = "wind"
[policies]
files = ["*.dpl"]
[peers.chief]
addresses = ["inbox:"]
[actions."call"]
send_to = "peer:chief"
text = "hot"
"""
HOT = "concepts\n  station S\nconditions\n  {}\nactions\n  call\n"


@pytest.fixture
def weather(tmp_path: Path) -> Site:
    (tmp_path / "site.toml").write_text(WEATHER)
    (tmp_path / "hot.dpl").write_text(HOT.format("temperature of S above 30 degC"))
    (tmp_path / "windy.dpl").write_text(HOT.format("wind of S above 5 m/s"))
    (tmp_path / "rec").mkdir()
    return load_site(tmp_path, policies=[])


def write(path: Path, *columns: str, unit: str = "") -> Path:
    metadata = {"unit": unit} if unit else None
    fields = [("id", pa.string()), ("time", pa.int64()), ("station", pa.string())]
    made = [pa.field(name, kind) for name, kind in fields]
    made += [pa.field(name, pa.float64(), metadata=metadata) for name in columns]
    values = [pa.array(["a", "b"]), pa.array([5, 9]), pa.array(["s", "s"])]
    values += [pa.array([31.0, 32.0])] * len(columns)
    pq.write_table(pa.table(values, schema=pa.schema(made)), path)
    return path


def test_files_of_a_folder_come_in_the_order_of_their_names(site: Site, week: Path) -> None:
    history = find_history(site, str(week / "history"))
    files = history.files()
    assert [file.path.name for file in files] == [f"2025-01-0{day}.parquet" for day in range(1, 8)]
    assert history.rows() == sum(file.rows or 0 for file in files)
    span = history.span()
    assert span is not None
    assert parse_time("2025-01-01") <= span[0] < span[1] < parse_time("2025-01-08")


def test_a_file_goes_to_every_source_whose_columns_it_has(weather: Site, tmp_path: Path) -> None:
    write(tmp_path / "rec" / "both.parquet", "temperature", "wind")
    history = find_history(weather, str(tmp_path / "rec"))
    assert [feed.name for feed in history.feeds] == ["temperatures", "winds"]
    assert history.streams() == {"station.temperature", "station.wind"}


def test_a_folder_can_be_named_after_its_source(weather: Site, tmp_path: Path) -> None:
    (tmp_path / "rec" / "winds").mkdir()
    write(tmp_path / "rec" / "winds" / "1.parquet", "temperature", "wind")
    history = find_history(weather, str(tmp_path / "rec"))
    assert [feed.name for feed in history.feeds] == ["winds"]
    named = find_history(weather, f"temperatures={tmp_path / 'rec'}")
    assert [feed.name for feed in named.feeds] == ["temperatures"]


def test_a_policy_that_reads_other_streams_is_told_which_there_are(
    weather: Site, tmp_path: Path
) -> None:
    write(tmp_path / "rec" / "t.parquet", "temperature")
    history = find_history(weather, str(tmp_path / "rec"))
    plan = choose(weather, "windy", list).plan
    with pytest.raises(InvalidInput) as caught:
        check_history(history, [plan], None)
    assert caught.value.code == "backtest.other_streams"
    assert "station.wind" in caught.value.message
    assert caught.value.hint == "it has station.temperature"


def test_a_file_that_says_another_unit_is_refused(weather: Site, tmp_path: Path) -> None:
    write(tmp_path / "rec" / "t.parquet", "temperature", unit="degF")
    with pytest.raises(SiteError) as caught:
        find_history(weather, str(tmp_path / "rec"))
    (problem,) = caught.value.problems
    assert (problem.code, problem.file) == ("events.other_unit", "t.parquet")
    assert "degF" in problem.message
    assert "degC" in problem.message


def test_missing_columns_are_named_with_the_nearest_there_is(site: Site, tmp_path: Path) -> None:
    rows = pa.table({"id": ["1"], "time": [5], "persn": ["a"], "x": [1.0], "y": [2.0]})
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(SiteError) as caught:
        find_history(site, str(tmp_path))
    (problem,) = caught.value.problems
    assert (problem.code, problem.hint) == ("events.missing_column", "did you mean 'persn'?")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all"])
def test_every_broken_file_is_named(site: Site, week: Path, tmp_path: Path, content: bytes) -> None:
    shutil.copytree(week / "history", tmp_path / "history")
    for name in ("2025-01-03.parquet", "2025-01-05.parquet"):
        (tmp_path / "history" / name).write_bytes(content)
    with pytest.raises(SiteError) as caught:
        find_history(site, str(tmp_path / "history"))
    assert [one.file for one in caught.value.problems] == [
        "2025-01-03.parquet",
        "2025-01-05.parquet",
    ]
    assert {one.code for one in caught.value.problems} == {"events.bad_file"}


def test_a_half_written_file_is_told_with_its_name(site: Site, week: Path, tmp_path: Path) -> None:
    whole = (week / "history" / "2025-01-03.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SiteError, match=r"half\.parquet"):
        find_history(site, str(tmp_path))


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: None, "backtest.no_history"),
        (lambda path: path.mkdir(), "backtest.no_files"),
        (lambda path: (path.mkdir(), (path / "notes.txt").write_text("x")), "backtest.no_files"),
    ],
)
def test_a_place_without_history_is_refused(site: Site, tmp_path: Path, make, code: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "there")
    with pytest.raises(InvalidInput) as caught:
        find_history(site, str(tmp_path / "there"))
    assert caught.value.code == code
    assert caught.value.hint


def test_a_site_without_a_lake_says_how_to_get_one(site: Site) -> None:
    with pytest.raises(InvalidInput) as caught:
        find_history(site, None)
    assert caught.value.code == "backtest.no_lake"


def test_a_period_without_data_says_from_when_to_when_there_are_some(
    site: Site, week: Path
) -> None:
    history = find_history(site, str(week / "history"))
    plan = choose(site, "alone", list).plan
    asked = Window(parse_time("2024-01-01"), parse_time("2024-02-01"))
    with pytest.raises(InvalidInput) as caught:
        check_history(history, [plan], asked)
    assert caught.value.code == "backtest.empty_period"
    assert "2025-01-01" in caught.value.hint


def test_two_sources_with_the_same_columns_must_be_told_apart(tmp_path: Path) -> None:
    text = WEATHER + WEATHER[WEATHER.index("[sources.winds]") : WEATHER.index("[policies]")]
    text = text[::-1].replace("[sources.winds]"[::-1], "[sources.others]"[::-1], 1)[::-1]
    (tmp_path / "site.toml").write_text(text)
    (tmp_path / "windy.dpl").write_text(HOT.format("wind of S above 5 m/s"))
    loaded = load_site(tmp_path, policies=[])
    file = write(tmp_path / "w.parquet", "wind")
    with pytest.raises(InvalidInput) as caught:
        find_history(loaded, str(file))
    assert caught.value.code == "replay.whose_events"
    assert len(find_history(loaded, f"others={file}").feeds) == 1
