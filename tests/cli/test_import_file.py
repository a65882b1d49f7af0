from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.readonly import ReadOnlyChannels
from rapport.cli.local_site import read_channels
from rapport.cli.main import run
from rapport.core.event import Event
from rapport.kernel.toml import TomlFile
from support.processes.node import NodeProcess

CSV = (
    "REGIAO:;S\nCODIGO (WMO):;A801\nData;Hora UTC;TEMPERATURA (°C);UMIDADE (%)\n"
    "2026/01/01;0000 UTC;21,5;80\n2026/01/01;0100 UTC;22,0;79\n2026/01/01;0200 UTC;;78\n"
)


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    path = tmp_path / "inmet.csv"
    path.write_bytes(CSV.encode("latin-1"))
    return path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    directory = tmp_path / "site"
    assert run(["init", str(directory), "--template", "secure-building"]) == 0
    return directory


def raw_events(site: Path, source: str) -> list[Event]:
    async def read(channels: ReadOnlyChannels) -> list[Event]:
        return [stored.event for stored in await channels.channel(f"raw.{source}").read_after(0)]

    return read_channels(site, read)


def test_a_guess_goes_to_stdout_and_the_doubts_to_stderr(
    feed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", str(feed), "--guess"]) == 0
    said = capsys.readouterr()
    assert "[interpretations.inmet.types.Row]" in said.out
    assert '"TEMPERATURA (°C)" = { type = "degC", optional = true }' in said.out
    assert "# [concepts.inmet.units]" in said.out
    assert "TEMPERATURA (°C)" in said.err
    assert "│ temperature │" in said.err
    assert "latin-1" in said.err


def test_a_guess_for_a_site_speaks_of_its_concepts(
    feed: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (site / "site.toml").open("a") as file:
        file.write(
            '\n[concepts.weather.attributes]\ntemperature = "number"\n'
            '[concepts.weather.units]\ntemperature = "K"\n'
        )
    capsys.readouterr()
    assert run(["import", str(feed), "--guess", "--site", str(site)]) == 0
    said = capsys.readouterr()
    assert 'to = "weather"' in said.out
    assert '"TEMPERATURA (°C)" = "temperature"  # sure: the name says temperature' in said.out
    assert "[concepts." not in said.out.replace("[concepts.weather.attributes]", "")
    assert "3 rows as csv, about: weather" in said.err
    assert "│ temperature │" in said.err


def test_a_proposal_and_its_tables_pass_the_check_and_take_the_file(
    feed: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = site / "inmet.interpretation.toml"
    assert run(["import", str(feed), "--guess", "--site", str(site), "--out", str(out)]) == 0
    pasted = out.read_text().partition("# For site.toml")[2].splitlines()[1:]
    tables = "\n".join(line.removeprefix("#").removeprefix(" ") for line in pasted)
    with (site / "site.toml").open("a") as file:
        file.write(f'\n{tables}\n[interpretations]\nfiles = ["*.interpretation.toml"]\n')
    assert run(["check", "--site", str(site)]) == 0
    capsys.readouterr()
    assert run(["import", str(feed), "--site", str(site), "--source", "inmet"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"published": 3, "duplicates": 0}
    assert "read as" not in said.err


def test_a_guess_never_overwrites_a_file(
    feed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "inmet.interpretation.toml"
    arguments = ["import", str(feed), "--guess", "--source", "weather", "--out", str(out)]
    assert run(arguments) == 0
    assert "[interpretations.weather.mappings.rename]" in out.read_text()
    assert capsys.readouterr().out == ""
    assert run(arguments) == 2
    assert "import.exists" in capsys.readouterr().err


def test_rows_are_published_once_however_often_they_are_imported(
    feed: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _first_source(site)
    arguments = ["import", str(feed), "--source", source, "--site", str(site)]
    capsys.readouterr()
    for expected in ({"published": 3, "duplicates": 0}, {"published": 0, "duplicates": 3}):
        assert run(arguments) == 0
        assert json.loads(capsys.readouterr().out) == expected
    first, *_others = events = raw_events(site, source)
    assert len(events) == 3
    assert first.id.endswith(":1")
    assert first.payload() == {
        "REGIAO": "S",
        "CODIGO (WMO)": "A801",
        "Data": "2026/01/01",
        "Hora UTC": "0000 UTC",
        "TEMPERATURA (°C)": "21,5",
        "UMIDADE (%)": "80",
        "time": "2026/01/01 0000 UTC",
    }
    assert events[2].payload()["TEMPERATURA (°C)"] is None


def test_the_interpretation_of_the_source_says_how_the_file_is_read(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (site / "site.toml").read_text()
    source = _first_source(site)
    name = TomlFile.load(site / "site.toml").values["sources"][source]["interpretation"]
    assert name in text
    (site / "site.toml").write_text(
        text.replace(
            f"[interpretations.{name}]",
            f'[interpretations.{name}]\nformat = {{ name = "csv", columns = ["a", "b"] }}',
        )
    )
    (tmp_path / "rows.csv").write_text("x,1\ny,2\n")
    arguments = ["import", str(tmp_path / "rows.csv"), "--source", source, "--site", str(site)]
    assert run(arguments) == 0
    assert [event.payload() for event in raw_events(site, source)] == [
        {"a": "x", "b": "1"},
        {"a": "y", "b": "2"},
    ]
    capsys.readouterr()


def test_a_format_may_stand_in_a_yaml_file_above_the_interpretation(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "feeds.yaml").write_text(
        "interpretations:\n  feeds:\n    parent: root\n    format: { name: csv, columns: [a, b] }\n"
        "  feeds/one:\n    types: { Row: { a: text } }\n"
    )
    text = (site / "site.toml").read_text()
    source = _first_source(site)
    name = TomlFile.load(site / "site.toml").values["sources"][source]["interpretation"]
    text = text.replace(f'interpretation = "{name}"', 'interpretation = "feeds/one"')
    assert "[interpretations]\n" not in text
    (site / "site.toml").write_text(text + '\n[interpretations]\nfiles = ["feeds.yaml"]\n')
    (tmp_path / "rows.csv").write_text("x,1\n")
    arguments = ["import", str(tmp_path / "rows.csv"), "--source", source, "--site", str(site)]
    assert run(arguments) == 0
    assert [event.payload() for event in raw_events(site, source)] == [{"a": "x", "b": "1"}]
    (site / "feeds.yaml").write_text("a: *b\n")
    capsys.readouterr()
    assert run(arguments) != 0
    assert "yaml.alias" in capsys.readouterr().err


def test_json_lines_stay_as_they_are(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n{"a": {"b": [2]}}\n')
    source = _first_source(site)
    arguments = ["import", str(tmp_path / "rows.jsonl"), "--source", source, "--site", str(site)]
    assert run(arguments) == 0
    assert [event.payload() for event in raw_events(site, source)] == [{"a": 1}, {"a": {"b": [2]}}]
    assert "read as json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ([], "cli.wrong_use"),
        (["--source", "nobody"], "name.unknown"),
        (["--guess", "--format", "cvs"], "format.unknown"),
        (["--guess", "--option", "delimiter"], "cli.wrong_use"),
        (["--guess", "--option", "delimeter=;", "--format", "csv"], "format.unknown_option"),
    ],
)
def test_wrong_use_is_said_with_a_code(
    feed: Path, site: Path, extra: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", str(feed), "--site", str(site), *extra]) == 2
    assert code in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "nothing.csv", "--guess"]) == 2
    assert "cli.no_file" in capsys.readouterr().err


def test_a_file_with_a_bad_row_is_not_imported_at_all(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3\n")
    arguments = ["import", str(tmp_path / "rows.csv"), "--site", str(site)]
    assert run([*arguments, "--source", _first_source(site)]) == 2
    assert "line 3" in capsys.readouterr().err
    assert not (site / ".rapport").exists()


@pytest.mark.slow
def test_rows_go_through_the_node_when_one_runs(
    feed: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _first_source(site)
    with NodeProcess(site) as node:
        node.start()
        capsys.readouterr()
        assert node.doors is not None
        url = f"http://{node.doors[0]}:{node.doors[1]}"
        assert (
            run(["import", str(feed), "--source", source, "--site", str(site), "--url", url]) == 0
        )
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["published"] == 3
    assert len(raw_events(site, source)) == 3


def _first_source(site: Path) -> str:
    sources: dict[str, Any] = TomlFile.load(site / "site.toml").values["sources"]
    return next(name for name, source in sources.items() if source.get("interpretation"))


def test_what_comes_out_of_a_pipe_is_imported_like_a_file(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`zcat lines.csv.gz | rapport import /dev/stdin`: it can be read only once."""
    lines = "02.03.2026 10:21:05.210;d1;E200-01;granted\n02.03.2026 10:21:06.210;d1;E200-02;no\n"
    (tmp_path / "lines.csv").write_text(lines)
    reading, writing = os.pipe()
    os.write(writing, lines.encode())
    os.close(writing)
    capsys.readouterr()
    assert run(["import", f"/dev/fd/{reading}", "--source", "doors", "--site", str(site)]) == 0
    os.close(reading)
    assert json.loads(capsys.readouterr().out) == {"published": 2, "duplicates": 0}
    same = ["import", str(tmp_path / "lines.csv"), "--source", "doors", "--site", str(site)]
    assert run(same) == 0
    assert json.loads(capsys.readouterr().out) == {"published": 0, "duplicates": 2}


@pytest.mark.parametrize("notify", [False, True])
def test_rows_are_history_and_nobody_is_notified_unless_that_is_asked_for(
    feed: Path, site: Path, capsys: pytest.CaptureFixture[str], notify: bool
) -> None:
    source = _first_source(site)
    words = ["import", str(feed), "--source", source, "--site", str(site)]
    assert run([*words, *["--notify"] * notify]) == 0
    events = raw_events(site, source)
    assert {event.headers.get("history") for event in events} == {"true"}
    assert {"notify" in event.headers for event in events} == {notify}
    told = "people are notified" if notify else "nobody is notified"
    assert f"imported as history: policies evaluate it when the node has read it; {told}" in (
        capsys.readouterr().err
    )


CSV_SITE = """
[site]
name = "x"
[concepts.tank.attributes]
level = "number"
[sources.tanks]
concept = "tank"
attribute = "level"
key = "tank"
value = "level"
[sources.numbered]
concept = "tank"
attribute = "level"
id = "n"
key = "tank"
value = "level"
"""


def test_rows_are_named_by_file_and_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal rows are two readings, a copy adds nothing, an appended file only its new rows."""
    (tmp_path / "site.toml").write_text(CSV_SITE)
    file, copy, other = (tmp_path / name for name in ("a.csv", "elsewhere.csv", "b.csv"))
    equal = "n,tank,level\n1,t1,5\n1,t1,5\n"
    file.write_text(equal)
    copy.write_bytes(equal.replace("\n", "\r\n").encode())
    other.write_text("n,tank,level\n2,t2,7\n1,t1,5\n")

    def imported(path: Path, source: str = "tanks") -> int:
        capsys.readouterr()
        words = ["import", str(path), "--source", source, "--site", str(tmp_path)]
        assert run([*words, "--format", "csv"]) == 0
        published: int = json.loads(capsys.readouterr().out)["published"]
        return published

    assert imported(file) == 2
    assert imported(file) == imported(copy) == 0
    file.write_text(equal + "1,t1,5\n1,t1,6\n")
    assert imported(file) == 2
    assert imported(other) == 2  # another file: its equal row is a reading of its own
    assert len(raw_events(tmp_path, "tanks")) == 6
    assert imported(file, "numbered") == 1  # here the site says what names a row
    assert imported(other, "numbered") == 1
