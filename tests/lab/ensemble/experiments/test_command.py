"""`rapport ensemble experiment`: files, resuming, refusals."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from rapport.cli.pipeline import query, tables
from rapport.core.errors import InvalidInput, StoreUnavailable, UnknownName
from rapport_lab.commands.experiment_command import drawn, experiment, page
from rapport_lab.ensemble.experiments.catalogue import EXPERIMENTS
from rapport_lab.ensemble.experiments.report import Box, Boxes, Curves, Report, Statement, Table


def test_an_experiment_leaves_rows_plots_and_a_page(tmp_path: Path, capsys: object) -> None:
    experiment("rumours", quick=True, out=tmp_path, processes=1)
    rows = pa_csv.read_csv(tmp_path / "rumours.csv")
    assert rows.num_rows == len(EXPERIMENTS["rumours"].points(True, 1))
    ElementTree.fromstring((tmp_path / "rumours-rounds.svg").read_text())
    said = (tmp_path / "rumours.md").read_text()
    assert "| nodes | fan-out |" in said
    assert "![Rounds until everybody knows, fan-out 3](rumours-rounds.svg)" in said


def test_finished_points_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment("scenario", out=tmp_path, processes=1)
    first = (tmp_path / "scenario.csv").read_bytes()
    capsys.readouterr()

    def fails(point: object) -> None:
        raise AssertionError(point)

    never = msgspec.structs.replace(EXPERIMENTS["scenario"], run=fails)
    monkeypatch.setitem(EXPERIMENTS, "scenario", never)
    experiment("scenario", out=tmp_path / "again", lake=tmp_path / "lake", processes=1)
    assert (tmp_path / "again" / "scenario.csv").read_bytes() == first
    assert "2 of them finished before" in capsys.readouterr().err


def test_the_rows_are_a_table_that_the_commands_of_the_lake_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment("scenario", out=tmp_path, processes=1, json=True)
    told = msgspec.json.decode(capsys.readouterr().out)["experiments"][0]
    assert (told["lake"], told["table"]) == (str(tmp_path / "lake"), "gold/ensemble-scenario-1")
    assert tables(lake=tmp_path / "lake", json=True) == 0
    (one,) = msgspec.json.decode(capsys.readouterr().out)
    assert (one["name"], one["view"]) == ("gold/ensemble-scenario-1", "ensemble_scenario_1")
    sql = "SELECT count(*) AS n FROM ensemble_scenario_1"
    query(sql, lake=tmp_path / "lake", format="json")
    assert msgspec.json.decode(capsys.readouterr().out) == [{"n": one["rows"]}]


def test_a_site_has_the_rows_in_its_own_lake(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "site.toml").write_text('[site]\nname = "here"\n')
    experiment("scenario", out=tmp_path, site=tmp_path / "site", processes=1)
    assert tables("ensemble_scenario_1", site=tmp_path / "site", json=True) == 0


def test_as_json_the_report_is_told_with_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment("scenario", out=tmp_path, processes=1, json=True)
    told = msgspec.json.decode(capsys.readouterr().out)
    (one,) = told["experiments"]
    assert one["name"] == "scenario"
    assert one["files"] == ["scenario.csv", "scenario.md"]
    assert all(said["holds"] for said in one["report"]["statements"])


def test_a_grid_is_checked_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        experiment("all", grid=["probability=0.5"], out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        experiment("broadcast", out=tmp_path)
    with pytest.raises(InvalidInput):
        experiment("scenario", out=tmp_path, master="local[2]")
    with pytest.raises(InvalidInput):
        experiment("scenario", out=tmp_path, engine="spark", processes=2)
    with pytest.raises(InvalidInput):
        experiment("scenario", out=tmp_path, processes=0)
    with pytest.raises(InvalidInput):
        experiment("scenario", out=tmp_path, lake=tmp_path, site=tmp_path)
    with pytest.raises(InvalidInput):
        tables(lake=tmp_path / "none")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable) as refused:
        experiment("scenario", out=tmp_path / "file", lake=tmp_path / "lake", processes=1)
    assert refused.value.code == "ensemble.results_unwritable"


def test_plots_are_svg_also_without_anything_to_show() -> None:
    box = Box("a < b", 1.0, 2.0, 3.0)
    for boxes in ((), (box,), (box,) * 60):
        plot = Boxes(name="x", title="Ages & more", up="seconds", boxes=boxes)
        assert "Ages" in str(ElementTree.fromstring(drawn(plot)).findtext("{*}title"))
    curves = Curves(name="x", title="t", across="a", up="b", series={"one": [(0, 1), (1, 12_345)]})
    assert "12,345" in drawn(curves)


def test_a_statement_that_does_not_hold_stands_out() -> None:
    report = Report(
        tables=(Table("Times", ("a", "b"), (("1", "2"),)),),
        statements=(Statement("the sky is green", False),),
    )
    said = page(
        EXPERIMENTS["scenario"], pa.table({"seed": [2, 1, 2], "minutes": [0.5] * 3}), report
    )
    assert "3 rows; minutes 0.5; seed 1, 2." in said
    assert "**does not hold**: the sky is green" in said
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |" in said
