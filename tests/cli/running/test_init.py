"""`rapport init`: where it can make a site, and what it says where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.cli.main import run


def test_a_new_site_has_no_errors(tmp_path: Path) -> None:
    assert run(["init", str(tmp_path / "new")]) == 0
    assert run(["check", "--site", str(tmp_path / "new")]) == 0


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_way_is_told(
    tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert run(["init", str(tmp_path / "taken" / below)]) == 2
    assert "error[init.cannot_write]" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    assert run(["init", str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
