"""`rapport backtest`: calendar, list, differences, explanations, page, plan, and what is refused.
[PI-9, UX-3]
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from rapport.channel.backends.local import open_embedded
from rapport.cli import backtest as backtest_progress
from rapport.cli.backtest_run import BacktestRequest, BacktestText, prepare
from rapport.cli.main import OK, PROBLEMS, WRONG_USE, run
from rapport.kernel.clock import SystemClock
from rapport.policy.engine.stream_steps import StreamPosition
from rapport.policy.lifecycle.registry import PolicyChange, change_event
from rapport.scenarios.year import Year, write_year

Read = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "site"
    write_year(directory, Year(readings=120_000, days=7, seed=8))
    return directory


@pytest.fixture
def site(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def slower(site: Path, tmp_path: Path) -> str:
    path = tmp_path / "slower.dpl"
    path.write_text((site / "alone.dpl").read_text().replace("actions", "  within 8 s\nactions"))
    return str(path)


def said(capsys: Read, *arguments: str, code: int = OK) -> tuple[str, str]:
    assert run(["backtest", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_people_see_a_calendar_hours_who_and_the_first_findings(site: Path, capsys: Read) -> None:
    out, err = said(capsys, "alone", "--history", "history", "--show", "2")
    lines = out.splitlines()
    assert lines[0].startswith("120,600 readings, 2025-01-01 ")
    assert "alone  45 detections on 3 days" in lines
    (month,) = [line for line in lines if line.startswith("  2025-01  ")]
    assert month == f"  2025-01  · · ██· · ▓▓██{' ' * 48}       45"
    assert any(line.startswith("  Fri      · ") for line in lines)
    assert any(line.startswith("  A  guest-") for line in lines)
    assert "  and 43 more; --show N, or all with --out FILE" in lines
    assert lines[-1].startswith("why: rapport backtest alone --history history --from 2025-01-03T")
    assert "readings in" in err


def test_the_command_it_names_explains_the_finding(site: Path, capsys: Read) -> None:
    out, _err = said(capsys, "alone", "--history", "history", "--show", "1")
    command = out.splitlines()[-1].removeprefix("why: rapport ")
    assert run(command.split()) == OK
    again = capsys.readouterr().out
    assert "alone  1 detection on 1 day" in again
    assert "Why alone fired" in again
    assert "✓ A is inside R" in again


def test_two_versions_are_compared_and_their_difference_explained(
    site: Path, slower: str, capsys: Read
) -> None:
    out, _err = said(capsys, "alone", "--history", "history", "--compare", slower, "--explain")
    compared = next(line for line in out.splitlines() if line.startswith("compared"))
    assert "0 only by slower.dpl (+)" in compared
    assert "  - 2025-01-0" in out
    assert "Why slower.dpl did not" in out
    assert "refuted by B = staff-" in out


def test_the_result_as_json_has_what_programs_need(site: Path, slower: str, capsys: Read) -> None:
    out, _err = said(capsys, "alone", "--history", "history", "--compare", slower, "--json")
    told = json.loads(out)
    assert [tally["label"] for tally in told["tallies"]] == ["alone", "slower.dpl"]
    assert told["tallies"][0]["detections"] == 45
    assert sum(told["tallies"][0]["days"].values()) == 45
    counts = told["comparison"]
    assert counts["both"] + counts["only_first"] == 45


def test_all_findings_are_what_replay_would_print(site: Path, tmp_path: Path, capsys: Read) -> None:
    out = tmp_path / "all.jsonl"
    said(capsys, "alone", "--history", "history", "--out", str(out))
    day = site / "history" / "2025-01-03.parquet"
    assert run(["replay", "--policy", "alone", "--events", str(day)]) == OK
    expected = capsys.readouterr().out
    assert out.read_text().startswith(expected)
    assert len(out.read_text().splitlines()) == 45


def test_a_page_is_written(site: Path, tmp_path: Path, capsys: Read) -> None:
    page = tmp_path / "report.html"
    _out, err = said(capsys, "alone", "--history", "history", "--report", str(page))
    assert f"report: {page}" in err
    assert page.read_text().startswith("<!DOCTYPE html>")
    said(capsys, "alone", "--history", "history", "--report", "/nowhere/x.html", code=WRONG_USE)


def test_a_dry_run_says_what_would_be_read_and_starts_nothing(site: Path, capsys: Read) -> None:
    options = ("--history", "history", "--engine", "spark", "--master", "local[2]", "--dry-run")
    out, err = said(capsys, "alone", *options, "--from", "2025-01-06")
    assert "where      Spark at local[2]" in out
    assert "of 120,600 rows" in out
    assert "slices of time" in out
    assert "history/2025-01-01.parquet  positions, " in out
    assert err == ""
    out, _err = said(capsys, "alone", *options, "--json")
    plan = json.loads(out)
    assert (plan["rows"], plan["rows_read"], len(plan["files"])) == (120_600, 120_600, 7)


def test_days_can_be_those_of_another_zone(site: Path, capsys: Read) -> None:
    out, _err = said(capsys, "alone", "--history", "history", "--zone", "Pacific/Auckland")
    assert "(Pacific/Auckland)" in out
    said(capsys, "alone", "--history", "history", "--zone", "Mars/Base", code=WRONG_USE)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("alon", "--history", "history"), "did you mean 'alone'?"),
        (("alone", "--history", "nowhere"), "there is no history at nowhere"),
        (("alone",), "the site has no lake yet"),
        (("alone", "--history", "history", "--from", "2025-02-01"), "no readings in this period"),
        (
            ("alone", "--history", "history", "--from", "2025-01-02", "--to", "2025-01-01"),
            "is not before --to",
        ),
        (("alone", "--history", "history", "--partitions", "3"), "--partitions is about Spark"),
        (("alone@abc", "--history", "history"), "there is no policy named 'alone'"),
        (("alone", "--history", "history", "--from", "yesterday"), "is not a time"),
    ],
)
def test_what_cannot_be_done_is_said(
    site: Path, capsys: Read, arguments: tuple[str, ...], told: str
) -> None:
    _out, err = said(capsys, *arguments, code=WRONG_USE)
    assert told in err.replace("\n", " ")


def test_a_policy_of_another_ontology_tells_its_faults(
    site: Path, tmp_path: Path, capsys: Read
) -> None:
    other = tmp_path / "fire.dpl"
    other.write_text(
        "concepts\n  station S\nconditions\n  heat of S above 3 degC\nactions\n  raise alarm\n"
    )
    arguments = ("alone", "--history", "history", "--compare", str(other))
    _out, err = said(capsys, *arguments, code=PROBLEMS)
    assert "fire.dpl:2" in err
    assert "station" in err


def test_rows_that_cannot_be_read_are_counted_and_told(
    site: Path, tmp_path: Path, capsys: Read
) -> None:
    rows = ["id,time,person,x,y"]
    rows += [f"e{n},{1_736_000_000_000 + n * 1000},guest-01,{n},{n}" for n in range(50)]
    rows[10:13] = ["e10,never,guest-01,1,1", "e11,1736000011000,,1,1", "e12,later,guest-01,1,1"]
    (tmp_path / "day.csv").write_text("\n".join(rows) + "\n")
    _out, err = said(capsys, "alone", "--history", str(tmp_path / "day.csv"), code=PROBLEMS)
    assert "day.csv:11" in err
    assert "(and 1 more rows)" in err


def test_a_broken_file_is_named_before_anything_runs(
    site: Path, tmp_path: Path, capsys: Read
) -> None:
    shutil.copytree(site / "history", tmp_path / "history")
    (tmp_path / "history" / "2025-01-02.parquet").write_bytes(b"PAR1 half")
    _out, err = said(capsys, "alone", "--history", str(tmp_path / "history"), code=PROBLEMS)
    assert "error[events.bad_file] 2025-01-02.parquet" in err


def test_a_version_on_record_is_compared_by_the_beginning_of_its_name(
    site: Path, tmp_path: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(site, tmp_path / "site")
    monkeypatch.chdir(tmp_path / "site")
    older = (site / "alone.dpl").read_text().replace("5m", "1m")
    changed = PolicyChange(
        what="registered",
        name="alone",
        place=StreamPosition(0, 0),
        number=1,
        by="test",
        version="0123456789ab",
        text=older,
    )

    async def record() -> None:
        channels = open_embedded(tmp_path / "site" / ".rapport" / "log", SystemClock())
        await channels.channel("policies").append([change_event(changed, "node", 1)])
        await channels.close()

    asyncio.run(record())
    out, _err = said(capsys, "alone", "--history", "history", "--compare", "alone@0123")
    assert "alone@0123  " in out
    compared = next(line for line in out.splitlines() if line.startswith("compared  45 found"))
    assert ", 0 only by alone (-)" in compared
    _out, err = said(
        capsys, "alone", "--history", "history", "--compare", "alone@ff", code=WRONG_USE
    )
    assert "there is no version of alone named 'ff'" in err


WEATHER = """
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.inmet]
concept = "station"
attribute = "temperature"
key = "Station"
value = "Temp"
interpretation = "inmet"
[interpretations.inmet]
identity = { field = "Station" }
time = { field = "When", format = "iso8601" }
value = { field = "Temp", unit = "degF" }
[interpretations.inmet.format]
name = "csv"
delimiter = ";"
[policies]
files = ["*.dpl"]
[peers.chief]
addresses = ["inbox:"]
[actions."call"]
send_to = "peer:chief"
text = "hot"
"""


def test_raw_files_get_their_meaning_first(tmp_path: Path, capsys: Read) -> None:
    (tmp_path / "site.toml").write_text(WEATHER)
    (tmp_path / "hot.dpl").write_text(
        "concepts\n  station S\nconditions\n  temperature of S above 30 degC for 2 hours\n"
        "actions\n  call\n"
    )
    (tmp_path / "raw").mkdir()
    for day in (1, 2):
        rows = ["Station;When;Temp"]
        rows += [
            f"Hill;2026-04-0{day}T{hour:02}:00:00Z;{90 if 10 < hour < 16 else 60}"
            for hour in range(24)
        ]
        (tmp_path / "raw" / f"day{day}.csv").write_text("\n".join(rows) + "\n")
    arguments = ("hot", "--site", str(tmp_path), "--history", str(tmp_path / "raw"))
    out, _err = said(capsys, *arguments, "--explain")
    assert "hot  2 detections on 2 days" in out
    assert "temperature of Hill = 32.2222 degC" in out
    out, _err = said(capsys, *arguments, "--from", "2026-04-02T13:00:00Z", "--explain")
    assert "hot  1 detection on 1 day" in out
    assert "✓ temperature of S > 30 degC for 2 h" in out


def test_a_bar_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(
        backtest_progress, "stderr", lambda: Console(file=seen, force_terminal=True, width=90)
    )
    with backtest_progress.progress_bar("back-test", 2_000_000) as progress:
        progress(1_000_000)
        progress(2_000_000)
    assert "2.0 M readings" in seen.getvalue()


def test_colours_add_nothing_that_signs_do_not_say(site: Path, capsys: Read) -> None:
    plain, _err = said(capsys, "alone", "--history", "history")
    seen = io.StringIO()
    prepared = prepare(BacktestRequest(directory=site, policy="alone", history="history"))
    told = prepared.run().told
    console = Console(file=seen, force_terminal=True, width=200, color_system="truecolor")
    BacktestText(told, prepared.calendar, console).show()
    without = re.sub(r"\x1b\[[0-9;]*m", "", seen.getvalue())
    assert "\x1b[" in seen.getvalue()
    assert without.splitlines()[:20] == plain.splitlines()[:20]
