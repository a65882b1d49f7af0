"""`rapport policy show`: stages as text and as drawings, to stdout or to a file."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from rapport.cli.main import run

SITE = Path(__file__).parents[2] / "data" / "checks" / "secure-building"
SHOW = ["policy", "show", "secure-building", "--site", str(SITE)]


@pytest.mark.parametrize("stage", ["tree", "plan"])
def test_the_tree_and_the_plan_are_drawn(
    stage: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run([*SHOW, "--stage", stage, "--svg"]) == 0
    drawn = capsysbinary.readouterr().out
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    target = tmp_path / "drawing.svg"
    assert run([*SHOW, "--stage", stage, "--svg", "--out", str(target)]) == 0
    assert target.read_bytes() == drawn
    assert capsysbinary.readouterr().out == b""


def test_a_stage_that_is_text_is_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SHOW, "--stage", "ecnf", "--svg"]) == 2
    assert "cli.not_drawn" in capsys.readouterr().err


def test_text_goes_to_a_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.txt"
    assert run([*SHOW, "--stage", "plan", "--out", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("policy secure-building\n")
    assert run([*SHOW, "--out", str(tmp_path / "no" / "file")]) == 2
    assert "cli.no_file" in capsys.readouterr().err
